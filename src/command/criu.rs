//! `osctl criu`: kernels frozen as whole processes, and brought back.

use super::Context;
use super::candidates::{checkpoint_names, session_names};
use super::told::told;
use crate::error::{NO, Outcome, Result};
use crate::protocol::criu::{Checkpoint, Restore, Stored};
use crate::protocol::kernel::{DEFAULT_SESSION, KernelState};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Subcommand)]
pub(crate) enum CriuVerb {
    /// Freeze an idle kernel, and end it
    Checkpoint(CheckpointArgs),
    /// Bring a frozen kernel back
    Restore(RestoreArgs),
    /// Whether kernels can be frozen here and exactly why not, and what is stored
    Status,
    /// Remove every generation of a checkpoint
    Rm {
        #[arg(add = ArgValueCandidates::new(checkpoint_names))]
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// The checkpoint's name; the session's when missing
    #[arg(add = ArgValueCandidates::new(checkpoint_names))]
    name: Option<String>,
    /// The kernel to freeze
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION, hide_default_value = true, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Let the kernel go on afterwards
    #[arg(long)]
    leave_running: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The checkpoint's name; the session's when missing
    #[arg(add = ArgValueCandidates::new(checkpoint_names))]
    name: Option<String>,
    /// The session whose checkpoint is meant when no name is given
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION, hide_default_value = true, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Which of its generations; the last one when missing
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
}

impl From<CheckpointArgs> for Checkpoint {
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

impl From<RestoreArgs> for Restore {
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

pub(crate) async fn run(verb: CriuVerb, cx: &Context) -> Result<Outcome> {
    match verb {
        CriuVerb::Checkpoint(args) => checkpoint(&args.into(), cx).await,
        CriuVerb::Restore(args) => restore(&args.into(), cx).await,
        CriuVerb::Status => status(cx).await,
        CriuVerb::Rm { name } => remove(&name, cx).await,
    }
}

async fn checkpoint(request: &Checkpoint, cx: &Context) -> Result<Outcome> {
    let client = cx.client()?;
    let tale = client.checkpoint(request).await?;
    let done = told(tale, "freezing the kernel", cx).await?;
    if cx.ui.json {
        cx.ui.document(&done)?;
        return Ok(Outcome::Done);
    }
    for what in &done.left_out {
        cx.ui.warn(format!("not in the checkpoint: {what}"));
    }
    let seconds = done.timing_ms / 1e3;
    cx.ui.line(format!(
        "{}  {} in {}, {}/s",
        done.checkpoint_path,
        crate::ui::bytes(done.checkpoint_size_bytes),
        super::duration(seconds),
        crate::ui::bytes((done.checkpoint_size_bytes as f64 / seconds) as u64),
    ));
    let next = format!("criu restore {}", done.name);
    cx.ui.say(match done.is_running {
        true => "the kernel goes on".into(),
        false => format!(
            "next: `{}` brings it back; until then the session answers nobody",
            cx.instance.command(&next)
        ),
    });
    Ok(Outcome::Done)
}

async fn restore(request: &Restore, cx: &Context) -> Result<Outcome> {
    let client = cx.client()?;
    let tale = client.restore(request).await?;
    let done = told(tale, "bringing the kernel back", cx).await?;
    if cx.ui.json {
        cx.ui.document(&done)?;
        return Ok(Outcome::Done);
    }
    for note in &done.notes {
        cx.ui.warn(note);
    }
    let state = match done.kernel.state {
        KernelState::Restored => "restored",
        KernelState::Kept => "kept",
        KernelState::Lost => "lost",
    };
    cx.ui.line(format!(
        "session `{}` is {state} from {} in {}; this is generation {}",
        done.session,
        done.checkpoint_path,
        super::duration(done.timing_ms / 1e3),
        done.kernel.generation,
    ));
    Ok(Outcome::Done)
}

async fn remove(name: &str, cx: &Context) -> Result<Outcome> {
    let done = cx.client()?.remove_checkpoint(name).await?;
    if cx.ui.json {
        cx.ui.document(&done)?;
    } else {
        cx.ui.say(format!("the checkpoint `{name}` is gone"));
    }
    Ok(Outcome::Done)
}

async fn status(cx: &Context) -> Result<Outcome> {
    let client = cx.client()?;
    let work = cx.ui.work("trying it with a process that sleeps");
    let found = client.criu().await?;
    drop(work);
    let outcome = match found.available {
        true => Outcome::Done,
        false => Outcome::Code(NO),
    };
    if cx.ui.json {
        cx.ui.document(&found)?;
        return Ok(outcome);
    }
    for warning in &found.warnings {
        cx.ui.warn(warning);
    }
    cx.ui.line(&found.message);
    for check in &found.checks {
        let mark = match (check.fine, check.needed) {
            (true, _) => "ok",
            (false, true) => "missing",
            (false, false) => "warning",
        };
        cx.ui
            .line(format!("  {mark:<9}{:<14}{}", check.what, check.detail));
    }
    for session in &found.checkpointed {
        cx.ui.line(format!("session `{session}` is frozen"));
    }
    if !found.checkpoints.is_empty() {
        let heads = ["NAME", "GENERATION", "SESSION", "AGE", "SIZE", "PATH"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(found.checkpoints.into_iter().map(row));
        cx.ui.table(&rows);
    }
    Ok(outcome)
}

fn row(stored: Stored) -> Vec<String> {
    vec![
        stored.name,
        stored.generation.to_string(),
        stored.session,
        super::age(stored.created as f64),
        crate::ui::bytes(stored.size_bytes),
        stored.path,
    ]
}
