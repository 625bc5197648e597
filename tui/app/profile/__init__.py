"""Profiles in the app: what to measure, and the report."""
