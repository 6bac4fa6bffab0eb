//! The companion as a plain process of this machine, for users without Docker. There is no isolation.
//!
//! A "container" is a folder here: its specification, the process id, its log. Instances with the same requirements
//! share one virtual environment.

use super::{Container, ContainerPhase, EngineProgress, LogOptions, ProcessLock};
use crate::atomic_write::{Durability, atomic_write};
use crate::error::{Error, Result};
use crate::protocol::hex::hex;
use crate::protocol::line_buffer::LineBuffer;
use crate::protocol::spec::ContainerSpec;
use anyhow::Context;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;

const EMBEDDED_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The lock that is held while a body or an environment is created or removed.
const PREPARE_LOCK_NAME: &str = "prepare.lock";

/// The engine for plain processes, with the folder of all of them.
#[derive(Debug, Clone)]
pub(crate) struct EmbeddedEngine {
    root: PathBuf,
}

impl EmbeddedEngine {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            root: state.join("embedded"),
        }
    }

    /// Whether this machine's Python can create virtual environments.
    pub(crate) async fn has_python() -> bool {
        let mut probe = Command::new("python3");
        probe.args([
            "-c",
            "import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 11))",
        ]);
        run_quietly(probe).await.is_ok()
    }

    fn container_folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Writes the body and creates its Python environment, if either is missing. Returns the replacement for an
    /// image: the folder of both.
    ///
    /// # Errors
    /// When Python is missing or its packages can't be installed.
    pub(crate) async fn prepare_body(
        &self,
        body: &BTreeMap<String, Vec<u8>>,
        progress: &dyn EngineProgress,
    ) -> Result<String> {
        let _lock = ProcessLock::acquire(&self.root, PREPARE_LOCK_NAME, progress).await?;
        let requirements = body
            .get("requirements/kernel.txt")
            .context("the body has no requirements/kernel.txt")?;
        let digest = hex(&Sha256::digest(requirements)[..6]);
        let environment = self.root.join(format!("venv-{digest}"));
        // The name is a digest of the whole content, so that a change of body or binary changes the "image".
        let mut all = Sha256::new();
        all.update(fs::read("/proc/self/exe").or_else(|_| fs::read(std::env::current_exe()?))?);
        for (path, content) in body {
            all.update(path);
            all.update(Sha256::digest(content));
        }
        let digest = hex(&all.finalize()[..8]);
        let image = self.root.join(format!("body-{digest}"));
        for (path, content) in body {
            let path = image.join("body").join(path);
            fs::create_dir_all(path.parent().context("a file has a folder")?)?;
            fs::write(path, content)?;
        }
        fs::write(image.join("environment"), environment.display().to_string())?;
        if !environment.join("ready").exists() {
            let requirements = image.join("body/requirements/kernel.txt");
            make_environment(&environment, &requirements, progress).await?;
            fs::write(environment.join("ready"), "")?;
        }
        Ok(image.display().to_string())
    }

    /// Removes every body and environment, for use when no instance is left. Does nothing while an instance has its
    /// folder.
    ///
    /// # Errors
    /// When a folder can't be removed.
    pub(crate) async fn remove_bodies(&self, progress: &dyn EngineProgress) -> Result<()> {
        let _lock = ProcessLock::acquire(&self.root, PREPARE_LOCK_NAME, progress).await?;
        let entries: Vec<_> = fs::read_dir(&self.root)?.collect::<std::io::Result<_>>()?;
        if entries.iter().any(|e| e.path().join("spec.json").exists()) {
            return Ok(());
        }
        for entry in entries {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("body-") || name.starts_with("venv-") {
                let path = entry.path();
                fs::remove_dir_all(&path)
                    .with_context(|| format!("removing `{}`", path.display()))?;
            }
        }
        Ok(())
    }

    pub(super) fn inspect(&self, name: &str) -> Result<Option<Container>> {
        let Some(spec) = self.read_spec(name)? else {
            return Ok(None);
        };
        let running = self.find_running_pid(name).is_some();
        let exit = (!running).then(|| {
            format!(
                "the process ended; its log is `{}`",
                self.log_path(name).display()
            )
        });
        let phase = if running {
            ContainerPhase::Running
        } else {
            ContainerPhase::Stopped
        };
        Ok(Some(Container {
            id: name.to_owned(),
            networks: BTreeSet::new(),
            ports: spec.ports,
            has_ports: running,
            restart_count: 0,
            phase,
            image: spec.image,
            labels: spec.labels,
            exit_reason: exit,
            failed_to_start: false,
        }))
    }

    pub(super) fn create_and_start(&self, spec: &ContainerSpec) -> Result<()> {
        let folder = self.container_folder(&spec.name);
        fs::create_dir_all(&folder)?;
        let text = serde_json::to_vec(spec)?;
        atomic_write(&folder.join("spec.json"), &text, Durability::Renamed)?;
        self.start(&spec.name)
    }

    pub(super) fn start(&self, name: &str) -> Result<()> {
        if self.find_running_pid(name).is_some() {
            return Ok(());
        }
        let spec = self
            .read_spec(name)?
            .with_context(|| format!("`{name}` does not exist"))?;
        let folder = self.container_folder(name);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path(name))?;
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command
            .arg("companion")
            .envs(&spec.env.0)
            .envs(companion_variables(
                &spec,
                &self.container_folder(&spec.name),
            )?);
        command
            .current_dir(mounted_host_path(&spec, "/repo")?)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().context("starting the companion")?;
        let pid = child.id();
        fs::write(
            folder.join("pid"),
            format!("{pid} {}", process_start_time(pid).unwrap_or_default()),
        )?;
        Ok(())
    }

    pub(super) fn rename(&self, name: &str, to: &str) -> Result<()> {
        let (from, to) = (self.container_folder(name), self.container_folder(to));
        fs::rename(&from, &to).with_context(|| format!("renaming `{}`", from.display()))
    }

    pub(super) fn list_labelled_containers(
        &self,
        (key, value): (&str, &str),
    ) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.root) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            // The lock is a file.
            if !entry.file_type()?.is_dir() {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let spec = self.read_spec(&name)?;
            let owner = spec.and_then(|mut spec| spec.labels.remove(key));
            names.extend((owner.as_deref() == Some(value)).then_some(name));
        }
        Ok(names)
    }

    pub(super) async fn stop(&self, name: &str) -> Result<()> {
        let Some(pid) = self.find_running_pid(name) else {
            return Ok(());
        };
        let grace = self.read_spec(name)?.map_or(10, |s| s.stop_timeout);
        signal_process(pid, false);
        let deadline = Instant::now() + Duration::from_secs(grace.into());
        while self.find_running_pid(name).is_some() {
            if Instant::now() > deadline {
                signal_process(pid, true);
            }
            tokio::time::sleep(EMBEDDED_POLL_INTERVAL).await;
        }
        Ok(())
    }

    pub(super) async fn remove(&self, name: &str) -> Result<()> {
        self.stop(name).await?;
        let run = run_folder(&self.container_folder(name))?;
        fs::remove_dir_all(&run).with_context(|| format!("removing `{}`", run.display()))?;
        match fs::remove_dir_all(self.container_folder(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    pub(super) async fn logs(
        &self,
        name: &str,
        options: LogOptions,
        each: &mut (dyn FnMut(&str) -> Result<()> + Send),
    ) -> Result<()> {
        let mut tail = EmbeddedLogTail::new(self.log_path(name));
        let mut lines = tail.read_new_lines()?;
        if !options.follow {
            lines.extend(tail.take_unfinished_line());
        }
        let skipped = options.tail.map_or(0, |n| lines.len().saturating_sub(n));
        lines.iter().skip(skipped).try_for_each(|line| each(line))?;
        let mut is_running = options.follow;
        while is_running {
            // Check the process before reading the log, so that its last lines are read, too.
            is_running = self.find_running_pid(name).is_some();
            if is_running {
                tokio::time::sleep(EMBEDDED_POLL_INTERVAL * 4).await;
            }
            let mut lines = tail.read_new_lines()?;
            if !is_running {
                lines.extend(tail.take_unfinished_line());
            }
            lines.iter().try_for_each(|line| each(line))?;
        }
        Ok(())
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.container_folder(name).join("companion.log")
    }

    fn read_spec(&self, name: &str) -> Result<Option<ContainerSpec>> {
        match fs::read(self.container_folder(name).join("spec.json")) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The id of the companion's process while it runs; a reused id does not count.
    fn find_running_pid(&self, name: &str) -> Option<u32> {
        let text = fs::read_to_string(self.container_folder(name).join("pid")).ok()?;
        let (pid, start) = text.trim().split_once(' ')?;
        let pid = pid.parse().ok()?;
        (process_start_time(pid)?.to_string() == start).then_some(pid)
    }
}

/// The new lines of a log.
#[derive(Debug)]
struct EmbeddedLogTail {
    path: PathBuf,
    /// The offset up to which the log was read.
    offset: u64,
    /// Ends with a line that is still being written.
    lines: LineBuffer,
}

impl EmbeddedLogTail {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            offset: 0,
            lines: LineBuffer::default(),
        }
    }

    /// The lines that were written since the last call.
    fn read_new_lines(&mut self) -> Result<Vec<String>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        };
        if file.metadata()?.len() < self.offset {
            // The log was truncated and written from its start.
            self.offset = 0;
            self.lines = LineBuffer::default();
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = Vec::new();
        self.offset += file.read_to_end(&mut text)? as u64;
        self.lines.push(&text);
        let lines = std::iter::from_fn(|| self.lines.next_line());
        let lines = lines.map(|line| {
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            String::from_utf8_lossy(line).into_owned()
        });
        Ok(lines.collect())
    }

    /// The last line, which will have no line end.
    fn take_unfinished_line(&mut self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.lines.take_unread()).into_owned();
        (!text.is_empty()).then_some(text)
    }
}

