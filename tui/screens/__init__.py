"""The screens above the main one: help, program output, value, dialogs."""
