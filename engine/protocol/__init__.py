"""The wire: every message, its JSON, and how a front end and an agent find each other."""
