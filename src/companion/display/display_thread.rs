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
    Input,
    /// All other requests: some wait for the program that owns the selection, or for the desktop.
    Screen,
}

type DisplayReplySender<T> = oneshot::Sender<Result<T, DisplayRefusal>>;

/// A request to the screen.
#[derive(Debug)]
pub(super) enum DisplayRequest {
    CaptureScreen {
        region: Option<ScreenRegion>,
        reply: DisplayReplySender<ScreenPicture>,
    },
    PerformActions {
        actions: Vec<InputAction>,
        reply: DisplayReplySender<ScreenPoint>,
    },
    ReadClipboard {
        reply: DisplayReplySender<String>,
    },
    WriteClipboard {
        text: String,
        reply: DisplayReplySender<()>,
    },
    ListWindows {
        reply: DisplayReplySender<Vec<Window>>,
    },
    FocusWindow {
        id: u32,
        reply: DisplayReplySender<()>,
    },
    ScreenInfo {
        reply: DisplayReplySender<ScreenSize>,
    },
    ResizeScreen {
        size: (u16, u16),
        reply: DisplayReplySender<ScreenSize>,
    },
}

impl DisplayRequest {
    pub(super) fn target_queue(&self) -> DisplayQueue {
        match self {
            Self::PerformActions { .. } => DisplayQueue::Input,
            Self::CaptureScreen { .. }
            | Self::ReadClipboard { .. }
            | Self::WriteClipboard { .. }
            | Self::ListWindows { .. }
            | Self::FocusWindow { .. }
            | Self::ScreenInfo { .. }
            | Self::ResizeScreen { .. } => DisplayQueue::Screen,
        }
    }
}

/// The connection of a thread, while it is open.
#[derive(Debug)]
struct DisplayOwner {
    queue: DisplayQueue,
    session: Option<DisplaySession>,
    clipboard_changes: watch::Sender<u64>,
}

/// A connection and its state.
#[derive(Debug)]
struct DisplaySession {
    connection: X11Connection,
    keyboard: Option<KeyboardMap>,
    clipboard: X11Clipboard,
}

/// Starts the thread. It ends when its mailbox is dropped, and changes `clipboard_changes` when the clipboard may have
/// changed.
pub(super) fn start_display_owner(
    queue: DisplayQueue,
    clipboard_changes: watch::Sender<u64>,
) -> io::Result<DisplayMailbox> {
    let (wake_reader, wake_pipe) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let (requests, mailbox) = mpsc::channel();
    let owner = DisplayOwner {
        queue,
        session: None,
        clipboard_changes,
    };
    thread::Builder::new()
        .name("display".into())
        .spawn(move || owner.run(&mailbox, &wake_reader))?;
    Ok(DisplayMailbox {
        requests,
        wake_pipe,
    })
}

