"""Part of the backward graph as files, in Paddle's formats and as SVG."""
