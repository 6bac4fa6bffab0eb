//! `install.sh` against releases on a server of this machine.

use crate::commands::Ran;
use crate::fake_companion::{FakeCompanion, respond};
use crate::harness::provide;
use crate::packages::succeed;
use crate::trials;
use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use toml_edit::DocumentMut;

trials![
    the_newest_release_is_installed_and_the_next_command_named,
    a_version_is_installed_over_another_one,
    an_archive_with_another_checksum_is_refused,
    a_missing_version_is_reported,
    systems_without_a_release_are_refused,
    the_archive_of_another_system_installs_the_binary_of_the_container,
    wget_downloads_where_curl_is_missing,
    a_script_without_a_release_address_says_so,
    cargo_binstall_finds_the_binary,
    the_scripts_of_a_release_are_clean,
];

/// A machine with releases of this system, and a home folder.
struct Machine {
    folder: TempDir,
    releases: String,
}

impl Machine {
    fn new() -> Self {
        provide("curl", &["curl"]);
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("releases");
        let server = FakeCompanion::start(move |request, stream| {
            match fs::read(root.join(request.path.trim_start_matches('/'))) {
                Ok(content) => respond(stream, "200 OK", &[], &content),
                Err(_) => respond(stream, "404 Not Found", &[], b""),
            }
        });
        let releases = format!("http://127.0.0.1:{}", server.port);
        let machine = Self { folder, releases };
        fs::create_dir(machine.path("home")).unwrap();
        for (place, version) in [("latest/download", "1.2.0"), ("download/v1.1.0", "1.1.0")] {
            machine.release(place, version, &format!("{ARCH}-unknown-linux-musl"), &[]);
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds an archive, as the release workflow creates it, of a binary that only prints its version.
    fn release(&self, place: &str, version: &str, target: &str, companion: &[&str]) {
        let binary = self.path(&format!("osctl-{version}"));
        fs::write(&binary, format!("#!/bin/sh\necho osctl {version}\n")).unwrap();
        let out = self.path("releases").join(place);
        fs::create_dir_all(&out).unwrap();
        let pages = self.path("pages");
        fs::create_dir_all(&pages).unwrap();
        fs::write(pages.join("osctl.1"), ".TH osctl 1\n").unwrap();
        let companion = companion.iter().map(|architecture| {
            let path = binary.display();
            format!("{architecture}={path}")
        });
        let mut archive = Command::new("packaging/archive");
        archive.args([&binary, &pages]).arg(target).arg(&out);
        archive.args(companion);
        succeed(&mut archive);
        fs::remove_dir_all(out.join(format!("osctl-{target}"))).unwrap();
    }

    fn archive(&self, place: &str) -> PathBuf {
        let name = format!("osctl-{ARCH}-unknown-linux-musl.tar.gz");
        self.path("releases").join(place).join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command
            .arg("install.sh")
            .args(args)
            .env("HOME", self.path("home"))
            .env("OSCTL_RELEASES", &self.releases)
            .env("TMPDIR", self.folder.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    /// Runs the script as on a machine whose `uname` gives these names.
    fn run_as(&self, system: &str, machine: &str, args: &[&str]) -> Ran {
        let programs = self.path("programs");
        fs::create_dir_all(&programs).unwrap();
        let uname = programs.join("uname");
        let script =
            format!("#!/bin/sh\ncase $1 in -s) echo {system} ;; -m) echo {machine} ;; esac\n");
        fs::write(&uname, script).unwrap();
        fs::set_permissions(&uname, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        Ran::from(self.command(args).env("PATH", path).output().unwrap())
    }

    /// Checks that the run failed for this reason and installed nothing.
    #[track_caller]
    fn assert_refused(&self, ran: &Ran, reason: &str) {
        assert_eq!(ran.code, 1, "{ran:?}");
        let mut lines = ran.stderr.lines();
        let said = lines.find(|line| line.starts_with("error: "));
        assert!(said.is_some_and(|line| line.contains(reason)), "{ran:?}");
        assert!(ran.stderr.contains("\n\nhint: "), "{ran:?}");
        assert!(!self.path("home/.local").exists());
    }
}

fn version_of(binary: &Path) -> String {
    succeed(&mut Command::new(binary)).stdout
}

fn the_newest_release_is_installed_and_the_next_command_named() {
    let machine = Machine::new();
    let ran = machine.run(&[]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let binary = machine.path("home/.local/bin/osctl");
    assert_eq!(version_of(&binary), "osctl 1.2.0\n");
    let (said, next) = ran.stdout.split_once('\n').unwrap();
    assert_eq!(
        said,
        format!("installed osctl 1.2.0 to {}", binary.display())
    );
    let next_command = format!("next: {} up ", binary.display());
    assert!(next.starts_with(&next_command), "{ran:?}");
    // If the folder is on the PATH, the script names the command without it.
    let folder = binary.parent().unwrap().display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let ran = Ran::from(machine.command(&[]).env("PATH", path).output().unwrap());
    assert!(ran.stdout.ends_with("next: osctl up\n"), "{ran:?}");
    // The script removes its download.
    let left = fs::read_dir(machine.folder.path()).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name());
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().starts_with("tmp."))
    );
}

fn a_version_is_installed_over_another_one() {
    let machine = Machine::new();
    let folder = machine.path("tools");
    let to = folder.to_str().unwrap();
    for (arguments, version) in [
        (&["--to", to][..], "1.2.0"),
        (&["--version", "1.1.0", "--to", to], "1.1.0"),
        (&["--to", to, "--version", "v1.1.0"], "1.1.0"),
    ] {
        let ran = machine.run(arguments);
        assert_eq!(ran.code, 0, "{ran:?}");
        let expected = format!("osctl {version}\n");
        assert_eq!(version_of(&folder.join("osctl")), expected);
    }
    let names = fs::read_dir(&folder).unwrap().count();
    assert_eq!(names, 1);
}

fn an_archive_with_another_checksum_is_refused() {
    let machine = Machine::new();
    let archive = machine.archive("latest/download");
    let mut content = fs::read(&archive).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&archive, &content).unwrap();
    let ran = machine.run(&[]);
    machine.assert_refused(&ran, "the checksum of `osctl-");
    // An empty checksum file is refused.
    fs::write(archive.with_extension("gz.sha256"), "").unwrap();
    let ran = machine.run(&[]);
    machine.assert_refused(&ran, "the checksum of `osctl-");
}

fn a_missing_version_is_reported() {
    let machine = Machine::new();
    let ran = machine.run(&["--version", "9.9.9"]);
    machine.assert_refused(&ran, "/download/v9.9.9/osctl-");
    fs::remove_file(
        machine
            .archive("latest/download")
            .with_extension("gz.sha256"),
    )
    .unwrap();
    let ran = machine.run(&[]);
    machine.assert_refused(&ran, ".tar.gz.sha256` can't be downloaded");
}

fn systems_without_a_release_are_refused() {
    let machine = Machine::new();
    let ran = machine.run_as("Linux", "riscv64", &[]);
    machine.assert_refused(&ran, "no release for the architecture riscv64");
    let ran = machine.run_as("FreeBSD", "amd64", &[]);
    machine.assert_refused(&ran, "no release for FreeBSD");
}

fn the_archive_of_another_system_installs_the_binary_of_the_container() {
    let machine = Machine::new();
    let target = "aarch64-apple-darwin";
    machine.release("latest/download", "1.3.0", target, &["arm64"]);
    let ran = machine.run_as("Darwin", "arm64", &[]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for file in ["bin/osctl", "libexec/osctl-linux-arm64"] {
        let path = machine.path("home/.local").join(file);
        assert_eq!(version_of(&path), "osctl 1.3.0\n");
    }
}

fn wget_downloads_where_curl_is_missing() {
    let machine = Machine::new();
    provide("wget", &["wget"]);
    let programs = machine.path("programs");
    fs::create_dir(&programs).unwrap();
    for name in [
        "cp",
        "cut",
        "chmod",
        "dirname",
        "gzip",
        "mkdir",
        "mktemp",
        "mv",
        "rm",
        "sh",
        "sha256sum",
        "tar",
        "uname",
        "wget",
    ] {
        symlink(which::which(name).unwrap(), programs.join(name)).unwrap();
    }
    let mut command = machine.command(&[]);
    let ran = Ran::from(command.env("PATH", &programs).output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    let binary = machine.path("home/.local/bin/osctl");
    assert_eq!(version_of(&binary), "osctl 1.2.0\n");
    fs::remove_file(programs.join("wget")).unwrap();
    fs::remove_dir_all(machine.path("home/.local")).unwrap();
    let mut command = machine.command(&[]);
    let ran = Ran::from(command.env("PATH", &programs).output().unwrap());
    machine.assert_refused(&ran, "neither curl nor wget");
}

fn a_script_without_a_release_address_says_so() {
    let machine = Machine::new();
    let mut command = machine.command(&[]);
    let ran = Ran::from(command.env_remove("OSCTL_RELEASES").output().unwrap());
    machine.assert_refused(&ran, "does not know where the releases are");
    // The release workflow inserts the address.
    let text = fs::read_to_string("install.sh").unwrap();
    let filled = machine.path("install.sh");
    fs::write(&filled, text.replace("@RELEASES@", &machine.releases)).unwrap();
    let mut command = Command::new("sh");
    command.arg(&filled).env("HOME", machine.path("home"));
    succeed(command.env_remove("OSCTL_RELEASES"));
    assert!(machine.path("home/.local/bin/osctl").is_file());
}

fn cargo_binstall_finds_the_binary() {
    let machine = Machine::new();
    let target = format!("{ARCH}-unknown-linux-musl");
    let manifest: DocumentMut = fs::read_to_string("Cargo.toml").unwrap().parse().unwrap();
    let told = |key: &str| {
        let text = manifest["package"]["metadata"]["binstall"][key].as_str();
        let text = text.unwrap().replace("{ target }", &target);
        text.replace("{ version }", "1.1.0")
            .replace("{ bin }{ binary-ext }", "osctl")
    };
    let url = told("pkg-url");
    let (_, path) = url.split_once("{ repo }/releases/").unwrap();
    let archive = machine.path("releases").join(path);
    let list = succeed(Command::new("tar").arg("-tzf").arg(&archive)).stdout;
    assert!(list.lines().any(|file| file == told("bin-dir")), "{list}");
}

fn the_scripts_of_a_release_are_clean() {
    provide("shellcheck", &["shellcheck"]);
    let scripts = ["install.sh", "packaging/archive", "tests/packages/cargo"];
    succeed(Command::new("shellcheck").args(scripts));
}
