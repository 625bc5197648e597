"""Modules: what they hold that is no parameter of theirs."""
