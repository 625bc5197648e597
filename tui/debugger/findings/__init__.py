"""Findings of diagnosis: those of every process, their ranking, which kinds there are."""
