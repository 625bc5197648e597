"""Values as plain text. Pure."""
