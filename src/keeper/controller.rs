//! The single owner of the keeper's current activity: a run, a recovery, a watch period, or none.

use super::cancellation::RunCancellation;
use super::journal::{RunJournal, RunJournalEntry, RunJournalStep};
use super::post_deploy_watch::{self, WatchVerdict};
use super::recovery::{KeeperRecoveryOutcome, abandon_run, recover_from_journal};
use super::retry_policy::{self, EngineRetryDecision, is_engine_away};
use super::run::{BuildPolicy, RunExecutor};
use super::run_request::{RunDenied, RunRequest, prepare_run};
use super::run_store::{KEEPER_ENDED_REASON, KeeperRunStore};
use super::target::{DeployTarget, load_target};
use super::{KeeperSettings, port_recovery, sanitize};
use crate::error::Result;
use crate::protocol::error::ApiError;
use crate::protocol::evolve::{
    CANCELLED_BY_USER, EvolveCaller, EvolveRecord, EvolveRunId, RunTask, refusal,
};
use anyhow::bail;
use futures_util::future::BoxFuture;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::Instrument;

/// How long a caller waits for a recovery to end.
const CONTROLLER_REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// The delay before a rescue that could not start is tried again.
const RESCUE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The interval at which the keeper checks for the deploy config that the host uploads.
const DEPLOY_CONFIG_POLL_INTERVAL: Duration = Duration::from_millis(300);

type RunReplySender = oneshot::Sender<std::result::Result<EvolveRunId, RunDenied>>;

#[derive(Debug)]
enum ControllerMessage {
    Begin(RunRequest, RunReplySender),
    Cancel(RunReplySender),
    Shutdown(oneshot::Sender<()>),
}

/// The callers' handle to the controller.
#[derive(Debug, Clone)]
pub(super) struct ControllerHandle(mpsc::Sender<ControllerMessage>);

impl ControllerHandle {
    /// Starts a run, unless another run is active.
    pub(super) async fn begin_run(
        &self,
        request: RunRequest,
    ) -> std::result::Result<EvolveRunId, RunDenied> {
        self.send_message(|reply| ControllerMessage::Begin(request, reply))
            .await
    }

    /// Cancels the active run. The container that ran before it keeps running.
    pub(super) async fn cancel_run(&self) -> std::result::Result<EvolveRunId, RunDenied> {
        self.send_message(ControllerMessage::Cancel).await
    }

    /// Returns when the keeper may end: the container that answered requests before the run answers again.
    pub(super) async fn prepare_shutdown(&self) {
        let (reply, answer) = oneshot::channel();
        if self
            .0
            .send(ControllerMessage::Shutdown(reply))
            .await
            .is_ok()
        {
            // A controller that has ended has nothing left to do.
            let _ = answer.await;
        }
    }

    async fn send_message(
        &self,
        message: impl FnOnce(RunReplySender) -> ControllerMessage,
    ) -> std::result::Result<EvolveRunId, RunDenied> {
        let (reply, answer) = oneshot::channel();
        let gone = || RunDenied::from(anyhow::anyhow!("the keeper is shutting down"));
        let request = async {
            let sent = self.0.send(message(reply)).await;
            sent.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        };
        let late = "the keeper is still finishing an earlier evolve";
        let request = tokio::time::timeout(CONTROLLER_REPLY_TIMEOUT, request).await;
        request.unwrap_or_else(|_| Err(RunDenied::from(anyhow::anyhow!(late))))
    }
}

/// The current activity of the keeper.
enum KeeperState {
    Idle,
    /// The keeper finishes a run that an earlier keeper started.
    Recovering,
    Running(EvolveRunId, RunCancellation),
    Watching,
}

/// The outcome of an activity.
enum KeeperOutcome {
    Recovered(DeployTarget, KeeperRecoveryOutcome),
    RunEnded(DeployTarget, Box<EvolveRecord>),
    WatchEnded(WatchVerdict),
    /// The new container failed its watch period; roll back.
    Rescue(Box<RunExecutor>),
    /// The keeper becomes idle.
    Idle,
    /// The connection to the engine was lost during the activity.
    EngineLost(anyhow::Error),
}

