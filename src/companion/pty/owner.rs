//! The task that owns one terminal: the device, the shell, the keys that wait to be typed.
//!
//! It never waits for a connection: output goes to what everyone reads from, and each connection
//! has a [`Standing`] that it looks at when it likes.

use super::device::{Device, Size};
use super::output::{Exit, Output};
use super::pace::Pace;
use super::screen::Screen;
use super::seats::{Given, Seat, Seats};
use super::shell::Shell;
use super::{Attached, Message, Out, Standing, View, Who};
use crate::protocol::pty::Why;
use bytes::{Buf, Bytes};
use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Bytes that may wait to be typed; one who sends more does not listen to what it is told.
const UNTYPED: usize = 1 << 20;

/// How long a shell that was asked to end may take, with the guard's own patience in it.
const END: Duration = Duration::from_secs(5);

/// From the end of all processes to the end of what they showed, with a slow writer's patience in
/// it. Only where a guard was killed does a process stay that holds the terminal open.
const REST: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Owner {
    /// Gone when the terminal was told to end: that is how a shell hears of it.
    device: Option<Device>,
    shell: Shell,
    output: Output,
    view: watch::Sender<View>,
    seats: Seats,
    standings: BTreeMap<Seat, watch::Sender<Standing>>,
    pace: Pace,
    size: Size,
    screen: Screen,
    untyped: VecDeque<Bytes>,
    /// Of the shell, once it and all below it are gone.
    code: Option<u8>,
    why: Why,
    /// When what should have ended by itself is ended the hard way.
    deadline: Option<Instant>,
    idle: Duration,
}

enum Event {
    Message(Message),
    /// Every handle is gone.
    Left,
    Shown(Vec<u8>),
    Typed(usize),
    Ended(u8),
    /// It is time to look again.
    Look,
}

impl Owner {
    pub(super) fn new(
        (device, shell): (Device, Shell),
        output: Output,
        view: watch::Sender<View>,
        size: Size,
        idle: Duration,
    ) -> Self {
        Self {
            device: Some(device),
            shell,
            output,
            view,
            seats: Seats::default(),
            standings: BTreeMap::new(),
            pace: Pace::default(),
            size,
            screen: Screen::new(size),
            untyped: VecDeque::new(),
            code: None,
            why: Why::Exited,
            deadline: None,
            idle,
        }
    }

    pub(super) async fn run(mut self, mut mailbox: mpsc::Receiver<Message>) {
        loop {
            // All was shown and all processes are gone.
            if let (Some(code), None) = (self.code, &self.device)
                && self.output.exit().is_none()
            {
                let why = self.why;
                self.deadline = None;
                self.output.finish(Exit { code, why });
            }
            match self.next(&mut mailbox).await {
                Event::Message(message) => self.take(message),
                Event::Left => break,
                Event::Shown(bytes) if bytes.is_empty() => self.device = None,
                Event::Shown(bytes) => {
                    self.screen.read(&bytes);
                    self.output.push(&bytes);
                    self.used();
                }
                Event::Typed(length) => self.typed(length),
                Event::Ended(code) => {
                    self.code = Some(code);
                    self.deadline = Some(Instant::now() + REST);
                }
                Event::Look => self.look(),
            }
        }
    }

