//! A thread that owns an X connection: it performs one request at a time, and serves pasting programs in between.

use super::capture::{ScreenPicture, ScreenRegion, capture_screen};
use super::clipboard::X11Clipboard;
use super::connection::{X11Connection, x11_call_failed};
use super::keyboard::KeyboardMap;
use super::{DisplayMailbox, DisplayRefusal, input, resolution, windows};
use crate::protocol::display::{InputAction, ScreenPoint, ScreenSize, Window};
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

/// The thread that performs a request: requests of one thread never wait for those of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DisplayQueue {
    /// Mouse and keyboard, which wait for the server alone.
    Hands,
    /// All other requests: some wait for the program that owns the selection, or for the desktop.
    Eyes,
}

type DisplayReplySender<T> = oneshot::Sender<Result<T, DisplayRefusal>>;

/// A request to the screen.
#[derive(Debug)]
pub(super) enum DisplayRequest {
    Capture {
        region: Option<ScreenRegion>,
        answer: DisplayReplySender<ScreenPicture>,
    },
    Act {
        actions: Vec<InputAction>,
        answer: DisplayReplySender<ScreenPoint>,
    },
    Read {
        answer: DisplayReplySender<String>,
    },
    Write {
        text: String,
        answer: DisplayReplySender<()>,
    },
    Windows {
        answer: DisplayReplySender<Vec<Window>>,
    },
    Focus {
        id: u32,
        answer: DisplayReplySender<()>,
    },
    Screen {
        answer: DisplayReplySender<ScreenSize>,
    },
    Resize {
        size: (u16, u16),
        answer: DisplayReplySender<ScreenSize>,
    },
}

impl DisplayRequest {
    pub(super) fn target_queue(&self) -> DisplayQueue {
        match self {
            Self::Act { .. } => DisplayQueue::Hands,
            Self::Capture { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Windows { .. }
            | Self::Focus { .. }
            | Self::Screen { .. }
            | Self::Resize { .. } => DisplayQueue::Eyes,
        }
    }
}

/// The connection of a thread, while it is open.
#[derive(Debug)]
struct DisplayOwner {
    lane: DisplayQueue,
    session: Option<DisplaySession>,
    copied: watch::Sender<u64>,
}

/// A connection and its state.
#[derive(Debug)]
struct DisplaySession {
    connection: X11Connection,
    keyboard: Option<KeyboardMap>,
    clipboard: X11Clipboard,
}

/// Starts the thread. It ends when its mailbox is dropped, and changes `copied` when the clipboard may have changed.
pub(super) fn start_owner(
    lane: DisplayQueue,
    copied: watch::Sender<u64>,
) -> io::Result<DisplayMailbox> {
    let (ring, bell) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let (requests, mailbox) = mpsc::channel();
    let owner = DisplayOwner {
        lane,
        session: None,
        copied,
    };
    thread::Builder::new()
        .name("display".into())
        .spawn(move || owner.run(&mailbox, &ring))?;
    Ok(DisplayMailbox { requests, bell })
}

impl DisplayOwner {
    fn run(mut self, mailbox: &mpsc::Receiver<DisplayRequest>, ring: &OwnedFd) {
        loop {
            match mailbox.try_recv() {
                Ok(request) => self.handle_request(request),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    self.handle_pending_events();
                    self.wait_for_wakeup(ring);
                }
            }
        }
    }

    /// Handles the pending events; drops a connection that has ended.
    fn handle_pending_events(&mut self) {
        let is_over = self
            .session
            .as_mut()
            .is_some_and(|s| s.handle_events().is_err());
        if is_over {
            self.session = None;
        }
    }

    /// Waits for a request or an event of the server.
    fn wait_for_wakeup(&self, ring: &OwnedFd) {
        let mut polled = vec![PollFd::new(ring.as_fd(), PollFlags::POLLIN)];
        let session = self.session.as_ref();
        polled.extend(session.map(|s| PollFd::new(s.connection.as_fd(), PollFlags::POLLIN)));
        // An interrupted poll counts as a wake-up.
        let _ = poll(&mut polled, PollTimeout::NONE);
        let _ = read(ring, &mut [0; 64]);
    }

