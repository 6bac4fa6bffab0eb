//! `osctl shell`: a command inside, or a terminal.

use super::Context;
use super::candidates::{session_names, terminal_ids, words};
use super::exec::ensure_session;
use super::shell_command;
use super::terminal::{self, Plan};
use crate::error::{Error, Outcome, Result};
use crate::host::client::Client;
use crate::protocol::kernel::DEFAULT_SESSION;
use crate::protocol::pty::{Attach, Role};
use clap::Args;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};
use std::ffi::OsString;

/// Rarely typed, and nothing's habit: telnet's and systemd's.
const DETACH_KEYS: &str = "ctrl-],ctrl-]";

/// Stands for the terminal that was used last.
const LAST: &str = "last";

#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    /// A command: one word is text for bash, several arrive as they are. Without one, a terminal opens
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND",
        add = ArgValueCompleter::new(words)
    )]
    command: Vec<OsString>,
    /// End the command after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "command")]
    timeout: Option<f64>,
    /// Begin the command, which reads nothing, print its id, and do not wait
    #[arg(long, requires = "command")]
    detach: bool,
    /// Come back to a terminal, the one that was used last when no id is given
    #[arg(long, value_name = "ID", num_args = 0..=1, conflicts_with = "command", default_missing_value = LAST, add = ArgValueCandidates::new(terminal_ids))]
    attach: Option<String>,
    /// See only, and type nothing
    #[arg(long, requires = "attach")]
    view: bool,
    /// Write, whoever writes so far
    #[arg(long, requires = "attach", conflicts_with = "view")]
    take: bool,
    /// Whose folder and environment it has, a terminal the folder alone; made when there is none of that name
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION, hide_default_value = true, conflicts_with = "attach", add = ArgValueCandidates::new(session_names))]
    session: String,
    /// The keys that leave the terminal, which goes on
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    detach_keys: String,
    /// List the terminals
    #[arg(long, conflicts_with_all = ["attach", "session", "command"])]
    list: bool,
}

pub(crate) async fn run(args: ShellArgs, cx: &Context) -> Result<Outcome> {
    let ShellArgs {
        command,
        timeout,
        detach,
        attach,
        view,
        take,
        session,
        detach_keys,
        list: lists,
    } = args;
    if lists {
        return list(cx).await;
    }
    if !command.is_empty() {
        let plan = shell_command::Plan {
            text: shell_command::text(&command)?,
            session,
            timeout,
            detach,
        };
        return shell_command::run(plan, cx).await;
    }
    let refuse = |message: &str, hint: String| Err(Error::usage(message, hint).into());
    if cx.ui.json {
        let instead = cx.instance.command("--json shell --list");
        return refuse("a terminal has no JSON", format!("`{instead}`"));
    }
    if !cx.ui.is_typed_at() {
        let instead = cx.instance.command("shell COMMAND");
        return refuse(
            "a terminal inside needs one outside",
            format!("`{instead}` runs a command without one"),
        );
    }
    let client = cx.client()?;
    let id = match attach.as_deref() {
        Some(LAST) => Some(last(&client, cx).await?),
        id => id.map(str::to_owned),
    };
    if id.is_none() {
        ensure_session(&client, &session).await?;
    }
    let role = match view {
        true => Role::View,
        false => Role::Write,
    };
    let attach = Attach {
        id,
        client: None,
        since: None,
        cols: 0,
        rows: 0,
        term: std::env::var("TERM").ok(),
        session,
        role,
        take,
    };
    let plan = Plan {
        attach,
        detach_keys,
    };
    terminal::run(plan, cx).await
}

async fn last(client: &Client, cx: &Context) -> Result<String> {
    let found = client.terminals().await?.terminals.into_iter();
    let living = found.filter(|terminal| terminal.exit.is_none());
    let last = living.min_by(|a, b| a.idle.total_cmp(&b.idle));
    last.map(|terminal| terminal.id).ok_or_else(|| {
        let hint = format!("`{}` opens one", cx.instance.command("shell"));
        Error::usage("there is no terminal to come back to", hint).into()
    })
}

async fn list(cx: &Context) -> Result<Outcome> {
    let found = cx.client()?.terminals().await?;
    if cx.ui.json {
        cx.ui.document(&found)?;
        return Ok(Outcome::Done);
    }
    let heads = ["ID", "STATE", "SIZE", "VIEWERS", "WRITER", "IDLE"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(found.terminals.into_iter().map(|terminal| {
        let state = match (terminal.exit, terminal.program) {
            (Some(code), _) => format!("ended with {code}"),
            (None, Some(program)) => program,
            (None, None) => "starting".into(),
        };
        vec![
            terminal.id,
            state,
            format!("{}x{}", terminal.cols, terminal.rows),
            terminal.viewers.to_string(),
            if terminal.writer { "yes" } else { "no" }.into(),
            super::duration(terminal.idle),
        ]
    }));
    cx.ui.table(&rows);
    Ok(Outcome::Done)
}
