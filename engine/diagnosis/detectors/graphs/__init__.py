"""Detectors of the graph: cuts, overwritten tensors, losses of other tensors than were meant."""
