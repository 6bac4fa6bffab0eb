"""The overlay: a virtual environment over the kernel's own, for packages that the user installs.

The kernel creates it in milliseconds, without pip or network. The overlay precedes the kernel's
packages only after the kernel's own imports; a broken overlay causes a warning, not a failed start.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

PTH_FILE = "_osctl_kernel.pth"


def activate_overlay(folder: str | None) -> None:
    """Creates the overlay if it is missing, and puts it first on the path.

    A later call does so again only after an install or a removal.
    """
    if not folder:
        return
    try:
        overlay = Path(folder)
        if folder in _seen and _seen[folder] == _modified_time(overlay):
            return
        packages = _create_overlay(overlay)
        _seen[folder] = _modified_time(overlay)
        _add_to_path(packages)
        _set_environment(overlay)
    except BaseException as error:  # a .pth file may even call sys.exit()
        print(f"osctl: packages at {folder} are not used: {error}", file=sys.stderr)


_seen: dict[str, int | None] = {}
"""The last modification time of each activated folder."""


def _site_packages(overlay: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return overlay / "lib" / version / "site-packages"


def _modified_time(overlay: Path) -> int | None:
    try:
        return os.stat(_site_packages(overlay)).st_mtime_ns
    except OSError:
        return None


def _create_overlay(overlay: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
    binaries = overlay / "bin"
    packages = _site_packages(overlay)
    binaries.mkdir(parents=True, exist_ok=True)
    packages.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3", version):
        _write_link(binaries / name, base)
    _write_file(
        overlay / "pyvenv.cfg",
        f"home = {base.parent}\ninclude-system-site-packages = false\n"
        f"version = {'.'.join(map(str, sys.version_info[:3]))}\n",
    )
    own = sysconfig.get_path("purelib")
    _write_file(packages / PTH_FILE, f"{own}\n")
    for name in ("pip", "pip3"):
        script = f'#!/bin/sh\nexec "{binaries / "python"}" -m pip "$@"\n'
        _write_file(binaries / name, script, mode=0o755)
    return packages


def _write_link(path: Path, target: Path) -> None:
    if path.is_symlink() and os.readlink(path) == str(target):
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(path)


def _write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a temporary file and renames it, only on a change: several kernels share the
    overlay."""
    try:
        if path.read_text() == text:
            return
    except OSError:
        pass
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.chmod(mode)
    beside.replace(path)


def _add_to_path(packages: Path) -> None:
    before = list(sys.path)
    site.addsitedir(str(packages))
    added = [entry for entry in sys.path if entry not in before]
    here = [entry for entry in before if entry in ("", str(packages))][:1]
    rest = [entry for entry in before if entry not in added and entry not in here]
    if str(packages) not in added:
        added.insert(0, str(packages))
    sys.path[:] = [*(h for h in here if h == ""), *added, *rest]


def _set_environment(overlay: Path) -> None:
    sys.executable = str(overlay / "bin" / "python")
    os.environ["VIRTUAL_ENV"] = str(overlay)
    os.environ["PATH"] = f"{overlay / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.environ.pop("PYTHONHOME", None)
    spawn = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:
        spawn.set_executable(sys.executable)
