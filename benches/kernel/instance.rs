//! The instance of this benchmark; dropping it removes everything.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAME: &str = "bench";
pub(crate) const CONTAINER: &str = "os-host-bench";

#[derive(Debug)]
pub(crate) struct Instance {
    home: PathBuf,
}

impl Instance {
    /// Brings the instance up, with `files` in the project folder, which is `/repo` in the container.
    ///
    /// # Errors
    /// When `osctl up` fails; the instance is then removed.
    pub(crate) fn up(files: &[(&str, &str)]) -> Result<Self> {
        let instance = Self {
            home: Path::new(env!("CARGO_TARGET_TMPDIR")).join("home-bench"),
        };
        // Remove the remains of a killed benchmark.
        instance.remove()?;
        fs::create_dir_all(instance.project())?;
        for (name, content) in files {
            fs::write(instance.project().join(name), content)?;
        }
        finish(instance.osctl(&["up", "--yes", "--auto-ports"]))?;
        provide_docker_client()?;
        Ok(instance)
    }

    /// The address of the companion, and its token.
    pub(crate) fn api(&self) -> Result<(String, String)> {
        let output = self.osctl(&["--json", "status"]).output()?;
        let status: Value = serde_json::from_slice(&output.stdout).context("reading the status")?;
        let text = |value: &Value| {
            value
                .as_str()
                .map(str::to_owned)
                .context("a text is missing")
        };
        let address = text(&status["endpoints"]["kernel"])?;
        let token = fs::read_to_string(text(&status["token_file"])?)?;
        Ok((address.replace("http://", ""), token.trim().to_owned()))
    }

    /// `osctl ARGS…` for this instance.
    pub(crate) fn osctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osctl"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OSCTL_") {
                command.env_remove(name);
            }
        }
        command
            .env("HOST_HOME", &self.home)
            .env_remove("HOST_PWD")
            .current_dir(self.project())
            .args(["--instance", NAME])
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// `docker exec FLAGS… CONTAINER WORDS…`
    pub(crate) fn docker_exec(&self, flags: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.arg("exec").args(flags).arg(CONTAINER).args(words);
        command.stdin(Stdio::null());
        command
    }

    /// An empty folder on the host, which is removed with the instance.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.home.join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// The project folder, which is `/repo` in the container.
    pub(crate) fn project(&self) -> PathBuf {
        self.home.join("project")
    }

    fn remove(&self) -> Result<()> {
        if !self.home.exists() {
            return Ok(());
        }
        fs::create_dir_all(self.project())?;
        let down = self.osctl(&["down", "--purge", "--yes"]).output()?;
        let stderr = String::from_utf8_lossy(&down.stderr);
        // Exit code 3: the instance was never up.
        ensure!(matches!(down.status.code(), Some(0 | 3)), "down: {stderr}");
        fs::remove_dir_all(&self.home).context("removing the home folder")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(why) = self.remove() {
            crate::report::say(format!("`{CONTAINER}` could not be removed: {why:#}"));
        }
    }
}

/// Runs a command that must succeed, and discards its stdout.
pub(crate) fn finish(mut command: Command) -> Result<()> {
    let status = command.stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Installs the docker client, which is a peer; since Debian 13 the engine's package does not contain it.
fn provide_docker_client() -> Result<()> {
    if Command::new("docker").arg("--version").output().is_ok() {
        return Ok(());
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "--no-install-recommends", "docker-cli"]);
    finish(install)
}
