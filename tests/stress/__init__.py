"""Attaching to running programs, many times: what the tests do a few times, for whoever wants to see it fifty times."""
