"""Live objects (connections, clients) that are made on use, and made again when lost.

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

from .errors import describe_error

Callback = Callable[[Any], Any]

_live: list[Resource] = []
"""The live resources of this process, in order of creation."""


def count_live() -> int:
    return len(_live)


def invalidate_all() -> None:
    """Tears down all live resources, the last made first; a failure does not keep the others.

    # Errors
    KeyboardInterrupt after all are torn down, if an interrupt arrived in between.
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
    """One live object and the recipe to make it."""

    def __init__(self, factory: Callable[[], Any], name: str | None = None) -> None:
        self._recipe: dict[str, Any] = {"factory": factory, "name": name}
        self._init_object()

    def _init_object(self) -> None:
        self._lock = threading.RLock()
        self._object: Any = None
        self._pid: int | None = None
        """The process that made the object: a fork must not share a connection."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self._recipe)

    def __setstate__(self, recipe: dict[str, Any]) -> None:
        self._recipe = recipe
        self._init_object()

    def __repr__(self) -> str:
        name = self._recipe["name"] or getattr(self._recipe["factory"], "__name__", "resource")
        return f"<resource {name}, {'live' if self._is_live() else 'absent'}>"

    # The recipe.

    def on_connect(self, callback: Callback) -> Resource:
        """`callback(object)` is called after each creation; when it raises, that attempt has
        failed."""
        self._recipe["on_connect"] = callback
        return self

    def validate(self, callback: Callback) -> Resource:
        """`callback(object)` is called before each use: when it is false or raises, the object is
        torn down and made again."""
        self._recipe["validate"] = callback
        return self

    def teardown(self, callback: Callback) -> Resource:
        """`callback(object)` is called before an object is dropped."""
        self._recipe["teardown"] = callback
        return self

    def retry(self, max_attempts: int = 3, base_delay_s: float = 0.1) -> Resource:
        """Sets the number of attempts to make the object; the pause doubles each time. The default
        is one."""
        if max_attempts < 1 or base_delay_s < 0:
            raise ValueError(
                "retry needs `max_attempts` of at least 1 and `base_delay_s` of at least 0"
            )
        self._recipe.update(max_attempts=max_attempts, base_delay_s=base_delay_s)
        return self

    def remake_with(self, factory: Callable[[], Any]) -> None:
        """Replaces the factory for the next creation: a cell that defines it has run again."""
        self._recipe["factory"] = factory

    # The object.

    def get(self) -> Any:
        """Returns the live object.

        # Errors
        The exception of the last attempt to make it.
        """
        with self._lock:
            if self._is_live():
                if self._is_valid():
                    return self._object
                self.invalidate()
            return self._make_object()

    def invalidate(self) -> None:
        """Tears the object down; the next `get` makes another. Exceptions of the teardown are
        printed."""
        with self._lock:
            gone = self._object
            was_live = self._is_live()
            self._forget_object()
            if was_live:
                self._tear_down(gone)

    def _is_live(self) -> bool:
        return self._pid == os.getpid()

    def _forget_object(self) -> None:
        self._object = self._pid = None
        if self in _live:
            _live.remove(self)

    def _is_valid(self) -> bool:
        validate = self._recipe.get("validate")
        try:
            return validate is None or bool(validate(self._object))
        except Exception:
            return False

    def _make_object(self) -> Any:
        pid = os.getpid()
        attempts = self._recipe.get("max_attempts", 1)
        pause = self._recipe.get("base_delay_s", 0)
        for attempt in range(1, attempts + 1):
            try:
                made = self._attempt_creation()
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

    def _attempt_creation(self) -> Any:
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
            lines = "\n".join(describe_error(error)["traceback"])
            print(f"the teardown of {self!r} failed:\n{lines}", file=sys.stderr)
