//! `osctl evolve`: asks the keeper to replace the container. All reports come from the keeper, whether `os-host` runs
//! or not.

mod follow;
mod record_text;
mod show;

use super::CommandContext;
use super::answers::EvolveStartedAnswer;
use super::candidates::evolve_runs;
use crate::engine::{Docker, Engine};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::follow_run::end_of;
use crate::host::instance::Instance;
use crate::host::keeper::{KeeperContainer, unexpected_reply_error};
use crate::host::replace_via_keeper::run_in_progress_error;
use crate::protocol::evolve::{EvolveRequest, EvolveRunId, KeeperReply, KeeperRequest, Rollback};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use std::time::Duration;

/// How long `down` waits for the end of a run before it removes the container.
const EVOLVE_STOP_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct EvolveArgs {
    #[command(subcommand)]
    verb: Option<EvolveVerb>,
    #[command(flatten)]
    begin: EvolveBeginArgs,
}

#[derive(Debug, Args)]
struct EvolveBeginArgs {
    /// The reason, for the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Build and test, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not wait for the end
    #[arg(long)]
    detach: bool,
    /// Interrupt code that still runs at the end of the grace time
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Subcommand)]
enum EvolveVerb {
    /// Cancel the running evolution; the current container keeps running
    Stop(EvolveStopArgs),
    /// Show the current or the latest run
    Status,
    /// List the runs
    History,
    /// Roll back to the previous image, or to the image of RUN
    Rollback(EvolveRollbackArgs),
    /// Show a run: its stages, the failed gate, and what was kept and lost
    Show(EvolveRunArgs),
    /// Show the log of a run
    Logs(EvolveLogsArgs),
    /// Show what a run changed in body/
    Diff(EvolveRunArgs),
}

#[derive(Debug, Args)]
struct EvolveRollbackArgs {
    /// The run whose image to roll back to
    #[arg(add = ArgValueCandidates::new(evolve_runs))]
    run: Option<EvolveRunId>,
    /// The reason, for the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not wait for the end
    #[arg(long)]
    detach: bool,
    /// Interrupt code that still runs at the end of the grace time
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct EvolveStopArgs {
    /// Do not wait for the end
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Args)]
struct EvolveLogsArgs {
    /// The run, as `osctl evolve history` lists it
    #[arg(add = ArgValueCandidates::new(evolve_runs))]
    run: EvolveRunId,
    /// Follow the log as it grows
    #[arg(short, long)]
    follow: bool,
}

#[derive(Debug, Args)]
struct EvolveRunArgs {
    /// The run, as `osctl evolve history` lists it
    #[arg(add = ArgValueCandidates::new(evolve_runs))]
    run: EvolveRunId,
}

/// The parsed arguments.
#[derive(Debug)]
enum EvolvePlan {
    Begin { ask: KeeperRequest, detach: bool },
    Stop { detach: bool },
    Status,
    History,
    Logs { run: EvolveRunId, follow: bool },
    Diff { run: EvolveRunId },
    Show { run: EvolveRunId },
}

impl From<EvolveArgs> for EvolvePlan {
    fn from(args: EvolveArgs) -> Self {
        let EvolveArgs { verb, begin } = args;
        let EvolveBeginArgs {
            reason,
            dry_run,
            detach,
            force,
        } = begin;
        match verb {
            None => {
                let ask = KeeperRequest::Evolve(EvolveRequest {
                    reason,
                    force,
                    dry_run,
                });
                Self::Begin { ask, detach }
            }
            Some(EvolveVerb::Rollback(EvolveRollbackArgs {
                run,
                reason,
                detach,
                force,
            })) => {
                let ask = KeeperRequest::Rollback(Rollback { run, reason, force });
                Self::Begin { ask, detach }
            }
            Some(EvolveVerb::Stop(EvolveStopArgs { detach })) => Self::Stop { detach },
            Some(EvolveVerb::Status) => Self::Status,
            Some(EvolveVerb::History) => Self::History,
            Some(EvolveVerb::Logs(EvolveLogsArgs { run, follow })) => Self::Logs { run, follow },
            Some(EvolveVerb::Diff(EvolveRunArgs { run })) => Self::Diff { run },
            Some(EvolveVerb::Show(EvolveRunArgs { run })) => Self::Show { run },
        }
    }
}

