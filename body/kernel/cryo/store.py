"""Stores the namespace as one generation."""

from __future__ import annotations

import platform
import time
import types
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import BODY_VERSION
from ..resources import Resource
from ..shell import Shell
from ..variables import type_name
from . import around, manifest, submodules
from .arrays import is_mapped
from .culprit import why
from .disk import Beside, zstd
from .live import MAGIC, WORDS, anchors, magics
from .opened import FILES
from .receipt import BECOMES, LOST, RECIPE, SAVED, Row, look
from .recipes import LOCKS
from .rules import Rules
from .stream import Stream, no_collection
from .verify import Budget, Copy, Written
from .weak import is_reference, targets, unheld
from .writer import Writer

Progress = Callable[[int], None]
_FIRST = (types.ModuleType, types.FunctionType, type)
_SIMPLE = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))


class Losses(Exception):
    """Something would be lost, and the caller does not want that."""


@dataclass
class Wish:
    """What is to be stored, and where."""

    folder: str
    name: str
    generation: int
    reason: str = "asked"
    session: str = "default"
    strict: bool = False
    dry_run: bool = False
    files: bool = False
    compress: bool = False
    runs: int = 0
    """How many the session has begun, in all lives of its kernel."""


def store(shell: Shell, wish: Wish, progress: Progress) -> dict[str, Any]:
    """Writes the generation, which does not stay of a dry run; its receipt and size on disk.

    # Errors
    `Losses`, `DiskFull`, `NotWritten`. What was stored before is untouched then.
    """
    if wish.compress:
        zstd()
    begin = time.monotonic()
    variables = chosen(shell)
    with (
        no_collection(),
        warnings.catch_warnings(),
        Beside(Path(wish.folder)) as beside,
        ExitStack() as held,
    ):
        warnings.simplefilter("ignore")
        objects, buffers = (
            held.enter_context(Writer(beside.path / name, progress, wish.compress))
            for name in ("objects", "buffers")
        )
        rules = Rules(shell.user_ns, variables.values(), files=wish.files)
        stream = held.enter_context(Stream(objects, buffers, rules))
        stored = _Store(shell, variables, stream, rules, buffers)
        rows = stored.run()
        words = _head(shell, wish) | stored.words()
        words["files"] = {"objects": objects.size, "buffers": buffers.size}
        budget = Budget.of(wish.reason, time.monotonic() - begin)
        with Copy(Written(shell, beside.path, words, variables, rules, wish.files), budget) as copy:
            if not wish.dry_run:
                objects.sync()
                buffers.sync()
            copy.turn(rows)
        stored.finish(rows)
        text = manifest.text(words)
        bad = [row for row in rows if row.verdict not in (SAVED, RECIPE)]
        if wish.strict and bad and not wish.dry_run:
            raise Losses(_told(bad))
        if not wish.dry_run:
            beside.commit(text)
        size = objects.size + buffers.size + len(text)
    return {"receipt": [row.words() for row in rows], "size_bytes": size}


def chosen(shell: Shell) -> dict[Any, Any]:
    """The user's variables: their names, and names of ours that they have taken; and magics."""
    namespace, hidden = shell.user_ns, shell.user_ns_hidden
    names = shell.user_names()
    ours = shell.own_names - shell.displayhook.names
    for name in ours:
        if (
            not name.startswith("_")
            and name in namespace
            and namespace[name] is not hidden.get(name, _MISSING)
        ):
            names.add(name)
    variables = {name: namespace[name] for name in list(namespace) if name in names}
    variables |= magics(shell)
    return dict(sorted(variables.items(), key=lambda item: _turn(item[1])))


_MISSING = object()


_MANY = 1000


def _turn(value: Any) -> int:
    """Code comes first: what comes later may call it while it is made. What holds many comes last:
    to cut out one that fails costs as much as there is before it."""
    kind = type(value)
    if issubclass(kind, _FIRST) or kind in _SIMPLE:
        return _FIRST.index(types.ModuleType) if issubclass(kind, types.ModuleType) else 1
    is_large = kind in _CONTAINERS and len(value) > _MANY
    return 3 if is_large else 2


