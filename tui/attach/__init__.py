"""Attaching: the processes of this machine, jobs of many ranks, getting into each of them."""
