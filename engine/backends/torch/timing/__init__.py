"""Time of the parts of a training step, as torch lets it be seen."""
