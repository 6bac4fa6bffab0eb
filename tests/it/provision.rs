//! What `up` installs on a machine that lacks it, and what an interrupt of the user ends.
//!
//! No test installs an engine on the machine it runs on; a script of the test replaces
//! apt, in a mount namespace without an engine. The base image is built by
//! the real debootstrap.

use crate::commands::{Followed, Ran, on_terminal};
use crate::faults::{assert_failure, run_to_end};
use crate::harness::{Engine, Home, provide};
use crate::second_engine::{Second, busybox, until};
use crate::trials;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

trials![
    proxies_reach_the_build,
    a_full_disk_is_reported_with_a_fix,
    the_user_confirms_before_an_engine_is_installed,
    without_a_terminal_nothing_is_installed_and_the_flag_is_named,
    ctrl_c_lets_a_package_manager_finish,
    ctrl_c_ends_the_build_of_a_base_image,
];

fn proxies_reach_the_build() {
    let second = Second::start();
    let lines = [
        r#"RUN test "$http_proxy" = http://one.invalid:3128"#,
        r#"RUN test "$HTTPS_PROXY" = http://two.invalid:3128"#,
        // The services inside call each other.
        r#"RUN test "$no_proxy" = inside.example,localhost,127.0.0.1,::1"#,
    ];
    let mut home = second.home("it-proxy", &lines.join("\n"));
    let told = run_to_end(&home, ["build"]);
    assert_failure(&told, 4, &["could not be built", "http_proxy"]);
    for (name, value) in [
        ("HTTP_PROXY", "http://one.invalid:3128"),
        ("https_proxy", "http://two.invalid:3128"),
        ("NO_PROXY", "inside.example"),
    ] {
        home.env.insert(name.into(), value.into());
    }
    home.ok(["build"]);
}

fn a_full_disk_is_reported_with_a_fix() {
    let home = Home::new("it-room");
    let state = home.folder.join(".local/state/osctl");
    fs::create_dir_all(&state).unwrap();
    let state = state.display().to_string();
    let root = Engine.get("/info").json()["DockerRootDir"].clone();
    let root = root.as_str().unwrap();
    // A small disk over the folder, which only this `doctor` sees.
    let finding = |what: &str, folder: &str, size: &str| -> Value {
        let doctor = home.command(["--json", "doctor"]);
        let mut command = Command::new("unshare");
        let script = r#"mount -t tmpfs -o "size=$0" tmpfs "$1" && shift && exec "$@""#;
        command.args(["--mount", "sh", "-c", script, size, folder]);
        command.arg(doctor.get_program()).args(doctor.get_args());
        command.envs(doctor.get_envs().filter_map(|(k, v)| Some((k, v?))));
        command.current_dir(&home.project);
        let ran = Ran::from(command.output().unwrap());
        let all: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| {
            panic!("{e}: {ran:?}");
        });
        let mut all = all["findings"].as_array().unwrap().iter();
        all.find(|f| f["name"] == what).unwrap().clone()
    };
    for (what, folder, size, verdict, cure) in [
        ("state's disk", state.as_str(), "2g", "ok", None),
        ("state's disk", &state, "500m", "warning", Some("osctl ls")),
        ("state's disk", &state, "64k", "broken", Some("osctl ls")),
        ("engine's disk", root, "4g", "ok", None),
        (
            "engine's disk",
            root,
            "2g",
            "broken",
            Some("docker system df"),
        ),
    ] {
        let found = finding(what, folder, size);
        assert_eq!(found["verdict"], verdict, "{found}");
        assert!(found["detail"].to_string().contains(folder), "{found}");
        assert_eq!(found["hint"].is_string(), cure.is_some(), "{found}");
        let told = found["hint"].to_string();
        assert!(told.contains(cure.unwrap_or_default()), "{found}");
    }
}

/// A machine without an engine, with an `apt-get` that is a script of the test.
#[derive(Debug)]
struct MachineWithoutEngine {
    home: Home,
    tools: PathBuf,
}

impl MachineWithoutEngine {
    fn new(name: &str, apt: &str) -> Self {
        let mut home = Home::new(name);
        let tools = home.folder.join("tools");
        fs::create_dir_all(&tools).unwrap();
        let program = tools.join("apt-get");
        let log = tools.join("asked");
        let text = format!("#!/bin/sh\necho \"$*\" >> {}\n{apt}\n", log.display());
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        home.env.insert("PATH".into(), tools.display().to_string());
        Self { home, tools }
    }

