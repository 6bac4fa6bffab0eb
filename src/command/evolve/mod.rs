//! `osctl evolve`: asks the keeper to replace the container. All reports come from the keeper, whether `os-host` runs
//! or not.

mod follow;
mod record_text;
mod show;

use super::CommandContext;
use super::answers::EvolveStartedAnswer;
use super::candidates::evolve_runs;
use super::id_prefix::find_by_prefix;
use crate::engine::{Docker, Engine};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::follow_evolve::wait_for_run_end;
use crate::host::instance::Instance;
use crate::host::keeper::{KeeperContainer, unexpected_reply_error};
use crate::host::mcp::{describe_changed_servers, write_configured_servers};
use crate::host::replace_via_keeper::run_in_progress_error;
use crate::protocol::evolve::{
    EvolveRequest, EvolveRunId, KeeperReply, KeeperRequest, RollbackRequest,
};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use std::time::Duration;

/// How long `down` waits for the end of a run before it removes the container.
const EVOLVE_STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The word that selects the last evolve.
const LAST_RUN: &str = "last";

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
    /// Reason to record in the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Build and test only; keep the current container
    #[arg(long)]
    dry_run: bool,
    /// Replace the container even if nothing has changed, without a check of the body's syntax
    #[arg(long)]
    rebuild: bool,
    /// Return after the start; do not wait for the end
    #[arg(long)]
    detach: bool,
    /// Interrupt code that still runs after the grace time; replace the container even if it hangs or is paused
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Subcommand)]
enum EvolveVerb {
    /// Cancel the evolve; the current container keeps running
    #[command(aliases = ["cancel", "interrupt"])]
    Stop(EvolveStopArgs),
    /// Show the current or last evolve
    Status,
    /// List the evolves
    #[command(aliases = ["ls", "list"])]
    History,
    /// Return to the previous image, or to the image of an evolve
    Rollback(EvolveRollbackArgs),
    /// Show an evolve: stages, failed stage, kept and lost state
    Show(EvolveRunArgs),
    /// Show the log of an evolve
    #[command(alias = "log")]
    Logs(EvolveLogsArgs),
    /// Show the changes in body/ of an evolve
    Diff(EvolveRunArgs),
}

#[derive(Debug, Args)]
struct EvolveRollbackArgs {
    /// ID of the evolve whose image to return to, its first characters, or `last`
    #[arg(value_name = "ID", add = ArgValueCandidates::new(evolve_runs))]
    run: Option<String>,
    /// Reason to record in the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Return after the start; do not wait for the end
    #[arg(long)]
    detach: bool,
    /// Interrupt code that still runs after the grace time; replace the container even if it hangs or is paused
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct EvolveStopArgs {
    /// Return immediately; do not wait until the evolve has ended
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Args)]
struct EvolveLogsArgs {
    /// ID of the evolve, its first characters, or `last`
    #[arg(value_name = "ID", add = ArgValueCandidates::new(evolve_runs))]
    run: String,
    /// Follow new lines
    #[arg(short, long)]
    follow: bool,
}

#[derive(Debug, Args)]
struct EvolveRunArgs {
    /// ID of the evolve, its first characters, or `last`
    #[arg(value_name = "ID", add = ArgValueCandidates::new(evolve_runs))]
    run: String,
}

impl EvolveArgs {
    /// Whether the command builds from the body, instead of asking about evolves or ending one.
    pub(crate) fn starts_evolve(&self) -> bool {
        self.verb.is_none()
    }

    /// Whether the command replaces the container.
    pub(crate) fn changes_instance(&self) -> bool {
        matches!(self.verb, None | Some(EvolveVerb::Rollback(_)))
    }
}

/// The parsed arguments.
#[derive(Debug)]
enum EvolvePlan {
    Evolve {
        request: EvolveRequest,
        detach: bool,
    },
    Rollback {
        args: EvolveRollbackArgs,
    },
    Stop {
        detach: bool,
    },
    Status,
    History,
    Logs {
        run: String,
        follow: bool,
    },
    Diff {
        run: String,
    },
    Show {
        run: String,
    },
}

