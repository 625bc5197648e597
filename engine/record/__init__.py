"""The run directory: written while the program runs, read then or later."""
