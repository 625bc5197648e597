"""What can be found; a folder a family, a module a detector or a few that share what they keep."""
