"""The keeper: a process that owns the program's terminals and outlives the front end. It loads this folder only."""
