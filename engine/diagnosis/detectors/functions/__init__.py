"""Detectors of custom functions, hooks, checkpoints, errors of operators."""
