"""Numbers that are taken for what they are not: zeros behind a sequence for its end, ones of a mask for what is hidden."""
