//! The kernel's own tests, with pytest and ruff, on the image's Python.

use crate::harness::shared;
use crate::trials;
use std::fs;
use std::path::Path;

trials![the_kernels_own_tests_pass_and_its_code_is_clean];

fn the_kernels_own_tests_pass_and_its_code_is_clean() {
    let home = shared();
    for (from, to) in [
        ("tests/kernel", "tests/kernel"),
        ("body/kernel", "body/kernel"),
        ("body/servers", "body/servers"),
    ] {
        copy(Path::new(from), &home.project.join(to));
    }
    let code = r#"
import subprocess, sys
def run(*command):
    done = subprocess.run(command, cwd='/repo', capture_output=True, text=True)
    print((done.stdout + done.stderr)[-8000:])
    if done.returncode: raise SystemExit(f'{command[0]} failed')
run('uv', 'venv', '--quiet', '--clear', '/tmp/pytest', '--python', sys.base_prefix + '/bin/python3')
run('uv', 'pip', 'install', '--quiet', '--python', '/tmp/pytest/bin/python', '--require-hashes', '-r', '/repo/body/requirements/kernel.txt')
run('uv', 'pip', 'install', '--quiet', '--python', '/tmp/pytest/bin/python', '--require-hashes', '-r', '/repo/tests/kernel/requirements.txt')
run('/tmp/pytest/bin/ruff', 'check', '--no-cache', '--config', 'tests/kernel/ruff.toml', 'body/kernel', 'body/servers', 'tests/kernel')
run('/tmp/pytest/bin/ruff', 'format', '--no-cache', '--check', '--config', 'tests/kernel/ruff.toml', 'body/kernel', 'body/servers', 'tests/kernel')
run('/tmp/pytest/bin/python', '-B', '-m', 'pytest', '-q', '-x', '/repo/tests/kernel')
"#;
    copy(
        Path::new("body/requirements"),
        &home.project.join("body/requirements"),
    );
    let script = home.project.join("kernel_tests.py");
    fs::write(&script, code).unwrap();
    // In a process of its own, so that the shared kernel stays free.
    let ran = home.run(["exec", "import subprocess, sys\ndone = subprocess.run([sys.executable, '/repo/kernel_tests.py'])\nassert done.returncode == 0"]);
    assert_eq!(ran.code, 0, "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains(" passed"), "{}", ran.stdout);
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
