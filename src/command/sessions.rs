//! `osctl sessions`: lists, creates and removes sessions.

use super::CommandContext;
use super::answers::{SessionEntry, SessionRemovedAnswer, SessionsAnswer};
use super::candidates::session_names;
use crate::error::{Error, Result, VerbOutcome};
use crate::protocol::kernel::DEFAULT_SESSION;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {
    #[command(subcommand)]
    verb: Option<SessionsVerb>,
}

impl SessionsArgs {
    pub(crate) fn removes_state(&self) -> bool {
        matches!(self.verb, Some(SessionsVerb::Rm { .. }))
    }
}

#[derive(Debug, Subcommand)]
enum SessionsVerb {
    /// List the sessions (default)
    #[command(alias = "list")]
    Ls,
    /// Create a session
    #[command(aliases = ["new", "add"])]
    Create {
        /// Name of the session [default: a generated name]
        name: Option<String>,
    },
    /// Remove a session and end everything that it runs
    #[command(aliases = ["remove", "delete", "end", "kill"])]
    Rm {
        /// Name of the session
        #[arg(add = ArgValueCandidates::new(session_names))]
        name: String,
    },
}

pub(crate) async fn run(args: SessionsArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let client = cx.companion_client()?;
    match args.verb.unwrap_or(SessionsVerb::Ls) {
        SessionsVerb::Ls => {
            let found = client.list_sessions().await?;
            if cx.ui.json {
                cx.ui.print_json(&SessionsAnswer::from(found))?;
                return Ok(VerbOutcome::Done);
            }
            let heads = ["NAME", "STATE", "RUNS", "VARIABLES", "IDLE", "MEMORY"];
            let mut rows = vec![heads.map(str::to_owned).to_vec()];
            rows.extend(found.sessions.into_iter().map(|session| {
                let memory = session.memory.map(crate::ui::format_bytes);
                vec![
                    session.name,
                    session.detail,
                    session.exec_count.to_string(),
                    session.globals_count.to_string(),
                    super::format_duration(session.idle),
                    memory.unwrap_or_default(),
                ]
            }));
            cx.ui.print_table(&rows);
        }
        SessionsVerb::Create { name } => {
            let made = client.create_session(name.as_deref()).await?;
            if cx.ui.json {
                cx.ui.print_json(&SessionEntry::from(made))?;
            } else {
                cx.ui.print_line(&made.name);
                let exec = cx.instance.osctl_command("exec --session");
                cx.ui
                    .print_message(format!("next: {exec} {} 'x = 1'", made.name));
            }
        }
        SessionsVerb::Rm { name } if name == DEFAULT_SESSION => {
            let reset = cx.instance.osctl_command("reset");
            let hint = format!("`{reset}` clears its variables");
            return Err(Error::usage("the default session can't be removed", hint).into());
        }
        SessionsVerb::Rm { name } => {
            let deleted = client.delete_session(&name).await?;
            if cx.ui.json {
                cx.ui.print_json(&SessionRemovedAnswer::from(deleted))?;
            } else {
                cx.ui.print_message(format!("removed session `{name}`"));
            }
        }
    }
    Ok(VerbOutcome::Done)
}
