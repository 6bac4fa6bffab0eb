//! `osctl reaper`: guards a kernel or a command, and ends all its descendants with it.

use crate::error::{Outcome, Result};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct ReaperArgs {
    /// The process to guard, a child of this one
    #[arg(long, value_name = "PID", required_unless_present = "command")]
    adopt: Option<i32>,
    /// Wait for a command on stdin, a socket, and guard it
    #[arg(long, conflicts_with = "adopt")]
    command: bool,
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: ReaperArgs) -> Result<Outcome> {
    let ReaperArgs { adopt, command: _ } = args;
    match adopt {
        Some(pid) => crate::companion::reaper::run(pid)?,
        None => crate::companion::guard_command()?,
    }
    Ok(Outcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: ReaperArgs) -> Result<Outcome> {
    Err(super::linux_only())
}
