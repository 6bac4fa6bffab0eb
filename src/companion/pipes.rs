//! What a process writes to its two output pipes, a piece at a time.
//!
//! Whoever writes wakes whoever watches the pipe, with every line, and that costs the code that
//! prints more than printing. So a pipe that many small pieces come through is left alone for a
//! while, and only looked into now and then:
//!
//! ```text
//!          STREAK small pieces of one stream in a row, each QUICK
//! watched ────────────────────────────────────────────────────────▶ visited every PAUSE
//!    ▲      a visit finds less than SMALL, or more than the pipe should hold      │
//!    └────────────────────────────────────────────────────────────────────────────┘
//! ```

use crate::protocol::kernel::Stream;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep_until};

/// Bytes taken from a pipe at once, so that one stream never starves the rest.
pub(super) const PIECE: usize = 128 << 10;

/// Pieces drained at most, eight times what a pipe holds: a process in the background may never stop
/// writing.
const DRAINED: usize = 64;

const STREAK: u32 = 16;
/// A page: what is written in one go comes in whole ones.
const SMALL: usize = 4 << 10;
const QUICK: Duration = Duration::from_millis(3);
const PAUSE: Duration = Duration::from_millis(1);
/// A pipe that holds less is full before it is visited. The system makes none larger for a user who
/// has many: all containers' roots are one.
const ROOMY: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Pipes([Option<Pipe>; 2]);

#[derive(Debug)]
struct Pipe {
    source: Source,
    /// Bytes it holds.
    room: usize,
    /// Small pieces in a row.
    streak: u32,
    last: Option<Instant>,
}

#[derive(Debug)]
enum Source {
    Watched(Receiver),
    Visited {
        pipe: OwnedFd,
        next: Instant,
        /// Bytes since the last pause.
        found: usize,
    },
    Closed,
}

impl Pipes {
    /// # Errors
    /// When they are no pipes.
    pub(super) fn open(pipes: [OwnedFd; 2]) -> io::Result<Self> {
        let [out, err] = pipes;
        Ok(Self([Some(Pipe::watch(out)?), Some(Pipe::watch(err)?)]))
    }

    pub(super) fn closed() -> Self {
        Self([None, None])
    }

    /// The next piece; never, when both are closed. Loses nothing when dropped.
    pub(super) async fn next(&mut self) -> (Stream, Vec<u8>) {
        loop {
            let [out, err] = &mut self.0;
            let (stream, bytes) = tokio::select! {
                bytes = read(out) => (Stream::Stdout, bytes),
                bytes = read(err) => (Stream::Stderr, bytes),
            };
            match bytes {
                Ok(bytes) => {
                    let [out, err] = &mut self.0;
                    let other = match stream {
                        Stream::Stdout => err,
                        Stream::Stderr => out,
                    };
                    other.iter_mut().for_each(Pipe::turned);
                    return (stream, bytes);
                }
                Err(_) => self.0[stream as usize] = None,
            }
        }
    }

    /// Something else was heard of the process, which may be waiting until all before that is read.
    pub(super) fn turned(&mut self) {
        self.0.iter_mut().flatten().for_each(Pipe::turned);
    }

    /// What is in them at this moment. It asks the system: the runtime may not have heard yet of
    /// what was written last.
    pub(super) fn drain(&self) -> Vec<(Stream, Vec<u8>)> {
        let streams = [Stream::Stdout, Stream::Stderr];
        let open = streams.into_iter().zip(&self.0);
        open.filter_map(|(stream, pipe)| Some((stream, pipe.as_ref()?)))
            .flat_map(|(stream, pipe)| pipe.drain().into_iter().map(move |bytes| (stream, bytes)))
            .collect()
    }
}

async fn read(pipe: &mut Option<Pipe>) -> io::Result<Vec<u8>> {
    match pipe {
        Some(pipe) => pipe.read().await,
        None => pending().await,
    }
}

impl Pipe {
    fn watch(pipe: OwnedFd) -> io::Result<Self> {
        let room = fcntl(&pipe, FcntlArg::F_GETPIPE_SZ)?;
        Ok(Self {
            room: usize::try_from(room).unwrap_or(0),
            source: Source::Watched(Receiver::from_owned_fd(pipe)?),
            streak: 0,
            last: None,
        })
    }

