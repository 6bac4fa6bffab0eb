//! `osctl criu`: checkpoints whole kernel processes and restores them.

use super::CommandContext;
use super::answers::{
    CheckpointAnswer, CheckpointRemovedAnswer, CheckpointsAnswer, CriuStatusAnswer, RestoreAnswer,
};
use super::candidates::{checkpoint_names, session_names};
use super::cryo::{report_restored, restore_outcome};
use super::progress::wait_with_meter;
use crate::error::{EXIT_NEGATIVE, Result, VerbOutcome, hint_for_instance};
use crate::protocol::criu::{CheckpointRequest, RestoreRequest, StoredCheckpoint};
use crate::protocol::kernel::{DEFAULT_SESSION, KernelState};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct CriuArgs {
    #[command(subcommand)]
    verb: Option<CriuVerb>,
}

impl CriuArgs {
    pub(crate) fn removes_state(&self) -> bool {
        matches!(self.verb, Some(CriuVerb::Rm { .. }))
    }
}

#[derive(Debug, Subcommand)]
enum CriuVerb {
    /// Checkpoint an idle kernel and end its process
    Checkpoint(CheckpointArgs),
    /// Restore a checkpointed kernel
    Restore(RestoreArgs),
    /// Show checkpoint support and stored checkpoints
    Status,
    /// List the stored checkpoints (default)
    #[command(alias = "list")]
    Ls,
    /// Remove all generations of a checkpoint
    #[command(aliases = ["remove", "delete"])]
    Rm {
        /// Name of the checkpoint
        #[arg(add = ArgValueCandidates::new(checkpoint_names))]
        name: String,
    },
}

#[derive(Debug, Args)]
struct CheckpointArgs {
    /// Name of the checkpoint [default: the session's name]
    #[arg(add = ArgValueCandidates::new(checkpoint_names))]
    name: Option<String>,
    /// Session to checkpoint
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Keep the kernel running after the checkpoint
    #[arg(long)]
    leave_running: bool,
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// Name of the checkpoint [default: the session's name]
    #[arg(add = ArgValueCandidates::new(checkpoint_names))]
    name: Option<String>,
    /// Session whose checkpoint to restore if no name is given
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Generation to restore [default: the newest]
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
}

impl From<CheckpointArgs> for CheckpointRequest {
    fn from(args: CheckpointArgs) -> Self {
        let CheckpointArgs {
            name,
            session,
            leave_running,
        } = args;
        Self {
            session,
            name,
            leave_running,
        }
    }
}

impl From<RestoreArgs> for RestoreRequest {
    fn from(args: RestoreArgs) -> Self {
        let RestoreArgs {
            name,
            session,
            generation,
        } = args;
        Self {
            session,
            name,
            generation,
        }
    }
}

pub(crate) async fn run(args: CriuArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    match args.verb.unwrap_or(CriuVerb::Ls) {
        CriuVerb::Checkpoint(args) => checkpoint_kernel(&args.into(), cx).await,
        CriuVerb::Restore(args) => restore_kernel(&args.into(), cx).await,
        CriuVerb::Status => show_status(cx).await,
        CriuVerb::Ls => list_checkpoints(cx).await,
        CriuVerb::Rm { name } => remove_checkpoint(&name, cx).await,
    }
}

async fn checkpoint_kernel(
    request: &CheckpointRequest,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let client = cx.companion_client()?;
    let call = client.checkpoint(request).await?;
    let done = wait_with_meter(call, "storing the kernel process", cx).await?;
    if cx.ui.json {
        cx.ui.print_json(&CheckpointAnswer::from(done))?;
        return Ok(VerbOutcome::Done);
    }
    for what in &done.left_out {
        cx.ui
            .print_warning(format!("not in the checkpoint: {what}"));
    }
    let seconds = done.timing_ms / 1e3;
    cx.ui.print_line(format!(
        "{}  {} in {}, {}/s",
        done.checkpoint_path,
        crate::ui::format_bytes(done.checkpoint_size_bytes),
        super::format_duration(seconds),
        crate::ui::format_bytes((done.checkpoint_size_bytes as f64 / seconds) as u64),
    ));
    let next = format!("criu restore {}", done.name);
    cx.ui.print_message(match done.is_running {
        true => "the kernel keeps running".into(),
        false => format!(
            "next: `{}` restores the session, which refuses requests until then",
            cx.instance.osctl_command(&next)
        ),
    });
    Ok(VerbOutcome::Done)
}

