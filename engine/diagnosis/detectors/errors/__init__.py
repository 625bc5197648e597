"""Detectors of exceptions that leave a forward or a backward: which operator refused what, and who made it."""
