"""The screen's colours where a terminal has sixteen: by hue. Pure.

The nearest of the sixteen by distance made muted reds, greens and blues one white, and warm numbers as red as NaN. Red
is kept for what is wrong.
"""

from __future__ import annotations

import colorsys

_GREYS = ((0.16, 0), (0.56, 8), (0.9, 7), (1.01, 15))  # up to that brightness: black, grey, white, bright white
_HUES = ((75, 3), (160, 2), (200, 6), (255, 4), (335, 5), (361, 1))  # up to that angle: yellow … magenta, red


def ansi16(red: int, green: int, blue: int) -> int:
    """Number of the colour, 0 to 15."""
    hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
    angle = hue * 360
    if saturation < 0.25 or value < _GREYS[0][0]:
        return next(number for limit, number in _GREYS if value < limit)
    dark = next(number for limit, number in _HUES if angle < limit)
    if (angle < 12 or angle >= 335) and saturation > 0.5:
        dark = 1
    elif dark == 1:
        dark = 5
    return dark if value < 0.6 else dark + 8


def sgr(colour: tuple[int, int, int], foreground: bool) -> str:
    """Its code."""
    number = ansi16(*colour)
    return str((30 if foreground else 40) + number + (52 if number > 7 else 0))
