//! What a fresh machine lacks: an engine that runs, and the base image.
//!
//! Only distributions with `apt-get` are provisioned; elsewhere the error says what to install.

use super::folders::Folders;
use crate::engine::{Docker, Progress};
use crate::error::{Error, Result};
use anyhow::Context;
use futures_util::StreamExt;
use std::fs::{self, OpenOptions};
use std::future::ready;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio_util::io::ReaderStream;

/// The base under a name of our own, so as not to shadow the official one.
pub(crate) const BOOTSTRAPPED: &str = "osctl-base:trixie";

const SUITE: &str = "trixie";
const ENGINE_PACKAGES: &[&str] = &["docker.io", "containerd", "runc", "iptables"];
const BOOTSTRAP_PACKAGES: &[&str] = &["debootstrap", "debian-archive-keyring"];
/// With it every package of the base image is checked.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// How long another package manager is waited for.
const APT: Duration = Duration::from_secs(180);
const ENGINE_START: Duration = Duration::from_secs(60);

/// What would make an engine answer here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cure {
    /// Install the distribution's packages, then start it.
    Install,
    /// It is installed, and only has to be started.
    Start,
    /// Nothing that osctl can do.
    None,
}

impl Cure {
    /// What this machine allows.
    pub(crate) fn find() -> Self {
        let able = cfg!(target_os = "linux") && is_root() && which::which("apt-get").is_ok();
        match which::which("dockerd") {
            Ok(_) if cfg!(target_os = "linux") && is_root() => Self::Start,
            Err(_) if able => Self::Install,
            _ => Self::None,
        }
    }

    /// What to do about a missing engine, in words.
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

