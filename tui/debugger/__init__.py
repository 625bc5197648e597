"""The one model behind every front end: a client of the agent."""
