"""The one exception that a user's input can cause."""


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one line: what, and how to fix it.

    The command line prints the message and exits with code 2; from Python it is a ``ValueError``.
    """
