"""The result of a Paddle debuggee in one line: a sha256 over the exact bytes of what it computed.

Two runs that print the same digest computed the same losses, gradients and parameters, bit by bit, and drew as many
random numbers: the next ones of the generator are part of it.
"""

import hashlib

import paddle


class Digest:
    """Collects values; ``close`` prints ``DIGEST <hex>``, by convention the last line of a debuggee's output."""

    def __init__(self):
        self._hash = hashlib.sha256()

    def add(self, *values):
        """Tensors, Layers (their parameters and gradients), None, and anything else by its repr."""
        for value in values:
            if isinstance(value, paddle.nn.Layer):
                for name, parameter in value.named_parameters():
                    self.add(name, parameter, parameter.grad)
            elif isinstance(value, paddle.Tensor):
                self._hash.update(f"{value.dtype}{tuple(value.shape)}".encode())
                self._hash.update(value.detach().numpy().tobytes())
            else:
                self._hash.update(repr(value).encode())

    def close(self):
        self.add(paddle.rand([8]))
        print("DIGEST", self._hash.hexdigest(), flush=True)