pub(super) struct RunController {
    settings: KeeperSettings,
    run_store: KeeperRunStore,
    inbox: mpsc::Receiver<ControllerMessage>,
    state: KeeperState,
    /// The callers that wait until the keeper may end.
    shutdown_waiters: Vec<oneshot::Sender<()>>,
    /// The run requests that arrived while the previous run was finishing.
    queued_requests: Vec<(RunRequest, RunReplySender)>,
    activity: BoxFuture<'static, Result<KeeperOutcome>>,
}

impl RunController {
    pub(super) fn new(
        settings: KeeperSettings,
        run_store: KeeperRunStore,
    ) -> (Self, ControllerHandle) {
        let (sender, inbox) = mpsc::channel(8);
        let current = recover_with_retries(
            settings.clone(),
            run_store.clone(),
            KEEPER_ENDED_REASON.into(),
        );
        let owner = Self {
            settings,
            run_store,
            inbox,
            state: KeeperState::Recovering,
            shutdown_waiters: Vec::new(),
            queued_requests: Vec::new(),
            activity: current,
        };
        (owner, ControllerHandle(sender))
    }

    /// Runs until the keeper ends.
    ///
    /// # Errors
    /// When the engine is away for longer than the retry policy allows.
    pub(super) async fn run(mut self) -> Result<()> {
        loop {
            tokio::select! {
                done = &mut self.activity => {
                    self.start_next_activity(done?)?;
                    self.start_queued_runs().await;
                }
                message = self.inbox.recv() => match message {
                    // The caller timed out and has received an error: drop the request.
                    Some(ControllerMessage::Begin(_, reply) | ControllerMessage::Cancel(reply)) if reply.is_closed() => {}
                    // A run request waits until the recovery ends.
                    Some(ControllerMessage::Begin(request, reply)) if self.is_ending() => self.queued_requests.push((request, reply)),
                    // The caller may have disconnected; the run continues.
                    Some(ControllerMessage::Begin(request, reply)) => drop(reply.send(self.begin_run(request).await)),
                    Some(ControllerMessage::Cancel(reply)) => drop(reply.send(self.cancel_run())),
                    Some(ControllerMessage::Shutdown(reply)) => self.handle_shutdown(reply),
                    None => return Ok(()),
                }
            }
        }
    }

    /// Whether a recovery is active, or the record of the active run already shows its end.
    fn is_ending(&self) -> bool {
        match &self.state {
            KeeperState::Recovering => true,
            KeeperState::Running(run, _) => {
                let record = self.run_store.read_record(run).ok().flatten();
                record.is_some_and(|record| record.status.has_ended())
            }
            KeeperState::Idle | KeeperState::Watching => false,
        }
    }

    async fn start_queued_runs(&mut self) {
        if matches!(self.state, KeeperState::Recovering) {
            return;
        }
        for (request, reply) in std::mem::take(&mut self.queued_requests) {
            if !reply.is_closed() {
                drop(reply.send(self.begin_run(request).await));
            }
        }
    }

    fn start_next_activity(&mut self, done: KeeperOutcome) -> Result<()> {
        self.state = KeeperState::Idle;
        let (settings, run_store) = (self.settings.clone(), self.run_store.clone());
        self.activity = Box::pin(async move {
            port_recovery::recover_ports(&settings, &run_store).await;
            std::future::pending().await
        });
        for reply in self.shutdown_waiters.drain(..) {
            // A closed channel does not matter: the keeper ends.
            let _ = reply.send(());
        }
        match done {
            KeeperOutcome::Recovered(target, KeeperRecoveryOutcome::ResumeWatch(entry)) => {
                self.start_watch(target, *entry)
            }
            KeeperOutcome::Recovered(_, KeeperRecoveryOutcome::WatchFailed(why)) => {
                self.start_rescue(why)
            }
            KeeperOutcome::Recovered(_, KeeperRecoveryOutcome::Idle) | KeeperOutcome::Idle => {}
            KeeperOutcome::RunEnded(target, record) => {
                self.run_store.set_active_run(None);
                tracing::info!(run = %record.run, status = %record.status, why = record.why, "a run ended");
                if let Some(entry) = RunJournal::new(&self.settings.state_folder).read()? {
                    self.start_watch(target, entry);
                }
            }
            KeeperOutcome::WatchEnded(WatchVerdict::Passed) => {
                let journal = RunJournal::new(&self.settings.state_folder);
                let watched = journal.read().ok().flatten();
                let watched = watched.map(|entry| entry.run.to_string());
                tracing::info!(run = watched, "the watch period ended");
                journal.close()?
            }
            KeeperOutcome::WatchEnded(WatchVerdict::Failed(why)) => self.start_rescue(why),
            KeeperOutcome::Rescue(work) => drop(self.start_execution(*work)),
            KeeperOutcome::EngineLost(error) => {
                tracing::warn!(error = %format_args!("{error:#}"), "the keeper lost the engine and recovers");
                self.state = KeeperState::Recovering;
                let why = sanitize::sanitize_sentence(&format!("{error:#}"));
                self.activity =
                    recover_with_retries(self.settings.clone(), self.run_store.clone(), why);
            }
        }
        Ok(())
    }

