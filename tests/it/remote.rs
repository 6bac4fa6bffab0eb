//! An engine on another machine, by TLS, by ssh and by plain TCP: no folder of this machine is mounted there, this
//! machine can't reach its ports, and everything works as with a local engine.

use crate::evolve::{assert_remembers, configure, engine, on_second, remember, small, write};
use crate::faults::{assert_failure, run_to_end};
use crate::harness::{Engine, Home};
use crate::lost_connections::{assert_counts, open};
use crate::second_engine::{Second, until};
use crate::trials;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use serde_json::{Value, json};
use std::fs;
use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

trials![
    a_project_is_copied_to_an_engine_that_ssh_reaches,
    a_remote_engine_works_like_a_local_one =
        "remote::a_project_is_copied_to_an_engine_that_ssh_reaches",
    the_users_ssh_reaches_a_remote_engine =
        "remote::a_project_is_copied_to_an_engine_that_ssh_reaches",
    an_unreachable_engine_is_reported,
];

/// A proxy of an engine, at an address that is not this machine's loopback.
#[derive(Debug)]
struct EngineProxy {
    address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl EngineProxy {
    fn start(second: &Second) -> Self {
        let dial = second.dial();
        let listener = TcpListener::bind((gateway().as_str(), 0)).unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let open = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&open);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                all.lock().unwrap().push(near.try_clone().unwrap());
                let far = dial();
                let (mut asks, mut told) = (near.try_clone().unwrap(), near);
                let (mut asked, mut tells) = (far.try_clone().unwrap(), far);
                thread::spawn(move || {
                    let _ = copy(&mut asks, &mut asked);
                    let _ = asked.shutdown(Shutdown::Write);
                });
                thread::spawn(move || {
                    let _ = copy(&mut tells, &mut told);
                    let _ = told.shutdown(Shutdown::Write);
                });
            }
        });
        Self { address, open }
    }

    /// Cuts all open connections; the number of them.
    fn cut(&self) -> usize {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        for stream in &open {
            let _ = stream.shutdown(Shutdown::Both);
        }
        open.len()
    }
}

/// An address of this machine outside its loopback.
fn gateway() -> String {
    let networks = Engine.get("/networks/bridge").json();
    // An engine reports the gateway of this network only from its second start on.
    let name = networks["Options"]["com.docker.network.bridge.name"].clone();
    let is_bridge = |found: &InterfaceAddress| found.interface_name == name.as_str().unwrap();
    let mut found = getifaddrs().unwrap().filter(is_bridge);
    let address = found.find_map(|found| Some(found.address?.as_sockaddr_in()?.ip()));
    address.unwrap().to_string()
}

/// A home of this machine with the engine `second`, through the proxy.
fn remote_home(second: &Second, name: &str, proxy: &EngineProxy) -> Home {
    let mut home = on_second(second, name);
    // Outside the engine's namespace, where its ports are not.
    home.wrapper.clear();
    home.env.insert("DOCKER_HOST".into(), proxy.address.clone());
    configure(
        &home,
        &format!(
            "evolve:\n  start: 20\n  grace: 2\n  watch_period: 5\n\
             ports:\n  kernel: 28080\n  mcp: 28765\n  vnc: 25900\nremote_socket: {}\n",
            second.socket().display()
        ),
    );
    fs::write(home.project.join("note.txt"), "from here").unwrap();
    symlink("note.txt", home.project.join("link")).unwrap();
    home
}

/// The types and names of a container's mounts, by their paths in the container.
fn mounts(second: &Second, container: &str) -> Vec<(String, String, String)> {
    let found = second.api().get(&format!("/containers/{container}/json"));
    let text = |mount: &Value, key: &str| mount[key].as_str().unwrap_or_default().to_owned();
    let mounts = found.json()["Mounts"].clone();
    let mounts = mounts.as_array().unwrap().iter();
    let mut all: Vec<_> = mounts
        .map(|m| (text(m, "Destination"), text(m, "Type"), text(m, "Name")))
        .collect();
    all.sort();
    all
}

fn volumes(second: &Second) -> Vec<String> {
    let found = second.api().get("/volumes").json()["Volumes"].clone();
    let all = found.as_array().unwrap().iter();
    all.map(|v| v["Name"].as_str().unwrap().to_owned())
        .collect()
}

