"""Defines the error for mistakes that the user can correct."""


class UserError(Exception):
    """A mistake that the user can correct; the message is shown without a traceback.

    The message says what is wrong, what was got, what is allowed, and what to do.
    """
