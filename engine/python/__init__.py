"""The Python of the program: its frames, names, expressions, printed output, lines that run."""