    async fn next(&mut self, mailbox: &mut mpsc::Receiver<Message>) -> Event {
        let now = Instant::now();
        let hold = self.pace.hold(self.output.end(), now);
        let may_idle = self.seats.len() == 0 && self.code.is_none() && self.deadline.is_none();
        let idle = may_idle.then(|| self.view.borrow().used + self.idle);
        let wakes = [hold, idle, self.deadline].into_iter().flatten().min();
        let device = self.device.as_ref();
        let show = async {
            match device {
                Some(device) if hold.is_none() => device.read().await,
                _ => pending().await,
            }
        };
        let first = self.untyped.front();
        let write = async {
            match (device, first) {
                (Some(device), Some(bytes)) => device.write(bytes).await,
                _ => pending().await,
            }
        };
        let end = async {
            match self.code {
                Some(_) => pending().await,
                None => self.shell.ended().await,
            }
        };
        let look = async {
            match wakes {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            message = mailbox.recv() => message.map_or(Event::Left, Event::Message),
            // A device that can't be read is as closed as one at its end.
            shown = show => Event::Shown(shown.unwrap_or_default()),
            // What can't be typed any more has nobody to read it.
            written = write => Event::Typed(written.unwrap_or(usize::MAX)),
            code = end => Event::Ended(code),
            () = look => Event::Look,
        }
    }

    fn take(&mut self, message: Message) {
        let now = Instant::now();
        match message {
            Message::Attach { who, answer } => {
                let Who {
                    client,
                    role,
                    take,
                    since,
                    size,
                } = who;
                let given = self.seats.give(client, role, take, now);
                let attached = self.seat(given, since, size);
                let seat = attached.seat;
                if answer.send(attached).is_err() {
                    self.leave(seat, true);
                }
            }
            Message::Type { seat, bytes } if self.seats.writes(seat) => {
                if self.waiting() + bytes.len() > UNTYPED {
                    self.out(seat, Out::TooFast);
                } else {
                    self.seats.typed(seat, bytes.len() as u64);
                    self.untyped.push_back(bytes);
                }
            }
            Message::Type { seat, bytes } => self.change(seat, |standing| {
                standing.ignored += bytes.len() as u64;
            }),
            Message::Seen { seat, offset } if self.seats.writes(seat) => {
                // What was never shown can't have been seen.
                self.pace.seen(offset.min(self.output.end()));
            }
            Message::Seen { .. } => {}
            Message::Resize { seat, size } if self.seats.writes(seat) => self.resize(size),
            Message::Resize { .. } => {}
            Message::Take { seat } => {
                self.seats.take(seat);
                self.pace.begins(self.output.end());
                self.tell();
            }
            Message::Repaint => self.device.iter().for_each(Device::repaint),
            Message::Program { answer } => {
                let device = self.device.as_ref();
                // Whoever asked may be gone.
                let _ = answer.send(device.and_then(Device::program));
            }
            Message::Leave { seat, lost } => self.leave(seat, lost),
            Message::End { why } => self.end(why),
        }
        self.show();
    }

    fn seat(&mut self, given: Given, since: Option<u64>, size: Size) -> Attached {
        let Given {
            seat,
            replaces,
            typed,
        } = given;
        if let Some(old) = replaces {
            self.out(old, Out::Replaced);
        }
        let writes = self.seats.writes(seat);
        if writes {
            self.resize(size);
            if since.is_none() {
                // Not all that programs draw with is kept.
                self.device.iter().for_each(Device::repaint);
            }
        }
        let screen = since.is_none().then(|| self.screen.render());
        let begin = since.unwrap_or_else(|| self.output.end() - self.screen.unread());
        let follower = self.output.follow(begin);
        if writes {
            self.pace.begins(follower.offset());
        }
        let standing = Standing {
            writes,
            size: self.size,
            typed: typed.unwrap_or(0),
            ignored: 0,
            out: None,
        };
        let (sender, standing) = watch::channel(standing);
        self.standings.insert(seat, sender);
        self.tell();
        Attached {
            seat,
            follower,
            screen,
            standing,
            typed,
        }
    }

    fn leave(&mut self, seat: Seat, lost: bool) {
        self.standings.remove(&seat);
        self.seats.leave(seat, lost, Instant::now());
        if !self.seats.is_written() {
            self.pace.nobody();
        }
        // Whoever left is connected no more, which is something that has happened.
        self.used();
    }

    fn out(&mut self, seat: Seat, why: Out) {
        self.change(seat, |standing| standing.out = Some(why));
        self.standings.remove(&seat);
        if why != Out::Replaced {
            self.seats.leave(seat, false, Instant::now());
        }
    }

    fn resize(&mut self, size: Size) {
        // A window of nothing is nobody's, and programs divide by it.
        if size.cols == 0 || size.rows == 0 || size == self.size {
            return;
        }
        if let Some(Err(error)) = self.device.as_ref().map(|device| device.resize(size)) {
            tracing::warn!("a terminal keeps its size: {error}");
            return;
        }
        self.size = size;
        self.screen.resize(size);
        self.tell();
    }

    fn waiting(&self) -> usize {
        self.untyped.iter().map(Bytes::len).sum()
    }

    /// So many bytes of the first that wait were typed.
    fn typed(&mut self, length: usize) {
        if let Some(bytes) = self.untyped.front_mut() {
            bytes.advance(length.min(bytes.len()));
            if bytes.is_empty() {
                self.untyped.pop_front();
            }
        }
        if let Some(writer) = self.seats.writer() {
            let taken = self.seats.typed(writer, 0);
            let typed = taken.saturating_sub(self.waiting() as u64);
            self.change(writer, |standing| {
                standing.typed = standing.typed.max(typed)
            });
        }
        self.used();
    }

    /// Something is due.
    fn look(&mut self) {
        let now = Instant::now();
        if self.deadline.is_some_and(|at| at <= now) {
            self.deadline = None;
            match self.code {
                Some(_) => self.device = None,
                None => self.shell.end(),
            }
        }
        let since = self.view.borrow().used;
        if self.seats.len() == 0 && now >= since + self.idle {
            self.end(Why::Idle);
        }
    }

    fn end(&mut self, why: Why) {
        if self.code.is_some() || self.device.is_none() {
            return;
        }
        self.why = why;
        // The shell and what it runs hear a hangup, as when a window is closed.
        self.device = None;
        self.untyped.clear();
        self.shell.leave();
        self.deadline = Some(Instant::now() + END);
    }

    /// Tells everyone who writes, and how large the window is.
    fn tell(&mut self) {
        for (seat, standing) in &self.standings {
            let (writes, size) = (self.seats.writes(*seat), self.size);
            standing.send_if_modified(|standing| {
                let is_new = standing.writes != writes || standing.size != size;
                (standing.writes, standing.size) = (writes, size);
                is_new
            });
        }
    }

    fn change(&self, seat: Seat, change: impl FnOnce(&mut Standing)) {
        if let Some(standing) = self.standings.get(&seat) {
            standing.send_modify(change);
        }
    }

    fn used(&self) {
        self.view.send_modify(|view| view.used = Instant::now());
    }

    /// What others may see.
    fn show(&self) {
        self.view.send_modify(|view| {
            view.viewers = self.seats.len();
            view.has_writer = self.seats.writer().is_some();
            view.size = self.size;
        });
    }
}
