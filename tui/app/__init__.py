"""The Textual app: one screen of five panels."""
