//! An engine that a test may stop, freeze and fill: a second `dockerd`.

use crate::harness::{EngineAt, Home, TEST_TIMEOUT, hold_apt, provide};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// The disk size of the second engine.
const DISK: u64 = 600 << 20;
/// The address of its TLS listener, in its own network namespace.
const TLS: (&str, u16) = ("127.0.0.1", 2376);

/// A second `dockerd` that shares neither processes, mounts, network nor disk with the first.
#[derive(Debug)]
pub(crate) struct Second {
    folder: tempfile::TempDir,
    /// Holds the namespaces; every process in them ends with the sandbox, and the sandbox ends with this process.
    sandbox: Child,
    daemon: Option<Child>,
    /// The engine also answers by TLS, to clients with the certificates of [`Self::certificates`].
    has_tls: bool,
}

impl Second {
    pub(crate) fn start() -> Self {
        Self::with_disk(DISK)
    }

    /// An engine with a disk of this size.
    pub(crate) fn with_disk(disk: u64) -> Self {
        Self::begin(disk, None)
    }

    /// An engine that also answers by TLS, with a certificate for this address.
    pub(crate) fn with_tls(disk: u64, address: &str) -> Self {
        Self::begin(disk, Some(address))
    }

    fn begin(disk: u64, tls: Option<&str>) -> Self {
        provide_dockerd();
        let folder = short_folder();
        if let Some(address) = tls {
            make_certificates(&folder.path().join("tls"), address);
        }
        let path = folder.path().display();
        // The first process waits: it reaps the orphans of a killed daemon, and stays when all other processes
        // are killed.
        let script = format!(
            "mount -t proc proc /proc && mkdir {path}/disk && mount -t tmpfs -o size={disk} tmpfs {path}/disk \
             && {} ip link set lo up && echo ready && while :; do sleep infinity & wait $!; done",
            busybox().display()
        );
        let mut sandbox = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--net"])
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        let told = sandbox.stdout.take().unwrap().read_exact(&mut ready);
        let mut second = Self {
            folder,
            sandbox,
            daemon: None,
            has_tls: tls.is_some(),
        };
        told.expect("the second engine has no namespaces");
        second.start_daemon();
        second.import_tiny();
        second
    }

    pub(crate) fn start_daemon(&mut self) {
        let disk = self.folder.path().join("disk");
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let mut command = Command::new("nsenter");
        command
            .args([
                "-t",
                &only_child(&self.sandbox).to_string(),
                "-m",
                "-n",
                "-p",
            ])
            .args(["dockerd", "-H", &self.address()])
            .arg("--data-root")
            .arg(disk.join("root"))
            .arg("--exec-root")
            .arg(disk.join("exec"))
            .arg("--pidfile")
            .arg(disk.join("pid"))
            .args(["--containerd-namespace", "osctl-it"])
            .args(["--containerd-plugins-namespace", "osctl-it-plugins"])
            .arg("--cgroup-parent")
            .arg(Path::new("/osctl-it").join(self.folder.path().file_name().unwrap()))
            .args(["--iptables=false", "--ip-masq=false", "--ip-forward=false"]);
        if self.has_tls {
            command.args(["-H", &format!("tcp://{}:{}", TLS.0, TLS.1), "--tlsverify"]);
            for (option, name) in [("cacert", "ca"), ("cert", "server"), ("key", "server-key")] {
                let path = self.certificates().join(name).with_extension("pem");
                command.arg(format!("--tls{option}={}", path.display()));
            }
        }
        let daemon = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemon = Some(daemon);
        let log = || fs::read_to_string(self.folder.path().join("log")).unwrap();
        let begin = Instant::now();
        while UnixStream::connect(self.socket()).is_err() {
            let ended = self.daemon.as_mut().unwrap().try_wait().unwrap();
            let hopeless = ended.is_some() || begin.elapsed() > TEST_TIMEOUT;
            assert!(!hopeless, "no second engine: {}", log());
            thread::sleep(Duration::from_millis(20));
        }
        let answer = std::panic::catch_unwind(|| self.api().get("/_ping").status);
        assert_eq!(answer.ok(), Some(200), "no second engine: {}", log());
    }