    fn handle_request(&mut self, request: DisplayRequest) {
        match request {
            DisplayRequest::Capture { region, answer } => {
                self.run_and_reply(answer, |s, _| capture_screen(&s.connection, region));
            }
            DisplayRequest::Act { actions, answer } => self.run_and_reply(answer, |s, asker| {
                let keyboard = match &mut s.keyboard {
                    Some(keyboard) => keyboard,
                    unread => unread.insert(KeyboardMap::read(&s.connection)?),
                };
                input::perform_actions(&s.connection, keyboard, &actions, || !asker.is_closed())
            }),
            DisplayRequest::Read { answer } => {
                self.run_and_reply(answer, |s, _| s.clipboard.read_text(&s.connection))
            }
            DisplayRequest::Write { text, answer } => {
                self.run_and_reply(answer, |s, _| s.clipboard.write_text(&s.connection, text));
            }
            DisplayRequest::Windows { answer } => {
                self.run_and_reply(answer, |s, _| windows::list_windows(&s.connection))
            }
            DisplayRequest::Focus { id, answer } => {
                self.run_and_reply(answer, |s, _| windows::focus_window(&s.connection, id));
            }
            DisplayRequest::Screen { answer } => {
                self.run_and_reply(answer, |s, _| resolution::read_screen_info(&s.connection));
            }
            DisplayRequest::Resize { size, answer } => {
                self.run_and_reply(answer, |s, _| {
                    resolution::change_resolution(&s.connection, size)
                });
            }
        }
    }

    /// Performs a request on the connection, which is reopened if the old one has ended.
    fn run_and_reply<T>(
        &mut self,
        answer: DisplayReplySender<T>,
        deed: impl FnOnce(&mut DisplaySession, &DisplayReplySender<T>) -> Result<T, DisplayRefusal>,
    ) {
        // The caller no longer waits.
        if answer.is_closed() {
            return;
        }
        self.handle_pending_events();
        let done = match &mut self.session {
            Some(session) => deed(session, &answer),
            None => DisplaySession::open(self.lane, &self.copied)
                .and_then(|opened| deed(self.session.insert(opened), &answer)),
        };
        if matches!(done, Err(DisplayRefusal::Gone(_))) {
            self.session = None;
        }
        let _ = answer.send(done);
    }
}

impl DisplaySession {
    fn open(lane: DisplayQueue, copied: &watch::Sender<u64>) -> Result<Self, DisplayRefusal> {
        let connection = X11Connection::open()?;
        let clipboard = X11Clipboard::new(copied.clone());
        if lane == DisplayQueue::Eyes {
            clipboard.watch_owner_changes(&connection)?;
        }
        Ok(Self {
            connection,
            keyboard: None,
            clipboard,
        })
    }

    fn handle_events(&mut self) -> Result<(), DisplayRefusal> {
        while let Some(event) = self
            .connection
            .x
            .poll_for_event()
            .map_err(x11_call_failed)?
        {
            match &event {
                Event::MappingNotify(changed) => {
                    let is_ours = changed.count == 1 && self.has_lent(changed.first_keycode)?;
                    // Another program changed the layout.
                    self.keyboard.take_if(|_| !is_ours);
                }
                Event::Error(_) => {}
                event => self.clipboard.handle_event(&self.connection, event)?,
            }
        }
        Ok(())
    }

    /// Whether this map remapped the key, and the key still types that character.
    fn has_lent(&self, code: Keycode) -> Result<bool, DisplayRefusal> {
        let Some(keyboard) = &self.keyboard else {
            return Ok(false);
        };
        let mapping = self.connection.x.get_keyboard_mapping(code, 1);
        let mapping = mapping
            .map_err(x11_call_failed)?
            .reply()
            .map_err(x11_call_failed)?;
        let symbol = mapping.keysyms.first().copied().unwrap_or_default();
        Ok(keyboard.has_lent(code, symbol))
    }
}

#[cfg(test)]
mod tests {
    use super::{DisplayQueue, DisplayRequest};
    use tokio::sync::oneshot::channel;

    #[test]
    fn hands_wait_for_nothing_but_hands() {
        let (actions, size) = (Vec::new(), (800, 600));
        let answer = channel().0;
        assert_eq!(
            DisplayRequest::Act { actions, answer }.target_queue(),
            DisplayQueue::Hands
        );
        // These requests wait for other programs, or take long.
        let answer = channel().0;
        assert_eq!(
            DisplayRequest::Read { answer }.target_queue(),
            DisplayQueue::Eyes
        );
        let answer = channel().0;
        assert_eq!(
            DisplayRequest::Resize { size, answer }.target_queue(),
            DisplayQueue::Eyes
        );
        let (region, answer) = (None, channel().0);
        assert_eq!(
            DisplayRequest::Capture { region, answer }.target_queue(),
            DisplayQueue::Eyes
        );
    }
}
