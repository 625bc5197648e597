"""The panels of the Textual app."""