    /// Ends only the daemon, and waits for its end.
    pub(crate) fn stop(&mut self, signal: Signal) {
        let mut daemon = self.daemon.take().unwrap();
        send(only_child(&daemon), signal);
        daemon.wait().unwrap();
    }

    /// Keeps the port proxies from ending with the daemon that started them, until the result is dropped.
    pub(crate) fn hold_ports(&self) -> HeldPorts {
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let here = namespace(&only_child(&self.sandbox).to_string());
        let mut held = Vec::new();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let name = process.file_name().into_string().unwrap();
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let program = command.split(|byte| *byte == 0).next().unwrap();
            if program.ends_with(b"docker-proxy") && namespace(&name) == here {
                held.push(Pid::from_raw(name.parse().unwrap()));
            }
        }
        for proxy in &held {
            send(*proxy, Signal::SIGSTOP);
        }
        HeldPorts(held)
    }

    /// Kills every process of the engine. With control groups of version 1, the processes of a
    /// paused container stay.
    pub(crate) fn kill_everything(&mut self) {
        // All processes except the caller and the first process.
        self.inside("kill -9 -1");
        self.daemon.take().unwrap().wait().unwrap();
    }

    /// The state after a power failure: no processes, control groups, mounts and interfaces, and an
    /// unchanged disk.
    pub(crate) fn lose_power(&mut self) {
        self.kill_everything();
        until("the end of the control groups", || self.has_no_groups());
        let disk = self.folder.path().join("disk");
        let (disk, busybox) = (disk.display(), busybox().display());
        self.inside(&format!(
            "for place in $({busybox} awk '$5 ~ \"^{disk}/.\" {{print $5}}' /proc/self/mountinfo | {busybox} sort -r)\n\
             do {busybox} umount -l $place; done\n\
             {busybox} rm -rf {disk}/exec {disk}/pid\n\
             for link in $({busybox} ip -o link | {busybox} awk -F'[ :@]+' '$2 != \"lo\" {{print $2}}')\n\
             do {busybox} ip link del $link; done"
        ));
    }

    fn inside(&self, script: &str) {
        let mut command = Command::new("nsenter");
        command.args(["-t", &only_child(&self.sandbox).to_string()]);
        command.args(["-m", "-n", "-p"]).arg(busybox());
        let command = command.args(["sh", "-c", script]);
        command.stderr(Stdio::null()).status().unwrap();
    }

    /// Thaws paused processes so that they end, and removes the groups; whether no group is left.
    fn has_no_groups(&self) -> bool {
        let groups = groups(self.folder.path().file_name().unwrap());
        for group in &groups {
            let _ = fs::write(group.join("freezer.state"), "THAWED");
            let _ = fs::write(group.join("cgroup.freeze"), "0");
        }
        // The innermost groups first.
        for group in groups.iter().rev() {
            let _ = fs::remove_dir(group);
        }
        groups.is_empty()
    }

    /// Stops the daemon, so that it does not answer, until the result is dropped.
    pub(crate) fn freeze(&self) -> Frozen {
        let launcher = self.daemon.as_ref().unwrap();
        let daemon = only_child(launcher);
        send(daemon, Signal::SIGSTOP);
        // `nsenter` stops itself with the daemon.
        Frozen([daemon, Pid::from_raw(launcher.id().try_into().unwrap())])
    }

    /// The command prefix that enters the network namespace with the ports of this engine's containers.
    pub(crate) fn wrapper(&self) -> Vec<String> {
        let sandbox = only_child(&self.sandbox).to_string();
        ["nsenter", "-t", &sandbox, "-n"]
            .map(str::to_owned)
            .to_vec()
    }

    /// Connects to the engine, by TLS if it has TLS; the calling thread stays in the engine's network namespace.
    pub(crate) fn dial(&self) -> impl Fn() -> UnixStream + Send + 'static {
        let (socket, network) = (self.socket(), self.has_tls.then(|| self.network()));
        move || match &network {
            Some(network) => {
                setns(network, CloneFlags::CLONE_NEWNET).unwrap();
                // The caller only needs a stream socket.
                UnixStream::from(OwnedFd::from(TcpStream::connect(TLS).unwrap()))
            }
            None => UnixStream::connect(&socket).unwrap(),
        }
    }

    /// The network namespace of the containers' published ports.
    fn network(&self) -> fs::File {
        let sandbox = only_child(&self.sandbox);
        fs::File::open(format!("/proc/{sandbox}/ns/net")).unwrap()
    }

    /// The folder of `ca.pem`, `cert.pem` and `key.pem`, as a Docker client expects it.
    pub(crate) fn certificates(&self) -> PathBuf {
        self.folder.path().join("tls")
    }

    /// Binds a port in the network namespace of the published ports, as soon as it is free.
    pub(crate) fn bind_port(&self, port: u16) -> TcpListener {
        let there = self.network();
        let taken = thread::spawn(move || {
            setns(there, CloneFlags::CLONE_NEWNET).unwrap();
            let begin = Instant::now();
            loop {
                if let Ok(taken) = TcpListener::bind(("127.0.0.1", port)) {
                    return taken;
                }
                assert!(
                    begin.elapsed() < 5 * TEST_TIMEOUT,
                    "port {port} was not free"
                );
                thread::sleep(Duration::from_millis(1));
            }
        });
        taken.join().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }

    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub(crate) fn api(&self) -> EngineAt {
        EngineAt(self.socket())
    }

    /// The free bytes of the disk.
    pub(crate) fn free_disk(&self) -> u64 {
        let beneath = self.folder.path().strip_prefix("/").unwrap();
        let root = PathBuf::from(format!("/proc/{}/root", only_child(&self.sandbox)));
        let found = statvfs(&root.join(beneath).join("disk")).unwrap();
        found.blocks_available() * found.fragment_size()
    }

    /// Imports a base image of one static binary, so that the tests download nothing.
    pub(crate) fn import_tiny(&self) {
        let mut archive = tar::Builder::new(Vec::new());
        archive
            .append_path_with_name(busybox(), "bin/busybox")
            .unwrap();
        for name in ["sh", "sleep", "dd", "echo", "true"] {
            let mut link = tar::Header::new_gnu();
            link.set_entry_type(tar::EntryType::Symlink);
            link.set_size(0);
            archive
                .append_link(&mut link, format!("bin/{name}"), "busybox")
                .unwrap();
        }
        let done = self.api().send_bytes(
            "POST",
            "/images/create?fromSrc=-&repo=osctl-tiny&tag=test",
            "application/x-tar",
            &archive.into_inner().unwrap(),
        );
        assert_eq!(done.status, 200, "{}", String::from_utf8_lossy(&done.body));
    }

    /// A home with this Dockerfile on the tiny base.
    pub(crate) fn home(&self, name: &str, dockerfile: &str) -> Home {
        let mut home = Home::new(name);
        // An instance on the first engine may use the usual ports.
        home.env.insert("OSCTL_AUTO_PORTS".into(), "true".into());
        home.env.insert("DOCKER_HOST".into(), self.address());
        home.write_config(&format!(
            "base: osctl-tiny:test\ncompanion: {}\n",
            busybox().display()
        ));
        write_body(&home, dockerfile);
        home
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // All processes in the namespaces end with the first process, and the mounts with them.
        let _ = self.sandbox.kill();
        // Processes of a paused container can't end.
        self.has_no_groups();
        let _ = self.sandbox.wait();
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.wait();
        }
        remove_groups();
    }
}

