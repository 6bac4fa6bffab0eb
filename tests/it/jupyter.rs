//! Notebooks on sessions of the instance, through Jupyter's own client.

use crate::harness::{Home, shared};
use crate::lanes::TestCase;
use crate::pytest::{self, REPORTING};
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

trials![
    the_kernel_passes_the_suite_of_jupyter,
    a_kernelspec_is_written_listed_and_removed,
    files_of_other_programs_are_not_touched,
    the_tests_in_python_are_clean,
];

/// A notebook and an agent share a session.
pub(crate) fn notebook_trials() -> Vec<TestCase> {
    pytest::cases("jupyter", "tests/jupyter", report)
}

fn the_kernel_passes_the_suite_of_jupyter() {
    let report = report(Path::new("tests/jupyter/test_protocol.py"));
    let counts = report.lines().last().unwrap();
    let is_good = counts.contains(" passed") && !counts.contains(" failed");
    assert!(is_good && !counts.contains(" error"), "{report}");
}

fn a_kernelspec_is_written_listed_and_removed() {
    let home = Home::new("jupyter-install");
    let prefix = home.folder.join("prefix");
    let prefix = prefix.to_str().unwrap();
    let name = &format!("osctl-{}", home.instance);
    // osctl asks before code inside may run scripts, and reports it.
    let trusted = home.ok(["jupyter", "install", "--trust-html", "--prefix", prefix]);
    assert!(trusted.stderr.contains("can run scripts"), "{trusted:?}");
    let listed = home.json(["jupyter", "list", "--prefix", prefix]);
    let has_trust = |spec: &Value| spec["argv"].to_string().contains("\"--trust-html\"");
    assert!(has_trust(&listed["kernelspecs"][0]), "{listed}");
    let ran = home.ok(["jupyter", "install", "--prefix", prefix]);
    assert!(ran.stderr.contains("without scripts"), "{ran:?}");
    let next = format!("next: osctl --instance {} up\n", home.instance);
    assert!(ran.stderr.ends_with(&next), "{ran:?}");
    let path = Path::new(prefix).join("share/jupyter/kernels").join(name);
    let written = fs::read_to_string(path.join("kernel.json")).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    let shown = format!("os-host ({})", home.instance);
    assert_eq!(written["display_name"], shown);
    assert!(!has_trust(&written), "{written}");
    assert_eq!(written["interrupt_mode"], "message");
    assert_eq!(written["argv"][0], env!("CARGO_BIN_EXE_osctl"));
    let listed = home.json(["jupyter", "list", "--prefix", prefix]);
    assert_eq!(listed["kernelspecs"][0]["name"], *name);
    assert_eq!(listed["kernelspecs"][0]["session"], "default");
    home.ok(["jupyter", "uninstall", "--prefix", prefix]);
    assert!(!path.exists());
    let again = home.run(["jupyter", "uninstall", "--prefix", prefix]);
    assert_eq!(again.code, 2, "{again:?}");
}

fn files_of_other_programs_are_not_touched() {
    let home = Home::new("jupyter-foreign");
    let theirs = home
        .folder
        .join("share/jupyter/kernels/python3/kernel.json");
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, r#"{"argv": [], "display_name": "Python"}"#).unwrap();
    for verb in ["install", "uninstall"] {
        let prefix = home.folder.to_str().unwrap();
        let ran = home.run(["jupyter", verb, "--name", "python3", "--prefix", prefix]);
        assert_eq!(ran.code, 4, "{ran:?}");
        assert!(ran.stderr.contains("was not changed\n"), "{ran:?}");
    }
    assert!(theirs.exists());
}

fn the_tests_in_python_are_clean() {
    let ruff = python().join("bin/ruff");
    for check in [&["check"][..], &["format", "--check"]] {
        let mut command = Command::new(&ruff);
        command.args(check).args(["--no-cache", "tests/jupyter"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Runs tests in Python, with a separate data folder of Jupyter.
fn report(file: &Path) -> String {
    let home = shared();
    let name = file.file_stem().unwrap().display();
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("jupyter-{name}"));
    let _ = fs::remove_dir_all(&data);
    fs::create_dir_all(&data).unwrap();
    let osctl = home.command([""; 0]);
    let mut words = vec![osctl.get_program().to_str().unwrap()];
    words.extend(osctl.get_args().map(|word| word.to_str().unwrap()));
    let mut command = Command::new(python().join("bin/python"));
    command
        .args(REPORTING)
        .arg(file)
        .env("OSCTL", json!(words).to_string())
        .env("HOST_HOME", &home.folder)
        .env("JUPYTER_DATA_DIR", &data)
        .env("JUPYTER_RUNTIME_DIR", data.join("runtime"))
        .env("JUPYTER_PLATFORM_DIRS", "1");
    let output = command.output().unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    )
}

static PYTHON: OnceLock<PathBuf> = OnceLock::new();

/// A Python environment with Jupyter's client.
fn python() -> &'static Path {
    PYTHON.get_or_init(|| crate::harness::python("jupyter"))
}
