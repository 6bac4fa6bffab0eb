//! A thread that owns a connection: it does one thing after the other, and between them answers
//! programs that paste what was put on the clipboard.

use super::capture::{Picture, Region, capture};
use super::clipboard::Clipboard;
use super::connection::{Connection, failed};
use super::keyboard::Keyboard;
use super::{Mailbox, Refusal, hands, resolution, windows};
use crate::protocol::display::{Action, Place, Screen, Window};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{pipe2, read};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use tokio::sync::{oneshot, watch};
use x11rb::connection::Connection as _;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{ConnectionExt as _, Keycode};

/// Which of the threads does something: what stands in one waits for nothing in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Mouse and keys, which wait for the server alone.
    Hands,
    /// All else: some of it waits for a program that has copied something, or for the desktop.
    Eyes,
}

type Answer<T> = oneshot::Sender<Result<T, Refusal>>;

/// What is asked of the screen.
#[derive(Debug)]
pub(super) enum Request {
    Capture {
        region: Option<Region>,
        answer: Answer<Picture>,
    },
    Act {
        actions: Vec<Action>,
        answer: Answer<Place>,
    },
    Read {
        answer: Answer<String>,
    },
    Write {
        text: String,
        answer: Answer<()>,
    },
    Windows {
        answer: Answer<Vec<Window>>,
    },
    Focus {
        id: u32,
        answer: Answer<()>,
    },
    Screen {
        answer: Answer<Screen>,
    },
    Resize {
        size: (u16, u16),
        answer: Answer<Screen>,
    },
}

impl Request {
    pub(super) fn lane(&self) -> Lane {
        match self {
            Self::Act { .. } => Lane::Hands,
            Self::Capture { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Windows { .. }
            | Self::Focus { .. }
            | Self::Screen { .. }
            | Self::Resize { .. } => Lane::Eyes,
        }
    }
}

/// A thread's connection, while there is one.
#[derive(Debug)]
struct Owner {
    lane: Lane,
    session: Option<Session>,
    copied: watch::Sender<u64>,
}

/// A connection and what is known by it.
#[derive(Debug)]
struct Session {
    connection: Connection,
    keyboard: Option<Keyboard>,
    clipboard: Clipboard,
}

/// Starts the thread, which ends with its mailbox, and tells by `copied` when something else may have
/// been copied.
pub(super) fn start(lane: Lane, copied: watch::Sender<u64>) -> io::Result<Mailbox> {
    let (ring, bell) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let (requests, mailbox) = mpsc::channel();
    let owner = Owner {
        lane,
        session: None,
        copied,
    };
    thread::Builder::new()
        .name("display".into())
        .spawn(move || owner.live(&mailbox, &ring))?;
    Ok(Mailbox { requests, bell })
}

impl Owner {
    fn live(mut self, mailbox: &mpsc::Receiver<Request>, ring: &OwnedFd) {
        loop {
            match mailbox.try_recv() {
                Ok(request) => self.serve(request),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    self.tidy();
                    self.wait(ring);
                }
            }
        }
    }

    /// Answers what programs asked; a connection that has ended is forgotten.
    fn tidy(&mut self) {
        let is_over = self.session.as_mut().is_some_and(|s| s.hear().is_err());
        if is_over {
            self.session = None;
        }
    }

