"""Lists of styled lines, and what draws them."""