impl From<EvolveArgs> for EvolvePlan {
    fn from(args: EvolveArgs) -> Self {
        let EvolveArgs { verb, begin } = args;
        let EvolveBeginArgs {
            reason,
            dry_run,
            rebuild,
            detach,
            force,
        } = begin;
        match verb {
            None => {
                let request = EvolveRequest {
                    reason,
                    force,
                    dry_run,
                    rebuild,
                    replace: false,
                };
                Self::Evolve { request, detach }
            }
            Some(EvolveVerb::Rollback(args)) => Self::Rollback { args },
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
    if let EvolvePlan::Evolve { request, .. } = &plan {
        // The configuration must be readable before an image is built from it.
        cx.trusted_config_file()?;
        let record = cx.require_record()?;
        let (resolved, error) = cx.config_with_error(Some(&record.project), Vec::new())?;
        if let Some(error) = error {
            return Err(error.into());
        }
        let (servers, data) = (&resolved.config.servers, cx.instance.data_folder());
        let is_here = record.remote.is_none() && !request.dry_run;
        if is_here && write_configured_servers(servers, &data)? {
            cx.ui.print_message(describe_changed_servers(servers));
        }
    }
    let Engine::Docker(docker) = cx.connect_engine(cx.require_record()?.engine).await? else {
        let message = "the embedded engine has no keeper and cannot evolve";
        let hint = cx.instance.osctl_command("up");
        let hint = format!("`{hint}` applies a changed body");
        return Err(Error::precondition(message, hint).into());
    };
    let keeper = KeeperContainer {
        docker: &docker,
        instance: &cx.instance,
    };
    match plan {
        EvolvePlan::Evolve { request, detach } => {
            begin_run(&keeper, &KeeperRequest::Evolve(request), detach, cx).await
        }
        EvolvePlan::Rollback { args } => roll_back(&keeper, args, cx).await,
        EvolvePlan::Stop { detach } => stop_run(&keeper, detach, cx).await,
        EvolvePlan::Status => show::show_status(&keeper, cx).await,
        EvolvePlan::History => show::show_history(&keeper, cx).await,
        EvolvePlan::Logs { run, follow } => {
            let run = complete_run(&keeper, &run, cx).await?;
            show::show_logs(&keeper, &run, follow, cx).await
        }
        EvolvePlan::Diff { run } => {
            let run = complete_run(&keeper, &run, cx).await?;
            show::show_diff(&keeper, &run, cx).await
        }
        EvolvePlan::Show { run } => {
            let run = complete_run(&keeper, &run, cx).await?;
            show::show_record(&keeper, &run, cx).await
        }
    }
}

/// The evolve with this ID, the only one whose ID begins so, or the last one.
async fn complete_run(
    keeper: &KeeperContainer<'_>,
    typed: &str,
    cx: &CommandContext,
) -> Result<EvolveRunId> {
    if let Ok(run) = typed.parse() {
        return Ok(run);
    }
    let runs = match keeper.request_reply(&KeeperRequest::History {}).await? {
        KeeperReply::History { runs } => runs,
        other => return Err(unexpected_reply_error(&other)),
    };
    let mut ids = runs.into_iter().map(|record| String::from(record.run));
    let list = cx.instance.osctl_command("evolve history");
    let found = match typed {
        // IDs are times.
        LAST_RUN => ids.max(),
        prefix => find_by_prefix(prefix, &mut ids, &list)?,
    };
    let unknown = || {
        let message = match typed {
            LAST_RUN => "there is no evolve yet".to_owned(),
            typed => format!("no evolve has an ID that begins with `{typed}`"),
        };
        Error::usage(message, format!("`{list}` lists the IDs"))
    };
    let found = found.and_then(|id| id.parse().ok());
    Ok(found.ok_or_else(unknown)?)
}

async fn roll_back(
    keeper: &KeeperContainer<'_>,
    args: EvolveRollbackArgs,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let EvolveRollbackArgs {
        run,
        reason,
        detach,
        force,
    } = args;
    let run = match run {
        Some(typed) => Some(complete_run(keeper, &typed, cx).await?),
        None => None,
    };
    let ask = KeeperRequest::Rollback(RollbackRequest { run, reason, force });
    begin_run(keeper, &ask, detach, cx).await
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
    let target = match ask {
        KeeperRequest::Rollback(_) => find_rollback_target(keeper, &run).await,
        _ => None,
    };
    let started = match &target {
        Some(target) => format!("evolve {run} has started: a rollback to {target}"),
        None => format!("evolve {run} has started"),
    };
    if !detach {
        let work = cx.ui.start_work(&started);
        return follow::to_the_end(keeper, &run, target.as_deref(), work, cx).await;
    }
    let logs = cx.instance.osctl_command(&format!("evolve logs -f {run}"));
    if cx.ui.json {
        let status = "started";
        cx.ui.print_json(&EvolveStartedAnswer { status, id: run })?;
    } else {
        cx.ui.print_line(started);
        cx.ui.print_message(format!("next: {logs}"));
    }
    Ok(VerbOutcome::Done)
}

/// Describes the image to which the keeper rolls back. A keeper that does not answer is reported later.
async fn find_rollback_target(keeper: &KeeperContainer<'_>, run: &EvolveRunId) -> Option<String> {
    match keeper.request_reply(&KeeperRequest::History {}).await {
        Ok(KeeperReply::History { runs }) => record_text::rollback_target(run, &runs),
        _ => None,
    }
}

/// Starts a stopped keeper, which then finishes its active run. Errors are ignored, because a broken keeper is replaced
/// later.
pub(super) async fn wake_keeper(engine: &Engine, cx: &CommandContext) {
    if let Engine::Docker(docker) = engine {
        let instance = &cx.instance;
        let _ = KeeperContainer { docker, instance }.start_stopped().await;
    }
}

/// Cancels the active run. A run that has already passed its last stage is reported as succeeded.
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
                id: run,
            })?,
            false => cx.ui.print_line(format!("cancelling evolve {run}")),
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
    let work = cx.ui.start_work(&format!("cancelling evolve {run}"));
    let ended =
        tokio::time::timeout(EVOLVE_STOP_TIMEOUT, wait_for_run_end(&keeper, &run, &work)).await;
    drop(work);
    match ended {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => cx.ui.print_warning(format!("evolve {run}: {error:#}")),
        Err(_) => cx.ui.print_warning(format!(
            "evolve {run} has not ended within {} s",
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
            Some(Error::ForeignObject { .. } | Error::EngineLost { .. }) => return Err(error),
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
