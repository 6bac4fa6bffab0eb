//! Git history of runs: if the project is a git repository, each finished run becomes a commit on
//! [`GIT_HISTORY_BRANCH`]. The commit contains the body of the run, and its author is the owner of the repository.
//!
//! ```text
//! a run has ended ─▶ keeper: its body ─▶ temporary folder ([`body_folder`]) ─▶ git ([`repository`])
//! ```
//!
//! The checkout and the index stay untouched: the commit's tree is made from the body that the keeper stores, in a
//! separate index. A branch that is checked out is not changed. The companion writes the commits, never the host, which
//! runs no git.

mod body_folder;
mod repository;

use super::run_activity::RunActivity;
use super::{EvolveHandle, EvolveRefusal};
use crate::error::Result;
use crate::protocol::evolve::{
    EvolveRecord, EvolveRunId, EvolveStage, EvolveStatus, KeeperReply, KeeperRequest, refusal,
};
use repository::{GitLocation, GitRepository, locate_git_folder};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The branch of the commits.
const GIT_HISTORY_BRANCH: &str = "refs/heads/osctl/evolve";

/// The default folder of the body.
const GIT_DEFAULT_BODY_FOLDER: &str = "body";

/// Trailer of each commit: the id of its run.
const GIT_RUN_TRAILER: &str = "Osctl-Run";

/// Time between two checks of whether this container is quiesced, and between two requests to a keeper that does not
/// answer.
const GIT_HISTORY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two checks for a run that was started from outside.
const GIT_HISTORY_WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// How long the recording waits for the end of a run.
const GIT_RUN_FOLLOW_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
pub(super) struct GitHistory {
    repository: PathBuf,
    /// Held by the task that writes commits.
    commit_lock: Arc<tokio::sync::Mutex<()>>,
}

impl GitHistory {
    pub(super) fn new(repository: PathBuf) -> Self {
        Self {
            repository,
            commit_lock: Arc::default(),
        }
    }
}

impl EvolveHandle {
    /// Records runs while the container runs, including runs that are started from outside and end without a request to
    /// this companion.
    pub(crate) fn watch_runs(&self) {
        if self.settings.is_embedded {
            return;
        }
        let evolve = self.clone();
        tokio::spawn(async move {
            let mut last = None;
            let mut run_activity = RunActivity::open(evolve.parts.activity.clone()).await;
            loop {
                if !evolve.parts.admission.is_closed()
                    && let Ok((KeeperReply::Status(now), _)) =
                        evolve.request_keeper(&KeeperRequest::Status {}).await
                {
                    if let Some(ended) = run_activity.unrecorded_run(&now)
                        && let Ok(runs) = evolve.fetch_history().await
                        && let Some(run) = runs.iter().find(|run| run.run == ended)
                    {
                        run_activity.record_run(run);
                    }
                    if has_new_run(last.as_ref(), &now) && evolve.record_runs_once().await {
                        last = Some(now);
                    }
                }
                sleep(GIT_HISTORY_WATCH_INTERVAL).await;
            }
        });
    }

    /// Records the runs without a commit after the current run has ended.
    pub(crate) fn record_runs(&self) {
        let evolve = self.clone();
        tokio::spawn(async move { evolve.record_runs_once().await });
    }

