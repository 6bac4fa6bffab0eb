//! Signals for a process that controls a terminal.

use crate::error::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TerminalSignal {
    /// The window size changed.
    Resized,
    /// The process was stopped and has resumed.
    Continued,
    /// The process is to end.
    End,
}

#[cfg(unix)]
#[derive(Debug)]
pub(super) struct TerminalSignals {
    window: tokio::signal::unix::Signal,
    continued: tokio::signal::unix::Signal,
    ends: [tokio::signal::unix::Signal; 4],
}

#[cfg(unix)]
impl TerminalSignals {
    pub(super) fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        // The number of SIGCONT differs between systems.
        let sigcont = if cfg!(target_os = "linux") { 18 } else { 19 };
        Ok(Self {
            window: signal(SignalKind::window_change())?,
            continued: signal(SignalKind::from_raw(sigcont))?,
            ends: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::quit())?,
            ],
        })
    }

    /// The next signal. Cancel safe.
    pub(super) async fn next(&mut self) -> TerminalSignal {
        let [terminate, hangup, interrupt, quit] = &mut self.ends;
        tokio::select! {
            _ = self.window.recv() => TerminalSignal::Resized,
            _ = self.continued.recv() => TerminalSignal::Continued,
            _ = terminate.recv() => TerminalSignal::End,
            _ = hangup.recv() => TerminalSignal::End,
            _ = interrupt.recv() => TerminalSignal::End,
            _ = quit.recv() => TerminalSignal::End,
        }
    }
}

#[cfg(not(unix))]
#[derive(Debug)]
pub(super) struct TerminalSignals;

#[cfg(not(unix))]
impl TerminalSignals {
    pub(super) fn listen() -> Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) -> TerminalSignal {
        std::future::pending().await
    }
}
