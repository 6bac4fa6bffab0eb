//! The criu command line: how criu is run, and how its results are read.

use super::error_text::{CriuFailure, CriuFailureKind, parse_log_failure};
use crate::companion::kernel::RestoredKernel;
use crate::companion::settings::inherited_environment;
use crate::supervise::{ProcessKind, ProcessStart, Supervisor, SupervisorEvent};
use nix::fcntl::OFlag;
use nix::sys::statvfs::statvfs;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::time::timeout;

/// An absolute path, because folders that users install to come first in PATH.
const CRIU_PROGRAM: &str = "/usr/sbin/criu";

/// Time limit of a criu run: a dump waits only for the disk.
const CRIU_TIMEOUT: Duration = Duration::from_secs(300);

/// A checkpoint contains deleted files up to this size.
const MAX_GHOST_FILE_SIZE: &str = "1G";

/// A write that failed with less free space than this failed for lack of space.
const MIN_CRIU_FREE_BYTES: u64 = 1 << 20;

/// Arguments of both dump and restore. `--unprivileged`: criu runs with the few capabilities of the container.
/// `--shell-job`: the session leader is outside the process tree. `--ext-unix-sk`: peers of datagram sockets may be
/// outside it, too.
const CRIU_COMMON_ARGS: [&str; 4] = [
    "--unprivileged",
    "--shell-job",
    "--file-locks",
    "--ext-unix-sk",
];

/// The criu program and the folder that it needs beside the images.
#[derive(Debug, Clone)]
pub(super) struct CriuTool {
    /// Folder of criu's log.
    pub(super) work_folder: PathBuf,
}

/// A restored process and its supervisor.
#[derive(Debug)]
pub(super) struct CriuRestoredProcess {
    supervisor: Supervisor,
    stderr: Receiver,
}

