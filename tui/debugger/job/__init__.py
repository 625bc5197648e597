"""The processes of a program as the ranks of one job."""
