"""What tests of whole programs share: running debuggees with and without adbg, a terminal, a bare client."""
