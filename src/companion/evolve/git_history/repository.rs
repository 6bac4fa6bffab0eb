//! The project's git repository; commands run as its owner.

use super::body_folder::GitBodyFolder;
use super::{GIT_HISTORY_BRANCH, GIT_RUN_TRAILER};
use crate::error::Result;
use crate::protocol::evolve::EvolveRunId;
use crate::protocol::evolve::repository::{MAX_GIT_FILE_BYTES, gitdir_line, resolve_gitdir};
use anyhow::{Context, bail};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

/// An absolute path: folders that users install to come first in PATH, and their programs must not run as the owner.
const GIT_HISTORY_PROGRAM: &str = "/usr/bin/git";

/// Commits that are scanned for recorded runs.
const MAX_SCANNED_COMMITS: &str = "200";

/// Timeout of one command: the agent controls the repository and may make git run endlessly.
const GIT_COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// The location of a project's repository.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GitLocation {
    /// No repository exists, or its root is above the project and not visible here.
    NotFound,
    Found(PathBuf),
    /// As in a worktree, the repository is at a path that exists only on the host.
    Outside(String),
}

pub(super) fn locate_git_folder(project: &Path) -> GitLocation {
    let path = project.join(".git");
    let Ok(found) = fs::symlink_metadata(&path) else {
        return GitLocation::NotFound;
    };
    if found.is_dir() {
        return GitLocation::Found(path);
    }
    let text = match (found.is_symlink(), found.is_file()) {
        (true, _) => fs::read_link(&path).map(|to| gitdir_line(&to)),
        (_, true) if found.len() <= MAX_GIT_FILE_BYTES => fs::read_to_string(&path),
        _ => Ok(String::new()),
    };
    let text = text.unwrap_or_default();
    match resolve_gitdir(project, &text) {
        Ok(folder) => GitLocation::Found(folder),
        Err(target) => GitLocation::Outside(target),
    }
}

#[derive(Debug)]
pub(super) struct GitRepository {
    /// The repository's git folder.
    git_folder: PathBuf,
    uid: u32,
    gid: u32,
    /// Whether this process may run commands as another user.
    is_root: bool,
    scratch_folder: tempfile::TempDir,
    program: PathBuf,
    command_timeout: Duration,
}

impl GitRepository {
    pub(super) fn open(git_folder: PathBuf) -> Result<Self> {
        let owner = fs::metadata(&git_folder)?;
        let scratch_folder = tempfile::tempdir()?;
        fs::create_dir(scratch_folder.path().join("tree"))?;
        let (uid, gid) = (owner.uid(), owner.gid());
        let is_root = nix::unistd::geteuid().is_root();
        if is_root {
            chown(scratch_folder.path(), Some(uid), Some(gid))
                .context("changing the owner of a temporary folder")?;
        }
        Ok(Self {
            git_folder,
            uid,
            gid,
            is_root,
            scratch_folder,
            program: GIT_HISTORY_PROGRAM.into(),
            command_timeout: GIT_COMMAND_TIMEOUT,
        })
    }

    #[cfg(test)]
    pub(super) fn with_program(self, program: &Path, command_timeout: Duration) -> Self {
        Self {
            program: program.into(),
            command_timeout,
            ..self
        }
    }

    /// Creates the folder for the body of the next commit.
    pub(super) fn create_body_folder(&self, folder: &Path) -> Result<GitBodyFolder> {
        GitBodyFolder::new(self.scratch_folder.path().join("tree").join(folder))
    }

    pub(super) async fn is_checked_out(&self) -> Result<bool> {
        let places = self
            .run_git(&["worktree", "list", "--porcelain"], "")
            .await?;
        let line = format!("branch {GIT_HISTORY_BRANCH}");
        Ok(places.lines().any(|place| place == line))
    }

    async fn read_tip(&self) -> Option<String> {
        let output = self.run_git(
            &["rev-parse", "--quiet", "--verify", GIT_HISTORY_BRANCH],
            "",
        );
        output.await.ok()
    }

