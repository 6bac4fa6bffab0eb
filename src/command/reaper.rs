//! `osctl reaper`: the supervisor of a process tree.

use crate::error::{Result, VerbOutcome};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct ReaperArgs {
    /// Supervise this child process; without the option, the process that is requested on stdin, a socket
    #[arg(long, value_name = "PID")]
    adopt: Option<i32>,
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: ReaperArgs) -> Result<VerbOutcome> {
    let ReaperArgs { adopt } = args;
    crate::supervise::run_supervisor(adopt)?;
    Ok(VerbOutcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: ReaperArgs) -> Result<VerbOutcome> {
    Err(super::linux_only_error())
}
