"""Breakpoints as data: grammar, matching, the table, hits. Pure; no thread of its own."""
