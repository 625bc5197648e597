"""What goes on in no thread of the program."""
