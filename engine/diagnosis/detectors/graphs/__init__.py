"""Detectors of the graph: cuts, overwritten tensors, freed and kept graphs, memory."""