class _Store:
    """One pass over the variables."""

    def __init__(
        self,
        shell: Shell,
        variables: dict[Any, Any],
        stream: Stream,
        rules: Rules,
        buffers: Writer,
    ) -> None:
        self._variables = variables
        self._stream, self._rules, self._buffers = stream, rules, buffers
        self._anchors = anchors(shell)
        self._cells = shell.user_ns.get("In")
        self._rows: list[dict[str, Any]] = []
        self._referred: dict[int, list[Any]] = {}
        """What weak references in a variable lead to, by the number of its row."""

    def run(self) -> list[Row]:
        piece, _ = self._stream.anchors(self._anchors)
        self._first = piece
        return [self._one(name, value) for name, value in self._variables.items()]

    def finish(self, rows: list[Row]) -> None:
        """The manifest tells what the receipt does."""
        self._look_at_weak(rows)
        for entry, row in zip(self._rows, rows, strict=True):
            entry.update(row.words())
            if row.verdict != SAVED:
                entry["look"] = {}

    def _look_at_weak(self, rows: list[Row]) -> None:
        """What refers to objects that no saved variable holds refers to nothing afterwards."""
        values = list(self._variables.values())
        wanted = {
            at: [*targets(value), *self._referred.get(at, ())] for at, value in enumerate(values)
        }
        wanted = {at: some for at, some in wanted.items() if some}
        if not wanted:
            return
        held = [value for row, value in zip(rows, values, strict=True) if row.verdict != LOST]
        found = {id(each) for some in wanted.values() for each in some}
        missing = unheld(found, held, self._anchors.values())
        for at, some in wanted.items():
            row = rows[at]
            if row.verdict == LOST or not any(id(each) in missing for each in some):
                continue
            told = "without what no variable holds that is saved"
            row.why = f"{row.why}; {told}" if row.why else told
            if is_reference(values[at]):
                row.verdict, row.bytes = LOST, 0
                row.why = "it refers to what no variable holds that is saved"
            self._rows[at]["look"] = {}

    def words(self) -> dict[str, Any]:
        values = self._rules.values
        piece, place = self._stream.variable({"sources": values.sources})
        return {
            "anchors": self._first,
            "variables": self._rows,
            "extras": {"piece": piece, "place": place, "buffer": 0},
            "buffers": self._stream.pieces,
            "libraries": around.libraries(values.modules),
            "modules": around.sources(values.modules),
            "submodules": submodules.used(values.packages, values.names, self._cells),
        }

    def _one(self, name: Any, value: Any) -> Row:
        row = Row(_shown(name), SAVED, type_name(type(value)))
        entry: dict[str, Any] = {}
        if not _is_text(name):
            row.verdict, row.why = LOST, "its name is no text"
            self._rows.append(row.words())
            return row
        before, self._rules.last = self._buffers.size, value
        first = len(self._stream.pieces)
        self._rules.notes.clear()
        self._rules.weak.referred.clear()
        try:
            piece, place = self._stream.variable(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self._stream.refused() is not None:
                raise
            row.verdict, row.why = LOST, why(row.name, value, self._rules.last, error)
        else:
            row.bytes = piece.raw + self._buffers.size - before
            self._describe(row, value)
            entry = {"piece": piece, "place": place, "buffer": first}
            if self._rules.weak.referred:
                self._referred[len(self._rows)] = self._rules.weak.referred[:]
            entry["look"] = look(value) if row.verdict == SAVED else {}
            if (module := _module_of(value)) is not None:
                entry["module"] = module
        self._rows.append(row.words() | entry)
        return row

    def _describe(self, row: Row, value: Any) -> None:
        """What comes back another way than by its bytes."""
        if row.name.startswith(MAGIC):
            row.verdict, row.why = RECIPE, "registered again as a magic"
            return
        for name, anchor in self._anchors.items():
            if anchor is value:
                row.verdict, row.why = RECIPE, WORDS[name]
                return
        kind = type(value)  # objects may claim to be of any class
        if issubclass(kind, types.ModuleType):
            if self._rules.values.is_importable(value.__name__):
                row.verdict, row.why = RECIPE, f"imported again: `{value.__name__}`"
        elif issubclass(kind, Resource):
            row.verdict, row.why = RECIPE, "made again by its factory, when it is asked for"
        elif self._rules.recipes.resource_of(value) is not None:
            row.verdict, row.why = RECIPE, "made again by the factory of its resource"
        elif issubclass(kind, FILES):
            row.verdict, row.why = RECIPE, "opened again, where it was"
        elif any(kind is each for each in LOCKS) and self._rules.notes:
            row.verdict, row.why = RECIPE, "a free lock: who held it is not there any more"
        elif is_mapped(kind):
            row.verdict, row.why = RECIPE, "its file mapped again, where it was"
        elif kind.__name__ in BECOMES:
            row.why = "as an iterator over a list, of the same items"
        else:
            row.why = "; ".join(dict.fromkeys(self._rules.notes)) or None


def _head(shell: Shell, wish: Wish) -> dict[str, Any]:
    told = {name: value for name, value in asdict(wish).items() if name in _KEPT}
    return {
        "format": manifest.FORMAT,
        **told,
        "created": time.time(),
        "python": platform.python_version(),
        "body": BODY_VERSION,
        "execution_count": shell.execution_count - 1,
        "packages": around.packages(),
        "paths": around.paths(),
    }


_KEPT = ("name", "generation", "reason", "session", "compress", "runs")


def _told(rows: list[Row]) -> str:
    shown = ", ".join(f"`{row.name}` ({row.why})" for row in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    are_lost = all(row.verdict == LOST for row in rows)
    what = "would be lost" if are_lost else "would not surely come back as they are"
    return f"{len(rows)} {what}: {shown}{more}"


def _is_text(name: Any) -> bool:
    if type(name) is not str:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(name: Any) -> str:
    return name if _is_text(name) else ascii(name)


def _module_of(value: Any) -> str | None:
    """Whose code a variable needs, where that can be told at once."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return value.__name__
    held = value if issubclass(kind, (type, types.FunctionType)) else kind
    module = getattr(held, "__module__", None)
    return module if isinstance(module, str) and module != "builtins" else None
