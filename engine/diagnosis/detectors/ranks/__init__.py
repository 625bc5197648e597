"""What only several processes together show: each tells facts of its own, and the front end compares."""
