"""What is armed, who stops and why, how the program continues. Runs in hooks, under the turn."""
