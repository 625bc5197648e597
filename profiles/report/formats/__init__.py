"""Files of profiles: one module a format, with ``read(path) -> Profile``, ``write(profile, path)``, or both.

What cannot be read is a ``FormatError`` that names the file and what is wrong with it.
"""
