"""Time of the parts of a training step, as Paddle lets it be seen."""
