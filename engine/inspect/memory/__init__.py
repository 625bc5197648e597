"""Memory of the program: what uses it, what the graph retains, which variable keeps something alive, and its course."""
