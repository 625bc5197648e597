"""Everything that runs in, or speaks to, the debuggee. Standard library only; no UI."""
