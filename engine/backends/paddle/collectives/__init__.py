"""paddle.distributed: taps on the methods of its process groups."""
