"""What is armed, who stops and why, how the program goes on. Runs in hooks, under the turn."""
