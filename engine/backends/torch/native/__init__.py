"""What the optional extension does for torch, and the checks that it must pass in this process before it may."""
