//! One life of the Python process: its reaper, its connection, its output.

use super::Settings;
use super::wire::{Frame, Request, Wire};
use crate::companion::descendants;
use crate::error::Result;
use anyhow::Context;
use bytes::BytesMut;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{Instant, sleep_until};

/// Bytes taken from a pipe at once, so that one stream never starves the rest.
const PIECE: usize = 64 << 10;

/// Pieces drained at most: four times what a pipe holds.
const DRAINED: usize = 64;

/// What a process says before it can speak frames: the reason why it did not start.
const LAST_WORDS: usize = 20;

/// From the end of the connection to the exit of a process that is ending by itself.
const EXIT: Duration = Duration::from_millis(500);

/// A process that was started, or is.
#[derive(Debug)]
pub(super) struct Process {
    reaper: Child,
    link: Link,
    is_ending: bool,
    /// The pipes of a connection that ended, with what was written last.
    left: [Option<Receiver>; 2],
    last_words: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug)]
enum Link {
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

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// What comes from a process.
#[derive(Debug)]
pub(super) enum News {
    Frame(Frame),
    Output(Stream, Vec<u8>),
    /// The connection ended or broke, and the process is still there.
    Broken(String),
    Exited(ExitStatus),
}

impl Process {
    /// Starts the kernel under a reaper. Its hello comes as the first frame.
    ///
    /// # Errors
    /// When no process can be made.
    /// `plain`: without the packages that were installed at run time.
    pub(super) fn spawn(settings: &Settings, session: &str, plain: bool) -> Result<Self> {
        std::fs::create_dir_all(&settings.run)?;
        let path = settings.run.join(format!("{session}.sock"));
        // A socket of an earlier life would be in the way.
        let _ = std::fs::remove_file(&path);
        let listener = StdListener::bind(&path)
            .with_context(|| format!("listening on `{}`", path.display()))?;
        let stream = StdStream::connect(&path)?;
        stream.set_nonblocking(true)?;
        // This very binary, also when its file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        if plain {
            command.env_remove("OSCTL_PACKAGES");
        }
        command
            .args(["reaper", "--"])
            .arg(&settings.python)
            .arg(&settings.program);
        command.args(["--fd", "0", "--session", session]);
        for secret in [
            "OSCTL_TOKEN_SHA256",
            "OSCTL_AUTH",
            "OSCTL_HOSTS",
            "OSCTL_LISTEN",
        ] {
            command.env_remove(secret);
        }
        // The listening socket travels as standard input: connecting never has to be tried twice.
        command
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut reaper = command.spawn().context("starting the kernel")?;
        let last_words = Arc::new(Mutex::new(Vec::new()));
        if let Some(stderr) = reaper.stderr.take() {
            tokio::spawn(listen(stderr, last_words.clone()));
        }
        Ok(Self {
            reaper,
            link: Link::Waiting(UnixStream::from_std(stream)?),
            is_ending: false,
            left: [None, None],
            last_words,
        })
    }

    /// The next thing that happens. Loses nothing when dropped.
    pub(super) async fn next(&mut self) -> News {
        loop {
            match &mut self.link {
                Link::Waiting(stream) => {
                    let first = Wire::first(stream).await;
                    self.open(first);
                }
                Link::Open {
                    wire,
                    pipes: [out, err],
                } => {
                    tokio::select! {
                        bytes = read(out.as_ref()) => match bytes {
                            Ok(bytes) => return News::Output(Stream::Stdout, bytes),
                            Err(_) => *out = None,
                        },
                        bytes = read(err.as_ref()) => match bytes {
                            Ok(bytes) => return News::Output(Stream::Stderr, bytes),
                            Err(_) => *err = None,
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
                    tokio::select! {
                        status = self.reaper.wait() => return exit(status),
                        () = sleep_until(*until) => {
                            let why = std::mem::take(why);
                            self.link = Link::Closed;
                            return News::Broken(why);
                        }
                    }
                }
                Link::Closed => return exit(self.reaper.wait().await),
            }
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
                self.link = Link::Open {
                    wire: Box::new(Wire::new(stream, bytes)),
                    pipes,
                };
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
        let mut all = Vec::new();
        for (stream, pipe) in [(Stream::Stdout, out), (Stream::Stderr, err)] {
            // Bounded, because a process in the background may never stop writing.
            for _ in 0..DRAINED {
                match pipe.as_ref().map(read_now) {
                    Some(Ok(bytes)) if !bytes.is_empty() => all.push((stream, bytes)),
                    _ => break,
                }
            }
        }
        all
    }

    /// # Errors
    /// When the connection is broken.
    pub(super) fn send(&mut self, request: &Request<'_>) -> io::Result<()> {
        match &mut self.link {
            Link::Open { wire, .. } => wire.queue(request),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Interrupts the code in `kernel`, and what it started at `since` or later: code that waits
    /// for a child in C is not woken otherwise.
    pub(super) fn interrupt(&self, kernel: i32, since: i64) {
        self.signal(Signal::SIGINT);
        for pid in self.children(kernel, since) {
            // Gone already is as good.
            let _ = kill(pid, Signal::SIGINT);
        }
    }

    /// Ends what `kernel` started at `since` or later, wherever it went. Returns how many.
    pub(super) fn end_children(&self, kernel: i32, since: i64) -> usize {
        descendants::end(|| self.children(kernel, since))
    }

    fn children(&self, kernel: i32, since: i64) -> Vec<Pid> {
        let Some(reaper) = self.reaper.id() else {
            return Vec::new();
        };
        let reaper = Pid::from_raw(reaper.cast_signed());
        descendants::since(reaper, Pid::from_raw(kernel), since)
    }

    /// Ends the process and all its descendants; its exit comes as news. Asked again, it does not
    /// rely on the reaper.
    pub(super) fn end(&mut self) {
        if self.is_ending {
            // Its death is the kernel's, too.
            return self.signal(Signal::SIGKILL);
        }
        self.is_ending = true;
        self.signal(Signal::SIGTERM);
        // One that was stopped would never hear it.
        self.signal(Signal::SIGCONT);
    }

    /// The end of what it said outside of any cell.
    pub(super) fn last_words(&self) -> String {
        self.last_words
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .join("\n")
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.reaper.id() {
            // It may just have ended, which the next news will tell.
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }
}

fn exit(status: io::Result<ExitStatus>) -> News {
    match status {
        Ok(status) => News::Exited(status),
        Err(why) => News::Broken(why.to_string()),
    }
}

/// The next piece of a pipe; never, when it is closed.
async fn read(pipe: Option<&Receiver>) -> io::Result<Vec<u8>> {
    let Some(pipe) = pipe else {
        return pending().await;
    };
    loop {
        pipe.readable().await?;
        match read_now(pipe) {
            Ok(bytes) if bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

fn read_now(pipe: &Receiver) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PIECE);
    pipe.try_read_buf(&mut bytes)?;
    bytes.shrink_to_fit();
    Ok(bytes)
}

async fn listen(stderr: ChildStderr, last_words: Arc<Mutex<Vec<String>>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::info!("{line}");
        let mut words = last_words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.len() == LAST_WORDS {
            words.remove(0);
        }
        words.push(line);
    }
}