pub(crate) async fn run(args: EvolveArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = EvolvePlan::from(args);
    if let EvolvePlan::Begin {
        ask: KeeperRequest::Evolve(_),
        ..
    } = &plan
    {
        // The configuration must be readable before an image is built from it.
        cx.trusted_config_file()?;
        let project = cx.require_record()?.project;
        if let (_, Some(error)) = cx.config_with_error(Some(&project), Vec::new())? {
            return Err(error.into());
        }
    }
    let Engine::Docker(docker) = cx.connect_engine(cx.require_record()?.engine).await? else {
        let message = "the embedded engine has no keeper: there, nothing is replaced while it runs";
        let hint = cx.instance.osctl_command("up");
        let hint = format!("`{hint}` replaces it when the body has changed");
        return Err(Error::precondition(message, hint).into());
    };
    let keeper = KeeperContainer {
        docker: &docker,
        instance: &cx.instance,
    };
    match plan {
        EvolvePlan::Begin { ask, detach } => begin_run(&keeper, &ask, detach, cx).await,
        EvolvePlan::Stop { detach } => stop_run(&keeper, detach, cx).await,
        EvolvePlan::Status => show::show_status(&keeper, cx).await,
        EvolvePlan::History => show::show_history(&keeper, cx).await,
        EvolvePlan::Logs { run, follow } => show::show_logs(&keeper, &run, follow, cx).await,
        EvolvePlan::Diff { run } => show::show_diff(&keeper, &run, cx).await,
        EvolvePlan::Show { run } => show::show_record(&keeper, &run, cx).await,
    }
}

async fn begin_run(
    keeper: &KeeperContainer<'_>,
    ask: &KeeperRequest,
    detach: bool,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let run = match keeper.request_reply(ask).await? {
        KeeperReply::Started { run } => run,
        KeeperReply::Busy { run } => return Err(run_in_progress_error(keeper, &run, "")),
        other => return Err(unexpected_reply_error(&other)),
    };
    if !detach {
        return follow::to_the_end(keeper, &run, cx).await;
    }
    let logs = cx.instance.osctl_command(&format!("evolve logs -f {run}"));
    if cx.ui.json {
        let status = "started";
        cx.ui.print_json(&EvolveStartedAnswer { status, run })?;
    } else {
        cx.ui.print_line(format!("run {run} has begun"));
        cx.ui.print_message(format!("next: {logs}"));
    }
    Ok(VerbOutcome::Done)
}

/// Starts a stopped keeper, which then finishes its active run. Errors are ignored, because a broken keeper is replaced
/// later.
pub(super) async fn wake_keeper(engine: &Engine, cx: &CommandContext) {
    if let Engine::Docker(docker) = engine {
        let instance = &cx.instance;
        let _ = KeeperContainer { docker, instance }.start_stopped().await;
    }
}

/// Cancels the active run. A run that has already passed its last gate is reported as succeeded.
async fn stop_run(
    keeper: &KeeperContainer<'_>,
    detach: bool,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let run = match keeper.request_reply(&KeeperRequest::Stop {}).await? {
        KeeperReply::Stopping { run } => run,
        other => return Err(unexpected_reply_error(&other)),
    };
    if detach {
        match cx.ui.json {
            true => cx.ui.print_json(&EvolveStartedAnswer {
                status: "stopping",
                run,
            })?,
            false => cx.ui.print_line(format!("run {run} is being ended")),
        }
        return Ok(VerbOutcome::Done);
    }
    follow::to_its_stop(keeper, &run, cx).await
}

/// Cancels the active run and waits for its end, so that the container can be removed. A run that is started after that
/// is not waited for.
pub(super) async fn end_current_run(engine: &Engine, cx: &CommandContext) -> Result<()> {
    let Engine::Docker(docker) = engine else {
        return Ok(());
    };
    let keeper = KeeperContainer {
        docker,
        instance: &cx.instance,
    };
    let Ok(KeeperReply::Stopping { run }) = keeper.request_reply(&KeeperRequest::Stop {}).await
    else {
        return Ok(());
    };
    let work = cx.ui.start_work(&format!("ending run {run}"));
    let ended = tokio::time::timeout(EVOLVE_STOP_TIMEOUT, end_of(&keeper, &run, &work)).await;
    drop(work);
    match ended {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => cx.ui.print_warning(format!("run {run}: {error:#}")),
        Err(_) => cx.ui.print_warning(format!(
            "run {run} has not ended within {} s",
            EVOLVE_STOP_TIMEOUT.as_secs()
        )),
    }
    Ok(())
}

/// Refuses a verb that changes the container while a run is active.
pub(super) async fn check_idle(engine: &Engine, cx: &CommandContext) -> Result<()> {
    match engine {
        Engine::Docker(docker) => check_no_run(docker, &cx.instance).await,
        Engine::Embedded(_) => Ok(()),
    }
}

async fn check_no_run(docker: &Docker, instance: &Instance) -> Result<()> {
    let keeper = KeeperContainer { docker, instance };
    let status = match keeper.fetch_status().await {
        Ok(status) => status.unwrap_or_default(),
        // A broken keeper is replaced by `up` and removed by `down`, which must work without it.
        Err(error) => match error.downcast_ref() {
            Some(Error::Foreign { .. } | Error::EngineLost { .. }) => return Err(error),
            _ => return Ok(()),
        },
    };
    match (status.latest_run, status.stage) {
        (Some(run), Some(stage)) => {
            Err(run_in_progress_error(&keeper, &run, &format!(" ({stage})")))
        }
        _ => Ok(()),
    }
}
