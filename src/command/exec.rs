//! `osctl exec`: Python in the kernel, which keeps its state.

use super::Context;
use crate::error::{Error, NO, Outcome, Result};
use crate::host::client::Client;
use crate::protocol::hex::hex;
use crate::protocol::kernel::{Execute, KernelState, Reply, RunStatus};
use anyhow::Context as _;
use clap::Args;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Nothing waits in silence for longer.
const SILENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Python code; `-` reads it from stdin
    #[arg(required_unless_present = "file", allow_hyphen_values = true)]
    code: Option<String>,
    /// Read the code from this file
    #[arg(short, long, conflicts_with = "code", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Interrupt the code after so many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
}

#[derive(Debug)]
struct Plan {
    source: Source,
    timeout: Option<f64>,
}

#[derive(Debug)]
enum Source {
    Argument(String),
    File(PathBuf),
    Stdin,
}

impl From<ExecArgs> for Plan {
    fn from(args: ExecArgs) -> Self {
        let ExecArgs {
            code,
            file,
            timeout,
        } = args;
        let source = match (code, file) {
            (Some(code), _) if code == "-" => Source::Stdin,
            (_, Some(file)) if file == Path::new("-") => Source::Stdin,
            (_, Some(file)) => Source::File(file),
            (code, None) => Source::Argument(code.unwrap_or_default()),
        };
        Self { source, timeout }
    }
}

impl Source {
    fn read(self) -> Result<String> {
        match self {
            Self::Argument(code) => Ok(code),
            Self::File(file) => std::fs::read_to_string(&file).map_err(|e| {
                Error::usage(
                    format!("`{}` can't be read: {e}", file.display()),
                    "give a Python file: `osctl exec -f FILE`",
                )
                .into()
            }),
            Self::Stdin => {
                let mut code = String::new();
                std::io::stdin()
                    .read_to_string(&mut code)
                    .context("reading the code from stdin")?;
                Ok(code)
            }
        }
    }
}

pub(crate) async fn run(args: ExecArgs, cx: &Context) -> Result<Outcome> {
    let plan = Plan::from(args);
    let client = cx.client()?;
    let request = Execute {
        id: Some(run_id()?),
        timeout: plan.timeout,
        queue: true,
        ..Execute::new(plan.source.read()?)
    };
    let Some(reply) = execute(&client, &request, cx).await? else {
        return Ok(Outcome::Code(crate::error::INTERRUPTED));
    };
    if cx.ui.json {
        cx.ui.document(&reply)?;
    } else {
        show(&reply, cx);
    }
    Ok(match reply.status {
        RunStatus::Completed => Outcome::Done,
        RunStatus::Interrupted | RunStatus::Running => Outcome::Code(crate::error::INTERRUPTED),
        RunStatus::Failed => Outcome::Code(NO),
    })
}

/// Ctrl-C interrupts the code, a second one stops waiting, and then there is no reply.
async fn execute(client: &Client, request: &Execute, cx: &Context) -> Result<Option<Reply>> {
    let id = request.id.clone().unwrap_or_default();
    let mut done = std::pin::pin!(client.execute(request));
    let mut silent = std::pin::pin!(tokio::time::sleep(SILENCE));
    let mut work = None;
    let mut stopping = false;
    // One listener for all of them, so that none is missed between two.
    let mut presses = ctrl_c()?;
    loop {
        tokio::select! {
            reply = &mut done => return reply.map(Some),
            () = &mut silent, if work.is_none() && cx.ui.can_ask() => work = Some(cx.ui.work("running")),
            Some(()) = presses.recv() => {
                if stopping {
                    drop(work);
                    cx.ui.say(format!(
                        "no longer waiting for run `{id}`: it is being interrupted, and its kernel ends if it does not stop"
                    ));
                    return Ok(None);
                }
                stopping = true;
                work = None;
                cx.ui.say("interrupting the code; Ctrl-C again stops waiting for it");
                let (client, id) = (client.clone(), id.clone());
                // Its outcome comes with the reply that is waited for anyway.
                tokio::spawn(async move { client.interrupt(&id).await });
            }
        }
    }
}

#[cfg(unix)]
fn ctrl_c() -> std::io::Result<tokio::signal::unix::Signal> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
}

#[cfg(windows)]
fn ctrl_c() -> std::io::Result<tokio::signal::windows::CtrlC> {
    tokio::signal::windows::ctrl_c()
}

fn show(reply: &Reply, cx: &Context) {
    cx.ui.data(&reply.stdout);
    cx.ui.side(&reply.stderr);
    if let Some(result) = &reply.result {
        if !reply.stdout.is_empty() && !reply.stdout.ends_with('\n') {
            cx.ui.data("\n");
        }
        cx.ui.line(result);
    }
    if let Some(error) = &reply.error {
        for line in &error.traceback {
            cx.ui.side(&format!("{}\n", line.trim_end_matches('\n')));
        }
        // A traceback ends with the code's exception; what became of the run is told besides.
        if error.traceback.is_empty() || reply.status == RunStatus::Interrupted {
            cx.ui.side(&format!("{}: {}\n", error.kind, error.message));
        }
    }
    for (what, cut) in reply.truncated.iter().flatten() {
        cx.ui.warn(format!(
            "{what} was cut: {} of {} bytes are shown",
            cut.kept, cut.total
        ));
    }
    let generation = reply.kernel.generation;
    match reply.kernel.state {
        KernelState::Kept => {}
        KernelState::Lost => cx.ui.warn(format!(
            "the kernel's state was lost; this is generation {generation}"
        )),
        KernelState::Restored => cx.ui.warn(format!(
            "the kernel's state was restored; this is generation {generation}"
        )),
    }
}

/// An id that no other run has, made here so that the run can be interrupted before it answers.
fn run_id() -> Result<String> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| anyhow::anyhow!("no randomness: {e}"))?;
    Ok(hex(bytes))
}

#[cfg(test)]
mod tests {
    use super::{ExecArgs, Plan, Source};

    #[test]
    fn a_dash_is_stdin_in_both_places() {
        let args = |code: Option<&str>, file: Option<&str>| ExecArgs {
            code: code.map(Into::into),
            file: file.map(Into::into),
            timeout: None,
        };
        assert!(matches!(
            Plan::from(args(Some("-"), None)).source,
            Source::Stdin
        ));
        assert!(matches!(
            Plan::from(args(None, Some("-"))).source,
            Source::Stdin
        ));
        assert!(matches!(
            Plan::from(args(Some("-1"), None)).source,
            Source::Argument(_)
        ));
        assert!(matches!(
            Plan::from(args(None, Some("x.py"))).source,
            Source::File(_)
        ));
    }
}
