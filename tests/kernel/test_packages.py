"""The overlay for packages that users install."""

import os
import subprocess
import sys


def test_the_overlay_is_made_and_used(start, tmp_path):
    overlay = tmp_path / "packages" / "3.x"
    kernel = start(env={"OSCTL_PACKAGES": str(overlay)})
    run = kernel.run("import sys, os; (sys.executable, os.environ['VIRTUAL_ENV'], sys.path[1])")
    executable, environment, first = eval(run.result)
    assert executable == str(overlay / "bin" / "python")
    assert environment == str(overlay) and first.startswith(str(overlay))
    found = subprocess.run(
        [executable, "-c", "import IPython, sys; print(sys.prefix)"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == str(overlay), found.stderr
    assert "pip" in kernel.run("!pip --version").stdout
    assert str(overlay) in kernel.run("!python -c 'import sys; print(sys.prefix)'").stdout


def test_installed_packages_take_precedence_over_the_kernels_own(start, tmp_path):
    kernel = start(env={"OSCTL_PACKAGES": str(tmp_path)})
    site = kernel.run("print(__import__('sys').path[1])").stdout.strip()
    with open(os.path.join(site, "newly.py"), "w") as module:
        module.write("value = 5")
    assert kernel.run("import newly; newly.value").result == "5"
    assert (
        start(env={"OSCTL_PACKAGES": str(tmp_path)}).run("import newly; newly.value").result == "5"
    )


def test_pip_installs_into_the_overlay_without_a_network(start, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "tiny_thing.py").write_text("value = 6")
    wheel = tmp_path / "tiny_thing-1-py3-none-any.whl"
    import zipfile

    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_thing.py", "value = 6")
        archive.writestr(
            "tiny_thing-1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1\n",
        )
        archive.writestr(
            "tiny_thing-1.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(
            "tiny_thing-1.dist-info/RECORD",
            "tiny_thing.py,,\ntiny_thing-1.dist-info/METADATA,,\ntiny_thing-1.dist-info/WHEEL,,\ntiny_thing-1.dist-info/RECORD,,\n",
        )
    kernel = start(
        env={
            "OSCTL_PACKAGES": str(tmp_path / "overlay"),
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
    )
    run = kernel.run(f"%pip install --quiet {wheel}")
    assert kernel.run("import tiny_thing; tiny_thing.__file__").result.startswith(
        f"'{tmp_path / 'overlay'}"
    ), run.events


def test_a_broken_overlay_is_a_warning(start, tmp_path):
    (tmp_path / "file").write_text("")
    kernel = start(env={"OSCTL_PACKAGES": str(tmp_path / "file" / "below")})
    run = kernel.run("1+1")
    assert run.result == "2" and "are not used" in run.stderr
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "bad" / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (site / "bad.pth").write_text("import sys; sys.exit(3)\n")
    (site / "worse.pth").write_text("import no_such_module_at_all\n")
    assert start(env={"OSCTL_PACKAGES": str(tmp_path / "bad")}).run("1+1").result == "2"
