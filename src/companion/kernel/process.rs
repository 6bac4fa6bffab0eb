//! One life of a kernel's process: its guard, its connection, its output.

use super::guard::{Ended, Guard};
use super::template::{LastWords, Made, Socket, Template};
use super::wire::{Frame, Request, Wire};
use crate::companion::{descendants, pipe};
use crate::error::Result;
use crate::protocol::kernel::Stream;
use bytes::BytesMut;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// Small pieces in a row, each within [`QUICK`] of the one before, after which pieces are let grow
/// for a while: being woken for every line costs the code that writes them more than writing.
const STREAK: u32 = 16;
const SMALL: usize = 32 << 10;
const QUICK: Duration = Duration::from_micros(200);
const GATHER: Duration = Duration::from_millis(1);
/// From the end of the connection to the exit of a process that is ending by itself.
const EXIT: Duration = Duration::from_millis(500);

/// A kernel that is being made, or was.
#[derive(Debug)]
pub(super) struct Process {
    session: String,
    plain: bool,
    link: Link,
    guard: Option<Guard>,
    _socket: Option<Socket>,
    is_ending: bool,
    pace: Pace,
    /// The pipes of a connection that ended, with what was written last.
    left: [Option<Receiver>; 2],
    last_words: LastWords,
}

#[derive(Debug)]
enum Link {
    /// It is being made.
    Coming(oneshot::Receiver<Result<Made>>),
    /// Connected; the kernel has not said anything yet.
    Waiting(UnixStream),
    Open {
        wire: Box<Wire>,
        pipes: [Option<Receiver>; 2],
    },
    /// Ended, for that reason; the process has until then to exit by itself.
    Ending {
        why: String,
        until: Instant,
    },
    Closed,
}

/// How eagerly output is read.
#[derive(Debug, Default)]
struct Pace {
    streak: u32,
    last: Option<Instant>,
    /// Nothing is read before.
    gather: Option<Instant>,
}

impl Pace {
    fn took(&mut self, bytes: usize) {
        let now = Instant::now();
        let is_quick = self.last.is_some_and(|last| now - last < QUICK + GATHER);
        self.streak = match bytes < SMALL && is_quick {
            true => self.streak + 1,
            false => 0,
        };
        self.last = Some(now);
        self.gather = (self.streak >= STREAK).then(|| now + GATHER);
    }
}

/// What comes from a process.
#[derive(Debug)]
pub(super) enum News {
    Frame(Frame),
    Output(Stream, Vec<u8>),
    /// The connection ended or broke, and the process is still there.
    Broken(String),
    Ended(Ended),
}

impl Process {
    /// A kernel of that session. Its hello comes as the first frame. `plain`: without the packages
    /// that were installed at run time.
    pub(super) fn start(template: &Template, session: &str, plain: bool) -> Self {
        Self {
            session: session.into(),
            plain,
            link: Link::Coming(template.kernel(plain)),
            guard: None,
            _socket: None,
            is_ending: false,
            pace: Pace::default(),
            left: [None, None],
            last_words: LastWords::default(),
        }
    }

    /// The next thing that happens. Loses nothing when dropped.
    pub(super) async fn next(&mut self) -> News {
        loop {
            match &mut self.link {
                Link::Coming(made) => {
                    let made = made.await;
                    if let Some(why) = self.came(made) {
                        return News::Ended(Ended::NotMade(why));
                    }
                }
                Link::Waiting(stream) => {
                    let first = Wire::first(stream).await;
                    self.open(first);
                }
                Link::Open {
                    wire,
                    pipes: [out, err],
                } => {
                    let output = async {
                        if let Some(until) = self.pace.gather {
                            sleep_until(until).await;
                        }
                        tokio::select! {
                            bytes = pipe::read(out.as_ref()) => (Stream::Stdout, bytes),
                            bytes = pipe::read(err.as_ref()) => (Stream::Stderr, bytes),
                        }
                    };
                    tokio::select! {
                        (stream, bytes) = output => match (stream, bytes) {
                            (stream, Ok(bytes)) => {
                                self.pace.took(bytes.len());
                                return News::Output(stream, bytes);
                            }
                            (Stream::Stdout, Err(_)) => *out = None,
                            (Stream::Stderr, Err(_)) => *err = None,
                        },
                        frame = wire.next() => match frame {
                            Ok(Some(frame)) => return News::Frame(frame),
                            Ok(None) => self.close("it closed its connection".into()),
                            Err(why) => self.close(format!("its connection broke: {why}")),
                        },
                        // The exit comes after the end of the frames, or the last would be lost.
                    }
                }
                Link::Ending { why, until } => {
                    let until = *until;
                    tokio::select! {
                        ended = ended(&mut self.guard) => return News::Ended(ended),
                        () = sleep_until(until) => {
                            let why = std::mem::take(why);
                            self.link = Link::Closed;
                            return News::Broken(why);
                        }
                    }
                }
                Link::Closed => return News::Ended(ended(&mut self.guard).await),
            }
        }
    }

