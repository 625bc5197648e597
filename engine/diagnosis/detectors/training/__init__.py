"""Detectors of the training loop: steps, zero_grad, rates, modes."""
