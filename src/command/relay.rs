//! `osctl relay`: joins its stdin and stdout with a port of the container. The engine runs it for a host on
//! another machine.

use crate::error::{Result, VerbOutcome};
use crate::protocol::relay::RELAY_CONNECTED;
use crate::ui::Ui;
use anyhow::Context;
use clap::Args;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread;

/// Bytes that are carried at once.
const RELAY_CHUNK_BYTES: usize = 64 << 10;

#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Where it listens inside
    port: u16,
}

/// Ends with the connection, also while stdin is still open.
pub(crate) fn run(args: RelayArgs, ui: Ui) -> Result<VerbOutcome> {
    let RelayArgs { port } = args;
    let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let connection = connected.with_context(|| format!("connecting to port {port}"))?;
    connection.set_nodelay(true)?;
    let mut stdout = ui.stdout_writer();
    stdout.write_all(&[RELAY_CONNECTED])?;
    stdout.flush()?;
    let mut to = connection.try_clone()?;
    thread::spawn(move || {
        // When the other side has gone, so does this process.
        let _ = copy_flushing(io::stdin(), &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    copy_flushing(connection, &mut stdout)?;
    Ok(VerbOutcome::Done)
}

/// As [`std::io::copy`], which would have the kernel do it: that holds the pipe while the socket is
/// silent, so that nobody can read what is in it.
fn copy_flushing(mut from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; RELAY_CHUNK_BYTES];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                to.write_all(&piece[..count])?;
                to.flush()?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
