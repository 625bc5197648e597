"""What was measured, whoever measured it: one model, the files that it comes from and goes to, tables and layouts.

Standard library only, no framework, no process: everything here runs in the front end, on files.
"""
