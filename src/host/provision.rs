//! Installation of the parts that a fresh machine lacks: packages, and a running engine.
//!
//! Only distributions with `apt-get` are provisioned; elsewhere the error names the parts to install.

use super::folders::{Folders, ensure_private_folder};
use crate::engine::{Docker, EngineProgress};
use crate::error::{Error, Result};
use anyhow::Context;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const ENGINE_PACKAGES: &[&str] = &["docker.io", "containerd", "runc", "iptables"];
/// Time limit for waiting for another package manager.
const APT_LOCK_TIMEOUT: Duration = Duration::from_secs(180);
const DOCKERD_START_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of log lines in an error.
const MAX_DOCKERD_LOG_LINES: usize = 5;

/// Asks the user for consent to install missing packages.
pub(crate) type InstallConsent<'a> = &'a (dyn Fn(&str) -> Result<bool> + Sync);

/// How to make an engine answer on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineFix {
    /// Install the distribution's packages, then start the engine.
    Install,
    /// Start the installed engine.
    Start,
    /// No automatic fix.
    None,
}

impl EngineFix {
    /// The fix that this machine allows.
    pub(crate) fn detect() -> Self {
        match which::which("dockerd") {
            Ok(_) if cfg!(target_os = "linux") && is_root() => Self::Start,
            Err(_) if can_install() => Self::Install,
            _ => Self::None,
        }
    }

    /// The hint about a missing engine.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::Install => {
                "`osctl up --yes` installs Docker from the distribution's packages, or use `--engine embedded` without isolation"
            }
            Self::Start => "`osctl up --yes` starts the installed Docker",
            Self::None if cfg!(target_os = "linux") && !is_root() => {
                "as root: `apt-get install -y docker.io`, and add yourself to the group `docker`; or use `osctl up --engine embedded` without isolation"
            }
            Self::None => {
                "install Docker Desktop, colima or podman and start it; or use `osctl up --engine embedded` without isolation"
            }
        }
    }

    /// The question that asks for consent.
    pub(crate) fn consent_question(self) -> &'static str {
        match self {
            Self::Start => "Docker is installed but does not run. Start it?",
            _ => "No container engine answers. Install Docker from the distribution's packages?",
        }
    }
}

/// Whether packages of the distribution can be installed on this machine.
pub(crate) fn can_install() -> bool {
    cfg!(target_os = "linux") && is_root() && which::which("apt-get").is_ok()
}

#[cfg(unix)]
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

/// Installs and starts the engine, and waits until it answers.
///
/// # Errors
/// When the packages cannot be installed or the daemon does not come up; the error names its log.
pub(crate) async fn provision_engine(
    fix: EngineFix,
    folders: &Folders,
    progress: &dyn EngineProgress,
) -> Result<Docker> {
    if fix == EngineFix::Install {
        progress.report_step("installing the container engine (docker.io)");
        install_packages(ENGINE_PACKAGES, progress).await?;
    }
    progress.report_step("starting the container engine");
    let mut daemon = start_daemon(folders, progress).await?;
    let answers = async {
        loop {
            if let Ok(docker) = Docker::find(&folders.home, fix.hint()).await {
                return Ok(docker);
            }
            if let Some(why) = daemon.exit_reason()? {
                return Err(daemon.start_error(&why));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    match tokio::time::timeout(DOCKERD_START_TIMEOUT, answers).await {
        Ok(answered) => answered,
        Err(_) => {
            let why = format!(
                "did not answer within {} s",
                DOCKERD_START_TIMEOUT.as_secs()
            );
            Err(daemon.start_error(&why))
        }
    }
}

/// A `dockerd` that osctl has started.
#[derive(Debug)]
struct StartedDaemon {
    log: PathBuf,
    /// The length of its log before the start, in bytes.
    log_offset: u64,
    /// `None` if systemd owns the process.
    child: Option<Child>,
}

impl StartedDaemon {
    /// Why the daemon exited, if it has.
    fn exit_reason(&mut self) -> Result<Option<String>> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        let Some(status) = child.try_wait()? else {
            return Ok(None);
        };
        // This daemon found another one, which may still answer.
        let gave_way = self.read_log().contains("ensure docker is not running");
        Ok((!gave_way).then(|| format!("exited immediately ({status})")))
    }

    /// The log since the start.
    fn read_log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let before = usize::try_from(self.log_offset).unwrap_or(usize::MAX);
        String::from_utf8_lossy(log.get(before..).unwrap_or_default()).into_owned()
    }

    fn start_error(&self, why: &str) -> anyhow::Error {
        let log = self.read_log();
        let lines: Vec<&str> = log.lines().filter(|l| !l.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(MAX_DOCKERD_LOG_LINES)..].join(" / ");
        let message = match last.is_empty() {
            true => format!("dockerd {why}"),
            false => format!("dockerd {why}: {last}"),
        };
        Error::precondition(message, format!("the log is `{}`", self.log.display())).into()
    }
}

/// Installs packages of the distribution.
///
/// # Errors
/// When apt fails; the error holds the end of its output.
pub(crate) async fn install_packages(
    packages: &[&str],
    progress: &dyn EngineProgress,
) -> Result<()> {
    run_apt(&["update", "-q"], progress).await?;
    // The distribution's images are configured to empty the common folder at each `apt-get update`, also at the one of
    // another `up`, between the download and the installation.
    let folder = tempfile::tempdir().context("creating a folder for packages")?;
    let archives = format!("Dir::Cache::archives={}", folder.path().display());
    let options = [
        "install",
        "-q",
        "-y",
        "--no-install-recommends",
        "-o",
        &archives,
    ];
    run_apt(&[&options, packages].concat(), progress).await
}

/// Runs `apt-get`. An earlier run, perhaps of an interrupted `up`, may still be active or incomplete: waits for it, or
/// completes it.
async fn run_apt(arguments: &[&str], progress: &dyn EngineProgress) -> Result<()> {
    let tool = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        // The output is parsed, so fix its language.
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C.UTF-8")
            .args(arguments);
        command
    };
    let deadline = Instant::now() + APT_LOCK_TIMEOUT;
    loop {
        let done = run_with_progress(
            tool("apt-get", arguments),
            InterruptPolicy::Finish,
            progress,
        )
        .await;
        let why = match &done {
            Err(error) if Instant::now() < deadline => error.to_string(),
            _ => return done,
        };
        if why.contains("dpkg was interrupted") {
            progress.report_step("finishing an interrupted installation");
            run_with_progress(
                tool("dpkg", &["--configure", "-a"]),
                InterruptPolicy::Finish,
                progress,
            )
            .await?;
        } else if is_apt_locked(&why) {
            progress.report_step("waiting for another package manager to finish");
            tokio::time::sleep(Duration::from_secs(1)).await;
        } else {
            return done;
        }
    }
}

