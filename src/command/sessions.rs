//! `osctl sessions`: the kernels of the instance.

use super::Context;
use super::candidates::session_names;
use crate::error::{Outcome, Result};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {
    #[command(subcommand)]
    verb: Option<SessionsVerb>,
}

#[derive(Debug, Subcommand)]
enum SessionsVerb {
    /// List them
    List,
    /// Make one
    Create {
        /// Its name; made up when missing
        name: Option<String>,
    },
    /// End one, and everything that it runs
    Rm {
        #[arg(add = ArgValueCandidates::new(session_names))]
        name: String,
    },
}

pub(crate) async fn run(args: SessionsArgs, cx: &Context) -> Result<Outcome> {
    let client = cx.client()?;
    match args.verb.unwrap_or(SessionsVerb::List) {
        SessionsVerb::List => {
            let found = client.sessions().await?;
            if cx.ui.json {
                cx.ui.document(&found)?;
                return Ok(Outcome::Done);
            }
            let heads = ["NAME", "STATE", "RUNS", "GLOBALS", "IDLE", "MEMORY"];
            let mut rows = vec![heads.map(str::to_owned).to_vec()];
            rows.extend(found.sessions.into_iter().map(|session| {
                let memory = session.memory.map(crate::ui::bytes);
                vec![
                    session.name,
                    session.detail,
                    session.exec_count.to_string(),
                    session.globals_count.to_string(),
                    super::duration(session.idle),
                    memory.unwrap_or_default(),
                ]
            }));
            cx.ui.table(&rows);
        }
        SessionsVerb::Create { name } => {
            let made = client.create_session(name.as_deref()).await?;
            if cx.ui.json {
                cx.ui.document(&made)?;
            } else {
                cx.ui.line(&made.name);
                let exec = cx.instance.command("exec --session");
                cx.ui.say(format!("next: {exec} {} 'x = 1'", made.name));
            }
        }
        SessionsVerb::Rm { name } => {
            let deleted = client.delete_session(&name).await?;
            if cx.ui.json {
                cx.ui.document(&deleted)?;
            } else {
                cx.ui.say(format!("session `{name}` has ended"));
            }
        }
    }
    Ok(Outcome::Done)
}
