"""What a loss compares, and where its two sides come from."""
