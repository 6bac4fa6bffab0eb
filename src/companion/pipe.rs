//! Reading the pipes of kernels and commands, a piece at a time.

use nix::errno::Errno;
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use tokio::net::unix::pipe::Receiver;

/// Bytes taken from a pipe at once, so that one stream never starves the rest.
pub(super) const PIECE: usize = 64 << 10;

/// Pieces drained at most, four times what a pipe holds: a process in the background may never stop
/// writing.
const DRAINED: usize = 64;

/// The next piece; never, when the pipe is closed.
pub(super) async fn read(pipe: Option<&Receiver>) -> io::Result<Vec<u8>> {
    let Some(pipe) = pipe else {
        return pending().await;
    };
    loop {
        pipe.readable().await?;
        let mut bytes = Vec::with_capacity(PIECE);
        match pipe.try_read_buf(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(fitting(bytes)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
}

/// What is in the pipe at this moment. It asks the system: the runtime may not have heard yet of
/// what was written last.
pub(super) fn drain(pipe: &Receiver) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    while pieces.len() < DRAINED {
        let mut bytes = vec![0; PIECE];
        match nix::unistd::read(pipe.as_fd(), &mut bytes) {
            Ok(count @ 1..) => {
                bytes.truncate(count);
                pieces.push(fitting(bytes));
            }
            Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => break,
        }
    }
    pieces
}

fn fitting(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < PIECE / 2 {
        bytes.shrink_to_fit();
    }
    bytes
}
