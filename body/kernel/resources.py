"""Live objects (connections, clients) that are made when needed, and made again when lost.

```text
absent ──get: factory, on_connect──▶ live ──get: validate──▶ live
   ▲                                  │ │
   └── invalidate, reset, exit: teardown └── validate fails: teardown, then made again
```

A resource is pickled by its recipe: the factory and the callbacks, never the live object.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .errors import describe

Callback = Callable[[Any], Any]

_live: list[Resource] = []
"""In the order in which they were made; of this process."""


def live_count() -> int:
    return len(_live)


def invalidate_all() -> None:
    """The last made is the first to go; one that fails does not keep the others.

    # Errors
    KeyboardInterrupt, when one came in between, after all are gone.
    """
    interrupt = None
    while True:
        try:
            while _live:
                _live[-1].invalidate()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class Resource:
    """One live object, with the recipe to make it."""

    def __init__(self, factory: Callable[[], Any], name: str | None = None) -> None:
        self._recipe: dict[str, Any] = {"factory": factory, "name": name}
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._object: Any = None
        self._pid: int | None = None
        """The process that has made the object: a fork must not share a connection."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self._recipe)

    def __setstate__(self, recipe: dict[str, Any]) -> None:
        self._recipe = recipe
        self._begin()

    def __repr__(self) -> str:
        name = self._recipe["name"] or getattr(self._recipe["factory"], "__name__", "resource")
        return f"<resource {name}, {'live' if self._is_live() else 'absent'}>"

    # The recipe.

    def on_connect(self, callback: Callback) -> Resource:
        """`callback(object)` is called after each making; when it raises, that attempt failed."""
        self._recipe["on_connect"] = callback
        return self

    def validate(self, callback: Callback) -> Resource:
        """`callback(object)` is asked before each use: when it is false or raises, the object is
        torn down and made again."""
        self._recipe["validate"] = callback
        return self

    def teardown(self, callback: Callback) -> Resource:
        """`callback(object)` is called before an object is given up."""
        self._recipe["teardown"] = callback
        return self

    def retry(self, max_attempts: int = 3, base_delay_s: float = 0.1) -> Resource:
        """How often to try to make it; the pause doubles each time. Without this: once."""
        if max_attempts < 1 or base_delay_s < 0:
            raise ValueError("retry takes at least one attempt, and a delay that is not negative")
        self._recipe.update(max_attempts=max_attempts, base_delay_s=base_delay_s)
        return self

    def remake_with(self, factory: Callable[[], Any]) -> None:
        """For the next time that it is made: a cell that defines it was run again."""
        self._recipe["factory"] = factory

    # The object.

    def get(self) -> Any:
        """The live object.

        # Errors
        What the last attempt to make it raised.
        """
        with self._lock:
            if self._is_live():
                if self._is_valid():
                    return self._object
                self.invalidate()
            return self._make()

    def invalidate(self) -> None:
        """Tears the object down; the next `get` makes another. What teardown raises is printed."""
        with self._lock:
            gone = self._object
            was_live = self._is_live()
            self._forget()
            if was_live:
                self._tear_down(gone)

    def _is_live(self) -> bool:
        return self._pid == os.getpid()

    def _forget(self) -> None:
        self._object = self._pid = None
        if self in _live:
            _live.remove(self)

    def _is_valid(self) -> bool:
        validate = self._recipe.get("validate")
        try:
            return validate is None or bool(validate(self._object))
        except Exception:
            return False

    def _make(self) -> Any:
        pid = os.getpid()
        attempts = self._recipe.get("max_attempts", 1)
        pause = self._recipe.get("base_delay_s", 0)
        for attempt in range(1, attempts + 1):
            try:
                made = self._attempt()
                break
            except Exception as error:
                if attempt == attempts:
                    if attempts > 1:
                        error.add_note(f"(the last of {attempts} attempts)")
                    raise
            time.sleep(pause)
            pause *= 2
        self._object, self._pid = made, pid
        _live.append(self)
        return made

    def _attempt(self) -> Any:
        made = self._recipe["factory"]()
        try:
            on_connect = self._recipe.get("on_connect")
            if on_connect is not None:
                on_connect(made)
        except BaseException:
            self._tear_down(made)
            raise
        return made

    def _tear_down(self, gone: Any) -> None:
        teardown = self._recipe.get("teardown")
        if teardown is None:
            return
        try:
            teardown(gone)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            told = "\n".join(describe(error)["traceback"])
            print(f"the teardown of {self!r} failed:\n{told}", file=sys.stderr)
