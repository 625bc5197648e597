"""Profilers and their reports, behind a registry (filled by later work: cProfile, yep)."""
