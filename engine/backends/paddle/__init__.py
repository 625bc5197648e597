"""The PaddlePaddle backend."""
