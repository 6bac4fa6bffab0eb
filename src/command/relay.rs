//! `osctl relay`: joins its stdin and stdout with a port of the container. The engine runs it for a host on
//! another machine.

use crate::error::{Outcome, Result};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Where it listens inside
    port: u16,
}

/// Ends with the connection, also while stdin is still open.
#[cfg(unix)]
pub(crate) fn run(args: RelayArgs) -> Result<Outcome> {
    use crate::protocol::relay::CONNECTED;
    use anyhow::Context;
    use std::io::{self, Write};
    use std::net::{Ipv4Addr, Shutdown, TcpStream};
    use std::os::fd::AsFd;

    let RelayArgs { port } = args;
    let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let mut connection = connected.with_context(|| format!("connecting to port {port}"))?;
    connection.set_nodelay(true)?;
    let (mut stdin, mut stdout) = (file(io::stdin().as_fd())?, file(io::stdout().as_fd())?);
    stdout.write_all(&[CONNECTED])?;
    let mut to = connection.try_clone()?;
    std::thread::spawn(move || {
        // When the other side has gone, so does this process.
        let _ = carry(&mut stdin, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    carry(&mut connection, &mut stdout)?;
    Ok(Outcome::Done)
}

/// As [`std::io::copy`], which would have the kernel do it: that holds the pipe while the socket is
/// silent, so that nobody can read what is in it.
#[cfg(unix)]
fn carry(from: &mut impl std::io::Read, to: &mut impl std::io::Write) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Without the buffer that would hold back what has no line's end.
#[cfg(unix)]
fn file(fd: std::os::fd::BorrowedFd<'_>) -> std::io::Result<std::fs::File> {
    Ok(fd.try_clone_to_owned()?.into())
}

#[cfg(not(unix))]
pub(crate) fn run(_args: RelayArgs) -> Result<Outcome> {
    Err(super::linux_only())
}