    fn start_rescue(&mut self, why: String) {
        tracing::warn!(
            why,
            "the keeper rolls back to the last image that passed its watch period"
        );
        self.state = KeeperState::Recovering;
        self.activity = Box::pin(prepare_rescue(
            self.settings.clone(),
            self.run_store.clone(),
            why,
        ));
    }

    fn cancel_run(&self) -> std::result::Result<EvolveRunId, RunDenied> {
        let on = match &self.state {
            KeeperState::Running(run, stop) => {
                stop.cancel_run(CANCELLED_BY_USER);
                return Ok(run.clone());
            }
            // The recovery already ends this run.
            KeeperState::Recovering => self.run_store.active_run(),
            KeeperState::Idle | KeeperState::Watching => None,
        };
        on.ok_or_else(|| {
            let error = ApiError::new(refusal::KEEPER_NO_SUCH_RUN, "no evolve is in progress");
            RunDenied::Refused(error.with_hint("`osctl evolve history` lists the evolves"))
        })
    }

    /// A run that has not refused requests yet is left as it is: the next keeper ends it.
    fn handle_shutdown(&mut self, reply: oneshot::Sender<()>) {
        let step = RunJournal::new(&self.settings.state_folder).read();
        let step = step.ok().flatten().map(|entry| entry.step);
        let is_refusing = matches!(
            step,
            Some(RunJournalStep::Quiescing | RunJournalStep::Swapping)
        );
        match &self.state {
            KeeperState::Running(_, stop) if is_refusing => {
                stop.cancel_run("the keeper was stopped");
                self.shutdown_waiters.push(reply);
            }
            KeeperState::Recovering if is_refusing => self.shutdown_waiters.push(reply),
            _ => drop(reply.send(())),
        }
    }

    fn start_watch(&mut self, target: DeployTarget, entry: RunJournalEntry) {
        self.state = KeeperState::Watching;
        let (settings, run_store) = (self.settings.clone(), self.run_store.clone());
        let span = tracing::info_span!("watch", run = %entry.run);
        let watch = async move {
            let port_recovery_task = async {
                port_recovery::recover_ports(&settings, &run_store).await;
                std::future::pending().await
            };
            let watched = tokio::select! {
                watched = post_deploy_watch::watch_container(&target, &entry) => watched,
                never = port_recovery_task => never,
            };
            Ok(match watched {
                Ok(verdict) => KeeperOutcome::WatchEnded(verdict),
                Err(error) => KeeperOutcome::EngineLost(error),
            })
        };
        self.activity = Box::pin(watch.instrument(span));
    }

    async fn begin_run(
        &mut self,
        request: RunRequest,
    ) -> std::result::Result<EvolveRunId, RunDenied> {
        if let KeeperState::Running(run, _) = &self.state {
            return Err(RunDenied::Busy(run.clone()));
        }
        if !self.shutdown_waiters.is_empty() {
            return Err(RunDenied::from(anyhow::anyhow!(
                "the keeper is shutting down"
            )));
        }
        let work = prepare_run(&self.settings, &self.run_store, request).await?;
        Ok(self.start_execution(work))
    }

    fn start_execution(&mut self, work: RunExecutor) -> EvolveRunId {
        let run = work.record.run.clone();
        tracing::info!(%run, by = ?work.record.requested_by, reason = work.record.reason, "a run starts");
        self.state = KeeperState::Running(run.clone(), work.cancellation.clone());
        self.activity = Box::pin(execute_run(work));
        run
    }
}

async fn execute_run(work: RunExecutor) -> Result<KeeperOutcome> {
    let target = work.target.clone();
    Ok(match work.run_stages().await {
        Ok(record) => KeeperOutcome::RunEnded(target, Box::new(record)),
        Err(error) => KeeperOutcome::EngineLost(error),
    })
}

