//! `osctl reaper`: guards a kernel, and ends all its descendants with it.

use crate::error::{Outcome, Result};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct ReaperArgs {
    /// The process to guard, a child of this one
    #[arg(long, value_name = "PID")]
    adopt: i32,
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: ReaperArgs) -> Result<Outcome> {
    let ReaperArgs { adopt } = args;
    crate::companion::reaper::run(adopt)?;
    Ok(Outcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: ReaperArgs) -> Result<Outcome> {
    Err(super::linux_only())
}
