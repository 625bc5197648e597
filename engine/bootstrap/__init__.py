"""How adbg gets into a Python process. ``adbg run`` puts this folder on the program's PYTHONPATH, where Python finds
``sitecustomize.py``; a process that runs already has ``attach.py`` run, by its path. Nothing else may lie here.
"""
