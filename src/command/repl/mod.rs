//! `osctl repl`: a console on the kernel that the agent uses, too.
//!
//! ```text
//!   ┌──────────▶ In [3]: ──── Ctrl-D, exit ───▶ the end
//!   │               │ Enter
//!   │               ▼        no
//!   │ Ctrl-C   is it whole? ────▶    ...:  the next line of the cell
//!   │               │ yes
//!   └────────── a run, followed as `osctl exec` follows one
//! ```
//!
//! The kernel says what is whole and what could stand at the cursor. It answers nothing while it
//! runs code of others; a cell is then judged by its looks, and waits for its turn.

mod cell;
mod prompt;

use super::Context;
use super::candidates::session_names;
use super::exec::{ensure_session, run_id};
use super::follow::{self, CtrlC, View};
use crate::error::{Error, Outcome, Result};
use crate::host::client::Client;
use crate::protocol::kernel::{DEFAULT_SESSION, Execute};
use crate::protocol::session::{Code, Session};
use cell::Cell;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use prompt::{Prompt, Typed};
use std::path::PathBuf;
use std::time::Duration;

/// How long the kernel may think about whether a cell is whole.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a person types to leave; the code would end nothing but the kernel.
const LEAVE: &[&str] = &["exit", "quit", "exit()", "quit()"];

#[derive(Debug, Args)]
pub(crate) struct ReplArgs {
    /// The kernel to use, made when there is none of that name
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION, hide_default_value = true, add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Save figures into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) async fn run(args: ReplArgs, cx: &Context) -> Result<Outcome> {
    let ReplArgs { session, out } = args;
    let refuse = |message: &str, instead: &str| {
        let instead = cx.instance.command(instead);
        Err(Error::usage(message, format!("`{instead}`")).into())
    };
    if cx.ui.json {
        return refuse("a console has no JSON", "--json exec CODE");
    }
    if !cx.ui.is_typed_at() {
        return refuse("a console needs a terminal", "exec -");
    }
    let client = cx.client()?;
    ensure_session(&client, &session).await?;
    let mut repl = Repl {
        cx,
        client,
        session,
        out,
        seen: None,
        number: 1,
    };
    // Once somebody listens, Ctrl-C ends no process, also between a prompt and a run.
    let _presses = follow::listen_for_ctrl_c()?;
    repl.greet().await?;
    let prompt = Prompt::open(cx, &repl.client, &repl.session)?;
    while let Some(code) = repl.read(&prompt).await? {
        if code.is_empty() {
            continue;
        }
        prompt.remember(&code);
        // What went wrong with one run is no reason to leave.
        if let Err(error) = repl.execute(code).await {
            cx.ui.failure(&error, &cx.instance.name);
        }
        if let Ok(Some(session)) = repl.find().await {
            repl.number = session.exec_count.saturating_add(1);
        }
    }
    Ok(Outcome::Done)
}

#[derive(Debug)]
struct Repl<'a> {
    cx: &'a Context,
    client: Client,
    session: String,
    out: Option<PathBuf>,
    /// The generation that the person last saw, so that a loss is told whoever noticed it first.
    seen: Option<u64>,
    /// Of the next cell.
    number: u64,
}

impl Repl<'_> {
    async fn greet(&mut self) -> Result<()> {
        let found = self.find().await?;
        let python = found.as_ref().and_then(|session| session.python.as_deref());
        self.cx.ui.say(format!(
            "Python {} in `{}`, session `{}`; Tab completes, `name?` helps, Ctrl-D leaves",
            python.unwrap_or("(starting)"),
            self.cx.instance.container(),
            self.session,
        ));
        if let Some(session) = found {
            self.number = session.exec_count.saturating_add(1);
            self.seen = Some(session.kernel.generation);
        }
        Ok(())
    }

    async fn find(&self) -> Result<Option<Session>> {
        let all = self.client.sessions().await?.sessions;
        Ok(all.into_iter().find(|session| session.name == self.session))
    }

    /// The next cell, empty when it was given up; nothing at the end.
    async fn read(&self, prompt: &Prompt) -> Result<Option<String>> {
        let mut cell = Cell::default();
        loop {
            match prompt.read(self.number, &cell).await? {
                Typed::End => return Ok(None),
                Typed::GivenUp => return Ok(Some(String::new())),
                Typed::Line(line) => cell.add(&line),
            }
            if LEAVE.contains(&cell.code.trim()) {
                return Ok(None);
            }
            if cell.is_blank() || self.is_whole(&mut cell).await {
                return Ok(Some(cell.code));
            }
        }
    }

    /// Whether the cell can run; if not, it knows afterwards how its next line begins.
    async fn is_whole(&self, cell: &mut Cell) -> bool {
        let question = Code {
            code: cell.code.clone(),
            session: self.session.clone(),
        };
        let asked = tokio::time::timeout(PATIENCE, self.client.is_complete(&question)).await;
        match asked {
            Ok(Ok(answer)) if answer.status == "incomplete" => {
                cell.indent = answer.indent.unwrap_or_default();
                false
            }
            // What is invalid is told best by the kernel, and what is wrong with it by the run.
            Ok(Ok(_)) => true,
            Ok(Err(error)) if !is_busy(&error) => true,
            Ok(Err(_)) | Err(_) => {
                let looks_whole = cell.looks_whole();
                if looks_whole {
                    let busy = "the kernel runs other code; this waits for its turn";
                    self.cx.ui.say(busy);
                }
                looks_whole
            }
        }
    }

    async fn execute(&mut self, code: String) -> Result<()> {
        let id = run_id()?;
        let request = Execute {
            id: Some(id.clone()),
            session: self.session.clone(),
            queue: true,
            seen: self.seen,
            ..Execute::new(code)
        };
        let mut view = View::new(self.cx, self.out.clone())?;
        let begin = async {
            // One that nobody used for long was released.
            ensure_session(&self.client, &self.session).await?;
            self.client.execute(&request).await
        };
        let reply = follow::to_end(
            &self.client,
            &id,
            begin,
            CtrlC::Interrupt,
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
