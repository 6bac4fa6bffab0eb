//! `osctl reaper`: guards a kernel, a command, a service or the shell of a terminal, and ends all
//! its descendants with it.

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
    /// Run what brings a process back as a child of this one, and guard that; its id is then in the file
    #[arg(long, num_args = 2.., allow_hyphen_values = true, value_names = ["FILE", "PROGRAM"])]
    thaw: Vec<OsString>,
    /// Start this service and guard it
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "COMMAND")]
    service: Vec<OsString>,
    /// Seconds in which the service may end by itself
    #[arg(long, requires = "service", value_name = "SECONDS")]
    grace: Option<u64>,
    /// How many files the service may have open
    #[arg(long, requires = "service", value_name = "COUNT")]
    files: Option<u64>,
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: ReaperArgs) -> Result<Outcome> {
    use crate::companion::{guard_command, reaper, spawn_service, spawn_shell};
    use reaper::TEARDOWN;
    use std::time::Duration;
    let ReaperArgs {
        adopt,
        waiting,
        terminal,
        thaw,
        service,
        grace,
        files,
    } = args;
    match (adopt, thaw.as_slice()) {
        (Some(pid), _) => reaper::run(pid, TEARDOWN)?,
        (None, [file, program @ ..]) => {
            if let Some(pid) = reaper::thaw(file.as_ref(), program)? {
                reaper::run(pid, TEARDOWN)?;
            }
        }
        _ if waiting => guard_command()?,
        _ if !service.is_empty() => {
            let grace = grace.map_or(TEARDOWN, Duration::from_secs);
            reaper::run(spawn_service(&service, files)?, grace)?;
        }
        _ => reaper::run(spawn_shell(&terminal)?, TEARDOWN)?,
    }
    Ok(Outcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: ReaperArgs) -> Result<Outcome> {
    Err(super::linux_only())
}
