"""The refusal to store a kind of object."""


class Unsaveable(Exception):
    """A kind of object cannot be stored; the message is the reason."""
