//! `osctl reaper`: guards a kernel, a command or the shell of a terminal, and ends all its
//! descendants with it.

use crate::error::{Outcome, Result};
use clap::Args;
use std::ffi::OsString;

#[derive(Debug, Args)]
#[group(required = true)]
pub(crate) struct ReaperArgs {
    /// The process to guard, a child of this one
    #[arg(long, value_name = "PID")]
    adopt: Option<i32>,
    /// Wait on stdin, a socket, for the command to start and guard
    #[arg(long)]
    waiting: bool,
    /// Start this shell and guard it; its terminal is stderr
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "SHELL")]
    terminal: Vec<OsString>,
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: ReaperArgs) -> Result<Outcome> {
    use crate::companion::{guard_command, reaper, spawn_shell};
    let ReaperArgs {
        adopt,
        waiting,
        terminal,
    } = args;
    match adopt {
        Some(pid) => reaper::run(pid)?,
        None if waiting => guard_command()?,
        None => reaper::run(spawn_shell(&terminal)?)?,
    }
    Ok(Outcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: ReaperArgs) -> Result<Outcome> {
    Err(super::linux_only())
}
