"""Detectors of numbers: NaN, Inf, ranges of a dtype, norms."""
