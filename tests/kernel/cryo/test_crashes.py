"""The process is killed, or the disk reports an error, at each of its calls: earlier stores
reload."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from client import Gone, Kernel, Template
from cryo_requests import ask, reload, store, store_reply

POINTS = 200
STATE = """
import pickle
class Blob:
    def __init__(self, raw): self.raw = bytes(raw)
    def __reduce_ex__(self, _): return Blob, (pickle.PickleBuffer(self.raw),)
blobs = {n: Blob([n] * 72_000) for n in range(60)}
for n in range(150): globals()[f'v{n}'] = [n, 'text']
which = 'old'
"""
CALLS = """
import errno, os, signal
def _arm(at, harm):
    count = 0
    log = globals()['_log'] = []
    def wrapped(name, real):
        def call(*args, **words):
            nonlocal count
            count += 1
            log.append(name)
            if count == at:
                if name == 'write': real(args[0], bytes(args[1])[: len(args[1]) // 2])
                if harm is not None: raise OSError(harm, os.strerror(harm))
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **words)
        return call
    for name in ('open', 'write', 'fsync', 'rename', 'ftruncate', 'mkdir', 'rmdir', 'unlink'):
        setattr(os, name, wrapped(name, getattr(os, name)))
"""
LOOK = "which, len(blobs), sum(sum(b.raw) for b in blobs.values()), sum(globals()[f'v{n}'][0] for n in range(150))"
OLD = "('old', 60, 127440000, 11175)"
NEW = OLD.replace("old", "new")


@pytest.fixture
def place(fork_pool: Template, tmp_path: Path) -> Path:
    """The folder of the old state, generation 1."""
    kernel = fork_pool.fork()
    assert kernel.run(STATE).status == "completed"
    store(kernel, tmp_path / "s" / "1")
    kernel.close()
    return tmp_path / "s"


def armed(fork_pool: Template, at: int, harm: str = "None") -> Kernel:
    kernel = fork_pool.fork()
    code = f"{STATE}{CALLS}\nwhich = 'new'\n_arm({at}, {harm})"
    assert kernel.run(code).status == "completed"
    return kernel


def count_calls(fork_pool: Template, place: Path) -> list[str]:
    kernel = armed(fork_pool, 0)
    store(kernel, place / "2")
    calls = eval(ask(kernel, "_log") or "[]")
    kernel.close()
    shutil.rmtree(place / "2")
    return calls


def content(folder: Path) -> dict[str, str]:
    """Returns the digest of each file."""
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}


def check(fork_pool: Template, place: Path, *, renamed: bool) -> None:
    """Checks that the newest generation is complete, and the old one too."""
    kernel = fork_pool.fork()
    assert (place / "2").exists() == renamed
    if renamed:
        reload(kernel, place / "2")
        assert ask(kernel, LOOK) == NEW
    reload(kernel, place / "1")
    assert ask(kernel, LOOK) == OLD
    kernel.close()


def test_all_is_synced_before_it_gets_its_name(fork_pool: Template, place: Path) -> None:
    calls = count_calls(fork_pool, place)
    renamed = calls.index("rename")
    assert calls.count("rename") == 1
    last_write = max(n for n, name in enumerate(calls) if name == "write")
    assert last_write < renamed
    assert calls[:renamed].count("fsync") == 4  # objects, buffers, manifest, their folder
    assert calls[last_write:renamed].count("fsync") >= 2
    assert calls[renamed:].count("fsync") == 3  # the folder of the name, and its parents


def test_a_killed_store_leaves_the_previous_one_intact(fork_pool: Template, place: Path) -> None:
    calls = count_calls(fork_pool, place)
    assert len(calls) >= POINTS
    renamed = calls.index("rename") + 1
    old = content(place / "1")
    check(fork_pool, place, renamed=False)
    for at in range(1, renamed + 1):
        kernel = armed(fork_pool, at)
        with pytest.raises(Gone):
            store(kernel, place / "2")
        kernel.close()
        assert not (place / "2").exists()
        if at % 40 == 0:  # leftovers do not block a store
            assert (place / "2.part").exists(), at
            kernel = armed(fork_pool, 0)
            store(kernel, place / "2")
            kernel.close()
            assert not (place / "2.part").exists()
            check(fork_pool, place, renamed=True)
            shutil.rmtree(place / "2")
        # Otherwise the next store would begin with calls that remove it.
        shutil.rmtree(place / "2.part", ignore_errors=True)
        # A state that reloaded once reloads again while its bytes are unchanged; a check costs a
        # fork.
        assert content(place / "1") == old, at
        if at % 20 == 0 or at > renamed - 8:
            check(fork_pool, place, renamed=False)
    check(fork_pool, place, renamed=False)
    for at in range(renamed + 1, len(calls) + 1):
        if calls[at - 1] not in ("open", "fsync"):
            continue
        kernel = armed(fork_pool, at)
        with pytest.raises(Gone):
            store(kernel, place / "2")
        kernel.close()
        check(fork_pool, place, renamed=True)
        shutil.rmtree(place / "2")


@pytest.mark.parametrize("harm", ["errno.ENOSPC", "errno.EDQUOT", "errno.EIO"])
def test_a_disk_error_is_reported_and_leaves_no_files(
    fork_pool: Template, place: Path, harm: str
) -> None:
    calls = count_calls(fork_pool, place)
    renamed = calls.index("rename") + 1
    kind = "NotWritten" if harm == "errno.EIO" else "DiskFull"
    # The first store creates the folder.
    for at in [*range(2, 8), *range(8, renamed - 8, 25), *range(renamed - 8, renamed + 1)]:
        kernel = armed(fork_pool, at, harm)
        reply = store_reply(kernel, place / "2")
        assert reply["error"] is not None, (at, calls[at - 1])
        assert reply["error"]["type"] == kind, (at, reply["error"])
        assert [each.name for each in place.iterdir()] == ["1"]
        # The kernel continues, and the disk has space again.
        assert ask(kernel, "which") == "'new'"
        kernel.close()
    check(fork_pool, place, renamed=False)


def test_a_file_limit_is_a_full_disk(fork_pool: Template, place: Path) -> None:
    for limit in (0, 1, 4096, 100_000, 1 << 20, 2 << 20):
        kernel = fork_pool.fork()
        code = f"{STATE}\nwhich = 'new'\nimport resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, -1))"
        assert kernel.run(code).status == "completed"
        reply = store_reply(kernel, place / "2")
        assert reply["error"]["type"] == "DiskFull", reply
        assert [each.name for each in place.iterdir()] == ["1"]
        kernel.run("resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))")
        store(kernel, place / "2")
        kernel.close()
        check(fork_pool, place, renamed=True)
        shutil.rmtree(place / "2")
