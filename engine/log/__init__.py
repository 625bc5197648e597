"""VLOG: levels, regions, adbg's own records, and where fd 2 goes meanwhile."""