    /// The question that asks for leave.
    pub(crate) fn question(self) -> &'static str {
        match self {
            Self::Start => "Docker is installed but does not run. Start it?",
            _ => "No container engine answers. Install Docker from the distribution's packages?",
        }
    }
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
/// When the packages can't be installed or the daemon does not come up; its log is named.
pub(crate) async fn engine(
    cure: Cure,
    folders: &Folders,
    progress: &dyn Progress,
) -> Result<Docker> {
    if cure == Cure::Install {
        progress.step("installing the container engine (docker.io)");
        install(ENGINE_PACKAGES, progress).await?;
    }
    progress.step("starting the container engine");
    let log = start_daemon(folders, progress).await?;
    let answers = async {
        loop {
            match Docker::find(&folders.home, cure.hint()).await {
                Ok(docker) => return docker,
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    };
    tokio::time::timeout(ENGINE_START, answers)
        .await
        .map_err(|_| {
            let message = format!("dockerd did not answer within {} s", ENGINE_START.as_secs());
            Error::precondition(message, format!("its log is `{}`", log.display())).into()
        })
}

/// Installs packages of the distribution.
///
/// # Errors
/// When apt fails: with the end of what it said.
pub(crate) async fn install(packages: &[&str], progress: &dyn Progress) -> Result<()> {
    apt(&["update", "-q"], progress).await?;
    let options = ["install", "-q", "-y", "--no-install-recommends"];
    apt(&[&options, packages].concat(), progress).await
}

/// Runs `apt-get`. An earlier one, perhaps of an `up` that was ended, may still be at work or have
/// been cut off; it is waited for, or finished.
async fn apt(arguments: &[&str], progress: &dyn Progress) -> Result<()> {
    let tool = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(arguments);
        command
    };
    let deadline = Instant::now() + APT;
    loop {
        let done = run(tool("apt-get", arguments), Ending::LeftToFinish, progress).await;
        let why = match &done {
            Err(error) if Instant::now() < deadline => error.to_string(),
            _ => return done,
        };
        if why.contains("dpkg was interrupted") {
            progress.step("finishing an installation that was cut off");
            run(
                tool("dpkg", &["--configure", "-a"]),
                Ending::LeftToFinish,
                progress,
            )
            .await?;
        } else if why.contains("lock") {
            progress.step("waiting for another package manager to finish");
            tokio::time::sleep(Duration::from_secs(1)).await;
        } else {
            return done;
        }
    }
}

/// Through systemd where it runs, else detached from this process with a log of its own.
async fn start_daemon(folders: &Folders, progress: &dyn Progress) -> Result<PathBuf> {
    if Path::new("/run/systemd/system").exists() {
        let mut command = Command::new("systemctl");
        command.args(["enable", "--now", "docker"]);
        run(command, Ending::LeftToFinish, progress).await?;
        return Ok("journalctl -u docker".into());
    }
    fs::create_dir_all(&folders.state)?;
    let path = folders.state.join("dockerd.log");
    let log = OpenOptions::new().create(true).append(true).open(&path)?;
    // A session of its own, so that it outlives the terminal that osctl was called in.
    let mut command = Command::new("setsid");
    command
        .args(["--fork", "dockerd"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let status = command.status().await.context("starting dockerd")?;
    anyhow::ensure!(status.success(), "setsid ended with {status}");
    Ok(path)
}

/// What becomes of a command when osctl is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// A package manager that is cut off leaves a broken system.
    LeftToFinish,
    /// It and all that it started end, too.
    Killed,
}

/// Kills a command's process group, unless it has ended before.
#[derive(Debug)]
struct Group {
    leader: Option<u32>,
}

impl Drop for Group {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(leader) = self.leader {
            use nix::sys::signal::{Signal, killpg};
            // Gone already is what was wanted.
            let _ = killpg(
                nix::unistd::Pid::from_raw(leader.cast_signed()),
                Signal::SIGKILL,
            );
        }
    }
}

/// Runs a command to its end, each line of its output to the progress.
async fn run(mut command: Command, ending: Ending, progress: &dyn Progress) -> Result<()> {
    let name = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A group of its own: the terminal's Ctrl-C is for osctl.
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command
        .spawn()
        .with_context(|| format!("starting `{name}`"))?;
    let mut group = Group {
        leader: child.id().filter(|_| ending == Ending::Killed),
    };
    let (out, err) = (
        child.stdout.take().context("a pipe")?,
        child.stderr.take().context("a pipe")?,
    );
    let (mut out, mut err) = (BufReader::new(out).lines(), BufReader::new(err).lines());
    let mut last = Vec::new();
    let (mut out_open, mut err_open) = (true, true);
    while out_open || err_open {
        let line = tokio::select! {
            line = out.next_line(), if out_open => { let line = line?; out_open = line.is_some(); line }
            line = err.next_line(), if err_open => { let line = line?; err_open = line.is_some(); line }
        };
        let Some(line) = line else { continue };
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
        return Err(Error::precondition(why, "`osctl -v up` shows its whole output").into());
    }
    Ok(())
}

/// The image to start from: the configured one, pulled if need be, else one made here.
///
/// # Errors
/// When it can be neither pulled nor made.
pub(crate) async fn base_image(
    docker: &Docker,
    wanted: &str,
    folders: &Folders,
    may_install: bool,
    progress: &dyn Progress,
) -> Result<String> {
    if docker.image(wanted).await?.is_some() {
        return Ok(wanted.into());
    }
    let is_default = wanted == crate::config::Config::default().base;
    if is_default && docker.image(BOOTSTRAPPED).await?.is_some() {
        return Ok(BOOTSTRAPPED.into());
    }
    progress.step(&format!("pulling {wanted}"));
    let Err(why) = docker.pull(wanted, progress).await else {
        return Ok(wanted.into());
    };
    if !is_default || !cfg!(target_os = "linux") || !is_root() || which::which("apt-get").is_err() {
        let hint = format!(
            "give another base with `base:` in osctl.yaml, or load it: `docker load` (needed: {wanted})"
        );
        return Err(Error::precondition(
            format!("the base image `{wanted}` can't be pulled: {why}"),
            hint,
        )
        .into());
    }
    progress.log(&format!(
        "{wanted} can't be pulled ({why}), making it from Debian's packages"
    ));
    bootstrap(docker, folders, may_install, progress).await?;
    Ok(BOOTSTRAPPED.into())
}

async fn bootstrap(
    docker: &Docker,
    folders: &Folders,
    may_install: bool,
    progress: &dyn Progress,
) -> Result<()> {
    if which::which("debootstrap").is_err() || !Path::new(KEYRING).exists() {
        if !may_install {
            let message = "no registry can be reached, and `debootstrap` or Debian's keyring, which make the base image, is not installed";
            return Err(Error::precondition(message, "`osctl up --yes` installs it").into());
        }
        progress.step("installing debootstrap");
        install(BOOTSTRAP_PACKAGES, progress).await?;
    }
    let root = Root::new(&folders.temporary())?;
    progress.step("making the base image with debootstrap");
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", "--force-check-gpg"]);
    command
        .arg(format!("--keyring={KEYRING}"))
        .arg(SUITE)
        .arg(root.path());
    run(command, Ending::Killed, progress).await?;
    root.slim()?;
    progress.step("importing the base image");
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(root.path())
        .args(["--numeric-owner", "-c", "."]);
    tar.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut tar = tar.spawn().context("starting `tar`")?;
    let archive = ReaderStream::with_capacity(tar.stdout.take().context("a pipe")?, 1 << 20);
    // A read error ends the archive early, which the engine and tar's exit code both tell.
    let archive = archive
        .take_while(|chunk| ready(chunk.is_ok()))
        .filter_map(|chunk| ready(chunk.ok()));
    docker.import(BOOTSTRAPPED, archive).await?;
    anyhow::ensure!(tar.wait().await?.success(), "`tar` failed");
    Ok(())
}

/// A root folder in the making; what an interrupted debootstrap leaves mounted goes with it.
#[derive(Debug)]
struct Root {
    folder: Option<tempfile::TempDir>,
}

impl Root {
    fn new(temporary: &Path) -> Result<Self> {
        // What an `up` that was killed left behind.
        if let Ok(entries) = fs::read_dir(temporary) {
            for entry in entries
                .flatten()
                .filter(|e| e.file_name().to_string_lossy().starts_with("base-"))
            {
                remove(&entry.path());
            }
        }
        fs::create_dir_all(temporary)?;
        Ok(Self {
            folder: Some(
                tempfile::Builder::new()
                    .prefix("base-")
                    .tempdir_in(temporary)?,
            ),
        })
    }

    fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), |f| f.path())
    }

    /// Without what an image has no use for, and with the sources of security updates.
    fn slim(&self) -> Result<()> {
        for beneath in [
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
            "usr/share/locale",
            "usr/share/info",
        ] {
            empty(&self.path().join(beneath))?;
        }
        for file in [
            "var/cache/apt/pkgcache.bin",
            "var/cache/apt/srcpkgcache.bin",
        ] {
            let _ = fs::remove_file(self.path().join(file));
        }
        let list = self.path().join("etc/apt/sources.list");
        let main = fs::read_to_string(&list)?;
        let Some(mirror) = main.split_whitespace().find(|word| word.contains("://")) else {
            return Ok(());
        };
        let security = format!("{}-security", mirror.trim_end_matches('/'));
        let more = format!(
            "{main}deb {mirror} {SUITE}-updates main\ndeb {security} {SUITE}-security main\n"
        );
        fs::write(list, more)?;
        Ok(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            remove(&folder.keep());
        }
    }
}