/// Port proxies of removed containers.
#[derive(Debug)]
pub(crate) struct HeldPorts(Vec<Pid>);

impl HeldPorts {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

impl Drop for HeldPorts {
    fn drop(&mut self) {
        for proxy in &self.0 {
            let _ = kill(*proxy, Signal::SIGKILL);
        }
    }
}

/// A daemon that is stopped by a signal.
#[derive(Debug)]
pub(crate) struct Frozen([Pid; 2]);

impl Drop for Frozen {
    fn drop(&mut self) {
        for stopped in self.0 {
            let _ = kill(stopped, Signal::SIGCONT);
        }
    }
}

/// A short path, as a socket needs.
pub(crate) fn short_folder() -> tempfile::TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("osctl-it-").tempdir_in("/tmp").unwrap()
}

pub(crate) fn send(to: Pid, signal: Signal) {
    kill(to, signal).unwrap();
}

/// The process that a launcher runs.
pub(crate) fn only_child(launcher: &Child) -> Pid {
    let id = launcher.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    Pid::from_raw(children.trim().parse().unwrap())
}

/// The control groups of the second engine's containers.
fn groups(own: &OsStr) -> Vec<PathBuf> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten();
    let hierarchies = hierarchies.map(|entry| entry.path());
    let roots = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]);
    let roots = roots.map(|root| root.join("osctl-it").join(own));
    let mut found: Vec<PathBuf> = roots.filter(|root| root.is_dir()).collect();
    let mut next = 0;
    while next < found.len() {
        let beneath = fs::read_dir(&found[next]).into_iter().flatten().flatten();
        found.extend(
            beneath
                .map(|entry| entry.path())
                .filter(|path| path.is_dir()),
        );
        next += 1;
    }
    found
}