/// Recovers with retries until recovery succeeds or the engine is away too long. `why` is the reason that the
/// interrupted run gets. After [`EngineRetryDecision::GiveUp`] the journal is closed and recovery starts again.
fn recover_with_retries(
    settings: KeeperSettings,
    run_store: KeeperRunStore,
    why: String,
) -> BoxFuture<'static, Result<KeeperOutcome>> {
    Box::pin(async move {
        let mut last_reply_at = Instant::now();
        let mut refused = 0;
        loop {
            let error = match load_target(&settings).await {
                Ok(target) => {
                    match recover_from_journal(&settings, &run_store, &target, &why).await {
                        Ok(after) => return Ok(KeeperOutcome::Recovered(target, after)),
                        Err(error) => error,
                    }
                }
                // No deploy config yet: wait for the host. A config that is not there affects no run.
                Err(error) if !is_engine_away(&error) => {
                    tracing::info!(error = %format_args!("{error:#}"), "the keeper waits for a deploy config");
                    last_reply_at = Instant::now();
                    tokio::time::sleep(DEPLOY_CONFIG_POLL_INTERVAL).await;
                    continue;
                }
                Err(error) => error,
            };
            let away = is_engine_away(&error).then(|| last_reply_at.elapsed());
            if away.is_none() {
                (last_reply_at, refused) = (Instant::now(), refused + 1);
            }
            match retry_policy::decide_retry(refused, away) {
                EngineRetryDecision::Retry(pause) => {
                    let seconds = pause.as_secs_f64();
                    tracing::info!(seconds, error = %format_args!("{error:#}"), "the recovery failed; the keeper repeats it");
                    tokio::time::sleep(pause).await;
                }
                EngineRetryDecision::GiveUp => {
                    tracing::error!(error = %format_args!("{error:#}"), "the keeper gives up the recovery");
                    abandon_run(&settings, &run_store, &error);
                    refused = 0;
                }
                EngineRetryDecision::ExitKeeper => return Err(error),
            }
        }
    })
}

/// Prepares the keeper's own rollback to the last image that passed its watch period.
async fn prepare_rescue(
    settings: KeeperSettings,
    run_store: KeeperRunStore,
    why: String,
) -> Result<KeeperOutcome> {
    let journal = RunJournal::new(&settings.state_folder);
    let watched = journal.read()?;
    if let Some(entry) = watched.filter(post_deploy_watch::has_exhausted_rescues) {
        let times = entry.rescues;
        return record_missing_rescue(
            &journal,
            &run_store,
            &format!("{why}; the keeper rolled back {times} times without success"),
        );
    }
    let request = RunRequest {
        task: RunTask::Rescue,
        by: EvolveCaller::Keeper,
        reason: Some(sanitize::sanitize_sentence(&why)),
        force: true,
        dry_run: false,
        build_policy: BuildPolicy::Always,
        rollback_run: None,
    };
    match prepare_run(&settings, &run_store, request).await {
        Ok(work) => Ok(KeeperOutcome::Rescue(Box::new(work))),
        Err(RunDenied::Refused(error)) if error.kind == refusal::KEEPER_NO_SUCH_RUN => {
            record_missing_rescue(&journal, &run_store, &format!("{why}; {}", error.message))
        }
        // A slow engine or a full disk is temporary: retry after a delay.
        Err(RunDenied::Refused(error)) => {
            tokio::time::sleep(RESCUE_RETRY_DELAY).await;
            let why = format!("the rescue can't start yet: {}", error.message);
            Ok(KeeperOutcome::EngineLost(anyhow::anyhow!(why)))
        }
        Err(RunDenied::Busy(run)) => bail!("run `{run}` is active while the keeper is idle"),
    }
}

/// Records why there is no rescue in the run whose container failed its watch period.
fn record_missing_rescue(
    journal: &RunJournal,
    run_store: &KeeperRunStore,
    why: &str,
) -> Result<KeeperOutcome> {
    tracing::error!(%why, "the keeper does not roll back");
    if let Some(entry) = journal.read()?
        && let Some(mut record) = run_store.read_record(&entry.run)?
    {
        record.why = Some(sanitize::sanitize_sentence(why));
        run_store.save_record(&record)?;
    }
    journal.close()?;
    Ok(KeeperOutcome::Idle)
}
