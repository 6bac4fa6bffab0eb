//! `osctl evolve`: the body is replaced by the keeper, and what became of it is told from there, whether
//! or not `os-host` runs.

mod follow;
mod show;
mod shown;

use super::Context;
use super::candidates::evolve_runs;
use crate::engine::{Docker, Engine};
use crate::error::{Error, Outcome, Result};
use crate::host::handover::busy;
use crate::host::instance::Instance;
use crate::host::keeper::{Keeper, unasked};
use crate::host::run::end_of;
use crate::protocol::evolve::{Ask, Evolve, Reply, Rollback, Run};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use serde_json::json;
use std::time::Duration;

/// How long a run may take to end before the container is removed even so.
const ENDING: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct EvolveArgs {
    #[command(subcommand)]
    verb: Option<EvolveVerb>,
    #[command(flatten)]
    begin: BeginArgs,
}

#[derive(Debug, Args)]
struct BeginArgs {
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Build and test, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not wait for the end
    #[arg(long)]
    detach: bool,
    /// Interrupt what still runs when the grace time is over
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Subcommand)]
enum EvolveVerb {
    /// End the run that is on: what ran before goes on
    Stop(StopArgs),
    /// How the present or the latest run stands
    Status,
    /// List the runs
    History,
    /// Go back to the image before, or to the one that a run brought
    Rollback(RollbackArgs),
    /// Everything about a run: its stages, the gate that failed, what was kept and lost
    Show(WhichArgs),
    /// What a run wrote
    Logs(LogsArgs),
    /// What a run has changed in body/
    Diff(WhichArgs),
}

#[derive(Debug, Args)]
struct RollbackArgs {
    /// The run whose image is gone back to
    #[arg(add = ArgValueCandidates::new(evolve_runs))]
    run: Option<Run>,
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not wait for the end
    #[arg(long)]
    detach: bool,
    /// Interrupt what still runs when the grace time is over
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct StopArgs {
    /// Do not wait for the end
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Args)]
struct LogsArgs {
    /// Which run, as `osctl evolve history` lists it
    #[arg(add = ArgValueCandidates::new(evolve_runs))]
    run: Run,
    /// Go on as it writes
    #[arg(short, long)]
    follow: bool,
}

#[derive(Debug, Args)]
struct WhichArgs {
    /// Which run, as `osctl evolve history` lists it
    #[arg(add = ArgValueCandidates::new(evolve_runs))]
    run: Run,
}

/// What is meant.
#[derive(Debug)]
enum Plan {
    Begin { ask: Ask, detach: bool },
    Stop { detach: bool },
    Status,
    History,
    Logs { run: Run, follow: bool },
    Diff { run: Run },
    Show { run: Run },
}

impl From<EvolveArgs> for Plan {
    fn from(args: EvolveArgs) -> Self {
        let EvolveArgs { verb, begin } = args;
        let BeginArgs {
            reason,
            dry_run,
            detach,
            force,
        } = begin;
        match verb {
            None => {
                let ask = Ask::Evolve(Evolve {
                    reason,
                    force,
                    dry_run,
                });
                Self::Begin { ask, detach }
            }
            Some(EvolveVerb::Rollback(RollbackArgs {
                run,
                reason,
                detach,
                force,
            })) => {
                let ask = Ask::Rollback(Rollback { run, reason, force });
                Self::Begin { ask, detach }
            }
            Some(EvolveVerb::Stop(StopArgs { detach })) => Self::Stop { detach },
            Some(EvolveVerb::Status) => Self::Status,
            Some(EvolveVerb::History) => Self::History,
            Some(EvolveVerb::Logs(LogsArgs { run, follow })) => Self::Logs { run, follow },
            Some(EvolveVerb::Diff(WhichArgs { run })) => Self::Diff { run },
            Some(EvolveVerb::Show(WhichArgs { run })) => Self::Show { run },
        }
    }
}