/// The variables with the companion's paths and addresses on this machine. `folder` is the container's folder in its
/// place: a container that was set aside is started before it is renamed.
fn companion_variables(spec: &ContainerSpec, folder: &Path) -> Result<Vec<(&'static str, String)>> {
    let listen = |port: u16| {
        let found = spec.ports.iter().find(|p| p.container == port);
        let found = found.with_context(|| format!("the specification has no port {port}"))?;
        anyhow::Ok(SocketAddr::new(found.bind, found.host).to_string())
    };
    let image = Path::new(&spec.image);
    let environment = PathBuf::from(fs::read_to_string(image.join("environment"))?);
    let data = mounted_host_path(spec, "/data")?;
    let text = |path: PathBuf| path.display().to_string();
    let run_folder = text(run_folder(folder)?);
    Ok(vec![
        ("OSCTL_EMBEDDED", "1".into()),
        ("OSCTL_LISTEN", listen(8080)?),
        ("OSCTL_MCP_LISTEN", listen(8765)?),
        ("OSCTL_RUN_FOLDER", run_folder.clone()),
        ("OSCTL_RUN", run_folder), // read by the kernel of a former body
        ("OSCTL_DATA", text(data.clone())),
        ("OSCTL_BODY", text(image.join("body"))),
        ("OSCTL_PYTHON", text(environment.join("bin/python"))),
        ("OSCTL_PACKAGES", text(data.join("packages/embedded"))),
    ])
}