    /// Why there is no kernel, when there is none.
    fn came(&mut self, made: Result<Result<Made>, oneshot::error::RecvError>) -> Option<String> {
        self.link = Link::Closed;
        match made {
            Ok(Ok(Made {
                guard,
                stream,
                socket,
                last_words,
            })) => {
                if self.is_ending {
                    guard.end();
                }
                (self.guard, self._socket) = (Some(guard), Some(socket));
                self.last_words = last_words;
                self.link = Link::Waiting(stream);
                None
            }
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some("too many kernels are asked for".into()),
        }
    }

    fn open(&mut self, first: io::Result<(BytesMut, [OwnedFd; 2])>) {
        let opened = first.and_then(|(bytes, [out, err])| {
            Ok((
                bytes,
                [
                    Some(Receiver::from_owned_fd(out)?),
                    Some(Receiver::from_owned_fd(err)?),
                ],
            ))
        });
        match (opened, std::mem::replace(&mut self.link, Link::Closed)) {
            (Ok((bytes, pipes)), Link::Waiting(stream)) => {
                let mut wire = Box::new(Wire::new(stream, bytes));
                let adopt = Request::Adopt {
                    id: "adopt",
                    session: &self.session,
                    plain: self.plain,
                };
                // A few bytes fit into any frame.
                let _ = wire.queue(&adopt);
                self.link = Link::Open { wire, pipes };
            }
            (Err(why), _) => self.close(format!("it did not say hello: {why}")),
            (Ok(_), link) => self.link = link,
        }
    }

    /// A process that is about to exit closes its connection first.
    fn close(&mut self, why: String) {
        let drained = std::mem::replace(
            &mut self.link,
            Link::Ending {
                why,
                until: Instant::now() + EXIT,
            },
        );
        if let Link::Open { pipes, .. } = drained {
            self.left = pipes;
        }
    }

    /// What is in the pipes now, until they are empty.
    pub(super) fn drain(&self) -> Vec<(Stream, Vec<u8>)> {
        let [out, err] = match &self.link {
            Link::Open { pipes, .. } => pipes,
            _ => &self.left,
        };
        let pipes = [(Stream::Stdout, out), (Stream::Stderr, err)];
        let drained = pipes
            .into_iter()
            .filter_map(|(stream, pipe)| Some((stream, pipe::drain(pipe.as_ref()?))));
        drained
            .flat_map(|(stream, pieces)| pieces.into_iter().map(move |bytes| (stream, bytes)))
            .collect()
    }

    /// # Errors
    /// When the connection is broken.
    pub(super) fn send(&mut self, request: &impl Serialize) -> io::Result<()> {
        match &mut self.link {
            Link::Open { wire, .. } => wire.queue(request),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Interrupts the code in `kernel`, and what it started at `since` or later: code that waits
    /// for a child in C is not woken otherwise.
    pub(super) fn interrupt(&self, kernel: i32, since: i64) {
        let children = self.children(kernel, since);
        for pid in std::iter::once(Pid::from_raw(kernel)).chain(children) {
            // Gone already is as good.
            let _ = kill(pid, Signal::SIGINT);
        }
    }

    /// Ends what `kernel` started at `since` or later, wherever it went. Returns how many.
    pub(super) fn end_children(&self, kernel: i32, since: i64) -> usize {
        descendants::end(|| self.children(kernel, since))
    }

    fn children(&self, kernel: i32, since: i64) -> Vec<Pid> {
        let Some(guard) = &self.guard else {
            return Vec::new();
        };
        descendants::since(guard.pid, Pid::from_raw(kernel), since)
    }

    /// Ends the process and all its descendants; its end comes as news. Asked again, it does not
    /// rely on the guard.
    pub(super) fn end(&mut self) {
        match &self.guard {
            Some(guard) if self.is_ending => guard.kill(),
            Some(guard) => guard.end(),
            // It ends when it comes.
            None => {}
        }
        self.is_ending = true;
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Ends an idle kernel, which tears down its resources before.
    pub(super) fn leave(&mut self) {
        self.guard.iter().for_each(Guard::leave);
        self.is_ending = true;
    }

    /// The process that all of the kernel's descend from.
    pub(super) fn root(&self) -> Option<i32> {
        self.guard.as_ref().map(|guard| guard.pid.as_raw())
    }

    /// The end of what it said outside of any cell.
    pub(super) fn last_words(&self) -> String {
        self.last_words.text()
    }
}

async fn ended(guard: &mut Option<Guard>) -> Ended {
    match guard {
        Some(guard) => guard.ended().await,
        None => Ended::Unguarded,
    }
}
