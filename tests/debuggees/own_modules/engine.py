"""The script's own engine module, not adbg's."""

OWNER = "the script"


def train(weight):
    (weight**2).sum().backward()
