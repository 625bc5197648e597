"""torch.distributed: taps on what Python calls, torch's own flight recorder for the rest."""
