"""Graphs of earlier iterations: run through again, grown into, kept."""
