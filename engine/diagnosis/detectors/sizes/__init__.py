"""Gradients that are zero, vanish or explode, and units that give none."""
