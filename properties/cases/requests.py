"""What a user asks for that cannot be had: an error that is told in one line, and no bug."""


class RequestError(ValueError):
    """What was asked for cannot be had; the message names the argument and its value, and says what was expected."""