    /// Lists the runs that have commits.
    pub(super) async fn list_committed_runs(&self) -> Result<Vec<EvolveRunId>> {
        if self.read_tip().await.is_none() {
            return Ok(Vec::new());
        }
        let format = format!("--format=%(trailers:key={GIT_RUN_TRAILER},valueonly)");
        let log = self
            .run_git(
                &[
                    "log",
                    "-n",
                    MAX_SCANNED_COMMITS,
                    &format,
                    GIT_HISTORY_BRANCH,
                ],
                "",
            )
            .await?;
        Ok(log
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect())
    }

    /// Commits the body in `folder`, a path relative to the project's root.
    pub(super) async fn commit_body(&self, folder: &Path, message: &str) -> Result<()> {
        self.run_git(&["read-tree", "--empty"], "").await?;
        let folder = format!(":(literal){}", folder.display());
        self.run_git(&["add", "--all", "--force", "--", &folder], "")
            .await?;
        let tree = self.run_git(&["write-tree"], "").await?;
        self.commit_tree(&tree, message).await
    }

    /// Commits a run without a body, or whose body is no longer known, with the tree of the last commit.
    pub(super) async fn commit_unchanged(&self, message: &str) -> Result<()> {
        let tree = match self.read_tip().await {
            Some(tip) => {
                self.run_git(&["rev-parse", &format!("{tip}^{{tree}}")], "")
                    .await?
            }
            None => {
                self.run_git(&["read-tree", "--empty"], "").await?;
                self.run_git(&["write-tree"], "").await?
            }
        };
        self.commit_tree(&tree, message).await
    }

    async fn commit_tree(&self, tree: &str, message: &str) -> Result<()> {
        let tip = self.read_tip().await;
        let mut arguments = vec!["commit-tree", tree, "-F", "-"];
        if let Some(tip) = &tip {
            arguments.extend(["-p", tip]);
        }
        let commit = self.run_git(&arguments, message).await?;
        // The update fails if another process has moved the branch since. A zero id says that the branch does not exist
        // yet.
        let tip = tip.unwrap_or_else(|| "0".repeat(commit.len()));
        let arguments = [
            "update-ref",
            "-m",
            "osctl evolve",
            GIT_HISTORY_BRANCH,
            &commit,
            &tip,
        ];
        self.run_git(&arguments, "").await?;
        Ok(())
    }

    async fn run_git(&self, arguments: &[&str], input: &str) -> Result<String> {
        let what = format!("`git {}`", arguments.join(" "));
        let done = timeout(self.command_timeout, self.spawn_git(arguments, input)).await;
        let Ok(done) = done else {
            bail!(
                "{what} did not end within {} s",
                self.command_timeout.as_secs_f64()
            );
        };
        let done = done?;
        if !done.status.success() {
            let stderr = String::from_utf8_lossy(&done.stderr);
            bail!("{what}: {}", stderr.trim());
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }

    async fn spawn_git(&self, arguments: &[&str], input: &str) -> Result<std::process::Output> {
        let tree = self.scratch_folder.path().join("tree");
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C.UTF-8")
            .env("HOME", self.scratch_folder.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_DIR", &self.git_folder)
            .env("GIT_WORK_TREE", &tree)
            .env("GIT_INDEX_FILE", self.scratch_folder.path().join("index"))
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_TERMINAL_PROMPT", "0");
        for owner in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{owner}_NAME"), "osctl")
                .env(format!("GIT_{owner}_EMAIL"), "osctl@localhost");
        }
        for setting in [
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "core.autocrlf=false",
            "commit.gpgSign=false",
            "gc.auto=0",
            "maintenance.auto=false",
        ] {
            command.args(["-c", setting]);
        }
        if self.is_root {
            command.uid(self.uid).gid(self.gid);
        }
        let mut child = command
            .args(arguments)
            .current_dir(&tree)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting git")?;
        if let Some(mut stdin) = child.stdin.take() {
            // A git process that does not read its input reports an error.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        Ok(child.wait_with_output().await?)
    }
}