/// A short path, because the path of a socket is limited to about 100 bytes. Only its owner may enter the folder.
#[cfg(unix)]
fn run_folder(folder: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let digest = hex(&Sha256::digest(folder.as_os_str().as_encoded_bytes())[..8]);
    let run = std::env::temp_dir().join(format!("osctl-{digest}"));
    match fs::DirBuilder::new().mode(0o700).create(&run) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e.into()),
        _ => {
            // Another user may have created the folder first, to receive the companion's connections.
            let found = fs::symlink_metadata(&run)?;
            let ours = found.is_dir()
                && found.uid() == nix::unistd::geteuid().as_raw()
                && found.mode() & 0o077 == 0;
            anyhow::ensure!(ours, "`{}` belongs to another user", run.display());
            Ok(run)
        }
    }
}

#[cfg(not(unix))]
fn run_folder(folder: &Path) -> Result<PathBuf> {
    Ok(folder.join("run"))
}

fn mounted_host_path(spec: &ContainerSpec, container: &str) -> Result<PathBuf> {
    let mount = spec.mounts.iter().find(|m| m.container == container);
    mount
        .map(|m| m.host.clone())
        .with_context(|| format!("the specification mounts nothing on {container}"))
}

async fn make_environment(
    environment: &Path,
    requirements: &Path,
    progress: &dyn EngineProgress,
) -> Result<()> {
    let hint = "run `apt-get install -y python3 python3-venv`, or install Python 3.11 or later";
    progress.report_step("creating a Python environment");
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(environment);
    run_quietly(venv).await.map_err(|why| {
        Error::precondition(format!("Python can't create an environment: {why}"), hint)
    })?;
    progress.report_step("installing the kernel's packages");
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--require-hashes", "-r"])
        .arg(requirements);
    run_quietly(pip).await.map_err(|why| {
        Error::precondition(
            format!("the kernel's packages can't be installed: {why}"),
            "run `python3 --version`: the version must be 3.11 or later",
        )
    })?;
    Ok(())
}

/// Runs a command to its end. The error is the last line of its output.
async fn run_quietly(mut command: Command) -> std::result::Result<(), String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let output_text = [output.stdout, output.stderr].concat();
    let output_text = String::from_utf8_lossy(&output_text);
    Err(output_text
        .lines()
        .rfind(|l| !l.trim().is_empty())
        .unwrap_or("the command printed no error")
        .trim()
        .to_owned())
}

/// When a process started, in clock ticks since boot: together with the id, this identifies a process uniquely.
#[cfg(target_os = "linux")]
fn process_start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    (*fields.first()? != "Z").then_some(())?;
    fields.get(19)?.parse().ok()
}

#[cfg(not(target_os = "linux"))]
fn process_start_time(_pid: u32) -> Option<u64> {
    None
}

#[cfg(unix)]
fn signal_process(pid: u32, kill: bool) {
    use nix::sys::signal::{Signal, kill as send};
    let signal = if kill {
        Signal::SIGKILL
    } else {
        Signal::SIGTERM
    };
    // A process that has already ended is not an error.
    let _ = send(nix::unistd::Pid::from_raw(pid.cast_signed()), signal);
}

#[cfg(not(unix))]
fn signal_process(_pid: u32, _kill: bool) {}

#[cfg(test)]
mod tests;
