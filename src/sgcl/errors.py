"""What goes wrong through no fault of the code."""


class InputError(ValueError):
    """Something the caller gave cannot be used; the message says what, what is allowed, and the way out.

    The command line prints the message alone and exits with status 2. Any other exception is a defect
    of this package and keeps its traceback.
    """


class TrainingStopped(RuntimeError):
    """Training cannot go on (collapse, non-finite loss); the message says what to try."""
