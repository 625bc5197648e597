"""The script's own tui package, not adbg's."""
