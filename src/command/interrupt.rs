//! `osctl interrupt`: stop what runs, and say what became of the state.

use super::Context;
use super::candidates::{run_ids, session_names};
use crate::error::{Outcome, Result};
use crate::protocol::kernel::{DEFAULT_SESSION, KernelReport, KernelState};
use clap::Args;
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct InterruptArgs {
    /// The run to stop [default: whatever the session runs]
    #[arg(add = ArgValueCandidates::new(run_ids), conflicts_with = "session")]
    id: Option<String>,
    /// The kernel whose code to stop
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION, hide_default_value = true, add = ArgValueCandidates::new(session_names))]
    session: String,
}

pub(crate) async fn run(args: InterruptArgs, cx: &Context) -> Result<Outcome> {
    let InterruptArgs { id, session } = args;
    let client = cx.client()?;
    let work = cx.ui.work("interrupting");
    let kernel = match id {
        Some(id) => {
            let reply = client.interrupt(&id).await?;
            drop(work);
            if cx.ui.json {
                cx.ui.document(&reply)?;
            }
            reply.kernel
        }
        None => {
            let reply = client.interrupt_session(&session).await?;
            drop(work);
            if cx.ui.json {
                cx.ui.document(&reply)?;
            }
            reply.kernel
        }
    };
    if !cx.ui.json {
        tell(kernel, cx);
    }
    Ok(Outcome::Done)
}

fn tell(kernel: KernelReport, cx: &Context) {
    let generation = kernel.generation;
    let state = match kernel.state {
        KernelState::Kept => "kept",
        KernelState::Lost => "lost",
        KernelState::Restored => "restored",
    };
    cx.ui.say(format!(
        "nothing runs; the kernel's state is {state}, generation {generation}"
    ));
}
