"""Numbers that are taken for what they are not: zeros behind a sequence for its end, ones for what a mask hides."""
