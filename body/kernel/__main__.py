"""The entry point: `python body/kernel --fd N --session NAME`.

The package is loaded as `osctl_kernel`, and its folder leaves `sys.path`, so that it does not
shadow a user module called `kernel`, `shell` or `wire`.
"""

import importlib.util
import os
import sys

NAME = "osctl_kernel"


def load() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    spec = importlib.util.spec_from_file_location(
        NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"cannot load the kernel from {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load()
    from osctl_kernel.main import main

    sys.exit(main(sys.argv[1:]))
