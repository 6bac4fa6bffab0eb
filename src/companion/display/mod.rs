//! The screen inside, as a client of its X server sees it: pictures, hands, the clipboard, windows.
//!
//! [`Display`] sends requests to two threads, each an [`owner`], which alone holds its connection:
//! X's calls block, and whoever has copied something must go on answering for it. A server that does
//! not answer costs these threads a few seconds, and nobody else anything. Hands have a thread of
//! their own ([`Lane`]), so that a key waits for no program that has copied something, and for no
//! desktop that gets another size.
//!
//! Nothing here starts the server, or knows who looks: see `companion::desktop`.

mod capture;
mod clipboard;
mod connection;
mod hands;
mod keyboard;
mod keys;
mod owner;
mod pace;
mod probe;
mod resolution;
mod windows;

pub(crate) use capture::{Picture, Region};
pub(crate) use probe::{answers, is_managed, is_painted};

use crate::protocol::display::{Action, Place, Screen, Window};
use nix::unistd::write;
use owner::{Lane, Request};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// The server's name inside.
pub(crate) const NAME: &str = ":99";

/// How long anybody waits for the owner, the largest requests included.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server is gone, or does not answer; why.
    Gone(String),
    Invalid(String),
    NoWindow(u32),
    /// The window manager did not do it.
    Unmoved(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(why) => write!(f, "the screen does not answer: {why}"),
            Self::Invalid(why) | Self::Unmoved(why) => f.write_str(why),
            Self::NoWindow(id) => write!(f, "there is no window {id}"),
        }
    }
}

/// The connections' owners, for everyone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Display {
    /// Each is made when it is first needed.
    hands: Arc<OnceLock<Mailbox>>,
    eyes: Arc<OnceLock<Mailbox>>,
    copied: watch::Sender<u64>,
}

#[derive(Debug)]
struct Mailbox {
    requests: mpsc::Sender<Request>,
    /// Wakes the owner, which also waits for the server.
    bell: OwnedFd,
}

impl Display {
    /// What is on the screen now.
    pub(crate) async fn capture(&self, region: Option<Region>) -> Result<Picture, Refusal> {
        self.ask(|answer| Request::Capture { region, answer }).await
    }

    /// Does all of it, and tells where the pointer is then.
    pub(crate) async fn act(&self, actions: Vec<Action>) -> Result<Place, Refusal> {
        self.ask(|answer| Request::Act { actions, answer }).await
    }

    pub(crate) async fn read_clipboard(&self) -> Result<String, Refusal> {
        self.ask(|answer| Request::Read { answer }).await
    }

    pub(crate) async fn write_clipboard(&self, text: String) -> Result<(), Refusal> {
        self.ask(|answer| Request::Write { text, answer }).await
    }

    /// Another number whenever something else may have been copied, once the screen was asked anything
    /// but to move its hands.
    pub(crate) fn copied(&self) -> watch::Receiver<u64> {
        self.copied.subscribe()
    }

    pub(crate) async fn windows(&self) -> Result<Vec<Window>, Refusal> {
        self.ask(|answer| Request::Windows { answer }).await
    }

    pub(crate) async fn focus(&self, id: u32) -> Result<(), Refusal> {
        self.ask(|answer| Request::Focus { id, answer }).await
    }

    pub(crate) async fn screen(&self) -> Result<Screen, Refusal> {
        self.ask(|answer| Request::Screen { answer }).await
    }

    pub(crate) async fn resize(&self, width: u16, height: u16) -> Result<Screen, Refusal> {
        let size = (width, height);
        self.ask(|answer| Request::Resize { size, answer }).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Refusal>>) -> Request,
    ) -> Result<T, Refusal> {
        let gone = |why: &str| Refusal::Gone(why.into());
        let (answer, answered) = oneshot::channel();
        let request = request(answer);
        let mailbox = self.mailbox(request.lane())?;
        let sent = mailbox.requests.send(request);
        sent.map_err(|_| gone("its client has ended"))?;
        // A full bell rings already.
        let _ = write(&mailbox.bell, &[0]);
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(answer) => answer.map_err(|_| gone("its client has ended"))?,
            Err(_) => Err(gone("it does not answer")),
        }
    }

    fn mailbox(&self, lane: Lane) -> Result<&Mailbox, Refusal> {
        let place = match lane {
            Lane::Hands => &self.hands,
            Lane::Eyes => &self.eyes,
        };
        if let Some(mailbox) = place.get() {
            return Ok(mailbox);
        }
        let made = owner::start(lane, self.copied.clone());
        let made = made.map_err(|error| Refusal::Gone(error.to_string()))?;
        // Nothing was awaited since, and there is one runtime's thread.
        Ok(place.get_or_init(|| made))
    }
}
