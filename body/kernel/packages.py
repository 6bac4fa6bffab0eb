"""The overlay: a virtual environment over the kernel's own, which what the user installs goes to.

Made without pip and network, in milliseconds. It is first on the path of user code only after the
kernel's own imports are done, and a broken one is a warning, never a reason not to start.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

LINK = "_osctl_kernel.pth"


def activate(folder: str | None) -> None:
    """Makes the overlay if it is missing, and puts it before everything else.

    Asked again it does so only when something was installed or removed since.
    """
    if not folder:
        return
    try:
        overlay = Path(folder)
        if folder in _seen and _seen[folder] == _modified(overlay):
            return
        packages = _make(overlay)
        _seen[folder] = _modified(overlay)
        _import_from(packages)
        _point_at(overlay)
    except BaseException as error:  # a .pth file may even call sys.exit()
        print(f"osctl: packages at {folder} are not used: {error}", file=sys.stderr)


_seen: dict[str, int | None] = {}
"""When each folder that was activated had changed last."""


def _packages(overlay: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return overlay / "lib" / version / "site-packages"


def _modified(overlay: Path) -> int | None:
    try:
        return os.stat(_packages(overlay)).st_mtime_ns
    except OSError:
        return None


def _make(overlay: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
    binaries = overlay / "bin"
    packages = _packages(overlay)
    binaries.mkdir(parents=True, exist_ok=True)
    packages.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3", version):
        _link(binaries / name, base)
    _write(
        overlay / "pyvenv.cfg",
        f"home = {base.parent}\ninclude-system-site-packages = false\n"
        f"version = {'.'.join(map(str, sys.version_info[:3]))}\n",
    )
    own = sysconfig.get_path("purelib")
    _write(packages / LINK, f"{own}\n")
    for name in ("pip", "pip3"):
        script = f'#!/bin/sh\nexec "{binaries / "python"}" -m pip "$@"\n'
        _write(binaries / name, script, mode=0o755)
    return packages


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and os.readlink(path) == str(target):
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(path)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes beside and renames, and only when something changes: several kernels share it."""
    try:
        if path.read_text() == text:
            return
    except OSError:
        pass
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.chmod(mode)
    beside.replace(path)


def _import_from(packages: Path) -> None:
    before = list(sys.path)
    site.addsitedir(str(packages))
    added = [entry for entry in sys.path if entry not in before]
    here = [entry for entry in before if entry in ("", str(packages))][:1]
    rest = [entry for entry in before if entry not in added and entry not in here]
    if str(packages) not in added:
        added.insert(0, str(packages))
    sys.path[:] = [*(h for h in here if h == ""), *added, *rest]


def _point_at(overlay: Path) -> None:
    sys.executable = str(overlay / "bin" / "python")
    os.environ["VIRTUAL_ENV"] = str(overlay)
    os.environ["PATH"] = f"{overlay / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.environ.pop("PYTHONHOME", None)
    spawn = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:
        spawn.set_executable(sys.executable)
