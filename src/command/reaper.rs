//! `osctl reaper`: supervises a kernel, a command, a service or the shell of a terminal, and ends all its descendants
//! with it.

use crate::error::{Result, VerbOutcome};
use clap::Args;
use std::ffi::OsString;

#[derive(Debug, Args)]
#[group(required = true)]
pub(crate) struct ReaperArgs {
    /// Supervise this child process
    #[arg(long, value_name = "PID")]
    adopt: Option<i32>,
    /// Receive the command to start and supervise on stdin, which is a socket
    #[arg(long)]
    waiting: bool,
    /// Start and supervise this shell, whose terminal is stderr
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "SHELL")]
    terminal: Vec<OsString>,
    /// Run PROGRAM, which restores a process as a child of this one, and supervise that process; FILE then holds its id
    #[arg(long, num_args = 2.., allow_hyphen_values = true, value_names = ["FILE", "PROGRAM"])]
    restore: Vec<OsString>,
    /// Start and supervise this service
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "COMMAND")]
    service: Vec<OsString>,
    /// Seconds that the service has to end after a stop request
    #[arg(long, requires = "service", value_name = "SECONDS")]
    grace: Option<u64>,
    /// The maximum number of open files of the service
    #[arg(long, requires = "service", value_name = "COUNT")]
    files: Option<u64>,
}

#[cfg(target_os = "linux")]
pub(crate) fn run(args: ReaperArgs) -> Result<VerbOutcome> {
    use crate::companion::{spawn_service, spawn_shell, supervise_command, supervisor};
    use std::time::Duration;
    use supervisor::SUPERVISOR_TEARDOWN_TIMEOUT;
    let ReaperArgs {
        adopt,
        waiting,
        terminal,
        restore,
        service,
        grace,
        files,
    } = args;
    match (adopt, restore.as_slice()) {
        (Some(pid), _) => supervisor::supervise_process(pid, SUPERVISOR_TEARDOWN_TIMEOUT)?,
        (None, [file, program @ ..]) => {
            if let Some(pid) = supervisor::run_kernel_restore(file.as_ref(), program)? {
                supervisor::supervise_process(pid, SUPERVISOR_TEARDOWN_TIMEOUT)?;
            }
        }
        _ if waiting => supervise_command()?,
        _ if !service.is_empty() => {
            let grace = grace.map_or(SUPERVISOR_TEARDOWN_TIMEOUT, Duration::from_secs);
            supervisor::supervise_process(spawn_service(&service, files)?, grace)?;
        }
        _ => supervisor::supervise_process(spawn_shell(&terminal)?, SUPERVISOR_TEARDOWN_TIMEOUT)?,
    }
    Ok(VerbOutcome::Done)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_args: ReaperArgs) -> Result<VerbOutcome> {
    Err(super::linux_only())
}