/// Removes a root folder, never what is mounted beneath it.
fn remove(root: &Path) {
    for mounted in ["proc", "sys", "dev/pts", "dev"] {
        let at = root.join(mounted);
        if fs::read_to_string("/proc/self/mounts")
            .is_ok_and(|m| m.contains(&format!(" {} ", at.display())))
        {
            let done = std::process::Command::new("umount")
                .arg("-l")
                .arg(&at)
                .status();
            if !done.is_ok_and(|s| s.success()) {
                tracing::warn!("`{}` is still mounted and stays", at.display());
                return;
            }
        }
    }
    if let Err(error) = fs::remove_dir_all(root) {
        tracing::warn!("`{}` can't be removed: {error}", root.display());
    }
}

fn empty(folder: &Path) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    for entry in entries {
        let path = entry?.path();
        // The licences of what is inside stay with it.
        let licence = path.join("copyright");
        if path.is_symlink() || !path.is_dir() {
            fs::remove_file(&path)?;
        } else if licence.exists() {
            for other in fs::read_dir(&path)?
                .flatten()
                .map(|e| e.path())
                .filter(|p| *p != licence)
            {
                if other.is_dir() && !other.is_symlink() {
                    fs::remove_dir_all(&other)?
                } else {
                    fs::remove_file(&other)?
                }
            }
        } else {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}
