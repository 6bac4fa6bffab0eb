//! The verbs, one file each: arguments, the plan made of them, and its execution.

mod answers;
pub(crate) mod attach;
pub(crate) mod build;
pub(crate) mod candidates;
pub(crate) mod companion;
mod completer;
pub(crate) mod completions;
pub(crate) mod config;
mod context;
pub(crate) mod cp;
pub(crate) mod criu;
pub(crate) mod cryo;
pub(crate) mod desktop;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod evolve;
pub(crate) mod exec;
mod figures;
mod follow;
pub(crate) mod health;
mod id_prefix;
pub(crate) mod init;
pub(crate) mod interrupt;
pub(crate) mod jupyter;
pub(crate) mod keeper;
mod launch_command;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mcp;
mod mcp_stdio;
mod progress;
pub(crate) mod quiesce;
pub(crate) mod reaper;
pub(crate) mod relay;
pub(crate) mod remember;
pub(crate) mod repl;
pub(crate) mod reset;
pub(crate) mod restart;
mod restored_sessions;
pub(crate) mod resume;
pub(crate) mod runs;
pub(crate) mod screenshot;
pub(crate) mod selftest;
pub(crate) mod sessions;
pub(crate) mod shell;
mod shell_command;
mod shutdown_signal;
mod snapshot;
pub(crate) mod status;
mod terminal;
pub(crate) mod up;
pub(crate) mod verify;

pub(crate) use completer::SHELL_COMPLETERS as COMPLETERS;
pub(crate) use context::CommandContext;
pub(crate) use shutdown_signal::shutdown_signal;

use crate::cli::{Cli, Verb};
use crate::error::{Result, VerbOutcome};
use crate::host::folders::Folders;
use crate::host::older_companion::is_missing_proof;
use crate::ui::Ui;
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) async fn run_command(cli: Cli, ui: Ui) -> Result<VerbOutcome> {
    match cli.verb {
        Verb::Companion => return companion::run().await,
        Verb::Health(args) => return health::run(args).await,
        Verb::Reaper(args) => return reaper::run(args),
        Verb::Keeper(args) => return keeper::run(args, ui).await,
        Verb::Remember(args) => return remember::run(args, ui).await,
        Verb::Selftest(args) => return selftest::run(args, ui).await,
        Verb::Quiesce(args) => return quiesce::run(args, ui).await,
        Verb::Resume(args) => return resume::run(args, ui).await,
        Verb::Verify(args) => return verify::run(args, ui).await,
        Verb::Completions(args) => return completions::run(args, ui),
        _ => {}
    }
    let cx = CommandContext::new(ui, Folders::find()?, &cli.instance, cli.config.as_deref())?;
    match run_verb(cli.verb, &cx).await {
        Err(error) if is_missing_proof(&error) => Err(cx.explain_error(error).await),
        done => done,
    }
}

async fn run_verb(verb: Verb, cx: &CommandContext) -> Result<VerbOutcome> {
    match verb {
        Verb::Up(args) => up::run(args, cx).await,
        Verb::Down(args) => down::run(args, cx).await,
        Verb::Restart(args) => restart::run(args, cx).await,
        Verb::Status(args) => status::run(args, cx).await,
        Verb::Logs(args) => logs::run(args, cx).await,
        Verb::Ls(args) => ls::run(args, cx).await,
        Verb::Build(args) => build::run(args, cx).await,
        Verb::Evolve(args) => evolve::run(args, cx).await,
        Verb::Exec(args) => exec::run(args, cx).await,
        Verb::Repl(args) => repl::run(args, cx).await,
        Verb::Shell(args) => shell::run(args, cx).await,
        Verb::Attach(args) => attach::run(args, cx).await,
        Verb::Runs(args) => runs::run(args, cx).await,
        Verb::Sessions(args) => sessions::run(args, cx).await,
        Verb::Interrupt(args) => interrupt::run(args, cx).await,
        Verb::Reset(args) => reset::run(args, cx).await,
        Verb::Cp(args) => cp::run(args, cx).await,
        Verb::Criu(verb) => criu::run(verb, cx).await,
        Verb::Cryo(verb) => cryo::run(verb, cx).await,
        Verb::Mcp(args) => mcp::run(args, cx).await,
        Verb::Desktop(args) => desktop::run(args, cx).await,
        Verb::Screenshot(args) => screenshot::run(args, cx).await,
        Verb::Jupyter(args) => jupyter::run(args, cx).await,
        Verb::Init(args) => init::run(args, cx),
        Verb::Man(args) => man::run(args, cx),
        Verb::Doctor(args) => doctor::run(args, cx).await,
        Verb::Config(verb) => config::run(verb, cx),
        Verb::Version
        | Verb::Completions(_)
        | Verb::Companion
        | Verb::Health(_)
        | Verb::Keeper(_)
        | Verb::Reaper(_)
        | Verb::Relay(_)
        | Verb::Remember(_)
        | Verb::Selftest(_)
        | Verb::Quiesce(_)
        | Verb::Resume(_)
        | Verb::Verify(_) => Ok(VerbOutcome::Done),
    }
}

/// Sends a request to the companion of this container and prints the reply.
#[cfg(target_os = "linux")]
async fn ask_inside(path: &str, body: &Value, ui: Ui) -> Result<VerbOutcome> {
    let reply = crate::companion::post_to_companion(path, body).await?;
    ui.print_json(&reply)?;
    Ok(VerbOutcome::Done)
}

#[cfg(not(target_os = "linux"))]
async fn ask_inside(_path: &str, _body: &Value, _ui: Ui) -> Result<VerbOutcome> {
    Err(linux_only())
}

/// Formats a duration in seconds for people.
fn format_duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// Formats the age of a time given in seconds since 1970.
fn format_age(created: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    format_duration((now.unwrap_or_default().as_secs_f64() - created).max(0.0))
}

/// The error of a verb that runs only inside the container.
#[cfg(not(target_os = "linux"))]
fn linux_only() -> anyhow::Error {
    use crate::error::Error;
    let hint = "`osctl up --companion PATH` puts a Linux binary into the container";
    Error::precondition("this verb runs only in the container, on Linux", hint).into()
}
