"""The ledger of collectives: what this process called, in which group, from which line, and whether it ended."""
