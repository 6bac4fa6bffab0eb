//! A service's process, beneath a supervisor, which ends all descendants with it.

use super::declaration::ServiceDeclaration;
use crate::companion::settings::inherited_environment;
use crate::supervise::{ProcessKind, ProcessStart, Supervisor};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use tokio::net::unix::pipe::Receiver;

/// Starts the supervisor of a service, requests the service, and returns the reader of the output. The service gets
/// `failures`, the number of short runs before it, in its environment.
///
/// # Errors
/// When the supervisor can't be started.
pub(super) fn spawn_service(
    declaration: &ServiceDeclaration,
    failures: u32,
) -> io::Result<(Supervisor, Receiver)> {
    let (output, written) = io::pipe()?;
    let set = declaration.environment.iter();
    let set = set.map(|(name, value)| (name.into(), value.into()));
    let failures = ("OSCTL_SERVICE_FAILURES".into(), failures.to_string().into());
    let args: Vec<OsString> = declaration.command.iter().map(OsString::from).collect();
    let start = ProcessStart {
        kind: ProcessKind::Service,
        program: args.first().cloned().unwrap_or_default(),
        args,
        environment: inherited_environment()
            .chain(set)
            .chain([failures])
            .collect(),
        max_open_files: declaration.max_open_files,
    };
    let (stdin, folder) = (File::open("/dev/null")?, File::open(".")?);
    let output_end = written.as_fd();
    let descriptors = [stdin.as_fd(), output_end, output_end, folder.as_fd()];
    let supervisor = Supervisor::spawn_process(&start, descriptors)?;
    Ok((supervisor, Receiver::from_owned_fd(output.into())?))
}
