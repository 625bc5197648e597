"""Starting a program so that it outlives the front end; what adbg doctor finds."""