fn a_remote_engine_works_like_a_local_one() {
    let second = Second::with_tls(4000 << 20, &gateway());
    let proxy = EngineProxy::start(&second);
    let mut home = remote_home(&second, "it-remote", &proxy);
    // The engine accepts only TLS, with a client certificate.
    assert_failure(&run_to_end(&home, ["up"]), 4, &[&proxy.address, "HTTPS"]);
    let certificates = second.certificates();
    let certificates = certificates.to_str().unwrap();
    home.env.insert("DOCKER_TLS_VERIFY".into(), "1".into());
    let nowhere = home.folder.display().to_string();
    home.env.insert("DOCKER_CERT_PATH".into(), nowhere);
    assert_failure(&run_to_end(&home, ["up"]), 4, &[&proxy.address, "ca.pem"]);
    home.env
        .insert("DOCKER_CERT_PATH".into(), certificates.into());
    home.up();
    let name = &home.instance;
    let volume =
        |place: &str, base: &str| (place.into(), "volume".into(), format!("{base}-{name}"));
    let expected = [
        volume("/data", "osctl-data"),
        volume("/repo", "osctl-project"),
        volume("/root/host", "osctl-files"),
        volume("/run/os", "osctl-agent-socket"),
    ];
    assert_eq!(mounts(&second, &home.container()), expected);
    let keeper = mounts(&second, &format!("os-keeper-{name}"));
    let bound: Vec<_> = keeper.iter().filter(|m| m.1 == "bind").collect();
    assert_eq!(bound.len(), 1, "{keeper:?}");
    assert_eq!(bound[0].0, "/var/run/docker.sock");
    for folder in [home.files(), home.data()] {
        assert!(!folder.exists(), "{}", folder.display());
    }
    // The ports of the container can't be reached.
    let status = home.json(["status"]);
    let address = status["endpoints"]["kernel"].as_str().unwrap();
    let address = address.trim_start_matches("http://");
    assert!(TcpStream::connect(address).is_err(), "{address}");
    let machine = status["machine"].as_str().unwrap();
    assert!(proxy.address.contains(machine), "{machine}");

    // The project is in the container, and the kernel, the shell, files and servers answer.
    let shown = home.ok(["shell", "cat /repo/note.txt; readlink /repo/link"]);
    assert_eq!(shown.stdout, "from herenote.txt\n");
    remember(&home);
    assert_remembers(&home);
    assert_eq!(home.run(["shell", "exit 7"]).code, 7);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let (there, back) = (home.folder.join("there"), home.folder.join("back"));
    fs::write(&there, &bytes).unwrap();
    home.ok(["cp", there.to_str().unwrap(), "os:/root/host/there"]);
    home.ok(["cp", "os:/root/host/there", back.to_str().unwrap()]);
    assert_eq!(fs::read(back).unwrap(), bytes);
    let called = home.ok([
        "mcp",
        "call",
        "os",
        "execute_python_code",
        r#"{"code": "print(x)"}"#,
    ]);
    assert!(called.stdout.contains("41"), "{called:?}");

    // A terminal, whose connections are cut several times.
    let mut window = open(&home);
    window.types("for ((i = 1; i <= 60000; i++)); do echo n$i; done; echo al''l\r");
    let mut shown = String::new();
    for cut in [5_000, 20_000, 40_000] {
        shown += &window.wait_for(&format!("n{cut}\r\n"));
        // A cut without a connection cuts nothing.
        until("a connection to cut", || proxy.cut() > 0);
    }
    shown += &window.wait_for("all\r\n");
    assert_counts(&shown, "n", 60_000);
    window.resize(91, 33);
    window.types("sleep 1; stty size\r");
    window.wait_for("33 91");
    window.types("exit\r");
    assert_eq!(window.end().0, 0);

    // A body that is changed there evolves, and later becomes the project's body.
    let change = "echo '\"\"\"Changed there.\"\"\"' > /repo/body/kernel/more.py";
    home.ok(["shell", change]);
    home.ok(["evolve"]);
    assert_remembers(&home);
    let built = home.json(["status"])["image"].clone();
    write(
        &home,
        "kernel/more.py",
        "raise SystemExit('changed here')\n",
    );
    home.up();
    assert_eq!(home.json(["status"])["image"], built);
    assert_remembers(&home);

    // Without the variables the record has the engine's address; another engine is refused.
    let address = home.env.remove("DOCKER_HOST").unwrap();
    let verify = home.env.remove("DOCKER_TLS_VERIFY").unwrap();
    assert_remembers(&home);
    home.env.insert(
        "DOCKER_HOST".into(),
        format!("unix://{}", second.socket().display()),
    );
    let told = run_to_end(&home, ["status"]);
    assert_failure(
        &told,
        4,
        &[&address, "the selected engine is", "unset DOCKER_HOST"],
    );
    // `ls` asks each instance's own engine.
    let rows = home.json(["ls"]);
    let row = rows["instances"].as_array().unwrap().iter();
    let row: Vec<_> = row.filter(|row| row["instance"] == name.as_str()).collect();
    assert_eq!(row.len(), 1, "{rows:#}");
    assert_eq!(row[0]["state"], "running", "{rows:#}");
    home.env.insert("DOCKER_HOST".into(), address);
    home.env.insert("DOCKER_TLS_VERIFY".into(), verify);

    // The kept data is there again after `down`, and removed after `--purge`.
    home.ok(["cryo", "store"]);
    home.ok(["down"]);
    let told = run_to_end(&home, ["exec", "1"]);
    assert_failure(&told, 3, &["osctl", "up"]);
    home.up();
    assert_remembers(&home);
    let size = home.ok([
        "shell",
        "stat -c %s /root/host/there; cat /repo/body/kernel/more.py",
    ]);
    assert_eq!(size.stdout, "3000000\n\"\"\"Changed there.\"\"\"\n");
    home.down();
    assert_eq!(volumes(&second), [format!("osctl-files-{name}")]);
    assert_eq!(engine(&home).get("/version").status, 200);
}

