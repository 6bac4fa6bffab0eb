//! Ways to install osctl without a compiler: the wheel, the Debian package, man pages.

use crate::commands::Ran;
use crate::harness::{self, Home, provide};
use crate::trials;
use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use toml_edit::DocumentMut;

trials![
    a_dynamic_build_is_refused_with_the_command_that_works,
    releases_and_benchmarks_use_the_same_profile,
    a_wheel_contains_the_static_binary,
    each_verb_has_a_man_page_without_warnings,
    the_debian_package_names_files_that_exist,
    a_debian_package_is_made_and_its_binary_starts =
        "packages::the_debian_package_names_files_that_exist",
    a_binary_for_arm_is_static_and_starts = "npm::the_workflow_of_a_release_is_valid",
];

const BINARY: &str = env!("CARGO_BIN_EXE_osctl");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command, which must succeed.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> Ran {
    let ran = Ran::from(command.output().unwrap());
    assert_eq!(ran.code, 0, "{command:?}: {ran:?}");
    ran
}

/// Starts the binary in a folder without libraries, as only a static one can.
#[track_caller]
fn start_alone(binary: &Path) -> String {
    let root = tempfile::tempdir().unwrap();
    fs::copy(binary, root.path().join("osctl")).unwrap();
    let mut command = Command::new("chroot");
    succeed(command.arg(root.path()).args(["/osctl", "--version"])).stdout
}

/// A `cargo` without this repository's configuration.
fn fresh_cargo(folder: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(folder);
    for (name, _) in std::env::vars_os() {
        let name = name.to_str().unwrap_or_default();
        let is_cargos = name.starts_with("CARGO") && name != "CARGO_HOME";
        if is_cargos || name.contains("RUSTFLAGS") {
            command.env_remove(name);
        }
    }
    command
}

/// The smallest package with a macro crate, as osctl has: such a crate can't be compiled for a static target.
const MANIFEST: &str = r#"
package = { name = "osctl", version = "0.1.0", edition = "2024" }
dependencies = { macros = { path = "macros" } }
"#;
const MANIFEST_OF_MACROS: &str = r#"
package = { name = "macros", version = "0.1.0", edition = "2024" }
lib = { proc-macro = true }
"#;

fn a_dynamic_build_is_refused_with_the_command_that_works() {
    // No folder above has a configuration of cargo, as where `cargo install osctl` compiles.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (file, content) in [
        ("Cargo.toml", MANIFEST),
        ("src/main.rs", "use macros as _;\nfn main() {}\n"),
        ("macros/Cargo.toml", MANIFEST_OF_MACROS),
        ("macros/src/lib.rs", ""),
    ] {
        let file = folder.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    fs::copy("build.rs", folder.join("build.rs")).unwrap();
    succeed(fresh_cargo(folder).args(["generate-lockfile", "--offline"]));
    let refused = Ran::from(fresh_cargo(folder).arg("check").output().unwrap());
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(
        refused.stderr.contains("error: ") && refused.stderr.contains("has to be static"),
        "{refused:?}"
    );
    let (_, command) = refused.stderr.split_once("Run: ").unwrap();
    let command = command.lines().next().unwrap();
    let (options, package) = command.rsplit_once(' ').unwrap();
    assert_eq!(package, "osctl");
    // The same command, for the local package.
    let line = format!("{options} --offline --debug --path . --root .");
    let mut shell = fresh_cargo(folder);
    let mut again = Command::new("sh");
    again.current_dir(folder).args(["-c", &line]);
    for (name, _) in shell.env_remove("CARGO").get_envs() {
        again.env_remove(name);
    }
    succeed(&mut again);
    start_alone(&folder.join("bin/osctl"));
}

fn manifest() -> DocumentMut {
    fs::read_to_string("Cargo.toml").unwrap().parse().unwrap()
}

fn releases_and_benchmarks_use_the_same_profile() {
    let manifest = manifest();
    for profile in ["dist", "bench"] {
        let profile = &manifest["profile"][profile];
        assert_eq!(profile["opt-level"].as_str(), Some("s"));
        assert_eq!(profile["lto"].as_str(), Some("fat"));
        assert_eq!(profile["codegen-units"].as_integer(), Some(1));
        assert_eq!(profile["strip"].as_bool(), Some(true));
    }
    let wheel = fs::read_to_string("pyproject.toml").unwrap();
    assert!(wheel.contains("profile = \"dist\""), "{wheel}");
}

