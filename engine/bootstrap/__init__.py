"""The folder that ``adbg run`` puts on the program's PYTHONPATH: ``sitecustomize.py`` is how adbg gets in. Nothing
else may lie here.
"""
