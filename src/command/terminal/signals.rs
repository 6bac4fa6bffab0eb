//! What the system tells a process that has a terminal.

use crate::error::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// The window has another size.
    Resized,
    /// The process was stopped, and goes on.
    Continued,
    /// The process is to end.
    End,
}

#[cfg(unix)]
#[derive(Debug)]
pub(super) struct Signals {
    window: tokio::signal::unix::Signal,
    goes_on: tokio::signal::unix::Signal,
    ends: [tokio::signal::unix::Signal; 4],
}

#[cfg(unix)]
impl Signals {
    pub(super) fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        // Its number is another one elsewhere.
        let goes_on = if cfg!(target_os = "linux") { 18 } else { 19 };
        Ok(Self {
            window: signal(SignalKind::window_change())?,
            goes_on: signal(SignalKind::from_raw(goes_on))?,
            ends: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::quit())?,
            ],
        })
    }

    /// The next of them. Loses nothing when dropped.
    pub(super) async fn next(&mut self) -> Told {
        let [terminate, hangup, interrupt, quit] = &mut self.ends;
        tokio::select! {
            _ = self.window.recv() => Told::Resized,
            _ = self.goes_on.recv() => Told::Continued,
            _ = terminate.recv() => Told::End,
            _ = hangup.recv() => Told::End,
            _ = interrupt.recv() => Told::End,
            _ = quit.recv() => Told::End,
        }
    }
}

#[cfg(not(unix))]
#[derive(Debug)]
pub(super) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(super) fn listen() -> Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) -> Told {
        std::future::pending().await
    }
}
