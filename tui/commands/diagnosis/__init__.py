"""``diagnose``: what is wrong with the training, and why."""
