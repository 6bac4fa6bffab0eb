//! An instance for this run alone, gone with all it brought when it is dropped.

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
    /// Brings it up, with `files` in the folder that the container sees as `/repo`.
    ///
    /// # Errors
    /// When that fails; nothing is left behind then.
    pub(crate) fn up(files: &[(&str, &str)]) -> Result<Self> {
        let instance = Self {
            home: Path::new(env!("CARGO_TARGET_TMPDIR")).join("home-bench"),
        };
        // What a run that was killed has left.
        instance.remove()?;
        fs::create_dir_all(instance.project())?;
        for (name, content) in files {
            fs::write(instance.project().join(name), content)?;
        }
        finish(instance.osctl(&["up", "--yes", "--auto-ports"]))?;
        provide_docker_client()?;
        Ok(instance)
    }

    /// Where the companion listens, and its token.
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

    /// An empty folder on the host, gone with the instance.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.home.join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// What the container sees as `/repo`.
    pub(crate) fn project(&self) -> PathBuf {
        self.home.join("project")
    }

    fn remove(&self) -> Result<()> {
        if !self.home.exists() {
            return Ok(());
        }
        fs::create_dir_all(self.project())?;
        let down = self.osctl(&["down", "--purge", "--yes"]).output()?;
        let said = String::from_utf8_lossy(&down.stderr);
        // 3: it was never up.
        ensure!(matches!(down.status.code(), Some(0 | 3)), "down: {said}");
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

/// Runs a command that must succeed, without what it says on stdout.
pub(crate) fn finish(mut command: Command) -> Result<()> {
    let status = command.stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// The peer of one row: since Debian 13 it is not part of the engine's package.
fn provide_docker_client() -> Result<()> {
    if Command::new("docker").arg("--version").output().is_ok() {
        return Ok(());
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "--no-install-recommends", "docker-cli"]);
    finish(install)
}