impl CriuTool {
    /// Returns the version of criu.
    ///
    /// # Errors
    /// Returns the reason why the program can't be run.
    pub(super) async fn read_version() -> Result<String, String> {
        let output = Command::new(CRIU_PROGRAM).arg("--version").output().await;
        let output = output.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("`{CRIU_PROGRAM}` is not installed in the image"),
            _ => format!("`{CRIU_PROGRAM}` can't be run: {error}"),
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|l| l.strip_prefix("Version: "));
        let line = line.ok_or_else(|| format!("`{CRIU_PROGRAM}` does not report its version"))?;
        Ok(line.trim().to_owned())
    }

    /// Dumps a process with its descendants to `images` and leaves them stopped.
    ///
    /// # Errors
    /// When the dump fails; the processes resume.
    pub(super) async fn dump(&self, pid: i32, images: &Path) -> Result<(), CriuFailure> {
        let log = self.prepare_log_path("dump")?;
        let mut command = Command::new(CRIU_PROGRAM);
        command
            .arg("dump")
            .args(CRIU_COMMON_ARGS)
            .args(["--leave-stopped", "--ghost-limit", MAX_GHOST_FILE_SIZE])
            .args(["--tree", &pid.to_string()])
            .arg("--images-dir")
            .arg(images)
            .arg("--log-file")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let ended = timeout(CRIU_TIMEOUT, command.status()).await;
        let is_done = matches!(&ended, Ok(Ok(status)) if status.success());
        let log_text = fs::read_to_string(&log).unwrap_or_default();
        // The log may not exist.
        let _ = fs::remove_file(&log);
        match ended {
            _ if is_done => Ok(()),
            Ok(Ok(_)) if is_disk_full(images) => Err(disk_full_failure()),
            Ok(Ok(status)) => Err(match status.signal() {
                Some(signal) => tool_failure(format!("criu was killed by signal {signal}")),
                None => failure_from_log(&log_text),
            }),
            Ok(Err(error)) => Err(tool_failure(format!(
                "`{CRIU_PROGRAM}` can't be run: {error}"
            ))),
            Err(_) => Err(tool_failure(format!(
                "criu took longer than {} s",
                CRIU_TIMEOUT.as_secs()
            ))),
        }
    }

    /// Restores the process in `images` under a new supervisor.
    ///
    /// # Errors
    /// When the restore fails; no restored process is left then.
    pub(super) async fn restore(&self, images: &Path) -> Result<CriuRestoredProcess, CriuFailure> {
        let log = self.prepare_log_path("restore")?;
        let restored = self.spawn_restore(images, &log).await;
        let log_text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        match restored {
            Ok(Some(process)) => Ok(process),
            Ok(None) => Err(failure_from_log(&log_text)),
            Err(error) => Err(tool_failure(error.to_string())),
        }
    }

    async fn spawn_restore(
        &self,
        images: &Path,
        log: &Path,
    ) -> io::Result<Option<CriuRestoredProcess>> {
        let (stderr, write_stderr) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let pidfile = self.work_folder.join("restored.pid");
        // criu does not overwrite an existing pid file.
        let _ = fs::remove_file(&pidfile);
        let mut args: Vec<OsString> = vec![CRIU_PROGRAM.into(), "restore".into()];
        args.extend(CRIU_COMMON_ARGS.map(OsString::from));
        args.extend(["--restore-detached", "--restore-sibling"].map(OsString::from));
        for (option, path) in [
            ("--pidfile", pidfile.as_path()),
            ("--images-dir", images),
            ("--work-dir", &self.work_folder),
            ("--log-file", log),
        ] {
            args.extend([option.into(), path.into()]);
        }
        let start = ProcessStart {
            kind: ProcessKind::Restore(pidfile.clone()),
            program: CRIU_PROGRAM.into(),
            args,
            environment: inherited_environment().collect(),
            max_open_files: None,
        };
        let (null, folder) = (
            File::options().read(true).write(true).open("/dev/null")?,
            File::open(".")?,
        );
        let descriptors = [
            null.as_fd(),
            null.as_fd(),
            write_stderr.as_fd(),
            folder.as_fd(),
        ];
        let mut supervisor = Supervisor::spawn_process(&start, descriptors)?;
        let event = timeout(CRIU_TIMEOUT, supervisor.next_event()).await;
        let _ = fs::remove_file(&pidfile);
        let _ = fs::remove_file(self.work_folder.join("stats-restore"));
        if !matches!(event, Ok(SupervisorEvent::Started(_))) {
            // After the end of all processes the caller can try again.
            supervisor.kill_tree();
            let _ = timeout(CRIU_TIMEOUT, supervisor.wait_exit()).await;
            return Ok(None);
        }
        Ok(Some(CriuRestoredProcess {
            supervisor,
            stderr: Receiver::from_owned_fd(stderr)?,
        }))
    }

    fn prepare_log_path(&self, what: &str) -> Result<PathBuf, CriuFailure> {
        fs::create_dir_all(&self.work_folder).map_err(|error| {
            tool_failure(format!(
                "the folder `{}` can't be created: {error}",
                self.work_folder.display()
            ))
        })?;
        Ok(self.work_folder.join(format!("{what}.log")))
    }
}

impl CriuRestoredProcess {
    /// Connects to the restored kernel.
    ///
    /// # Errors
    /// When the kernel does not listen on its former socket.
    pub(super) fn connect_kernel(self, socket: PathBuf) -> io::Result<RestoredKernel> {
        RestoredKernel::connect(self.supervisor, socket, self.stderr)
    }
}

fn failure_from_log(log: &str) -> CriuFailure {
    for line in log.lines().filter(|line| line.contains("Error")) {
        tracing::info!(line, "CRIU reported an error");
    }
    parse_log_failure(log)
}

fn tool_failure(why: String) -> CriuFailure {
    CriuFailure {
        why,
        hint: None,
        kind: CriuFailureKind::Other,
    }
}

pub(super) fn disk_full_failure() -> CriuFailure {
    CriuFailure {
        why: "the disk is full".into(),
        hint: None,
        kind: CriuFailureKind::DiskFull,
    }
}

fn is_disk_full(folder: &Path) -> bool {
    statvfs(folder)
        .is_ok_and(|stat| stat.blocks_available() * stat.fragment_size() < MIN_CRIU_FREE_BYTES)
}
