"""The screens above the main one."""
