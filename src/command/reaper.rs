//! `osctl reaper`: runs a command and ends all its descendants with it.

use crate::error::{Outcome, Result};
use clap::Args;
use std::ffi::OsString;

#[derive(Debug, Args)]
pub(crate) struct ReaperArgs {
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: ReaperArgs) -> Result<Outcome> {
    let ReaperArgs { command } = args;
    Ok(Outcome::Code(crate::companion::reaper::run(&command)?))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: ReaperArgs) -> Result<Outcome> {
    Err(super::linux_only())
}