/// Whether the output says that another package manager is active.
fn is_apt_locked(why: &str) -> bool {
    // A lock file that cannot be opened is not held by another process.
    let signs = ["Could not get lock", "Unable to lock ", "frontend lock"];
    !why.contains("Could not open lock file") && signs.iter().any(|sign| why.contains(sign))
}

/// Starts the daemon with systemd if that runs, otherwise as a detached process with its own log.
async fn start_daemon(folders: &Folders, progress: &dyn EngineProgress) -> Result<StartedDaemon> {
    if Path::new("/run/systemd/system").exists() {
        let mut command = Command::new("systemctl");
        command.args(["enable", "--now", "docker"]);
        run_with_progress(command, InterruptPolicy::Finish, progress).await?;
        return Ok(StartedDaemon {
            log: "journalctl -u docker".into(),
            log_offset: 0,
            child: None,
        });
    }
    remove_stale_pid_files(Path::new("/var/run"), Path::new("/proc"));
    ensure_private_folder(&folders.state)?;
    let path = folders.state.join("dockerd.log");
    let log = OpenOptions::new().create(true).append(true).open(&path)?;
    let before = log.metadata()?.len();
    // A separate session, so that the daemon keeps running when the terminal of osctl is closed.
    let mut command = Command::new("setsid");
    command
        .arg("dockerd")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let child = command.spawn().context("starting dockerd")?;
    Ok(StartedDaemon {
        log: path,
        log_offset: before,
        child: Some(child),
    })
}

/// Removes the files in which a killed engine left the ids of its processes, if other processes have these ids now.
/// With such a file, the engine takes the other process for a running engine and does not start.
fn remove_stale_pid_files(run: &Path, processes: &Path) {
    let files = [
        ("docker.pid", "dockerd"),
        ("docker/containerd/containerd.pid", "containerd"),
    ];
    for (file, program) in files {
        let path = run.join(file);
        let Ok(pid) = fs::read_to_string(&path) else {
            continue;
        };
        let name = fs::read_to_string(processes.join(pid.trim()).join("comm"));
        if name.unwrap_or_default().trim() != program {
            // If the file stays, the engine's log says so.
            let _ = fs::remove_file(&path);
        }
    }
}

/// How an interrupt of osctl affects a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterruptPolicy {
    /// The command finishes: an interrupted package manager leaves a broken system.
    Finish,
    /// The command and all its child processes are killed.
    Kill,
}

/// Kills a command's process group, unless it has ended.
#[derive(Debug)]
struct CommandGroup {
    leader: Option<u32>,
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(leader) = self.leader {
            use nix::sys::signal::{Signal, killpg};
            // The group may be gone already.
            let _ = killpg(
                nix::unistd::Pid::from_raw(leader.cast_signed()),
                Signal::SIGKILL,
            );
        }
    }
}

