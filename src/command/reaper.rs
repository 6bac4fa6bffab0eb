//! `osctl reaper`: guards a kernel or the shell of a terminal, and ends all its descendants with it.

use crate::error::{Outcome, Result};
use clap::Args;
use std::ffi::OsString;

#[derive(Debug, Args)]
pub(crate) struct ReaperArgs {
    /// The process to guard, a child of this one
    #[arg(long, value_name = "PID", required_unless_present = "terminal")]
    adopt: Option<i32>,
    /// Start this shell and guard it; its terminal is stderr
    #[arg(long, conflicts_with = "adopt", requires = "command")]
    terminal: bool,
    #[arg(last = true, value_name = "SHELL")]
    command: Vec<OsString>,
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: ReaperArgs) -> Result<Outcome> {
    use crate::companion::{reaper, spawn_shell};
    let ReaperArgs {
        adopt,
        terminal: _,
        command,
    } = args;
    let guarded = match adopt {
        Some(pid) => pid,
        None => spawn_shell(&command)?,
    };
    reaper::run(guarded)?;
    Ok(Outcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: ReaperArgs) -> Result<Outcome> {
    Err(super::linux_only())
}
