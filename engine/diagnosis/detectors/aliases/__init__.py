"""Copies of weights that are the weights: restored from, compared with."""