/// Runs a command to its end, and reports each line of its output as progress.
pub(super) async fn run_with_progress(
    mut command: Command,
    ending: InterruptPolicy,
    progress: &dyn EngineProgress,
) -> Result<()> {
    let name = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A separate process group: the terminal's Ctrl-C applies only to osctl.
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command
        .spawn()
        .with_context(|| format!("starting `{name}`"))?;
    let mut group = CommandGroup {
        leader: child.id().filter(|_| ending == InterruptPolicy::Kill),
    };
    let (out, err) = (
        child.stdout.take().context("a pipe")?,
        child.stderr.take().context("a pipe")?,
    );
    // Read bytes: a character in another encoding must not end the reading.
    let (mut out, mut err) = (
        BufReader::new(out).split(b'\n'),
        BufReader::new(err).split(b'\n'),
    );
    let mut last = Vec::new();
    let (mut out_open, mut err_open) = (true, true);
    while out_open || err_open {
        let line = tokio::select! {
            line = out.next_segment(), if out_open => { let line = line?; out_open = line.is_some(); line }
            line = err.next_segment(), if err_open => { let line = line?; err_open = line.is_some(); line }
        };
        let Some(line) = line else { continue };
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        progress.log(&line);
        last.push(line);
        if last.len() > 10 {
            last.remove(0);
        }
    }
    let status = child.wait().await?;
    group.leader = None;
    if !status.success() {
        let why = format!("`{name}` failed ({status}): {}", last.join(" / "));
        if why.contains("No space left on device") {
            return Err(Error::DiskFull { why }.into());
        }
        return Err(Error::precondition(why, "`osctl -v up` shows the whole output").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        InterruptPolicy, StartedDaemon, is_apt_locked, remove_stale_pid_files, run_with_progress,
    };
    use crate::engine::EngineProgress;
    use parking_lot::Mutex;
    use std::fs;
    use tokio::process::Command;

    /// Stores the reported lines.
    #[derive(Default)]
    struct ProvisionTestProgress(Mutex<Vec<String>>);

    impl EngineProgress for ProvisionTestProgress {
        fn report_step(&self, _what: &str) {}
        fn report_amount(&self, _what: &str, _done: u64, _total: Option<u64>) {}
        fn log(&self, line: &str) {
            self.0.lock().push(line.into());
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn pid_files_of_ended_engines_are_removed() {
        let run = tempfile::tempdir().unwrap();
        let processes = tempfile::tempdir().unwrap();
        let containerd = run.path().join("docker/containerd");
        fs::create_dir_all(&containerd).unwrap();
        fs::write(run.path().join("docker.pid"), "7").unwrap();
        fs::write(containerd.join("containerd.pid"), "8\n").unwrap();
        for (pid, program) in [("7", "kworker"), ("8", "containerd")] {
            fs::create_dir(processes.path().join(pid)).unwrap();
            fs::write(
                processes.path().join(pid).join("comm"),
                format!("{program}\n"),
            )
            .unwrap();
        }
        remove_stale_pid_files(run.path(), processes.path());
        assert!(!run.path().join("docker.pid").exists());
        assert!(containerd.join("containerd.pid").exists());
        fs::remove_dir_all(processes.path().join("8")).unwrap();
        remove_stale_pid_files(run.path(), processes.path());
        assert!(!containerd.join("containerd.pid").exists());
    }

    #[test]
    fn another_package_manager_differs_from_words_with_lock_in_them() {
        for why in [
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt)",
            "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?",
            "E: Unable to lock directory /var/lib/apt/lists/",
            "dpkg: error: dpkg frontend lock was locked by another process with pid 7",
        ] {
            assert!(is_apt_locked(why), "{why}");
        }
        for why in [
            "403 blocked by the proxy",
            "E: Unable to locate package libblockdev3",
            "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (30: Read-only file system) / E: Unable to acquire the dpkg frontend lock",
        ] {
            assert!(!is_apt_locked(why), "{why}");
        }
    }

    #[tokio::test]
    async fn output_that_is_not_text_is_shown_with_replacements() {
        let progress = ProvisionTestProgress::default();
        let command = shell(r"printf 'a \351 b\nlast'");
        run_with_progress(command, InterruptPolicy::Kill, &progress)
            .await
            .unwrap();
        assert_eq!(*progress.0.lock(), ["a \u{fffd} b", "last"]);
    }

    #[tokio::test]
    async fn a_daemon_that_exits_is_reported_with_its_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("dockerd.log");
        let old = "of an earlier one\n";
        fs::write(&log, format!("{old}starting\nno iptables\n")).unwrap();
        let mut child = shell("exit 1").spawn().unwrap();
        child.wait().await.unwrap();
        let mut daemon = StartedDaemon {
            log: log.clone(),
            log_offset: old.len() as u64,
            child: Some(child),
        };
        let why = daemon.exit_reason().unwrap().unwrap();
        let message = daemon.start_error(&why).to_string();
        assert!(
            message.starts_with("dockerd exited immediately"),
            "{message}"
        );
        assert!(message.ends_with(": starting / no iptables"), "{message}");
        // A daemon that found another one has not failed: osctl waits for the other one.
        fs::write(
            &log,
            format!("{old}failed: ensure docker is not running or delete it"),
        )
        .unwrap();
        assert_eq!(daemon.exit_reason().unwrap(), None);
    }
}