    /// The command where `/run`, and so the engine's socket, is empty.
    fn command(&self, args: &[&str]) -> Command {
        let inner = self.home.command(args);
        let mut command = Command::new("/usr/bin/unshare");
        let script = r#"/bin/mount -t tmpfs tmpfs /run && exec "$@""#;
        command.args(["--mount", "/bin/sh", "-c", script, "sh"]);
        command.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .env_remove("DOCKER_HOST")
            .current_dir(&self.home.project);
        command
    }

    /// The arguments of the `apt-get` calls.
    fn asked(&self) -> String {
        fs::read_to_string(self.tools.join("asked")).unwrap_or_default()
    }
}

fn the_user_confirms_before_an_engine_is_installed() {
    let bare = MachineWithoutEngine::new("it-ask", "echo 'E: no network' >&2; exit 100");
    let no = on_terminal(&bare.command(&["up"]), "n");
    assert!(
        no.stdout
            .contains("Install Docker from the distribution's packages?"),
        "{no:?}"
    );
    assert!(no.stdout.contains("up --yes"), "{no:?}");
    assert_eq!((no.code, bare.asked().as_str()), (4, ""), "{no:?}");
    let yes = on_terminal(&bare.command(&["up"]), "y");
    assert!(yes.stdout.contains("E: no network"), "{yes:?}");
    assert_eq!(
        (yes.code, bare.asked().as_str()),
        (4, "update -q\n"),
        "{yes:?}"
    );
    let (code, seen) = Followed::start(bare.command(&["build", "--yes"])).end();
    assert_failure(&(code, seen.concat()), 4, &["E: no network"]);
    assert_eq!(bare.asked(), "update -q\nupdate -q\n");
}

fn without_a_terminal_nothing_is_installed_and_the_flag_is_named() {
    let bare = MachineWithoutEngine::new("it-bare", "exit 0");
    let (code, seen) = Followed::start(bare.command(&["up"])).end();
    assert_failure(&(code, seen.concat()), 4, &["up --yes` installs Docker"]);
    assert_eq!(bare.asked(), "");
}

fn ctrl_c_lets_a_package_manager_finish() {
    let bare = MachineWithoutEngine::new(
        "it-apt",
        "cd ${0%/*}; echo unpacking; read word < fifo; echo $word > finished",
    );
    let fifo = bare.tools.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut up = Followed::start(bare.command(&["-v", "up", "--yes"]));
    assert!(up.wait_for("unpacking"), "{:?}", up.seen);
    up.signal("INT");
    let (code, seen) = up.end();
    assert_failure(&(code, seen.concat()), 5, &["interrupted"]);
    // The package manager still waits; the test lets it finish.
    fs::write(&fifo, "done\n").unwrap();
    until("the package manager's end", || {
        fs::read_to_string(bare.tools.join("finished")).is_ok_and(|text| text == "done\n")
    });
}

fn ctrl_c_ends_the_build_of_a_base_image() {
    provide("debootstrap", &["debootstrap", "debian-archive-keyring"]);
    let second = Second::start();
    let home = second.home("it-base", "");
    home.write_config(&format!("companion: {}\n", busybox().display()));
    let mut up = Followed::start(home.command(["-v", "up", "--yes"]));
    assert!(up.wait_for("Retrieving"), "{:?}", up.seen);
    let temporary = home.folder.display().to_string();
    assert!(is_named_by_a_process(&temporary));
    up.signal("INT");
    let (code, seen) = up.end();
    assert_failure(&(code, seen.concat()), 5, &["interrupted"]);
    until("debootstrap's end", || !is_named_by_a_process(&temporary));
    let roots = shell_output(&format!("find {temporary} -name 'base-*'"));
    assert_eq!(roots, "");
}

/// Whether another process has the text in its arguments.
fn is_named_by_a_process(text: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(text))
}

fn shell_output(script: &str) -> String {
    let ran = Command::new("sh").args(["-ec", script]).output().unwrap();
    String::from_utf8(ran.stdout).unwrap()
}
