//! `osctl shell`: opens a terminal, or runs a command, in the container.

use super::CommandContext;
use super::answers::{TerminalEndedAnswer, TerminalsAnswer};
use super::candidates::{inside_path_candidates, session_names, terminal_ids};
use super::exec::ensure_session;
use super::shell_command;
use super::terminal::{self, TerminalPlan};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::protocol::kernel::DEFAULT_SESSION;
use crate::protocol::pty::{AttachQuery, TerminalRole};
use clap::Args;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};
use std::ffi::OsString;

/// A rarely typed sequence; telnet and systemd use the same key.
const DETACH_KEYS: &str = "ctrl-],ctrl-]";

/// The ID that selects the last used terminal.
const LAST_TERMINAL: &str = "last";

#[derive(Debug, Args)]
#[command(
    override_usage = "osctl shell [OPTIONS]\n       osctl shell [OPTIONS] <COMMAND>...\n       osctl shell --attach [ID] | --list | --end <ID>"
)]
pub(crate) struct ShellArgs {
    /// Command to run [default: open a terminal]. bash interprets a single argument; several are a program and its arguments
    #[arg(
        trailing_var_arg = true,
        value_name = "COMMAND",
        add = ArgValueCompleter::new(inside_path_candidates)
    )]
    command: Vec<OsString>,
    /// End the command after SECONDS
    #[arg(long, value_name = "SECONDS", requires = "command")]
    timeout: Option<f64>,
    /// Run in the background without stdin, and print the run ID
    #[arg(long, requires = "command")]
    detach: bool,
    /// Attach to the terminal with this ID [default: the last used]
    #[arg(long, value_name = "ID", num_args = 0..=1, conflicts_with = "command", default_missing_value = LAST_TERMINAL, add = ArgValueCandidates::new(terminal_ids))]
    attach: Option<String>,
    /// Attach read-only
    #[arg(long, requires = "attach")]
    view: bool,
    /// Take over the keyboard from the current writer
    #[arg(long, requires = "attach", conflicts_with = "view")]
    take: bool,
    /// Session to use; created if missing
    #[arg(short, long, value_name = "NAME", default_value = DEFAULT_SESSION, conflicts_with = "attach", add = ArgValueCandidates::new(session_names))]
    session: String,
    /// Keys that detach from the terminal, which keeps running
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    detach_keys: String,
    /// List the terminals
    #[arg(long, conflicts_with_all = ["attach", "session", "command"])]
    list: bool,
    /// End the terminal with this ID and all its processes
    #[arg(long, value_name = "ID", conflicts_with_all = ["attach", "list", "session", "command"], add = ArgValueCandidates::new(terminal_ids))]
    end: Option<String>,
}

pub(crate) async fn run(args: ShellArgs, cx: &CommandContext) -> Result<VerbOutcome> {
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
        end,
    } = args;
    if lists {
        return list_terminals(cx).await;
    }
    if let Some(id) = end {
        return end_terminal(&id, cx).await;
    }
    if !command.is_empty() {
        let plan = shell_command::ShellCommandPlan {
            text: shell_command::command_text(&command)?,
            session,
            timeout,
            detach,
        };
        return shell_command::run(plan, cx).await;
    }
    let refuse = |message: &str, hint: String| Err(Error::usage(message, hint).into());
    if cx.ui.json {
        let instead = cx.instance.osctl_command("--json shell --list");
        return refuse(
            "a terminal has no JSON output",
            format!("`{instead}` lists the terminals"),
        );
    }
    if !cx.ui.has_terminal() {
        let instead = cx.instance.osctl_command("shell COMMAND");
        return refuse(
            "`osctl shell` needs a terminal",
            format!("`{instead}` runs a command without a terminal"),
        );
    }
    let client = cx.companion_client()?;
    let id = match attach.as_deref() {
        Some(LAST_TERMINAL) => Some(last_terminal(&client, cx).await?),
        id => id.map(str::to_owned),
    };
    if id.is_none() {
        ensure_session(&client, &session).await?;
    }
    let role = match view {
        true => TerminalRole::View,
        false => TerminalRole::Write,
    };
    let attach = AttachQuery {
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
    let plan = TerminalPlan {
        attach,
        detach_keys,
    };
    terminal::run(plan, cx).await
}

async fn last_terminal(client: &CompanionClient, cx: &CommandContext) -> Result<String> {
    let found = client.list_terminals().await?.terminals.into_iter();
    let running = found.filter(|terminal| terminal.exit.is_none());
    let last = running.min_by(|a, b| a.idle.total_cmp(&b.idle));
    last.map(|terminal| terminal.id).ok_or_else(|| {
        let hint = format!("`{}` opens a terminal", cx.instance.osctl_command("shell"));
        Error::usage("no terminal is open", hint).into()
    })
}

async fn end_terminal(id: &str, cx: &CommandContext) -> Result<VerbOutcome> {
    let ended = cx.companion_client()?.end_terminal(id).await?;
    if cx.ui.json {
        cx.ui.print_json(&TerminalEndedAnswer::from(ended))?;
    } else {
        cx.ui.print_message(format!("ended terminal `{id}`"));
    }
    Ok(VerbOutcome::Done)
}

async fn list_terminals(cx: &CommandContext) -> Result<VerbOutcome> {
    let found = cx.companion_client()?.list_terminals().await?;
    if cx.ui.json {
        cx.ui.print_json(&TerminalsAnswer::from(found))?;
        return Ok(VerbOutcome::Done);
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
            super::format_duration(terminal.idle),
        ]
    }));
    let shell = cx.instance.osctl_command("shell");
    let empty = format!("no terminals; `{shell}` opens a terminal");
    cx.ui.print_list(&rows, &empty);
    Ok(VerbOutcome::Done)
}