    /// Until somebody rings, or the server says something.
    fn wait(&self, ring: &OwnedFd) {
        let mut polled = vec![PollFd::new(ring.as_fd(), PollFlags::POLLIN)];
        let session = self.session.as_ref();
        polled.extend(session.map(|s| PollFd::new(s.connection.as_fd(), PollFlags::POLLIN)));
        // Interrupted is as good as woken.
        let _ = poll(&mut polled, PollTimeout::NONE);
        let _ = read(ring, &mut [0; 64]);
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Capture { region, answer } => {
                self.reply(answer, |s, _| capture(&s.connection, region));
            }
            Request::Act { actions, answer } => self.reply(answer, |s, asker| {
                let keyboard = match &mut s.keyboard {
                    Some(keyboard) => keyboard,
                    unread => unread.insert(Keyboard::read(&s.connection)?),
                };
                hands::act(&s.connection, keyboard, &actions, || !asker.is_closed())
            }),
            Request::Read { answer } => self.reply(answer, |s, _| s.clipboard.read(&s.connection)),
            Request::Write { text, answer } => {
                self.reply(answer, |s, _| s.clipboard.write(&s.connection, text));
            }
            Request::Windows { answer } => self.reply(answer, |s, _| windows::list(&s.connection)),
            Request::Focus { id, answer } => {
                self.reply(answer, |s, _| windows::focus(&s.connection, id));
            }
            Request::Screen { answer } => {
                self.reply(answer, |s, _| resolution::read(&s.connection));
            }
            Request::Resize { size, answer } => {
                self.reply(answer, |s, _| resolution::change(&s.connection, size));
            }
        }
    }

    /// Does it on the connection, made anew where the old one has ended.
    fn reply<T>(
        &mut self,
        answer: Answer<T>,
        deed: impl FnOnce(&mut Session, &Answer<T>) -> Result<T, Refusal>,
    ) {
        // Whoever asked has given up.
        if answer.is_closed() {
            return;
        }
        self.tidy();
        let done = match &mut self.session {
            Some(session) => deed(session, &answer),
            None => Session::open(self.lane, &self.copied)
                .and_then(|opened| deed(self.session.insert(opened), &answer)),
        };
        if matches!(done, Err(Refusal::Gone(_))) {
            self.session = None;
        }
        let _ = answer.send(done);
    }
}

impl Session {
    fn open(lane: Lane, copied: &watch::Sender<u64>) -> Result<Self, Refusal> {
        let connection = Connection::open()?;
        let clipboard = Clipboard::new(copied.clone());
        if lane == Lane::Eyes {
            clipboard.watch(&connection)?;
        }
        Ok(Self {
            connection,
            keyboard: None,
            clipboard,
        })
    }

    fn hear(&mut self) -> Result<(), Refusal> {
        while let Some(event) = self.connection.x.poll_for_event().map_err(failed)? {
            match &event {
                Event::MappingNotify(changed) => {
                    let is_ours = changed.count == 1 && self.has_lent(changed.first_keycode)?;
                    // Somebody chose another layout.
                    self.keyboard.take_if(|_| !is_ours);
                }
                Event::Error(_) => {}
                event => self.clipboard.answer(&self.connection, event)?,
            }
        }
        Ok(())
    }

    /// Whether we have lent that key, and it still types what we have put on it.
    fn has_lent(&self, code: Keycode) -> Result<bool, Refusal> {
        let Some(keyboard) = &self.keyboard else {
            return Ok(false);
        };
        let mapping = self.connection.x.get_keyboard_mapping(code, 1);
        let mapping = mapping.map_err(failed)?.reply().map_err(failed)?;
        let symbol = mapping.keysyms.first().copied().unwrap_or_default();
        Ok(keyboard.has_lent(code, symbol))
    }
}

#[cfg(test)]
mod tests {
    use super::{Lane, Request};
    use tokio::sync::oneshot::channel;

    #[test]
    fn hands_wait_for_nothing_but_hands() {
        let (actions, size) = (Vec::new(), (800, 600));
        let answer = channel().0;
        assert_eq!(Request::Act { actions, answer }.lane(), Lane::Hands);
        // These wait for other programs, or take long.
        let answer = channel().0;
        assert_eq!(Request::Read { answer }.lane(), Lane::Eyes);
        let answer = channel().0;
        assert_eq!(Request::Resize { size, answer }.lane(), Lane::Eyes);
        let (region, answer) = (None, channel().0);
        assert_eq!(Request::Capture { region, answer }.lane(), Lane::Eyes);
    }
}