    async fn read(&mut self) -> io::Result<Vec<u8>> {
        loop {
            match &mut self.source {
                Source::Watched(pipe) => {
                    pipe.readable().await?;
                    let mut bytes = Vec::with_capacity(PIECE);
                    match pipe.try_read_buf(&mut bytes) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(_) => {
                            self.watched(bytes.len())?;
                            return Ok(fitting(bytes));
                        }
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(e) => return Err(e),
                    }
                }
                Source::Visited { pipe, next, .. } => {
                    sleep_until(*next).await;
                    let mut bytes = vec![0; PIECE];
                    match nix::unistd::read(pipe.as_fd(), &mut bytes) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(count) => {
                            bytes.truncate(count);
                            self.visited(count)?;
                            return Ok(fitting(bytes));
                        }
                        Err(Errno::EAGAIN) => self.visited(0)?,
                        Err(Errno::EINTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Source::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    fn watched(&mut self, bytes: usize) -> io::Result<()> {
        let now = Instant::now();
        let is_quick = self.last.is_some_and(|last| now - last < QUICK);
        self.last = Some(now);
        self.streak = match is_quick && bytes < SMALL {
            true => self.streak + 1,
            false => 0,
        };
        if self.streak < STREAK || self.room < ROOMY {
            return Ok(());
        }
        self.streak = 0;
        if let Source::Watched(pipe) = std::mem::replace(&mut self.source, Source::Closed) {
            self.source = Source::Visited {
                pipe: pipe.into_nonblocking_fd()?,
                next: now + PAUSE,
                found: 0,
            };
        }
        Ok(())
    }

    fn visited(&mut self, bytes: usize) -> io::Result<()> {
        let Source::Visited { next, found, .. } = &mut self.source else {
            return Ok(());
        };
        *found += bytes;
        let much = self.room / 2;
        // Behind a whole piece is more.
        if bytes == PIECE && *found < much {
            return Ok(());
        }
        if (SMALL..much).contains(found) {
            (*next, *found) = (Instant::now() + PAUSE, 0);
            return Ok(());
        }
        if let Source::Visited { pipe, .. } = std::mem::replace(&mut self.source, Source::Closed) {
            self.source = Source::Watched(Receiver::from_owned_fd_unchecked(pipe)?);
        }
        Ok(())
    }

    fn turned(&mut self) {
        self.streak = 0;
        if let Source::Visited { next, .. } = &mut self.source {
            *next = Instant::now();
        }
    }

    fn drain(&self) -> Vec<Vec<u8>> {
        let pipe = match &self.source {
            Source::Watched(pipe) => pipe.as_fd(),
            Source::Visited { pipe, .. } => pipe.as_fd(),
            Source::Closed => return Vec::new(),
        };
        let mut pieces = Vec::new();
        while pieces.len() < DRAINED {
            let mut bytes = vec![0; PIECE];
            match nix::unistd::read(pipe, &mut bytes) {
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
}

fn fitting(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < PIECE / 2 {
        bytes.shrink_to_fit();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Pipes, Source};
    use crate::protocol::kernel::Stream;
    use nix::fcntl::{FcntlArg, fcntl};
    use std::io::Write;
    use std::thread;

    /// All that comes, while two threads write so many lines each.
    async fn read(lines: usize) -> [Vec<u8>; 2] {
        let (out, mut to_out) = std::io::pipe().unwrap();
        let (err, mut to_err) = std::io::pipe().unwrap();
        let mut pipes = Pipes::open([out.into(), err.into()]).unwrap();
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
            let (stream, bytes) = pipes.next().await;
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
        let mut pipes = Pipes::open([out.into(), err.into()]).unwrap();
        for n in 0..1000 {
            writeln!(to_out, "{n}").unwrap();
            assert_eq!(pipes.next().await.1, format!("{n}\n").as_bytes());
            let pipe = pipes.0[0].as_ref().unwrap();
            assert!(matches!(pipe.source, Source::Watched(_)), "after {n}");
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
        assert_eq!(Stream::Stdout as usize, 0);
    }
}
