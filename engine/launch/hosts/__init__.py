"""A session over several hosts: what carries a connection from one to the other where ssh does not. Front-end side."""
