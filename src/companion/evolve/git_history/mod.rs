//! Runs as commits: where the project is a git repository, each run that has ended is a commit on
//! [`GIT_HISTORY_BRANCH`] with the body that it was made of, made by whom the repository belongs to.
//!
//! ```text
//! a run has ended ─▶ keeper: its body ─▶ files of our own ([`bodies`]) ─▶ git ([`repository`])
//! ```
//!
//! Neither the checkout nor the index is touched: the tree is made of the body that the keeper has kept,
//! in an index of its own. A branch that is checked out stays as it is. It is written here and never on
//! the host, which runs no git.

mod body_folder;
mod repository;

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

/// Where the commits are.
const GIT_HISTORY_BRANCH: &str = "refs/heads/osctl/evolve";

/// The body's usual place.
const GIT_DEFAULT_BODY_FOLDER: &str = "body";

/// In each commit, the run that it is of.
const GIT_RUN_TRAILER: &str = "Osctl-Run";

/// Between two looks whether this container is at rest, or two questions to a keeper that is gone.
const GIT_HISTORY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Between two looks whether somebody has begun a run from outside.
const GIT_HISTORY_WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// How long a run is followed.
const GIT_RUN_FOLLOW_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
pub(super) struct GitHistory {
    repository: PathBuf,
    /// Held by who tells.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl GitHistory {
    pub(super) fn new(repository: PathBuf) -> Self {
        Self {
            repository,
            turn: Arc::default(),
        }
    }
}

impl EvolveHandle {
    /// Tells runs for as long as the container lives, also those that are begun from outside and end
    /// before anything in here is asked.
    pub(crate) fn keep_recording_runs(&self) {
        if self.settings.is_embedded {
            return;
        }
        let evolve = self.clone();
        tokio::spawn(async move {
            let mut last = None;
            loop {
                if !evolve.parts.gate.is_closed()
                    && let Ok((KeeperReply::Status(now), _)) =
                        evolve.ask_keeper(&KeeperRequest::Status {}).await
                    && has_new_run(last.as_ref(), &now)
                    && evolve.record_runs_now().await
                {
                    last = Some(now);
                }
                sleep(GIT_HISTORY_WATCH_INTERVAL).await;
            }
        });
    }

    /// Tells the runs that are not told yet, once the one that is on has ended.
    pub(crate) fn record_runs(&self) {
        let evolve = self.clone();
        tokio::spawn(async move { evolve.record_runs_now().await });
    }

    /// Whether nothing is left that could be told later.
    async fn record_runs_now(&self) -> bool {
        let git = match locate_git_folder(&self.chronicle.repository) {
            GitLocation::At(git) => git,
            GitLocation::Nowhere => return true,
            // The record of the run says it, too.
            GitLocation::Beyond(there) => {
                tracing::warn!(
                    "runs are not told in `{GIT_HISTORY_BRANCH}`: `.git` leads to `{there}`, which is not seen here"
                );
                return true;
            }
        };
        // Somebody tells already, perhaps of the run before.
        let Ok(_turn) = self.chronicle.turn.clone().try_lock_owned() else {
            return false;
        };
        match tokio::time::timeout(GIT_RUN_FOLLOW_TIMEOUT, self.commit_new_runs(git)).await {
            Err(_) => tracing::warn!(
                "a run has not ended for {GIT_RUN_FOLLOW_TIMEOUT:?}, and is not told"
            ),
            Ok(Ok(None)) => return false,
            Ok(Ok(Some(0))) => {}
            Ok(Ok(Some(count))) => {
                tracing::info!("{count} runs are told in `{GIT_HISTORY_BRANCH}`")
            }
            Ok(Err(error)) => {
                tracing::warn!("runs are not told in `{GIT_HISTORY_BRANCH}`: {error:#}")
            }
        }
        true
    }

