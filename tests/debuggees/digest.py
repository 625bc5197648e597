"""The result of a debuggee in one line: a sha256 over the exact bytes of what it computed.

Two runs that print the same digest computed the same losses, gradients and parameters, bit by bit, and drew as many
random numbers. Only the standard library and, once values are added, the torch that the debuggee has imported.
"""

import hashlib

import torch


class Digest:
    """Collects values; ``close`` prints ``DIGEST <hex>``, by convention the last line of a debuggee's output."""

    def __init__(self):
        self._hash = hashlib.sha256()

    def add(self, *values):
        """Tensors, modules (their parameters and gradients), None, and anything else by its repr."""
        for value in values:
            if isinstance(value, torch.nn.Module):
                for name, parameter in value.named_parameters():
                    self.add(name, parameter, parameter.grad)
            elif isinstance(value, torch.Tensor):
                self._hash.update(f"{value.dtype}{tuple(value.shape)}".encode())
                self._hash.update(value.detach().cpu().contiguous().numpy().tobytes())
            else:
                self._hash.update(repr(value).encode())

    def close(self):
        self.add(torch.get_rng_state())
        print("DIGEST", self._hash.hexdigest(), flush=True)
