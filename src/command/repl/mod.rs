//! `osctl repl`: a console on the kernel that the agent uses, too.
//!
//! ```text
//!   ┌──────────▶ In [3]: ──── Ctrl-D, exit ───▶ the end
//!   │               │ Enter
//!   │               ▼        no
//!   │ Ctrl-C   is it complete? ─▶    ...:  the next line of the cell
//!   │               │ yes
//!   └────────── a run, followed as `osctl exec` follows one ── %debug ──▶ ipdb> ── q, Ctrl-D ──▶ In [4]:
//! ```
//!
//! The kernel decides whether a cell is complete and provides completions. While it runs code of other clients it does
//! not answer; the console then guesses whether a cell is complete, and the cell is queued.

mod cell;
mod highlight;
mod history;
mod prompt;

use super::CommandContext;
use super::candidates::session_names;
use super::exec::{ensure_session, run_id};
use super::follow::{self, CtrlCAction, RunView};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::protocol::kernel::{DEFAULT_SESSION, ExecReply, Execute};
use crate::protocol::session::SessionInfo;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use prompt::{PromptInput, PromptKind, ReplPrompt};
use std::path::PathBuf;

/// Words that leave the console; executed as code they would end only the kernel.
const EXIT_WORDS: &[&str] = &["exit", "quit", "exit()", "quit()"];

/// Shows where the last error occurred, and takes commands of the debugger.
const DEBUG_MAGIC: &str = "%debug";
/// Commands that leave the debugger.
const DEBUGGER_EXIT_WORDS: &[&str] = &["q", "quit", "exit"];

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
    if std::env::var_os("TERM").is_some_and(|kind| kind == "dumb") {
        let message = "`osctl repl` needs a terminal with a cursor, and TERM is `dumb`";
        return refuse(message, "exec -");
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
        is_debugging: false,
    };
    // With this listener, Ctrl-C does not end the process, also between a prompt and a run.
    let _presses = follow::listen_for_ctrl_c()?;
    repl.print_greeting().await?;
    let mut prompt = ReplPrompt::open(cx, &repl.client, &repl.session)?;
    loop {
        let kind = match repl.is_debugging {
            true => PromptKind::Debugger,
            false => PromptKind::Cell(repl.number),
        };
        let input = prompt.read(kind).await?;
        if let Some(failure) = prompt.history_failure() {
            cx.ui.print_warning(failure);
        }
        match input {
            PromptInput::End if repl.is_debugging => repl.is_debugging = false,
            PromptInput::End => break,
            PromptInput::GivenUp => {}
            PromptInput::Code { code, .. } if repl.is_debugging => {
                repl.run_debugger_command(&code).await
            }
            PromptInput::Code { code, is_queued } => {
                let word = code.trim();
                if EXIT_WORDS.contains(&word) {
                    break;
                }
                if is_queued {
                    let busy = "the kernel runs other code; this code is queued";
                    cx.ui.print_message(busy);
                }
                if !word.is_empty() {
                    repl.run_cell(code).await;
                }
            }
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
    is_debugging: bool,
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
            // A kernel that has not started yet has lost nothing.
            self.seen = Some(session.kernel.generation).filter(|generation| *generation > 0);
        }
        Ok(())
    }

    async fn find_session(&self) -> Result<Option<SessionInfo>> {
        let all = self.client.list_sessions().await?.sessions;
        Ok(all.into_iter().find(|session| session.name == self.session))
    }

    /// Runs a cell of the user, or starts the debugger. The console continues after the error of one run.
    async fn run_cell(&mut self, code: String) {
        let debugs = code.trim() == DEBUG_MAGIC;
        let request = Execute {
            store_history: !debugs,
            ..Execute::new(code)
        };
        let has_failed = self.execute(request).await;
        self.is_debugging = debugs && !has_failed;
        if self.is_debugging {
            let help = "`w` lists the frames, `u` and `d` move, `p NAME` prints, `q` leaves";
            self.cx.ui.print_message(help);
        }
        if let Ok(Some(session)) = self.find_session().await {
            self.number = session.exec_count.saturating_add(1);
        }
    }

    /// Sends a command to the debugger, which keeps its position between the runs.
    async fn run_debugger_command(&mut self, line: &str) {
        let line = line.lines().next().unwrap_or_default().trim();
        if line.is_empty() {
            return;
        }
        let request = Execute {
            store_history: false,
            ..Execute::new(format!("{DEBUG_MAGIC} {line}"))
        };
        let has_failed = self.execute(request).await;
        self.is_debugging = !has_failed && !DEBUGGER_EXIT_WORDS.contains(&line);
    }

    /// Returns whether the run has failed, after its reason was printed.
    async fn execute(&mut self, request: Execute) -> bool {
        match self.follow_run(request).await {
            Ok(Some(reply)) => reply.error.is_some(),
            Ok(None) => true,
            Err(error) => {
                let name = self.cx.instance.hint_name();
                self.cx.ui.print_failure(&error, name);
                true
            }
        }
    }

    async fn follow_run(&mut self, request: Execute) -> Result<Option<ExecReply>> {
        let id = run_id()?;
        let request = Execute {
            id: Some(id.clone()),
            session: self.session.clone(),
            queue: true,
            seen: self.seen,
            ..request
        };
        let mut view = RunView::new(self.cx, self.out.clone())?;
        if !self.is_debugging {
            view.number_result(self.number);
        }
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
        let reply = reply?;
        if let Some(reply) = &reply {
            self.seen = Some(reply.kernel.generation);
        }
        Ok(reply)
    }
}

fn is_busy(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref();
    matches!(refused, Some(Error::Refused { status: 429, .. }))
}
