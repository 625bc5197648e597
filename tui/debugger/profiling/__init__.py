"""Profiles of the program as the front end sees them."""