async fn restore_kernel(request: &RestoreRequest, cx: &CommandContext) -> Result<VerbOutcome> {
    let client = cx.companion_client()?;
    let call = client.restore(request).await?;
    let done = wait_with_meter(call, "restoring the kernel process", cx).await?;
    let outcome = restore_outcome(done.kernel.restored_from.as_deref());
    if cx.ui.json {
        cx.ui.print_json(&RestoreAnswer::from(done))?;
        return Ok(outcome);
    }
    for note in &done.notes {
        cx.ui.print_warning(note);
    }
    let state = match done.kernel.state {
        KernelState::Restored => "restored",
        KernelState::Kept => "kept",
        KernelState::Lost => "lost",
    };
    cx.ui.print_line(format!(
        "session `{}` is {state} from {} in {}; kernel generation {}",
        done.session,
        done.checkpoint_path,
        super::format_duration(done.timing_ms / 1e3),
        done.kernel.generation,
    ));
    if let Some(from) = &done.kernel.restored_from {
        report_restored(from, cx);
    }
    Ok(outcome)
}

async fn remove_checkpoint(name: &str, cx: &CommandContext) -> Result<VerbOutcome> {
    let done = cx.companion_client()?.remove_checkpoint(name).await?;
    if cx.ui.json {
        cx.ui.print_json(&CheckpointRemovedAnswer::from(done))?;
    } else {
        cx.ui
            .print_message(format!("removed the checkpoint `{name}`"));
    }
    Ok(VerbOutcome::Done)
}

async fn show_status(cx: &CommandContext) -> Result<VerbOutcome> {
    let client = cx.companion_client()?;
    let work = cx.ui.start_work("testing a checkpoint");
    let found = client.criu_status().await?;
    drop(work);
    let outcome = match found.available {
        true => VerbOutcome::Done,
        false => VerbOutcome::Code(EXIT_NEGATIVE),
    };
    if cx.ui.json {
        cx.ui.print_json(&CriuStatusAnswer::from(found))?;
        return Ok(outcome);
    }
    for warning in &found.warnings {
        cx.ui.print_warning(warning);
    }
    let fix = |text: &str| hint_for_instance(text, cx.instance.hint_name());
    cx.ui.print_line(fix(&found.message));
    for check in &found.checks {
        let label = match (check.passed, check.needed) {
            (true, _) => "ok",
            (false, true) => "missing",
            (false, false) => "warning",
        };
        cx.ui.print_line(format!(
            "  {label:<9}{:<14}{}",
            check.name,
            fix(&check.detail)
        ));
    }
    for session in &found.checkpointed {
        cx.ui
            .print_line(format!("session `{session}` is checkpointed"));
    }
    if !found.checkpoints.is_empty() {
        print_checkpoints(found.checkpoints, cx);
    }
    Ok(outcome)
}

async fn list_checkpoints(cx: &CommandContext) -> Result<VerbOutcome> {
    let found = cx.companion_client()?.list_checkpoints().await?;
    match cx.ui.json {
        true => cx
            .ui
            .print_json(&CheckpointsAnswer::from(found.checkpoints))?,
        false => print_checkpoints(found.checkpoints, cx),
    }
    Ok(VerbOutcome::Done)
}

fn print_checkpoints(checkpoints: Vec<StoredCheckpoint>, cx: &CommandContext) {
    let heads = ["NAME", "GENERATION", "SESSION", "AGE", "SIZE", "PATH"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(checkpoints.into_iter().map(checkpoint_row));
    let checkpoint = cx.instance.osctl_command("criu checkpoint");
    let empty = format!("no checkpoints; `{checkpoint}` stores a kernel process");
    cx.ui.print_list(&rows, &empty);
}

fn checkpoint_row(stored: StoredCheckpoint) -> Vec<String> {
    vec![
        stored.name,
        stored.generation.to_string(),
        stored.session,
        super::format_age(stored.created as f64),
        crate::ui::format_bytes(stored.size_bytes),
        stored.path,
    ]
}
