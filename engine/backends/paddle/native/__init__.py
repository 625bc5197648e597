"""What reaches into libpaddle: exported symbols, the memory of nodes, functions that its C++ calls."""
