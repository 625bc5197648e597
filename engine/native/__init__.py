"""The optional extension ``adbg._native``: whether it is there and right. Backends ask ``load.core``."""
