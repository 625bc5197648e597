"""A process of its own that gets into another one with ptrace: it enters, says so, cleans up and ends. It outlives the
front end, and when it is killed itself, the thread that it holds goes on by itself (``visit.py``)."""