/// The wheel of the tested binary; a released wheel has the target in its name.
fn build_wheel(python: &Path, folder: &Path) -> PathBuf {
    let target = format!("{ARCH}-unknown-linux-musl");
    let here = std::env::current_dir().unwrap();
    // maturin moves the binary, and other trials start the binary at the same time.
    let binary = folder.join("binary/osctl");
    fs::create_dir(binary.parent().unwrap()).unwrap();
    fs::copy(BINARY, &binary).unwrap();
    let out = folder.join("wheels");
    let mut maturin = Command::new(python.join("bin/maturin"));
    maturin
        .args(["build", "--profile", "dev", "--target", &target])
        .args(["--compression-level", "1"])
        .args(["--compatibility", "manylinux2014", "musllinux_1_2", "--out"])
        .arg(&out)
        .env("CARGO", here.join("tests/packages/cargo"))
        .env("OSCTL_CARGO", which::which("cargo").unwrap())
        .env("OSCTL_BINARY", &binary)
        .env("OSCTL_VERSION", VERSION);
    succeed(&mut maturin);
    let mut found = fs::read_dir(out).unwrap().map(|entry| entry.unwrap());
    found.next().unwrap().path()
}

fn a_wheel_contains_the_static_binary() {
    let python = harness::python("packages");
    let folder = tempfile::tempdir().unwrap();
    let wheel = build_wheel(&python, folder.path());
    let name = wheel.file_name().and_then(OsStr::to_str).unwrap();
    for platform in ["manylinux2014", "musllinux_1_2"] {
        assert!(name.contains(&format!("{platform}_{ARCH}")), "{name}");
    }
    let place = tempfile::tempdir().unwrap();
    let mut venv = Command::new(python.join("bin/python"));
    succeed(venv.args(["-m", "venv", "--without-pip"]).arg(place.path()));
    let mut pip = Command::new(python.join("bin/pip"));
    pip.arg("--python").arg(place.path().join("bin/python"));
    pip.args(["install", "-q", "--no-index", "--no-deps"]);
    succeed(pip.arg(&wheel));
    let installed = place.path().join("bin/osctl");
    let said = succeed(Command::new(&installed).arg("--version")).stdout;
    assert_eq!(said, format!("osctl {VERSION}\n"));
    assert_eq!(start_alone(&installed), said);
}

/// The verbs that the help of this command lists.
fn verbs(home: &Home, words: &[&str]) -> BTreeSet<String> {
    let help = home.ok([words, &["--help"]].concat()).stdout;
    // At the top level, the verbs are in groups between the usage and the options.
    let (_, list) = help.split_once("Usage: osctl").unwrap();
    let (_, list) = list.split_once('\n').unwrap();
    let (list, _) = list.split_once("Global options:\n").unwrap();
    let is_verb = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let named = list.lines().filter(is_verb);
    named
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .filter(|verb| verb != "help")
        .collect()
}

fn each_verb_has_a_man_page_without_warnings() {
    let home = Home::new("packages-man");
    let folder = home.folder.join("man");
    home.ok([OsStr::new("man"), folder.as_os_str()]);
    let pages: BTreeSet<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let of = |prefix: &str, words: &[&str]| -> BTreeSet<String> {
        let verbs = verbs(&home, words);
        assert!(verbs.len() > 3, "{verbs:?}");
        let pages = verbs.iter().map(|verb| format!("{prefix}-{verb}.1"));
        pages.collect()
    };
    let of_verbs = of("osctl", &[]);
    let is_of_a_verb = |page: &&String| page.matches('-').count() == 1;
    let found: BTreeSet<String> = pages.iter().filter(is_of_a_verb).cloned().collect();
    assert_eq!(found, of_verbs);
    assert!(pages.is_superset(&of("osctl-cryo", &["cryo"])), "{pages:?}");
    assert!(pages.contains("osctl.1"), "{pages:?}");
    provide("groff", &["groff-base"]);
    for page in &pages {
        let mut groff = Command::new("groff");
        groff.args(["-man", "-ww", "-Tutf8"]).arg(folder.join(page));
        let ran = succeed(&mut groff);
        assert_eq!(ran.stderr, "", "{page}");
        assert!(ran.stdout.contains(&format!("osctl {VERSION}")), "{page}");
    }
}

/// The files of the Debian package, with their paths in the system.
fn assets() -> Vec<(String, String)> {
    let manifest = manifest();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array();
    let text = |value: &toml_edit::Value| value.as_str().unwrap().to_owned();
    let assets = assets
        .unwrap()
        .iter()
        .map(|asset| asset.as_array().unwrap());
    assets
        .map(|asset| (text(asset.get(0).unwrap()), text(asset.get(1).unwrap())))
        .collect()
}

