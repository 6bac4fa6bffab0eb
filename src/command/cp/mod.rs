//! `osctl cp`: files and folders, in and out.

mod download;
mod plan;
mod upload;

use super::Context;
use super::candidates::places;
use crate::error::{Outcome, Result};
use crate::host::files::Moved;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
pub(super) use plan::INSIDE;
use plan::{Plan, Way};
use serde::Serialize;
use std::ffi::OsString;
use std::time::Instant;

/// Copies as `docker cp` does: into a folder that exists, else as the name that is given;
/// `FOLDER/.` is what is in it. Rights, times, links and holes are kept, owners are not.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  osctl cp data.csv os:/root/\n  osctl cp os:/root/results .\n  osctl cp os:/root/results - | tar -t\n  pg_dump db | osctl cp - os:/root/db.sql"
)]
pub(crate) struct CpArgs {
    /// A file or a folder: `os:/PATH` inside, PATH here; `-` is stdin
    #[arg(value_name = "SRC", add = ArgValueCompleter::new(places))]
    source: OsString,
    /// Where it goes: `os:/PATH` inside, PATH here; `-` is stdout, for a folder as tar
    #[arg(value_name = "DST", add = ArgValueCompleter::new(places))]
    destination: OsString,
    /// Let files from inside keep the right to run as their owner (setuid, setgid)
    #[arg(long)]
    setuid: bool,
}

/// What was copied.
#[derive(Debug, Default, Serialize)]
struct Copied {
    source: String,
    destination: String,
    files: u64,
    folders: u64,
    /// Symbolic and hard ones.
    links: u64,
    /// Of files, without their holes.
    bytes: u64,
    seconds: f64,
}

pub(crate) async fn run(args: CpArgs, cx: &Context) -> Result<Outcome> {
    let [source, destination] =
        [&args.source, &args.destination].map(|side| side.to_string_lossy().into_owned());
    let plan = Plan::try_from(args)?;
    let resolver = cx.path_resolver()?;
    let client = cx.client()?;
    let moved = Moved::default();
    let begin = Instant::now();
    let is_out = matches!(plan.way, Way::ToStdout { .. });
    let meter = cx.ui.meter(&format!("{source} → {destination}"), &moved);
    let copied = meter
        .during(async {
            match plan.way {
                Way::Up { from, to } => {
                    let upload = upload::Upload {
                        resolver: &resolver,
                        meter: &meter,
                        moved: &moved,
                    };
                    upload.run(&client, &from, &to).await
                }
                Way::FromStdin { to } => upload::stdin(&client, &to, &moved).await,
                Way::Down { from, to } => {
                    let landed = download::Landed {
                        keep_setid: plan.keep_setid,
                        resolver: &resolver,
                        meter: &meter,
                        moved: &moved,
                    };
                    landed.run(&client, &from, &to).await
                }
                Way::ToStdout { from } => {
                    download::stdout(&client, &from, cx.ui.output(), &moved).await
                }
            }
        })
        .await?;
    drop(meter);
    let copied = Copied {
        source,
        destination,
        seconds: begin.elapsed().as_secs_f64(),
        ..copied
    };
    // Stdout is the data's then.
    if cx.ui.json && !is_out {
        cx.ui.document(&copied)?;
    }
    Ok(Outcome::Done)
}