    /// How many runs are told now; nothing where the keeper does not answer.
    async fn commit_new_runs(&self, git: PathBuf) -> Result<Option<usize>> {
        let runs = loop {
            let Ok(runs) = self.fetch_history().await else {
                return Ok(None);
            };
            match runs.first().filter(|run| !run.status.has_ended()) {
                Some(run) => self.wait_run_ended(&run.run).await,
                None if self.parts.gate.is_closed() => sleep(GIT_HISTORY_RETRY_INTERVAL).await,
                None => break runs,
            }
        };
        let repository = GitRepository::open(git)?;
        if repository.is_checked_out().await? {
            anyhow::bail!("it is checked out");
        }
        let told = repository.list_committed_runs().await?;
        let untold = select_uncommitted_runs(&runs, &told);
        for run in &untold {
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
        Ok(Some(untold.len()))
    }

    /// The keeper tells by itself when it has ended.
    async fn wait_run_ended(&self, run: &EvolveRunId) {
        let question = KeeperRequest::Log {
            run: run.clone(),
            offset: 0,
            follow: true,
        };
        if let Ok((mut reply, mut answer)) = self.ask_keeper(&question).await {
            loop {
                match reply {
                    KeeperReply::Record(record) if record.status.has_ended() => return,
                    _ => {}
                }
                match answer.next().await {
                    Ok(Some(next)) => reply = next,
                    _ => break,
                }
            }
        }
        sleep(GIT_HISTORY_RETRY_INTERVAL).await;
    }

    /// Lays the body out that a run was made of, or has gone back to; whether the keeper has it, where it
    /// answers.
    async fn fetch_body(
        &self,
        run: &EvolveRecord,
        folder: &Path,
        repository: &GitRepository,
    ) -> Result<Option<bool>> {
        let question = KeeperRequest::Body {
            run: run.run.clone(),
        };
        let (mut reply, mut answer) = match self.ask_keeper(&question).await {
            Ok(answer) => answer,
            // It is not kept for ever.
            Err(EvolveRefusal::Keeper(fault)) if fault.kind == refusal::KEEPER_NO_SUCH_RUN => {
                return Ok(Some(false));
            }
            Err(_) => return Ok(None),
        };
        let mut body = repository.create_body_folder(folder)?;
        loop {
            let KeeperReply::File { path, base64 } = reply else {
                anyhow::bail!("the keeper answers what it was not asked: {reply:?}");
            };
            body.append_file(&path, &base64)?;
            match answer.next().await? {
                Some(next) => reply = next,
                None => return Ok(Some(true)),
            }
        }
    }
}

/// Whether a run has begun or ended since the last look.
fn has_new_run(last: Option<&EvolveStatus>, now: &EvolveStatus) -> bool {
    let known = |status: &EvolveStatus| (status.latest_run.clone(), status.evolve_in_progress);
    now.latest_run.is_some() && last.map(known) != Some(known(now))
}

/// Where the body of a run lies beneath the repository's root.
fn resolve_body_folder(run: &EvolveRecord) -> &Path {
    let folder = Path::new(run.folder.as_deref().unwrap_or(GIT_DEFAULT_BODY_FOLDER));
    let plain = |part| matches!(part, Component::Normal(_));
    match folder.components().count() > 0 && folder.components().all(plain) {
        true => folder,
        false => Path::new(GIT_DEFAULT_BODY_FOLDER),
    }
}

/// The runs without a commit that are newer than all that have one, the oldest first. Where none has
/// one, only the last: of the others the body is not known.
fn select_uncommitted_runs<'a>(
    runs: &'a [EvolveRecord],
    told: &[EvolveRunId],
) -> Vec<&'a EvolveRecord> {
    let last = told.iter().max();
    let ended = runs
        .iter()
        .filter(|run| run.status.has_ended() && !run.dry_run);
    let mut untold: Vec<&EvolveRecord> = ended
        .filter(|run| last.is_none_or(|last| run.run > *last))
        .collect();
    untold.sort_by(|a, b| a.run.cmp(&b.run));
    match last {
        None => untold.pop().into_iter().collect(),
        Some(_) => untold,
    }
}

fn build_commit_message(run: &EvolveRecord) -> String {
    let outcome = match run.status {
        EvolveStage::RolledBack => "rolled back",
        other => other.word(),
    };
    let mut text = format!("Evolve: {outcome}\n");
    for paragraph in [&run.reason, &run.why].into_iter().flatten() {
        // A line of theirs must not be taken for one of ours.
        let lines = paragraph
            .lines()
            .map(|line| line.replace(GIT_RUN_TRAILER, "…"));
        text += &format!("\n{}\n", lines.collect::<Vec<_>>().join("\n"));
    }
    text += &format!(
        "\n{GIT_RUN_TRAILER}: {}\nOsctl-Outcome: {}\n",
        run.run, run.status
    );
    let gate = run.gate.map(|gate| gate.word().to_owned());
    for (name, value) in [("Gate", &gate), ("Image", &run.image), ("Body", &run.body)] {
        let line = value.as_ref();
        text.extend(line.map(|value| format!("Osctl-{name}: {value}\n")));
    }
    text
}

#[cfg(test)]
mod tests;
