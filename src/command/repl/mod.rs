//! `osctl repl`: a console on the kernel that the agent uses, too.
//!
//! ```text
//!   ┌──────────▶ In [3]: ──── Ctrl-D, exit ───▶ the end
//!   │               │ Enter
//!   │               ▼        no
//!   │ Ctrl-C   is it complete? ─▶    ...:  the next line of the cell
//!   │               │ yes
//!   └────────── a run, followed as `osctl exec` follows one
//! ```
//!
//! The kernel decides whether a cell is complete and provides completions. While it runs code of other clients it does
//! not answer; the console then guesses whether a cell is complete, and the cell is queued.

mod cell;
mod prompt;

use super::CommandContext;
use super::candidates::session_names;
use super::exec::{ensure_session, run_id};
use super::follow::{self, CtrlCAction, RunView};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::protocol::kernel::{DEFAULT_SESSION, Execute};
use crate::protocol::session::{CompletenessQuery, SessionInfo};
use cell::InputCell;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use prompt::{PromptInput, ReplPrompt};
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for the kernel to check whether a cell is complete.
const COMPLETENESS_TIMEOUT: Duration = Duration::from_secs(1);

/// Words that leave the console; executed as code they would end only the kernel.
const EXIT_WORDS: &[&str] = &["exit", "quit", "exit()", "quit()"];

#[derive(Debug, Args)]
pub(crate) struct ReplArgs {
    /// Session to use; created if missing
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Save figures in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) async fn run(args: ReplArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let ReplArgs { session, out } = args;
    let refuse = |message: &str, instead: &str| {
        let instead = cx.instance.osctl_command(instead);
        Err(Error::usage(message, format!("`{instead}`")).into())
    };
    if cx.ui.json {
        return refuse("`osctl repl` has no JSON output", "--json exec CODE");
    }
    if !cx.ui.has_terminal() {
        return refuse("`osctl repl` needs an interactive terminal", "exec -");
    }
    let client = cx.companion_client()?;
    ensure_session(&client, &session).await?;
    let mut repl = Repl {
        cx,
        client,
        session,
        out,
        seen: None,
        number: 1,
    };
    // With this listener, Ctrl-C does not end the process, also between a prompt and a run.
    let _presses = follow::listen_for_ctrl_c()?;
    repl.print_greeting().await?;
    let prompt = ReplPrompt::open(cx, &repl.client, &repl.session)?;
    while let Some(code) = repl.read_cell(&prompt).await? {
        if code.is_empty() {
            continue;
        }
        prompt.add_history(&code);
        // The console continues after the error of one run.
        if let Err(error) = repl.execute_cell(code).await {
            cx.ui.print_failure(&error, cx.instance.hint_name());
        }
        if let Ok(Some(session)) = repl.find_session().await {
            repl.number = session.exec_count.saturating_add(1);
        }
    }
    Ok(VerbOutcome::Done)
}

#[derive(Debug)]
struct Repl<'a> {
    cx: &'a CommandContext,
    client: CompanionClient,
    session: String,
    out: Option<PathBuf>,
    /// The kernel generation that the user last saw. With it, the console reports a loss even if another client noticed
    /// the loss first.
    seen: Option<u64>,
    /// The number of the next cell.
    number: u64,
}

impl Repl<'_> {
    async fn print_greeting(&mut self) -> Result<()> {
        let found = self.find_session().await?;
        let python = found.as_ref().and_then(|session| session.python.as_deref());
        self.cx.ui.print_message(format!(
            "Python {} in `{}`, session `{}`; Tab completes, `name?` helps, Ctrl-D leaves",
            python.unwrap_or("(starting)"),
            self.cx.instance.container_name(),
            self.session,
        ));
        if let Some(session) = found {
            self.number = session.exec_count.saturating_add(1);
            self.seen = Some(session.kernel.generation);
        }
        Ok(())
    }

    async fn find_session(&self) -> Result<Option<SessionInfo>> {
        let all = self.client.list_sessions().await?.sessions;
        Ok(all.into_iter().find(|session| session.name == self.session))
    }

    /// The next cell, empty if the user cancelled it; `None` at the end.
    async fn read_cell(&self, prompt: &ReplPrompt) -> Result<Option<String>> {
        let mut cell = InputCell::default();
        loop {
            match prompt.read_line(self.number, &cell).await? {
                PromptInput::End => return Ok(None),
                PromptInput::GivenUp => return Ok(Some(String::new())),
                PromptInput::Line(line) => cell.add_line(&line),
            }
            if EXIT_WORDS.contains(&cell.code.trim()) {
                return Ok(None);
            }
            if cell.is_blank() || self.is_whole(&mut cell).await {
                return Ok(Some(cell.code));
            }
        }
    }

    /// Whether the cell can run; if not, sets the indentation of its next line.
    async fn is_whole(&self, cell: &mut InputCell) -> bool {
        let request = CompletenessQuery {
            code: cell.code.clone(),
            session: self.session.clone(),
        };
        let reply =
            tokio::time::timeout(COMPLETENESS_TIMEOUT, self.client.is_complete(&request)).await;
        match reply {
            Ok(Ok(answer)) if answer.status == "incomplete" => {
                cell.indent = answer.indent.unwrap_or_default();
                false
            }
            // For invalid code and for errors of the check, the run reports the reason.
            Ok(Ok(_)) => true,
            Ok(Err(error)) if !is_busy(&error) => true,
            Ok(Err(_)) | Err(_) => {
                let looks_whole = cell.looks_whole();
                if looks_whole {
                    let busy = "the kernel runs other code; this code is queued";
                    self.cx.ui.print_message(busy);
                }
                looks_whole
            }
        }
    }

    async fn execute_cell(&mut self, code: String) -> Result<()> {
        let id = run_id()?;
        let request = Execute {
            id: Some(id.clone()),
            session: self.session.clone(),
            queue: true,
            seen: self.seen,
            ..Execute::new(code)
        };
        let mut view = RunView::new(self.cx, self.out.clone())?;
        let open_events = async {
            // A session that was unused for a long time was released.
            ensure_session(&self.client, &self.session).await?;
            self.client.execute(&request).await
        };
        let reply = follow::to_end(
            &self.client,
            &id,
            open_events,
            CtrlCAction::Interrupt,
            &mut view,
            self.cx,
        )
        .await;
        view.end_line()?;
        if let Some(reply) = reply? {
            self.seen = Some(reply.kernel.generation);
        }
        Ok(())
    }
}

fn is_busy(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref();
    matches!(refused, Some(Error::Refused { status: 429, .. }))
}
