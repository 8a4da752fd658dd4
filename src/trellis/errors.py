"""The exceptions people are meant to read."""


class TrellisError(Exception):
    """Something the user can mend; the message is one sentence that says what to do."""


class InputError(TrellisError, ValueError):
    """An argument from Python that does not fit; also the `ValueError` that users of scikit-learn expect."""
