//! criu itself: the commands, and what comes of them.

use super::words::{Kind, Reason, reason};
use crate::companion::kernel::Restored;
use crate::companion::reaper::THAWED;
use nix::fcntl::OFlag;
use nix::sys::statvfs::statvfs;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::time::timeout;

/// By its full path: what users install comes first in PATH.
const PROGRAM: &str = "/usr/sbin/criu";

/// What takes longer has failed: a dump waits for nobody, but for the disk.
const PATIENCE: Duration = Duration::from_secs(300);

/// Deleted files up to this are kept in a checkpoint.
const GHOST: &str = "1G";

/// With less room than this a write has failed for want of it.
const ROOM: u64 = 1 << 20;

/// The same for both ways. `--unprivileged`: with the few capabilities that the container has;
/// `--shell-job`: the leader of its session is elsewhere; `--ext-unix-sk`: so may peers of datagram
/// sockets be.
const COMMON: [&str; 4] = [
    "--unprivileged",
    "--shell-job",
    "--file-locks",
    "--ext-unix-sk",
];

/// What criu needs beside the images.
#[derive(Debug, Clone)]
pub(super) struct Tool {
    /// A folder for its log.
    pub(super) work: PathBuf,
}

/// A process that came out of a checkpoint, and its guard.
#[derive(Debug)]
pub(super) struct Thawed {
    stream: UnixStream,
    root: i32,
    stderr: Receiver,
}

impl Tool {
    /// The program's version.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) async fn version() -> Result<String, String> {
        let said = Command::new(PROGRAM).arg("--version").output().await;
        let said = said.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("`{PROGRAM}` is not installed in the image"),
            _ => format!("`{PROGRAM}` can't be run: {error}"),
        })?;
        let text = String::from_utf8_lossy(&said.stdout);
        let line = text.lines().find_map(|l| l.strip_prefix("Version: "));
        let line = line.ok_or_else(|| format!("`{PROGRAM}` does not tell its version"))?;
        Ok(line.trim().to_owned())
    }

    /// Writes a process with its descendants to `images`; they are stopped then.
    ///
    /// # Errors
    /// They go on then.
    pub(super) async fn dump(&self, pid: i32, images: &Path) -> Result<(), Reason> {
        let log = self.log("dump")?;
        let mut command = Command::new(PROGRAM);
        command
            .arg("dump")
            .args(COMMON)
            .args(["--leave-stopped", "--ghost-limit", GHOST])
            .args(["--tree", &pid.to_string()])
            .arg("--images-dir")
            .arg(images)
            .arg("--log-file")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let ended = timeout(PATIENCE, command.status()).await;
        let is_done = matches!(&ended, Ok(Ok(status)) if status.success());
        let told = fs::read_to_string(&log).unwrap_or_default();
        // Gone already is as good.
        let _ = fs::remove_file(&log);
        match ended {
            _ if is_done => Ok(()),
            Ok(Ok(_)) if is_full(images) => Err(full()),
            Ok(Ok(status)) => Err(match status.signal() {
                Some(signal) => plain(format!("criu was killed by signal {signal}")),
                None => logged(&told),
            }),
            Ok(Err(error)) => Err(plain(format!("`{PROGRAM}` can't be run: {error}"))),
            Err(_) => Err(plain(format!(
                "criu took longer than {} s",
                PATIENCE.as_secs()
            ))),
        }
    }

    /// Brings back what lies in `images`, under a guard of its own.
    ///
    /// # Errors
    /// Nothing of it is there then.
    pub(super) async fn restore(&self, images: &Path) -> Result<Thawed, Reason> {
        let log = self.log("restore")?;
        let restored = self.raise(images, &log).await;
        let told = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        match restored {
            Ok(Some(thawed)) => Ok(thawed),
            Ok(None) => Err(logged(&told)),
            Err(error) => Err(plain(error.to_string())),
        }
    }

    async fn raise(&self, images: &Path, log: &Path) -> io::Result<Option<Thawed>> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let (stderr, write_stderr) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let pidfile = self.work.join("restored.pid");
        // criu writes no file that is there.
        let _ = fs::remove_file(&pidfile);
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["reaper", "--thaw"])
            .arg(&pidfile)
            .arg(PROGRAM)
            .arg("restore")
            .args(COMMON)
            .args(["--restore-detached", "--restore-sibling", "--pidfile"])
            .arg(&pidfile)
            .arg("--images-dir")
            .arg(images)
            .arg("--work-dir")
            .arg(&self.work)
            .arg("--log-file")
            .arg(log)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(write_stderr);
        let mut guard = command.spawn()?;
        // It holds the other ends.
        drop(command);
        let root = guard.id();
        let gone = tokio::spawn(async move { guard.wait().await });
        let mut stream = UnixStream::from_std(ours)?;
        let told = timeout(PATIENCE, stream.read_u8()).await;
        let _ = fs::remove_file(&pidfile);
        let _ = fs::remove_file(self.work.join("stats-restore"));
        let (Some(root), Ok(Ok(THAWED))) = (root, told) else {
            // The guard ends everything with its connection, and whoever asked may try again then.
            drop(stream);
            let _ = timeout(PATIENCE, gone).await;
            return Ok(None);
        };
        Ok(Some(Thawed {
            stream,
            root: root.cast_signed(),
            stderr: Receiver::from_owned_fd(stderr)?,
        }))
    }

    fn log(&self, what: &str) -> Result<PathBuf, Reason> {
        fs::create_dir_all(&self.work)
            .map_err(|error| plain(format!("`{}`: {error}", self.work.display())))?;
        Ok(self.work.join(format!("{what}.log")))
    }
}

impl Thawed {
    /// Connects with a kernel.
    ///
    /// # Errors
    /// When it does not listen where it did.
    pub(super) fn kernel(self, socket: PathBuf) -> io::Result<Restored> {
        Restored::connect(self.stream, self.root, socket, self.stderr)
    }
}

fn logged(log: &str) -> Reason {
    for line in log.lines().filter(|line| line.contains("Error")) {
        tracing::info!("criu: {line}");
    }
    reason(log)
}

fn plain(why: String) -> Reason {
    Reason {
        why,
        hint: None,
        kind: Kind::Other,
    }
}

pub(super) fn full() -> Reason {
    Reason {
        why: "the disk is full".into(),
        hint: None,
        kind: Kind::Full,
    }
}

fn is_full(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|stat| stat.blocks_available() * stat.fragment_size() < ROOM)
}