/// Removes the control groups that killed containers of the second engine left empty.
pub(crate) fn remove_groups() {
    let groups = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(groups).into_iter().flatten().flatten();
    for root in hierarchies.map(|e| e.path()).chain([groups.to_owned()]) {
        let _ = remove_group(&root.join("osctl-it"));
    }
}

pub(crate) fn remove_group(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)?.flatten() {
        if entry.path().is_dir() {
            remove_group(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

#[track_caller]
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{what} did not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A shell and its tools in one static file.
pub(crate) fn busybox() -> &'static Path {
    static BUSYBOX: OnceLock<PathBuf> = OnceLock::new();
    BUSYBOX.get_or_init(|| unpack("busybox-static", "bin/busybox"))
}

/// A program of a Debian package, which is not installed.
pub(crate) fn unpack(package: &str, program: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(package);
    let binary = folder.join(program);
    if !binary.is_file() {
        let _apt = hold_apt();
        fs::create_dir_all(&folder).unwrap();
        let script = format!(
            "apt-get -q download {package} || {{ apt-get -q update && apt-get -q download {package}; }}\n\
             dpkg-deb -x {package}_*.deb ."
        );
        shell(&script, &folder);
    }
    binary
}

/// Provides the daemon, which a machine with a running engine has.
pub(crate) fn provide_dockerd() {
    provide("dockerd", &["docker.io", "containerd", "runc", "iptables"]);
}

pub(crate) fn shell(script: &str, folder: &Path) {
    let ran = Command::new("sh")
        .args(["-ec", script])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

/// Creates the certificates of an authority, of an engine at this address, and of a client; valid for a day.
fn make_certificates(folder: &Path, address: &str) {
    provide("openssl", &["openssl"]);
    fs::create_dir_all(folder).unwrap();
    let script = format!(
        "new='openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'\n\
         $new -x509 -days 1 -subj /CN=osctl-it -keyout ca-key.pem -out ca.pem\n\
         sign() {{\n\
         $new -subj /CN=$1 -keyout $3.pem -out $1.csr && echo $4 > $1.ext\n\
         openssl x509 -req -days 1 -in $1.csr -extfile $1.ext -CA ca.pem -CAkey ca-key.pem -CAcreateserial -out $2.pem\n\
         }}\n\
         sign engine server server-key subjectAltName=IP:{address}\n\
         sign client cert key extendedKeyUsage=clientAuth"
    );
    shell(&script, folder);
}

pub(crate) fn write_body(home: &Home, dockerfile: &str) {
    let body = home.project.join("body");
    fs::create_dir_all(&body).unwrap();
    fs::write(body.join("body.yaml"), include_str!("../../body/body.yaml")).unwrap();
    let text = format!("ARG BASE\nFROM ${{BASE}}\n{dockerfile}\n");
    fs::write(body.join("Dockerfile"), text).unwrap();
}
