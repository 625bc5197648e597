"""``info memory`` and ``why alive``: memory of the program."""
