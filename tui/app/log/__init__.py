"""The log panel and adbg log."""
