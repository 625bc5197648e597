"""How parameters begin: never given values, all alike, or anew in every forward."""