impl DisplayOwner {
    fn run(mut self, mailbox: &mpsc::Receiver<DisplayRequest>, wake_reader: &OwnedFd) {
        loop {
            match mailbox.try_recv() {
                Ok(request) => self.handle_request(request),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    self.handle_pending_events();
                    self.wait_for_wakeup(wake_reader);
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
    fn wait_for_wakeup(&self, wake_reader: &OwnedFd) {
        let mut polled = vec![PollFd::new(wake_reader.as_fd(), PollFlags::POLLIN)];
        let session = self.session.as_ref();
        polled.extend(session.map(|s| PollFd::new(s.connection.as_fd(), PollFlags::POLLIN)));
        // An interrupted poll counts as a wake-up.
        let _ = poll(&mut polled, PollTimeout::NONE);
        let _ = read(wake_reader, &mut [0; 64]);
    }

    fn handle_request(&mut self, request: DisplayRequest) {
        match request {
            DisplayRequest::CaptureScreen { region, reply } => {
                self.run_and_reply(reply, |s, _| capture_screen(&s.connection, region));
            }
            DisplayRequest::PerformActions { actions, reply } => {
                self.run_and_reply(reply, |s, reply_sender| {
                    let keyboard = match &mut s.keyboard {
                        Some(keyboard) => keyboard,
                        unread => unread.insert(KeyboardMap::read(&s.connection)?),
                    };
                    input::perform_actions(&s.connection, keyboard, &actions, || {
                        !reply_sender.is_closed()
                    })
                })
            }
            DisplayRequest::ReadClipboard { reply } => {
                self.run_and_reply(reply, |s, _| s.clipboard.read_text(&s.connection))
            }
            DisplayRequest::WriteClipboard { text, reply } => {
                self.run_and_reply(reply, |s, _| s.clipboard.write_text(&s.connection, text));
            }
            DisplayRequest::ListWindows { reply } => {
                self.run_and_reply(reply, |s, _| windows::list_windows(&s.connection))
            }
            DisplayRequest::FocusWindow { id, reply } => {
                self.run_and_reply(reply, |s, _| windows::focus_window(&s.connection, id));
            }
            DisplayRequest::ScreenInfo { reply } => {
                self.run_and_reply(reply, |s, _| resolution::read_screen_info(&s.connection));
            }
            DisplayRequest::ResizeScreen { size, reply } => {
                self.run_and_reply(reply, |s, _| {
                    resolution::change_resolution(&s.connection, size)
                });
            }
        }
    }

    /// Performs a request on the connection, which is reopened if the old one has ended.
    fn run_and_reply<T>(
        &mut self,
        answer: DisplayReplySender<T>,
        action: impl FnOnce(&mut DisplaySession, &DisplayReplySender<T>) -> Result<T, DisplayRefusal>,
    ) {
        // The caller no longer waits.
        if answer.is_closed() {
            return;
        }
        self.handle_pending_events();
        let done = match &mut self.session {
            Some(session) => action(session, &answer),
            None => DisplaySession::open(self.queue, &self.clipboard_changes)
                .and_then(|opened| action(self.session.insert(opened), &answer)),
        };
        if matches!(done, Err(DisplayRefusal::Unavailable(_))) {
            self.session = None;
        }
        let _ = answer.send(done);
    }
}

impl DisplaySession {
    fn open(
        queue: DisplayQueue,
        clipboard_changes: &watch::Sender<u64>,
    ) -> Result<Self, DisplayRefusal> {
        let connection = X11Connection::open()?;
        let clipboard = X11Clipboard::new(clipboard_changes.clone());
        if queue == DisplayQueue::Screen {
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
                    let is_ours = changed.count == 1 && self.is_remapped(changed.first_keycode)?;
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
    fn is_remapped(&self, code: Keycode) -> Result<bool, DisplayRefusal> {
        let Some(keyboard) = &self.keyboard else {
            return Ok(false);
        };
        let mapping = self.connection.x.get_keyboard_mapping(code, 1);
        let mapping = mapping
            .map_err(x11_call_failed)?
            .reply()
            .map_err(x11_call_failed)?;
        let symbol = mapping.keysyms.first().copied().unwrap_or_default();
        Ok(keyboard.is_remapped(code, symbol))
    }
}

#[cfg(test)]
mod tests {
    use super::{DisplayQueue, DisplayRequest};
    use tokio::sync::oneshot::channel;

    #[test]
    fn input_has_its_own_queue() {
        let (actions, size) = (Vec::new(), (800, 600));
        let reply = channel().0;
        assert_eq!(
            DisplayRequest::PerformActions { actions, reply }.target_queue(),
            DisplayQueue::Input
        );
        // These requests wait for other programs, or take long.
        let reply = channel().0;
        assert_eq!(
            DisplayRequest::ReadClipboard { reply }.target_queue(),
            DisplayQueue::Screen
        );
        let reply = channel().0;
        assert_eq!(
            DisplayRequest::ResizeScreen { size, reply }.target_queue(),
            DisplayQueue::Screen
        );
        let (region, reply) = (None, channel().0);
        assert_eq!(
            DisplayRequest::CaptureScreen { region, reply }.target_queue(),
            DisplayQueue::Screen
        );
    }
}
