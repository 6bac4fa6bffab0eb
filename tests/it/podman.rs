//! Podman, through the socket of its Docker API.

use crate::evolve::{
    assert_remembers, base, containers, latest, load_base, read, remember, write, write_small,
};
use crate::harness::{EngineAt, Home, TEST_TIMEOUT, provide};
use crate::second_engine::{only_child, short_folder};
use crate::trials;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

trials![
    an_instance_starts_and_keeps_its_variables_on_podman,
    everything_works_on_podman = "podman::an_instance_starts_and_keeps_its_variables_on_podman",
];

/// A separate Podman service, whose images and containers no other test uses.
#[derive(Debug)]
struct Podman {
    folder: tempfile::TempDir,
    service: Child,
}

impl Podman {
    fn start() -> Self {
        provide("podman", &["podman", "runc", "netavark", "aardvark-dns"]);
        remove_old_rules();
        let folder = short_folder();
        // Not more files and processes than the service may use, on every machine.
        let limits =
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n";
        fs::write(folder.path().join("containers.conf"), limits).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let socket = format!("unix://{}", folder.path().join("podman.sock").display());
        // All processes end with the namespace: the monitor of an exec would stay for minutes.
        let mut service = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid"])
            .args(["--fork", "--kill-child", "--mount-proc"])
            .args(words(
                folder.path(),
                &["system", "service", "--time", "0", &socket],
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while UnixStream::connect(folder.path().join("podman.sock")).is_err() {
            let log = fs::read_to_string(folder.path().join("log")).unwrap();
            let hopeless = service.try_wait().unwrap().is_some() || begin.elapsed() > TEST_TIMEOUT;
            assert!(!hopeless, "no Podman: {log}");
            thread::sleep(Duration::from_millis(20));
        }
        Self { folder, service }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("podman.sock")
    }
}

/// Removes the rules that lead this instance's ports to the container of a killed run, and the unused chains
/// of rules.
fn remove_old_rules() {
    let suffix = std::env::var("OSCTL_TEST_SUFFIX").unwrap_or_default();
    let script = format!(
        "iptables -t nat -S | grep -- 'name: osctl-it-podman{suffix} ' | sed 's/^-A/iptables -t nat -D/' | sh
        for chain in $(iptables -t nat -S | sed -n 's/^-N \\(NETAVARK-DN-.*\\)/\\1/p'); do
            iptables -t nat -S | grep -q -- \"-j $chain\\$\" ||
                {{ iptables -t nat -F $chain && iptables -t nat -X $chain; }}
        done"
    );
    let ran = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
}

impl Drop for Podman {
    fn drop(&mut self) {
        // The networks of the containers are not in the namespaces.
        let service = only_child(&self.service).to_string();
        let _ = Command::new("nsenter")
            .args(["-t", &service, "-m", "-p"])
            .args(words(self.folder.path(), &["rm", "--all", "--force"]))
            .output();
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

/// A Podman command with all its state in `folder`.
fn words(folder: &Path, verb: &[&str]) -> Vec<String> {
    let at = |name: &str| folder.join(name).display().to_string();
    let conf = format!("CONTAINERS_CONF={}", at("containers.conf"));
    let mut words = ["env", &conf, "podman", "--root", &at("root")]
        .map(str::to_owned)
        .to_vec();
    words.extend(["--runroot", &at("run"), "--tmpdir", &at("tmp")].map(str::to_owned));
    words.extend(["--cgroup-manager", "cgroupfs", "--runtime", "runc"].map(str::to_owned));
    words.extend(verb.iter().map(|word| (*word).to_owned()));
    words
}

/// An instance with the small body that is up on Podman.
fn up_on(podman: &Podman) -> Home {
    load_base(&EngineAt(podman.socket()));
    let mut home = Home::new("it-podman");
    let address = format!("unix://{}", podman.socket().display());
    home.env.insert("DOCKER_HOST".into(), address);
    write_small(&home, base());
    home.up();
    remember(&home);
    assert_remembers(&home);
    home
}

fn an_instance_starts_and_keeps_its_variables_on_podman() {
    let podman = Podman::start();
    let home = up_on(&podman);
    home.ok(["restart"]);
    assert_remembers(&home);
    home.down();
}

fn everything_works_on_podman() {
    let podman = Podman::start();
    let home = up_on(&podman);
    assert_eq!(home.run(["shell", "exit 7"]).code, 7);
    home.ok(["restart"]);
    assert_remembers(&home);

    // evolve replaces the body, and rolls back a body that does not work.
    write(&home, "kernel/more.py", "\"\"\"Changed.\"\"\"\n");
    home.ok(["evolve"]);
    assert_remembers(&home);
    assert_eq!(latest(&home)["status"], "succeeded");
    let entrypoint = read(&home, "entrypoint.sh");
    write(&home, "entrypoint.sh", "#!/bin/sh\nexit 1\n");
    assert_ne!(home.run(["evolve"]).code, 0);
    assert_eq!(latest(&home)["status"], "failed");
    assert_remembers(&home);
    assert_eq!(containers(&home), [home.container()]);

    write(&home, "entrypoint.sh", &entrypoint);
    home.ok(["cryo", "store"]);
    home.ok(["down"]);
    home.up();
    assert_remembers(&home);
    home.down();
}
