"""Getting into a process that runs already and was prepared for nothing. Runs in the front end, but for ``injector/``,
which is a process of its own; none of it is loaded into the program."""
