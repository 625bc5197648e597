"""A module of the script's own tui package."""

OWNER = "the script"
