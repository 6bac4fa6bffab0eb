//! One life of a kernel's process: its guard, its connection, its output.

use super::guard::{Ended, Guard};
use super::template::{LastWords, Made, Socket, Template};
use super::wire::{Ask, Frame, Question, Request, Wire};
use crate::companion::descendants;
use crate::companion::pipes::Pipes;
use crate::error::Result;
use crate::protocol::kernel::Stream;
use bytes::BytesMut;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

/// From the end of the connection to the exit of a process that is ending by itself.
const EXIT: Duration = Duration::from_millis(500);

/// How long a kernel may take to close the connection that it lets go of.
const LET_GO: Duration = Duration::from_secs(5);

/// A kernel that is being made, or was.
#[derive(Debug)]
pub(super) struct Process {
    session: String,
    plain: bool,
    link: Link,
    guard: Option<Guard>,
    socket: Option<Socket>,
    greeting: Greeting,
    is_ending: bool,
    /// The pipes of a connection that ended, with what was written last.
    left: Pipes,
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
        pipes: Pipes,
    },
    /// It has let go, and may be frozen.
    Apart,
    /// Ended, for that reason; the process has until then to exit by itself.
    Ending {
        why: String,
        until: Instant,
    },
    Closed,
}

/// What is said to a kernel that has said hello.
#[derive(Debug, Clone, Copy)]
enum Greeting {
    /// Its name.
    Adopt,
    /// Nothing new: it was there before.
    Probe,
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
        Self::new(session, plain, Link::Coming(template.kernel(plain)))
    }

    /// A kernel that came out of a checkpoint. Its hello comes as the first frame, too.
    pub(super) fn restored(made: Made, session: &str) -> Self {
        let mut process = Self::new(session, false, Link::Closed);
        process.greeting = Greeting::Probe;
        process.take(made);
        process
    }

    fn new(session: &str, plain: bool, link: Link) -> Self {
        Self {
            session: session.into(),
            plain,
            link,
            guard: None,
            socket: None,
            greeting: Greeting::Adopt,
            is_ending: false,
            left: Pipes::closed(),
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
                Link::Open { wire, pipes } => {
                    tokio::select! {
                        (stream, bytes) = pipes.next() => return News::Output(stream, bytes),
                        frame = wire.next() => match frame {
                            Ok(Some(frame)) => {
                                pipes.turned();
                                return News::Frame(frame);
                            }
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
                Link::Apart | Link::Closed => return News::Ended(ended(&mut self.guard).await),
            }
        }
    }

    /// Why there is no kernel, when there is none.
    fn came(&mut self, made: Result<Result<Made>, oneshot::error::RecvError>) -> Option<String> {
        self.link = Link::Closed;
        match made {
            Ok(Ok(made)) => {
                self.take(made);
                None
            }
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some("too many kernels are asked for".into()),
        }
    }

    fn take(&mut self, made: Made) {
        let Made {
            guard,
            stream,
            socket,
            last_words,
        } = made;
        if self.is_ending {
            guard.end();
        }
        (self.guard, self.socket) = (Some(guard), Some(socket));
        self.last_words = last_words;
        self.link = Link::Waiting(stream);
    }

    fn open(&mut self, first: io::Result<(BytesMut, [OwnedFd; 2])>) {
        let opened = first.and_then(|(bytes, pipes)| Ok((bytes, Pipes::open(pipes)?)));
        match (opened, std::mem::replace(&mut self.link, Link::Closed)) {
            (Ok((bytes, pipes)), Link::Waiting(stream)) => {
                let mut wire = Box::new(Wire::new(stream, bytes));
                // A few bytes fit into any frame.
                let _ = match self.greeting {
                    Greeting::Adopt => wire.queue(&Request::Adopt {
                        id: "adopt",
                        session: &self.session,
                        plain: self.plain,
                    }),
                    Greeting::Probe => wire.queue(&Ask {
                        id: "probe",
                        question: &Question::Probe,
                    }),
                };
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

    /// Closes our ends of the connection and the pipes, after the kernel has closed its own; frames
    /// that come meanwhile belong to nobody.
    ///
    /// # Errors
    /// When it does not.
    pub(super) async fn part(&mut self) -> io::Result<()> {
        let Link::Open { wire, .. } = &mut self.link else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        timeout(LET_GO, async {
            while wire.next().await?.is_some() {}
            io::Result::Ok(())
        })
        .await??;
        self.link = Link::Apart;
        Ok(())
    }

    /// Connects again with a kernel that has let go. Its hello comes once more.
    pub(super) fn rejoin(&mut self) {
        self.greeting = Greeting::Probe;
        let connected = self.socket().map_or_else(
            || Err(io::ErrorKind::NotConnected.into()),
            |path| connect(&path),
        );
        match connected {
            Ok(stream) => self.link = Link::Waiting(stream),
            Err(why) => self.close(format!("it can't be reached any more: {why}")),
        }
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> Option<PathBuf> {
        self.socket.as_ref().map(|socket| socket.path().to_owned())
    }

    /// What is in the pipes now, until they are empty.
    pub(super) fn drain(&self) -> Vec<(Stream, Vec<u8>)> {
        match &self.link {
            Link::Open { pipes, .. } => pipes.drain(),
            _ => self.left.drain(),
        }
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

/// A connection to a kernel that listens there.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = StdStream::connect(path)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn ended(guard: &mut Option<Guard>) -> Ended {
    match guard {
        Some(guard) => guard.ended().await,
        None => Ended::Unguarded,
    }
}
