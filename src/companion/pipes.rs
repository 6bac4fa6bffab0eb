//! Output of a process, read from its two pipes in pieces.
//!
//! Each line that a process writes wakes the reader, which costs the process more than the write. So a pipe with many
//! small pieces is not watched for a while, but polled:
//!
//! ```text
//!          MAX_SMALL_READ_STREAK small pieces in a row,
//!          each within MAX_QUICK_READ_GAP
//! watched ───────────────────────────────────────────────▶ polled every PIPE_POLL_INTERVAL
//!    ▲     a poll reads less than MAX_SMALL_READ_BYTES,                   │
//!    │     or half of what the pipe holds, or more                        │
//!    └────────────────────────────────────────────────────────────────────┘
//! ```

use crate::protocol::kernel::OutputStream;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep_until};

/// Bytes of one read from a pipe, so that one stream never starves the other.
pub(super) const MAX_PIPE_READ_BYTES: usize = 128 << 10;

/// Pieces that a drain reads at most, eight times what a pipe holds: a background process may never stop writing.
const MAX_DRAINED_PIECES: usize = 64;

const MAX_SMALL_READ_STREAK: u32 = 16;
/// One page, because large writes arrive in whole pages.
const MAX_SMALL_READ_BYTES: usize = 4 << 10;
const MAX_QUICK_READ_GAP: Duration = Duration::from_millis(3);
const PIPE_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// A smaller pipe would be full before the next poll. Linux does not enlarge pipes of a user with many of them, and the
/// root users of all containers count as one user.
const MIN_POLLED_PIPE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct OutputPipes([Option<OutputPipe>; 2]);

#[derive(Debug)]
struct OutputPipe {
    source: PipeSource,
    /// Capacity in bytes.
    capacity: usize,
    /// Consecutive small pieces.
    small_read_streak: u32,
    last_read_at: Option<Instant>,
}

#[derive(Debug)]
enum PipeSource {
    Watched(Receiver),
    Polled {
        pipe: OwnedFd,
        next_poll: Instant,
        /// Bytes read since the last pause.
        bytes_read: usize,
    },
    Closed,
}

impl OutputPipes {
    /// # Errors
    /// When a descriptor is not a pipe.
    pub(super) fn open(pipes: [OwnedFd; 2]) -> io::Result<Self> {
        let [out, err] = pipes;
        Ok(Self([
            Some(OutputPipe::watch(out)?),
            Some(OutputPipe::watch(err)?),
        ]))
    }

    pub(super) fn closed() -> Self {
        Self([None, None])
    }

    /// Returns the next piece; never returns once both pipes are closed. Dropping the future loses nothing.
    pub(super) async fn next_piece(&mut self) -> (OutputStream, Vec<u8>) {
        loop {
            let [out, err] = &mut self.0;
            let (stream, bytes) = tokio::select! {
                bytes = read_pipe(out) => (OutputStream::Stdout, bytes),
                bytes = read_pipe(err) => (OutputStream::Stderr, bytes),
            };
            match bytes {
                Ok(bytes) => {
                    let [out, err] = &mut self.0;
                    let other = match stream {
                        OutputStream::Stdout => err,
                        OutputStream::Stderr => out,
                    };
                    other.iter_mut().for_each(OutputPipe::read_soon);
                    return (stream, bytes);
                }
                Err(_) => self.0[stream as usize] = None,
            }
        }
    }

    /// Reads soon, because another event of the process arrived and the process may wait until its earlier output is
    /// read.
    pub(super) fn read_soon(&mut self) {
        self.0.iter_mut().flatten().for_each(OutputPipe::read_soon);
    }

    /// Reads what the pipes contain now. The call asks the system directly, because the runtime may not have received
    /// the event of the last write yet.
    pub(super) fn drain(&self) -> Vec<(OutputStream, Vec<u8>)> {
        let streams = [OutputStream::Stdout, OutputStream::Stderr];
        let open = streams.into_iter().zip(&self.0);
        open.filter_map(|(stream, pipe)| Some((stream, pipe.as_ref()?)))
            .flat_map(|(stream, pipe)| pipe.drain().into_iter().map(move |bytes| (stream, bytes)))
            .collect()
    }
}

async fn read_pipe(pipe: &mut Option<OutputPipe>) -> io::Result<Vec<u8>> {
    match pipe {
        Some(pipe) => pipe.read().await,
        None => pending().await,
    }
}

impl OutputPipe {
    fn watch(pipe: OwnedFd) -> io::Result<Self> {
        let capacity = fcntl(&pipe, FcntlArg::F_GETPIPE_SZ)?;
        Ok(Self {
            capacity: usize::try_from(capacity).unwrap_or(0),
            source: PipeSource::Watched(Receiver::from_owned_fd(pipe)?),
            small_read_streak: 0,
            last_read_at: None,
        })
    }

