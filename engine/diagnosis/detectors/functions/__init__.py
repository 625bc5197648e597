"""Detectors of custom functions, hooks and checkpoints."""