    /// Returns whether no run is left to record later.
    async fn record_runs_once(&self) -> bool {
        let git = match locate_git_folder(&self.git_history.repository) {
            GitLocation::Found(git) => git,
            GitLocation::NotFound => return true,
            // The record of the run also says so.
            GitLocation::Outside(location) => {
                tracing::warn!(
                    branch = GIT_HISTORY_BRANCH,
                    path = location,
                    "runs are not recorded in git, because `.git` points outside the container"
                );
                return true;
            }
        };
        // Another task is recording, perhaps the previous run.
        let Ok(_turn) = self.git_history.commit_lock.clone().try_lock_owned() else {
            return false;
        };
        match tokio::time::timeout(GIT_RUN_FOLLOW_TIMEOUT, self.commit_new_runs(git)).await {
            Err(_) => tracing::warn!(
                branch = GIT_HISTORY_BRANCH,
                seconds = GIT_RUN_FOLLOW_TIMEOUT.as_secs(),
                "a run has not ended in time and is not recorded in git"
            ),
            Ok(Ok(None)) => return false,
            Ok(Ok(Some(0))) => {}
            Ok(Ok(Some(count))) => {
                tracing::info!(
                    branch = GIT_HISTORY_BRANCH,
                    runs = count,
                    "the history was recorded in git"
                )
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    branch = GIT_HISTORY_BRANCH,
                    error = %format_args!("{error:#}"),
                    "runs are not recorded in git"
                )
            }
        }
        true
    }

    /// Returns the number of recorded runs; nothing when the keeper does not answer.
    async fn commit_new_runs(&self, git: PathBuf) -> Result<Option<usize>> {
        let runs = loop {
            let Ok(runs) = self.fetch_history().await else {
                return Ok(None);
            };
            match runs.first().filter(|run| !run.status.has_ended()) {
                Some(run) => self.wait_run_ended(&run.run).await,
                None if self.parts.admission.is_closed() => sleep(GIT_HISTORY_RETRY_INTERVAL).await,
                None => break runs,
            }
        };
        let repository = GitRepository::open(git)?;
        if repository.is_checked_out().await? {
            anyhow::bail!("the branch is checked out");
        }
        let committed = repository.list_committed_runs().await?;
        let uncommitted = select_uncommitted_runs(&runs, &committed);
        for run in &uncommitted {
            let folder = resolve_body_folder(run);
            match self.fetch_body(run, folder, &repository).await? {
                None => return Ok(None),
                Some(true) => {
                    repository
                        .commit_body(folder, &build_commit_message(run))
                        .await?
                }
                Some(false) => {
                    repository
                        .commit_unchanged(&build_commit_message(run))
                        .await?
                }
            }
        }
        Ok(Some(uncommitted.len()))
    }

    /// Waits for the end of a run; the keeper closes the stream then.
    async fn wait_run_ended(&self, run: &EvolveRunId) {
        let request = KeeperRequest::Log {
            run: run.clone(),
            offset: 0,
            follow: true,
        };
        if let Ok((mut reply, mut answer)) = self.request_keeper(&request).await {
            loop {
                match reply {
                    KeeperReply::Record(record) if record.status.has_ended() => return,
                    _ => {}
                }
                match answer.next_reply().await {
                    Ok(Some(next)) => reply = next,
                    _ => break,
                }
            }
        }
        sleep(GIT_HISTORY_RETRY_INTERVAL).await;
    }

    /// Fetches the body that a run was built from or rolled back to. Returns whether the keeper has the body; nothing
    /// when the keeper does not answer.
    async fn fetch_body(
        &self,
        run: &EvolveRecord,
        folder: &Path,
        repository: &GitRepository,
    ) -> Result<Option<bool>> {
        let request = KeeperRequest::Body {
            run: run.run.clone(),
        };
        let (mut reply, mut answer) = match self.request_keeper(&request).await {
            Ok(answer) => answer,
            // The keeper stores bodies only for a limited time.
            Err(EvolveRefusal::Keeper(fault)) if fault.kind == refusal::KEEPER_NO_SUCH_RUN => {
                return Ok(Some(false));
            }
            Err(_) => return Ok(None),
        };
        let mut body = repository.create_body_folder(folder)?;
        loop {
            let KeeperReply::File { path, base64 } = reply else {
                anyhow::bail!("unexpected reply from the keeper: {reply:?}");
            };
            body.append_file(&path, &base64)?;
            match answer.next_reply().await? {
                Some(next) => reply = next,
                None => return Ok(Some(true)),
            }
        }
    }
}

/// Whether a run has started or ended since the last check.
fn has_new_run(last: Option<&EvolveStatus>, now: &EvolveStatus) -> bool {
    let known = |status: &EvolveStatus| (status.latest_run.clone(), status.evolve_in_progress);
    now.latest_run.is_some() && last.map(known) != Some(known(now))
}

/// The folder of a run's body, relative to the repository's root.
fn resolve_body_folder(run: &EvolveRecord) -> &Path {
    let folder = Path::new(
        run.body_folder
            .as_deref()
            .unwrap_or(GIT_DEFAULT_BODY_FOLDER),
    );
    let plain = |part| matches!(part, Component::Normal(_));
    match folder.components().count() > 0 && folder.components().all(plain) {
        true => folder,
        false => Path::new(GIT_DEFAULT_BODY_FOLDER),
    }
}

/// Selects the runs without a commit that are newer than all runs with one, the oldest first. If no run has a commit,
/// selects only the last run, because the bodies of the others are unknown.
fn select_uncommitted_runs<'a>(
    runs: &'a [EvolveRecord],
    committed: &[EvolveRunId],
) -> Vec<&'a EvolveRecord> {
    let last = committed.iter().max();
    let ended = runs
        .iter()
        .filter(|run| run.status.has_ended() && !run.dry_run && !run.unchanged);
    let mut uncommitted: Vec<&EvolveRecord> = ended
        .filter(|run| last.is_none_or(|last| run.run > *last))
        .collect();
    uncommitted.sort_by(|a, b| a.run.cmp(&b.run));
    match last {
        None => uncommitted.pop().into_iter().collect(),
        Some(_) => uncommitted,
    }
}

fn build_commit_message(run: &EvolveRecord) -> String {
    let outcome = match run.status {
        EvolveStage::RolledBack => "rolled back",
        other => other.as_str(),
    };
    let mut text = format!("Evolve: {outcome}\n");
    for paragraph in [&run.reason, &run.why].into_iter().flatten() {
        // A line of the run's text must not look like the trailer.
        let lines = paragraph
            .lines()
            .map(|line| line.replace(GIT_RUN_TRAILER, "…"));
        text += &format!("\n{}\n", lines.collect::<Vec<_>>().join("\n"));
    }
    text += &format!(
        "\n{GIT_RUN_TRAILER}: {}\nOsctl-Outcome: {}\n",
        run.run, run.status
    );
    let failed_stage = run.failed_stage.map(|stage| stage.as_str().to_owned());
    for (name, value) in [
        ("Failed-Stage", &failed_stage),
        ("Image", &run.image),
        ("Body", &run.body_digest),
    ] {
        let line = value.as_ref();
        text.extend(line.map(|value| format!("Osctl-{name}: {value}\n")));
    }
    text
}

#[cfg(test)]
mod tests;
