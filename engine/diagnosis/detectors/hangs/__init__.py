"""Programs that stand still."""
