"""Batch mode, as text or JSON lines."""
