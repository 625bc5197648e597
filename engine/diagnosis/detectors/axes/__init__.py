"""Detectors of axes: operators that work along another one than was meant, reshapes where a transpose was meant."""
