"""Calls of Paddle's engine of which no graph is walked in Python: told in short, and written down by the extension."""