pub(crate) async fn run(args: EvolveArgs, cx: &Context) -> Result<Outcome> {
    let plan = Plan::from(args);
    if let Plan::Begin {
        ask: Ask::Evolve(_),
        ..
    } = &plan
    {
        // What the project and the user want must be readable before an image is made of it.
        cx.trusted_config_file()?;
        let project = cx.record()?.project;
        if let (_, Some(error)) = cx.config_with_error(Some(&project), Vec::new())? {
            return Err(error.into());
        }
    }
    let Engine::Docker(docker) = cx.engine(cx.record()?.engine).await? else {
        let message = "the embedded engine has no keeper: there, nothing is replaced while it runs";
        let hint = cx.instance.command("up");
        let hint = format!("`{hint}` replaces it when the body has changed");
        return Err(Error::precondition(message, hint).into());
    };
    let keeper = Keeper {
        docker: &docker,
        instance: &cx.instance,
    };
    match plan {
        Plan::Begin { ask, detach } => begin(&keeper, &ask, detach, cx).await,
        Plan::Stop { detach } => stop(&keeper, detach, cx).await,
        Plan::Status => show::status(&keeper, cx).await,
        Plan::History => show::history(&keeper, cx).await,
        Plan::Logs { run, follow } => show::logs(&keeper, &run, follow, cx).await,
        Plan::Diff { run } => show::diff(&keeper, &run, cx).await,
        Plan::Show { run } => show::show(&keeper, &run, cx).await,
    }
}

async fn begin(keeper: &Keeper<'_>, ask: &Ask, detach: bool, cx: &Context) -> Result<Outcome> {
    let run = match keeper.answer(ask).await? {
        Reply::Started { run } => run,
        Reply::Busy { run } => return Err(busy(keeper, &run, "")),
        other => return Err(unasked(&other)),
    };
    if !detach {
        return follow::to_the_end(keeper, &run, cx).await;
    }
    let logs = cx.instance.command(&format!("evolve logs -f {run}"));
    if cx.ui.json {
        cx.ui.document(&json!({"status": "started", "run": run}))?;
    } else {
        cx.ui.line(format!("run {run} has begun"));
        cx.ui.say(format!("next: {logs}"));
    }
    Ok(Outcome::Done)
}

/// A keeper that was stopped ends what it has begun. One that can't is replaced soon.
pub(super) async fn wake(engine: &Engine, cx: &Context) {
    if let Engine::Docker(docker) = engine {
        let instance = &cx.instance;
        let _ = Keeper { docker, instance }.wake().await;
    }
}

/// Ends the run that is on. That one which has passed its last gate meanwhile has succeeded is told.
async fn stop(keeper: &Keeper<'_>, detach: bool, cx: &Context) -> Result<Outcome> {
    let run = match keeper.answer(&Ask::Stop {}).await? {
        Reply::Stopping { run } => run,
        other => return Err(unasked(&other)),
    };
    if detach {
        match cx.ui.json {
            true => cx.ui.document(&json!({"status": "stopping", "run": run}))?,
            false => cx.ui.line(format!("run {run} is being ended")),
        }
        return Ok(Outcome::Done);
    }
    follow::to_its_stop(keeper, &run, cx).await
}

/// Has the run that is on come to its end, if there is one, so that the container can be removed. Who
/// begins another one meanwhile holds nobody up.
pub(super) async fn clear(engine: &Engine, cx: &Context) -> Result<()> {
    let Engine::Docker(docker) = engine else {
        return Ok(());
    };
    let keeper = Keeper {
        docker,
        instance: &cx.instance,
    };
    let Ok(Reply::Stopping { run }) = keeper.answer(&Ask::Stop {}).await else {
        return Ok(());
    };
    let work = cx.ui.work(&format!("ending run {run}"));
    let ended = tokio::time::timeout(ENDING, end_of(&keeper, &run, &work)).await;
    drop(work);
    match ended {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => cx.ui.warn(format!("run {run}: {error:#}")),
        Err(_) => cx.ui.warn(format!(
            "run {run} has not ended within {} s",
            ENDING.as_secs()
        )),
    }
    Ok(())
}

/// What a verb that changes the container says while a run is on.
pub(super) async fn check_idle(engine: &Engine, cx: &Context) -> Result<()> {
    match engine {
        Engine::Docker(docker) => check(docker, &cx.instance).await,
        Engine::Embedded(_) => Ok(()),
    }
}

async fn check(docker: &Docker, instance: &Instance) -> Result<()> {
    let keeper = Keeper { docker, instance };
    let status = match keeper.status().await {
        Ok(status) => status.unwrap_or_default(),
        // One that is broken is replaced by `up` and removed by `down`, which must not need it.
        Err(error) => match error.downcast_ref() {
            Some(Error::Foreign { .. } | Error::EngineLost { .. }) => return Err(error),
            _ => return Ok(()),
        },
    };
    match (status.latest_run, status.stage) {
        (Some(run), Some(stage)) => Err(busy(&keeper, &run, &format!(" ({stage})"))),
        _ => Ok(()),
    }
}