/// A substitute for `ssh` and the remote `docker`: it records its arguments, and connects to the socket.
const SSH: &str = r#"#!/usr/bin/env python3
import os, socket, sys, threading
with open(os.environ["SSH_LOG"], "a") as log:
    print(*sys.argv[1:], file=log)
engine = socket.socket(socket.AF_UNIX)
engine.connect(os.environ["SSH_LEADS_TO"])
def up():
    while piece := os.read(0, 65536):
        engine.sendall(piece)
    engine.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while piece := engine.recv(65536):
    os.write(1, piece)
"#;

/// Has the home reach the engine at this socket by ssh; returns the log of the calls of `ssh`.
fn reach_by_ssh(home: &mut Home, socket: &Path) -> PathBuf {
    let (bin, log) = (home.folder.join("bin"), home.folder.join("ssh.log"));
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("ssh"), SSH).unwrap();
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for (key, value) in [
        ("PATH", path),
        ("SSH_LOG", log.display().to_string()),
        ("SSH_LEADS_TO", socket.display().to_string()),
        ("DOCKER_HOST", "ssh://ada@engine.example:2222".into()),
    ] {
        home.env.insert(key.into(), value);
    }
    log
}

#[track_caller]
fn assert_only_ssh_was_called(log: &Path) {
    let called = fs::read_to_string(log).unwrap();
    let words = "-- ssh://ada@engine.example:2222 docker system dial-stdio";
    assert!(called.lines().all(|line| line.ends_with(words)), "{called}");
}

fn a_project_is_copied_to_an_engine_that_ssh_reaches() {
    let mut home = small("it-remote-copy");
    fs::write(home.project.join("note.txt"), "from here").unwrap();
    let log = reach_by_ssh(&mut home, Path::new("/var/run/docker.sock"));
    home.up();
    for folder in [home.files(), home.data()] {
        assert!(!folder.exists(), "{}", folder.display());
    }
    let name = &home.instance;
    let found = Engine.get(&format!("/containers/{}/json", home.container()));
    let mounts = found.json()["Mounts"].clone();
    let volume = format!("osctl-project-{name}");
    assert!(mounts.to_string().contains(&volume), "{mounts:#}");
    assert!(!mounts.to_string().contains("\"bind\""), "{mounts:#}");
    let shown = home.ok(["shell", "cat /repo/note.txt"]);
    assert_eq!(shown.stdout, "from here");
    remember(&home);
    let (there, back) = (home.folder.join("there"), home.folder.join("back"));
    fs::write(&there, "to and fro").unwrap();
    home.ok(["cp", there.to_str().unwrap(), "os:/root/host/there"]);
    home.ok(["cp", "os:/root/host/there", back.to_str().unwrap()]);
    assert_eq!(fs::read(back).unwrap(), b"to and fro");
    assert_remembers(&home);
    assert_only_ssh_was_called(&log);
    home.down();
}

