"""Getting into a process that runs, and what can be read of one from outside."""
