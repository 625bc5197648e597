"""adbg inside the program: connection, requests, events, lifetime."""
