//! The kernel's own tests, with pytest and ruff, on the image's Python.

use crate::harness::Home;
use crate::lanes::TestCase;
use crate::pytest::{self, REPORTING};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// The paths of the tests begin at the project, which has the same folders as this repository.
const FOLDERS: [&str; 4] = [
    "tests/kernel",
    "body/kernel",
    "body/servers",
    "body/requirements",
];

/// Creates the Python environment of the tests: the kernel's packages, and those of the tests.
const PREPARE: &str = r#"cd /repo
base=$("$OSCTL_PYTHON" -c 'import sys; print(sys.base_prefix)')
uv venv --quiet --clear /tmp/pytest --python "$base/bin/python3"
for list in body/requirements/kernel.txt tests/kernel/requirements.txt; do
    uv pip install --quiet --compile-bytecode --python /tmp/pytest/bin/python --require-hashes -r "$list"
done"#;

static HOME: OnceLock<Home> = OnceLock::new();

pub(crate) fn trials() -> Vec<TestCase> {
    let clean = "python::the_kernel_and_its_tests_are_clean".to_owned();
    let mut cases = vec![TestCase::new(
        clean,
        None,
        the_kernel_and_its_tests_are_clean,
    )];
    cases.extend(pytest::cases("python", "tests/kernel", |file| {
        let file = file.to_str().unwrap();
        let words = [&["/tmp/pytest/bin/python"], &REPORTING[..], &[file]].concat();
        let ran = home().run(["shell", &format!("cd /repo && {}", words.join(" "))]);
        ran.stdout + &ran.stderr
    }));
    cases
}

/// An instance with only the tests and the tested files.
fn home() -> &'static Home {
    HOME.get_or_init(|| {
        let home = Home::new("it-python");
        for folder in FOLDERS {
            copy(Path::new(folder), &home.project.join(folder));
        }
        home.up();
        home.ok(["shell", &format!("set -e\n{PREPARE}")]);
        home
    })
}

fn the_kernel_and_its_tests_are_clean() {
    for check in ["check", "format --check"] {
        let folders = "body/kernel body/servers tests/kernel";
        home().ok([
            "shell",
            &format!("cd /repo && /tmp/pytest/bin/ruff {check} --no-cache --config tests/kernel/ruff.toml {folders}"),
        ]);
    }
}

pub(crate) fn clean_up() {
    if let Some(home) = HOME.get() {
        home.down();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true if entry.file_name() == "__pycache__" => {}
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}
