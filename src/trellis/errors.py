"""The one exception people are meant to read."""


class TrellisError(Exception):
    """Something the user can mend; the message is one sentence that says what to do."""
