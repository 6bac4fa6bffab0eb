//! `osctl relay`: connects its stdin and stdout to a port of the container. The engine runs it for a host on another
//! machine.

use crate::error::{Result, VerbOutcome};
use crate::protocol::relay_handshake::RELAY_CONNECTED;
use crate::ui::Ui;
use anyhow::Context;
use clap::Args;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread;

/// Bytes per copy.
const RELAY_CHUNK_BYTES: usize = 64 << 10;

#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// The port inside
    port: u16,
}

/// Ends with the connection, even if stdin is still open.
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
        // The process ends when the connection closes.
        let _ = copy_flushing(io::stdin(), &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    copy_flushing(connection, &mut stdout)?;
    Ok(VerbOutcome::Done)
}

/// Copies like [`std::io::copy`], which would use `splice`: the kernel then holds the pipe while the socket is silent,
/// so that no other process can read its content.
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
