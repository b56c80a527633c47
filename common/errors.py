"""Defines the error that is shown to the person when something they can mend has gone wrong."""


class UserError(Exception):
    """A mistake that the user can mend: its message is shown as it stands, without a traceback.

    The message says what was wrong, what was got, what is allowed, and what to do next.
    """
