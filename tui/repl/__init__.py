"""The line REPL: a prompt with completion."""
