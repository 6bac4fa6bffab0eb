//! The screen inside, as a client of its X server: screenshots, input, clipboard, windows.
//!
//! [`DisplayClient`] sends requests to two threads, each a [`display_thread`], the only user of its connection: X calls
//! block, and the owner of a selection must serve its text at any time. A server that does not answer blocks these
//! threads for a few seconds and nothing else. Input has its own thread ([`DisplayQueue`]), so that a key waits neither for a
//! program that owns the selection nor for a desktop that is being resized.
//!
//! This module neither starts the server nor tracks viewers: see `companion::desktop`.

mod capture;
mod clipboard;
mod connection;
mod display_thread;
#[cfg(test)]
pub(crate) mod fake_display;
mod input;
mod input_duration;
mod key_names;
mod keyboard;
mod resolution;
mod screen_probe;
mod windows;

pub(crate) use capture::{ScreenPicture, ScreenRegion};
pub(crate) use screen_probe::{
    has_taskbar, has_window_manager, is_desktop_painted, is_server_responding,
};

use crate::protocol::display::{InputAction, ScreenPoint, ScreenSize, Window};
use display_thread::{DisplayQueue, DisplayRequest};
use nix::unistd::write;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// The name of the X display inside.
pub(crate) const DISPLAY_NAME: &str = ":99";

/// Maximum wait for the owner thread, sufficient for the largest requests.
const DISPLAY_REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DisplayRefusal {
    /// The server is gone or does not answer, with the reason.
    Unavailable(String),
    Invalid(String),
    NoWindow(u32),
    /// The window manager or another program did not carry out the request.
    NotApplied(String),
}

impl fmt::Display for DisplayRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "the screen is not available: {why}"),
            Self::Invalid(why) | Self::NotApplied(why) => f.write_str(why),
            Self::NoWindow(id) => write!(f, "there is no window {id}"),
        }
    }
}

/// A handle to both owner threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct DisplayClient {
    /// Each thread starts at its first request.
    input_mailbox: Arc<OnceLock<DisplayMailbox>>,
    screen_mailbox: Arc<OnceLock<DisplayMailbox>>,
    clipboard_changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct DisplayMailbox {
    requests: mpsc::Sender<DisplayRequest>,
    /// Wakes the owner, which also waits for the server.
    wake_pipe: OwnedFd,
}

impl DisplayClient {
    /// Captures the current content of the screen.
    pub(crate) async fn capture_screen(
        &self,
        region: Option<ScreenRegion>,
    ) -> Result<ScreenPicture, DisplayRefusal> {
        self.send_request(|reply| DisplayRequest::CaptureScreen { region, reply })
            .await
    }

    /// Performs all actions and returns the position of the pointer.
    pub(crate) async fn perform_actions(
        &self,
        actions: Vec<InputAction>,
    ) -> Result<ScreenPoint, DisplayRefusal> {
        self.send_request(|reply| DisplayRequest::PerformActions { actions, reply })
            .await
    }

    pub(crate) async fn read_clipboard(&self) -> Result<String, DisplayRefusal> {
        self.send_request(|reply| DisplayRequest::ReadClipboard { reply })
            .await
    }

    pub(crate) async fn write_clipboard(&self, text: String) -> Result<(), DisplayRefusal> {
        self.send_request(|reply| DisplayRequest::WriteClipboard { text, reply })
            .await
    }

    /// Receives another number whenever the clipboard may have changed. The first request other than input starts the
    /// watch.
    pub(crate) fn watch_clipboard(&self) -> watch::Receiver<u64> {
        self.clipboard_changes.subscribe()
    }

    pub(crate) async fn list_windows(&self) -> Result<Vec<Window>, DisplayRefusal> {
        self.send_request(|reply| DisplayRequest::ListWindows { reply })
            .await
    }

    pub(crate) async fn focus_window(&self, id: u32) -> Result<(), DisplayRefusal> {
        self.send_request(|reply| DisplayRequest::FocusWindow { id, reply })
            .await
    }

    pub(crate) async fn screen_info(&self) -> Result<ScreenSize, DisplayRefusal> {
        self.send_request(|reply| DisplayRequest::ScreenInfo { reply })
            .await
    }

    pub(crate) async fn resize_screen(
        &self,
        width: u16,
        height: u16,
    ) -> Result<ScreenSize, DisplayRefusal> {
        let size = (width, height);
        self.send_request(|reply| DisplayRequest::ResizeScreen { size, reply })
            .await
    }

    async fn send_request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, DisplayRefusal>>) -> DisplayRequest,
    ) -> Result<T, DisplayRefusal> {
        let unavailable = |why: &str| DisplayRefusal::Unavailable(why.into());
        let (answer, answered) = oneshot::channel();
        let request = request(answer);
        let mailbox = self.queue_mailbox(request.target_queue())?;
        let sent = mailbox.requests.send(request);
        sent.map_err(|_| unavailable("the display client has ended"))?;
        // A full pipe wakes the owner already.
        let _ = write(&mailbox.wake_pipe, &[0]);
        match tokio::time::timeout(DISPLAY_REQUEST_TIMEOUT, answered).await {
            Ok(answer) => answer.map_err(|_| unavailable("the display client has ended"))?,
            Err(_) => Err(unavailable("no reply from the display client")),
        }
    }

    fn queue_mailbox(&self, queue: DisplayQueue) -> Result<&DisplayMailbox, DisplayRefusal> {
        let slot = match queue {
            DisplayQueue::Input => &self.input_mailbox,
            DisplayQueue::Screen => &self.screen_mailbox,
        };
        if let Some(mailbox) = slot.get() {
            return Ok(mailbox);
        }
        let started = display_thread::start_display_owner(queue, self.clipboard_changes.clone());
        let started = started.map_err(|error| DisplayRefusal::Unavailable(error.to_string()))?;
        // No other task ran since the check: there is no await in between, and the runtime has one thread.
        Ok(slot.get_or_init(|| started))
    }
}
