"""The exceptions that commands show without a traceback."""

TIMEOUT = 600.0  # seconds after which a process that does not answer is given up: a LostProcess


class InputError(ValueError):
    """Something the caller gave is wrong: the message names it and says what was expected.

    Library code raises it for bad arguments, files and shapes; the command line prints its message
    alone and exits with status 2.
    """


class LostProcess(Exception):
    """Another process of the same command has died, or no longer answers."""