fn the_debian_package_names_files_that_exist() {
    let (made, kept): (Vec<_>, Vec<_>) = assets()
        .into_iter()
        .partition(|(from, _)| from.starts_with("target/"));
    for (from, to) in &kept {
        assert!(Path::new(from).is_file(), "`{from}` for `{to}` is missing");
    }
    let made: Vec<&str> = made.iter().map(|(from, _)| from.as_str()).collect();
    assert_eq!(made, ["target/release/osctl", "target/man/*.1"]);
    for shell in ["bash", "zsh", "fish"] {
        let script = format!("completions/osctl.{shell}");
        assert!(kept.iter().any(|(from, _)| *from == script), "{kept:?}");
    }
    let manifest = manifest();
    let package = &manifest["package"]["metadata"]["deb"];
    assert_eq!(package["recommends"].as_str(), Some("docker.io"));
}

/// Installs a program with cargo, and returns its path.
pub(crate) fn install_tool(name: &str, version: &str, options: &[&str]) -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut install = Command::new("cargo");
    install.args(["install", "-q", "--locked"]).args(options);
    install.args([name, "--version", version, "--root"]);
    succeed(install.arg(&tools));
    tools.join("bin").join(name)
}

fn a_debian_package_is_made_and_its_binary_starts() {
    let cargo_deb = install_tool("cargo-deb", "3.8.0", &[]);
    succeed(Command::new(BINARY).args(["man", "target/man"]));
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("osctl.deb");
    // The tested binary, at the path of a released binary.
    let target = format!("{ARCH}-unknown-linux-gnu");
    let place = folder.path().join("target").join(&target).join("dist");
    fs::create_dir_all(&place).unwrap();
    fs::copy(BINARY, place.join("osctl")).unwrap();
    let mut make = Command::new(cargo_deb);
    make.args(["deb", "--no-build", "--no-strip", "--fast"])
        .args(["--profile", "dist", "--target", &target, "--output"])
        .arg(&package)
        .env("CARGO_TARGET_DIR", folder.path().join("target"));
    succeed(&mut make);
    let of = |field: &str| {
        let mut command = Command::new("dpkg-deb");
        succeed(command.arg("--field").arg(&package).arg(field)).stdout
    };
    assert_eq!(of("Recommends"), "docker.io\n");
    assert_eq!(of("Depends"), "\n");
    let root = folder.path().join("root");
    succeed(
        Command::new("dpkg-deb")
            .arg("--extract")
            .args([&package, &root]),
    );
    assert!(start_alone(&root.join("usr/bin/osctl")).starts_with("osctl "));
    for file in [
        "usr/share/man/man1/osctl-exec.1.gz",
        "usr/share/bash-completion/completions/osctl",
        "usr/share/zsh/vendor-completions/_osctl",
        "usr/share/fish/vendor_completions.d/osctl.fish",
    ] {
        assert!(root.join(file).is_file(), "`{file}` is missing");
    }
}

/// Compiles as the release workflow does. Where rustup can't be reached, Debian's compiler builds the
/// standard library from its sources.
fn a_binary_for_arm_is_static_and_starts() {
    let target = "aarch64-unknown-linux-musl";
    let python = harness::python_with("release", "packaging/requirements.txt");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arm");
    let path = std::env::var("PATH").unwrap();
    let mut build = Command::new("cargo");
    build
        .args(["zigbuild", "--locked", "--bin", "osctl", "--target", target])
        .arg("--target-dir")
        .arg(&folder)
        .env("PATH", format!("{}:{path}", python.join("bin").display()))
        .env("CARGO_INCREMENTAL", "0");
    let mut rustup = Command::new("rustup");
    let added = rustup.args(["target", "add", target]).output();
    if !added.is_ok_and(|output| output.status.success()) {
        provide("/usr/bin/rustc", &["rustc-web", "rust-web-src"]);
        build
            .args(["-Z", "build-std=std,panic_unwind,panic_abort"])
            .env("RUSTC", "/usr/bin/rustc")
            .env("RUSTC_BOOTSTRAP", "1")
            // zig provides the startup objects.
            .env("RUSTFLAGS", "-C link-self-contained=no");
    }
    succeed(&mut build);
    let binary = folder.join(target).join("debug/osctl");
    let mut headers = Command::new("readelf");
    let headers = succeed(headers.arg("--program-headers").arg(&binary)).stdout;
    assert!(!headers.contains("INTERP"), "{headers}");
    provide("qemu-aarch64-static", &["qemu-user-static"]);
    let mut start = Command::new("qemu-aarch64-static");
    let said = succeed(start.arg(&binary).arg("--version")).stdout;
    assert_eq!(said, format!("osctl {VERSION}\n"));
}
