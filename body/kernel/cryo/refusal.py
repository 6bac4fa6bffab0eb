"""Why a kind of object can't be stored."""


class Unsaveable(Exception):
    """A kind of object that can't be stored; says why."""
