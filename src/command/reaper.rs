//! `osctl reaper`: runs a command and ends all its descendants with it.

use crate::companion::reaper;
use crate::error::{Outcome, Result};
use clap::Args;
use std::ffi::OsString;

#[derive(Debug, Args)]
pub(crate) struct ReaperArgs {
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: ReaperArgs) -> Result<Outcome> {
    let ReaperArgs { command } = args;
    Ok(Outcome::Code(reaper::run(&command)?))
}
