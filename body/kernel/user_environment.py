"""The variables of `osctl env` in `os.environ`. The companion sends all of them with a request when
they differ from those that this process has."""

from __future__ import annotations

import os


class UserEnvironment:
    """Changes only what differs from the last request, so that changes by the user's code stay."""

    def __init__(self) -> None:
        self._variables: dict[str, str] = {}
        # The values that the variables replaced.
        self._originals: dict[str, str | None] = {}

    def replace_variables(self, variables: dict[str, str]) -> None:
        for name in self._variables.keys() - variables.keys():
            original = self._originals.pop(name)
            if original is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = original
        for name, value in variables.items():
            if self._variables.get(name) != value:
                self._originals.setdefault(name, os.environ.get(name))
                os.environ[name] = value
        self._variables = dict(variables)
