"""One module a profiler, made through ``registry`` alone. Each imports its tool when it is used."""
