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
from . import environment, manifest, submodules
from .alterations import Search
from .anchors import ANCHOR_NAMES, MAGIC, find_anchors, find_magics
from .arrays import is_mapped
from .disk import PartFolder, import_zstd
from .failing_object import explain_failure
from .open_files import FILES
from .receipt import ALTERED, BECOMES, LOST, RECIPE, SAVED, UNVERIFIED, Row, read_facts
from .recipes import LOCKS
from .rules import Rules
from .stream import Stream, paused_collection
from .verify import Budget, Copy, Written
from .weakrefs import find_unheld, is_reference, weak_targets
from .writer import Writer

Progress = Callable[[int], None]
_CODE_TYPES = (types.ModuleType, types.FunctionType, type)
_SIMPLE_TYPES = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
_FREE_LOCK = "a free lock: its holder no longer exists"
_UNSEARCHED = "whether a variable holds the object of a weak reference was not checked"


class Losses(Exception):
    """A strict store would lose variables."""


@dataclass
class StoreRequest:
    """The parameters of a store."""

    folder: str
    name: str
    generation: int
    reason: str = "requested"
    session: str = "default"
    strict: bool = False
    dry_run: bool = False
    files: bool = False
    compress: bool = False
    runs: int = 0
    """The number of runs of the session, over all generations of its kernel."""


def store_namespace(shell: Shell, request: StoreRequest, progress: Progress) -> dict[str, Any]:
    """Writes the generation; returns its receipt and the size of its files, as lists show it.

    A dry run keeps no files.

    # Errors
    `Losses`, `DiskFull`, `NotWritten`. Earlier stores are unchanged.
    """
    if request.compress:
        import_zstd()
    begin = time.monotonic()
    variables = choose_variables(shell)
    with (
        paused_collection(),
        warnings.catch_warnings(),
        PartFolder(Path(request.folder)) as part_folder,
        ExitStack() as held,
    ):
        warnings.simplefilter("ignore")
        objects, buffers = (
            held.enter_context(Writer(part_folder.path / name, progress, request.compress))
            for name in ("objects", "buffers")
        )
        rules = Rules(shell.user_ns, variables.values(), files=request.files)
        stream = held.enter_context(Stream(objects, buffers, rules))
        stored = _Store(shell, variables, stream, rules, buffers)
        rows = stored.store_all()
        entries = _manifest_head(shell, request) | stored.manifest_entries()
        entries["files"] = {"objects": objects.size, "buffers": buffers.size}
        budget = Budget.for_store(request.reason, time.monotonic() - begin)
        with Copy(
            Written(shell, part_folder.path, entries, variables, rules, request.files), budget
        ) as copy:
            if not request.dry_run:
                objects.sync_file()
                buffers.sync_file()
            copy.apply_verdicts(rows)
        stored.finish_rows(rows)
        text = manifest.seal_manifest(entries)
        bad = [row for row in rows if row.verdict not in (SAVED, RECIPE)]
        if request.strict and bad and not request.dry_run:
            raise Losses(_describe_losses(bad))
        if not request.dry_run:
            part_folder.commit_folder(text)
        size = objects.size + buffers.size
    return {"receipt": [row.to_dict() for row in rows], "size_bytes": size}


def choose_variables(shell: Shell) -> dict[Any, Any]:
    """Returns the user's variables: user names, kernel names with a user value, and magics."""
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
    variables |= find_magics(shell)
    return dict(sorted(variables.items(), key=lambda item: _storage_order(item[1])))


_MISSING = object()


_MIN_LARGE_ITEMS = 1000