    async fn read(&mut self) -> io::Result<Vec<u8>> {
        loop {
            match &mut self.source {
                PipeSource::Watched(pipe) => {
                    pipe.readable().await?;
                    let mut bytes = Vec::with_capacity(MAX_PIPE_READ_BYTES);
                    match pipe.try_read_buf(&mut bytes) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(_) => {
                            self.after_watched_read(bytes.len())?;
                            return Ok(shrink_buffer(bytes));
                        }
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(e) => return Err(e),
                    }
                }
                PipeSource::Polled {
                    pipe, next_poll, ..
                } => {
                    sleep_until(*next_poll).await;
                    let mut bytes = vec![0; MAX_PIPE_READ_BYTES];
                    match nix::unistd::read(pipe.as_fd(), &mut bytes) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(count) => {
                            bytes.truncate(count);
                            self.after_polled_read(count)?;
                            return Ok(shrink_buffer(bytes));
                        }
                        Err(Errno::EAGAIN) => self.after_polled_read(0)?,
                        Err(Errno::EINTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                PipeSource::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    fn after_watched_read(&mut self, bytes: usize) -> io::Result<()> {
        let now = Instant::now();
        let is_quick = self
            .last_read_at
            .is_some_and(|last| now - last < MAX_QUICK_READ_GAP);
        self.last_read_at = Some(now);
        self.small_read_streak = match is_quick && bytes < MAX_SMALL_READ_BYTES {
            true => self.small_read_streak + 1,
            false => 0,
        };
        if self.small_read_streak < MAX_SMALL_READ_STREAK || self.capacity < MIN_POLLED_PIPE_BYTES {
            return Ok(());
        }
        self.small_read_streak = 0;
        if let PipeSource::Watched(pipe) = std::mem::replace(&mut self.source, PipeSource::Closed) {
            self.source = PipeSource::Polled {
                pipe: pipe.into_nonblocking_fd()?,
                next_poll: now + PIPE_POLL_INTERVAL,
                bytes_read: 0,
            };
        }
        Ok(())
    }

    fn after_polled_read(&mut self, bytes: usize) -> io::Result<()> {
        let PipeSource::Polled {
            next_poll,
            bytes_read,
            ..
        } = &mut self.source
        else {
            return Ok(());
        };
        *bytes_read += bytes;
        let much = self.capacity / 2;
        // After a piece of the maximal size there is more to read.
        if bytes == MAX_PIPE_READ_BYTES && *bytes_read < much {
            return Ok(());
        }
        if (MAX_SMALL_READ_BYTES..much).contains(bytes_read) {
            (*next_poll, *bytes_read) = (Instant::now() + PIPE_POLL_INTERVAL, 0);
            return Ok(());
        }
        if let PipeSource::Polled { pipe, .. } =
            std::mem::replace(&mut self.source, PipeSource::Closed)
        {
            self.source = PipeSource::Watched(Receiver::from_owned_fd_unchecked(pipe)?);
        }
        Ok(())
    }

    fn read_soon(&mut self) {
        self.small_read_streak = 0;
        if let PipeSource::Polled { next_poll, .. } = &mut self.source {
            *next_poll = Instant::now();
        }
    }

    fn drain(&self) -> Vec<Vec<u8>> {
        let pipe = match &self.source {
            PipeSource::Watched(pipe) => pipe.as_fd(),
            PipeSource::Polled { pipe, .. } => pipe.as_fd(),
            PipeSource::Closed => return Vec::new(),
        };
        let mut pieces = Vec::new();
        while pieces.len() < MAX_DRAINED_PIECES {
            let mut bytes = vec![0; MAX_PIPE_READ_BYTES];
            match nix::unistd::read(pipe, &mut bytes) {
                Ok(count @ 1..) => {
                    bytes.truncate(count);
                    pieces.push(shrink_buffer(bytes));
                }
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => break,
            }
        }
        pieces
    }
}

fn shrink_buffer(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < MAX_PIPE_READ_BYTES / 2 {
        bytes.shrink_to_fit();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{OutputPipes, PipeSource};
    use crate::protocol::kernel::OutputStream;
    use nix::fcntl::{FcntlArg, fcntl};
    use std::io::Write;
    use std::thread;

    /// Reads all output while two threads write that many lines each.
    async fn read(lines: usize) -> [Vec<u8>; 2] {
        let (out, mut to_out) = std::io::pipe().unwrap();
        let (err, mut to_err) = std::io::pipe().unwrap();
        let mut pipes = OutputPipes::open([out.into(), err.into()]).unwrap();
        let writers = thread::spawn(move || {
            for n in 0..lines {
                writeln!(to_out, "{n}").unwrap();
                if n % 1000 == 0 {
                    writeln!(to_err, "{n}").unwrap();
                }
            }
            write!(to_out, "end").unwrap();
        });
        let mut read = [Vec::new(), Vec::new()];
        while !read[0].ends_with(b"end") {
            let (stream, bytes) = pipes.next_piece().await;
            read[stream as usize].extend(bytes);
        }
        writers.join().unwrap();
        for (stream, bytes) in pipes.drain() {
            read[stream as usize].extend(bytes);
        }
        read
    }

    #[tokio::test]
    async fn a_pipe_that_holds_little_is_always_watched() {
        let (out, mut to_out) = std::io::pipe().unwrap();
        fcntl(&to_out, FcntlArg::F_SETPIPE_SZ(8 << 10)).unwrap();
        let (err, _to_err) = std::io::pipe().unwrap();
        let mut pipes = OutputPipes::open([out.into(), err.into()]).unwrap();
        for n in 0..1000 {
            writeln!(to_out, "{n}").unwrap();
            assert_eq!(pipes.next_piece().await.1, format!("{n}\n").as_bytes());
            let pipe = pipes.0[0].as_ref().unwrap();
            assert!(matches!(pipe.source, PipeSource::Watched(_)), "after {n}");
        }
    }

    #[tokio::test]
    async fn every_byte_comes_once_and_in_order_however_it_is_written() {
        for lines in [0, 1, 20, 200_000] {
            let [out, err] = read(lines).await;
            let mut expected: String = (0..lines).map(|n| format!("{n}\n")).collect();
            expected += "end";
            assert!(out == expected.as_bytes(), "{lines} lines");
            let expected: String = (0..lines).step_by(1000).map(|n| format!("{n}\n")).collect();
            assert!(err == expected.as_bytes(), "{lines} lines");
        }
        assert_eq!(OutputStream::Stdout as usize, 0);
    }
}
