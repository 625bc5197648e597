"""What can be asked at a stop, one module a question. Runs on the parked thread."""
