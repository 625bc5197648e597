"""adbg: a terminal debugger for the backward pass. ``import adbg`` costs under 10 ms and imports nothing but the standard library."""

from __future__ import annotations

__version__ = "0.1.0"