def _storage_order(value: Any) -> int:
    """Orders variables: code first, because later objects may call it while they are made; large
    containers last, because the removal of a failed one costs as much as the stream before it."""
    kind = type(value)
    if issubclass(kind, _CODE_TYPES) or kind in _SIMPLE_TYPES:
        return _CODE_TYPES.index(types.ModuleType) if issubclass(kind, types.ModuleType) else 1
    is_large = kind in _CONTAINERS and len(value) > _MIN_LARGE_ITEMS
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
        self._anchors = find_anchors(shell)
        self._cells = shell.user_ns.get("In")
        self._rows: list[dict[str, Any]] = []
        self._referred: dict[int, list[Any]] = {}
        """The targets of weak references in a variable, by row number."""
        self._altered: dict[int, list[str]] = {}
        """The notes about objects in it that come back in another state."""

    def store_all(self) -> list[Row]:
        piece, _ = self._stream.write_anchors(self._anchors)
        self._first = piece
        return [self._store_variable(name, value) for name, value in self._variables.items()]

    def finish_rows(self, rows: list[Row]) -> None:
        """Copies the receipt into the manifest."""
        self._apply_alterations(rows)
        for entry, row in zip(self._rows, rows, strict=True):
            entry.update(row.to_dict())
            if row.verdict != SAVED:
                entry["look"] = {}

    def _apply_alterations(self, rows: list[Row]) -> None:
        """Marks variables whose objects come back in another state: locks, caches, and weak
        references to objects that no saved variable holds, which are dead after a reload."""
        values = list(self._variables.values())
        missing, is_searched = self._find_missing(rows, values)
        altered = self._rules.notes.altered
        references = self._rules.weak.references
        dead = [(each, some) for each, some in references if _are_in(missing, some)]
        search = Search([each for each, _ in (*altered, *dead)])
        for at, (row, value) in enumerate(zip(rows, values, strict=True)):
            if row.verdict == LOST:
                continue
            held = search.find_held(value)
            notes = [note for each, note in altered if id(each) in held]
            if notes and row.verdict == SAVED and _is_lock(value):
                row.verdict, row.why = RECIPE, _FREE_LOCK
            elif row.verdict != RECIPE:
                _mark_altered(row, [*self._altered.get(at, ()), *notes])
            some = [*weak_targets(value), *self._referred.get(at, ())]
            if _are_in(missing, some) or any(id(each) in held for each, _ in dead):
                self._mark_weak(row, is_reference(value), is_searched=is_searched)
                self._rows[at]["look"] = {}

    def _find_missing(self, rows: list[Row], values: list[Any]) -> tuple[set[int], bool]:
        """Returns the ids of the targets of weak references that no saved variable holds, and
        whether all variables were searched."""
        found = {id(each) for value in values for each in weak_targets(value)}
        found |= {id(each) for some in self._referred.values() for each in some}
        if not found:
            return set(), True
        held = {at: each for at, each in enumerate(values) if rows[at].verdict != LOST}
        near = [each for at, each in held.items() if at in self._referred]
        return find_unheld(found, near, held.values(), self._anchors.values())

    @staticmethod
    def _mark_weak(row: Row, is_reference: bool, *, is_searched: bool) -> None:
        if not is_searched:
            if row.verdict != RECIPE:
                row.verdict = UNVERIFIED
            row.why = f"{row.why}; {_UNSEARCHED}" if row.why else _UNSEARCHED
        elif is_reference:
            row.verdict, row.bytes = LOST, 0
            row.why = "it refers to an object that no saved variable holds"
        else:
            _mark_altered(row, ["without objects that no saved variable holds"])

    def manifest_entries(self) -> dict[str, Any]:
        values = self._rules.values
        piece, place = self._stream.write_variable({"sources": values.sources})
        return {
            "anchors": self._first,
            "variables": self._rows,
            "extras": {"piece": piece, "place": place, "buffer": 0},
            "buffers": self._stream.pieces,
            "libraries": environment.library_versions(values.modules),
            "modules": environment.module_sources(values.modules),
            "submodules": submodules.find_used(values.packages, values.names, self._cells),
        }

    def _store_variable(self, name: Any, value: Any) -> Row:
        row = Row(_shown_name(name), SAVED, type_name(type(value)))
        entry: dict[str, Any] = {}
        if not _is_text(name):
            row.verdict, row.why = LOST, "its name is not text"
            self._rows.append(row.to_dict())
            return row
        before, self._rules.last_object = self._buffers.size, value
        first = len(self._stream.pieces)
        self._rules.notes.clear()
        self._rules.weak.referred.clear()
        known = len(self._rules.notes.altered)
        try:
            piece, place = self._stream.write_variable(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self._stream.write_error() is not None:
                raise
            row.verdict, row.why = (
                LOST,
                explain_failure(row.name, value, self._rules.last_object, error),
            )
        else:
            row.bytes = piece.raw + self._buffers.size - before
            self._describe_recipe(row, value)
            entry = {"piece": piece, "place": place, "buffer": first}
            if self._rules.weak.referred:
                self._referred[len(self._rows)] = self._rules.weak.referred[:]
            self._altered[len(self._rows)] = [note for _, note in self._rules.notes.altered[known:]]
            entry["look"] = read_facts(value) if row.verdict == SAVED else {}
            if (module := _module_of(value)) is not None:
                entry["module"] = module
        self._rows.append(row.to_dict() | entry)
        return row

    def _describe_recipe(self, row: Row, value: Any) -> None:
        """Sets the verdict of variables that are restored by other means than their bytes."""
        if row.name.startswith(MAGIC):
            row.verdict, row.why = RECIPE, "registered again as a magic"
            return
        for name, anchor in self._anchors.items():
            if anchor is value:
                row.verdict, row.why = RECIPE, ANCHOR_NAMES[name]
                return
        kind = type(value)  # objects may claim any class
        if issubclass(kind, types.ModuleType):
            if self._rules.values.is_importable(value.__name__):
                row.verdict, row.why = RECIPE, f"imported again: `{value.__name__}`"
        elif issubclass(kind, Resource):
            row.verdict, row.why = RECIPE, "made again by its factory on use"
        elif self._rules.recipes.resource_of(value) is not None:
            row.verdict, row.why = RECIPE, "made again by the factory of its resource"
        elif issubclass(kind, FILES):
            row.verdict, row.why = RECIPE, "opened again at its position"
        elif _is_lock(value) and self._rules.notes:
            row.verdict, row.why = RECIPE, _FREE_LOCK
        elif is_mapped(kind):
            row.verdict, row.why = RECIPE, "its file is mapped again at its position"
        elif kind.__name__ in BECOMES:
            row.why = "as a list iterator over the same items"
        else:
            row.why = "; ".join(dict.fromkeys(self._rules.notes)) or None


def _mark_altered(row: Row, notes: list[str]) -> None:
    if notes and row.verdict == SAVED:
        row.verdict = ALTERED
    known = row.why.split("; ") if row.why else []
    row.why = "; ".join(dict.fromkeys([*known, *notes])) or None


def _are_in(numbers: set[int], some: list[Any]) -> bool:
    return any(id(each) in numbers for each in some)


def _is_lock(value: Any) -> bool:
    return any(type(value) is each for each in LOCKS)


def _manifest_head(shell: Shell, request: StoreRequest) -> dict[str, Any]:
    parameters = {
        name: value for name, value in asdict(request).items() if name in _STORED_PARAMETERS
    }
    return {
        "format": manifest.FORMAT,
        **parameters,
        "created": time.time(),
        "python": platform.python_version(),
        "body": BODY_VERSION,
        "execution_count": shell.execution_count - 1,
        "packages": environment.installed_packages(),
        "paths": environment.import_paths(),
    }


_STORED_PARAMETERS = ("name", "generation", "reason", "session", "compress", "runs")


def _describe_losses(rows: list[Row]) -> str:
    shown = ", ".join(f"`{row.name}` ({row.why})" for row in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    are_lost = all(row.verdict == LOST for row in rows)
    what = "would be lost" if are_lost else "might come back changed"
    return f"{len(rows)} {what}: {shown}{more}"


def _is_text(name: Any) -> bool:
    if type(name) is not str:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown_name(name: Any) -> str:
    return name if _is_text(name) else ascii(name)


def _module_of(value: Any) -> str | None:
    """Returns the module whose code a variable needs, where it is cheap to read."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return value.__name__
    held = value if issubclass(kind, (type, types.FunctionType)) else kind
    module = getattr(held, "__module__", None)
    return module if isinstance(module, str) and module != "builtins" else None


# A kernel that an older body has started, and that CRIU has restored here, imports these names.
Wish, store = StoreRequest, store_namespace
