"""What the user touches: command line, Textual app, line REPL, batch. A client: it never imports the agent."""
