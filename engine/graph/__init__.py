"""Questions about a walked graph, live or recorded: positions, consumers, paths, regions, where numbers went bad."""