fn the_users_ssh_reaches_a_remote_engine() {
    let second = Second::with_disk(4000 << 20);
    let proxy = EngineProxy::start(&second);
    let mut home = remote_home(&second, "it-remote-ssh", &proxy);
    let log = reach_by_ssh(&mut home, &second.socket());
    // An unreadable path is named; the next `up` finishes an incomplete copy.
    let deep = home.project.join("deep");
    fs::create_dir_all(deep.join("d/".repeat(600))).unwrap();
    let told = run_to_end(&home, ["up", "--yes"]);
    assert_failure(&told, 4, &["can't be copied", "nested too deeply"]);
    fs::remove_dir_all(deep).unwrap();
    home.up();
    remember(&home);
    assert_remembers(&home);
    assert_eq!(home.run(["shell", "exit 7"]).code, 7);
    assert_only_ssh_was_called(&log);
    // An invalid body there is refused, and the body here does not replace it.
    home.ok(["shell", "mkfifo /repo/body/kernel/pipe"]);
    assert_failure(&run_to_end(&home, ["up"]), 4, &["pipe", "body"]);
    home.ok(["shell", "rm /repo/body/kernel/pipe"]);
    // Another project does not use the copy of this project.
    let other = home.folder.join("other");
    fs::create_dir_all(&other).unwrap();
    let told = run_to_end(
        &home,
        ["up", "--move", "--project", other.to_str().unwrap()],
    );
    assert_failure(&told, 4, &["already has a copy of", "down --purge"]);
    // A copy that this machine does not know is not overwritten.
    home.ok(["down"]);
    fs::remove_dir_all(home.state()).unwrap();
    let told = run_to_end(&home, ["up", "--yes"]);
    assert_failure(&told, 4, &["osctl-project-", "docker volume rm"]);
    // The engine is also reached without ssh and TLS.
    for volume in volumes(&second) {
        let path = format!("/volumes/{volume}");
        assert_eq!(second.api().send("DELETE", &path, &Value::Null).status, 204);
    }
    home.env.insert("DOCKER_HOST".into(), proxy.address.clone());
    home.up();
    remember(&home);
    assert_remembers(&home);
    home.down();
    // Folders of this machine can't be mounted there, which `up` reports before it creates anything.
    home.write_config("mounts: ['/srv:/srv']\n");
    let told = run_to_end(&home, ["up", "--yes"]);
    assert_failure(&told, 2, &["/srv:/srv", "cannot mount", "cp` copies"]);
    assert!(!home.state().join("instance.json").exists());
}

fn an_unreachable_engine_is_reported() {
    let mut home = Home::new("it-elsewhere");
    for (address, why) in [
        // An address that is reserved for examples.
        ("tcp://198.51.100.1:2375", "does not answer"),
        ("ssh://ada@engine.invalid", "does not answer"),
    ] {
        home.env.insert("DOCKER_HOST".into(), address.into());
        let told = run_to_end(&home, ["up", "--yes"]);
        assert_failure(&told, 4, &[address, why]);
    }
    for made in ["instance.json", "token"] {
        assert!(!home.state().join(made).exists(), "{made}");
    }
    // An instance of this machine stays on it.
    let record = json!({
        "project": home.project,
        "engine": "docker",
        "ports": {"kernel": 28080, "mcp": 28765, "vnc": 25900},
    });
    let path = home.state().join("instance.json");
    fs::create_dir_all(home.state()).unwrap();
    fs::write(&path, record.to_string()).unwrap();
    for verb in ["status", "up", "down"] {
        let told = run_to_end(&home, [verb]);
        assert_failure(
            &told,
            4,
            &[
                "runs on this machine",
                "the selected engine is",
                "unset DOCKER_HOST",
            ],
        );
    }
    fs::remove_file(path).unwrap();
}
