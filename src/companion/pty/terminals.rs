//! All terminals by id: the live ones, and for some time those that have ended, so that a client that lost its
//! connection still gets the terminal's end.

use super::{
    PtyAttachRequest, PtyConnection, PtyExit, PtyLimits, PtyRefusal, PtyStart, PtyTerminal,
};
use crate::protocol::hex::hex;
use crate::protocol::pty::TerminalEndReason;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long an ended terminal can be found.
const ENDED_TERMINAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of ended terminals that are kept.
const MAX_ENDED_TERMINALS: usize = 16;

/// Maximum characters of a client's name.
const MAX_CLIENT_NAME_CHARS: usize = 64;

/// Starts a terminal of this id; see [`PtyTerminal::start`].
pub(super) type StartTerminal = fn(String, &PtyStart, Duration) -> Result<PtyTerminal, PtyRefusal>;

#[derive(Debug, Clone)]
pub(crate) struct PtyTerminals {
    limits: PtyLimits,
    start_terminal: StartTerminal,
    state: Arc<Mutex<PtyTerminalsState>>,
}

#[derive(Debug, Default)]
struct PtyTerminalsState {
    /// In order of their start.
    terminals: BTreeMap<u64, PtyTerminalEntry>,
    last_number: u64,
    is_stopping: bool,
}

#[derive(Debug)]
struct PtyTerminalEntry {
    terminal: PtyTerminal,
    /// The client that opened the terminal: a client that lost its connection before it received the id sends its
    /// request again.
    client: Option<String>,
}

impl PtyTerminals {
    pub(crate) fn new(limits: PtyLimits) -> Self {
        Self::with_start(limits, PtyTerminal::start)
    }

    pub(super) fn with_start(limits: PtyLimits, start_terminal: StartTerminal) -> Self {
        Self {
            limits,
            start_terminal,
            state: Arc::default(),
        }
    }

    /// All terminals, oldest first.
    pub(crate) fn list_terminals(&self) -> Vec<PtyTerminal> {
        let known = self.state.lock();
        let all = known.terminals.values();
        all.map(|entry| entry.terminal.clone()).collect()
    }

    /// The sessions of live terminals.
    pub(crate) fn live_sessions(&self) -> BTreeSet<String> {
        let all = self.list_terminals().into_iter();
        let running = all.filter(|terminal| terminal.exit_status().is_none());
        running.map(|terminal| terminal.session().into()).collect()
    }

    /// Attaches to the terminal of that id, or to a new one.
    ///
    /// # Errors
    /// Every [`PtyRefusal`].
    pub(crate) async fn attach_client(
        &self,
        id: Option<&str>,
        start: &PtyStart,
        mut request: PtyAttachRequest,
    ) -> Result<PtyConnection, PtyRefusal> {
        if let Some(client) = request
            .client
            .as_deref()
            .filter(|client| !is_client_name(client))
        {
            let message = format!(
                "`{client}` can't be a client's name: use up to {MAX_CLIENT_NAME_CHARS} letters, digits, `-`, `_` and `.`"
            );
            return Err(PtyRefusal::Invalid(message));
        }
        let terminal = match id {
            Some(id) => self.find_terminal(id)?,
            None => {
                // The first client of a new terminal gets all its output.
                request.from_offset = request.from_offset.or(Some(0));
                self.find_or_start(start, request.client.as_deref())?
            }
        };
        terminal.attach_client(request).await
    }

    /// Ends a terminal and all its processes.
    ///
    /// # Errors
    /// [`PtyRefusal::NoTerminal`] or [`PtyRefusal::ShuttingDown`].
    pub(crate) async fn end_terminal(&self, id: &str) -> Result<PtyExit, PtyRefusal> {
        let terminal = self.find_terminal(id)?;
        terminal
            .end_terminal(TerminalEndReason::Ended)
            .await
            .ok_or(PtyRefusal::ShuttingDown)
    }

    /// Ends all terminals and refuses new ones.
    pub(crate) async fn shutdown(&self) {
        let all: Vec<PtyTerminal> = {
            let mut known = self.state.lock();
            known.is_stopping = true;
            known
                .terminals
                .values()
                .map(|e| e.terminal.clone())
                .collect()
        };
        futures_util::future::join_all(
            all.iter()
                .map(|terminal| terminal.end_terminal(TerminalEndReason::Stopped)),
        )
        .await;
    }

    fn find_terminal(&self, id: &str) -> Result<PtyTerminal, PtyRefusal> {
        let found = self
            .list_terminals()
            .into_iter()
            .find(|terminal| terminal.id() == id);
        found.ok_or_else(|| PtyRefusal::NoTerminal(id.into()))
    }

    /// Starts a new terminal, or finds the terminal that this client has opened before.
    fn find_or_start(
        &self,
        start: &PtyStart,
        client: Option<&str>,
    ) -> Result<PtyTerminal, PtyRefusal> {
        let mut known = self.state.lock();
        if known.is_stopping {
            return Err(PtyRefusal::ShuttingDown);
        }
        let mut entries = known.terminals.values();
        let existing = entries.find(|entry| client.is_some() && entry.client.as_deref() == client);
        if let Some(entry) = existing {
            return Ok(entry.terminal.clone());
        }
        let PtyLimits {
            max_terminals,
            idle_timeout,
        } = self.limits;
        let running = known.terminals.values();
        if running
            .filter(|e| e.terminal.exit_status().is_none())
            .count()
            >= max_terminals
        {
            return Err(PtyRefusal::TooManyTerminals(max_terminals));
        }
        let id = new_terminal_id().map_err(PtyRefusal::ShellNotStarted)?;
        let terminal = (self.start_terminal)(id, start, idle_timeout)?;
        known.last_number += 1;
        let number = known.last_number;
        let client = client.map(str::to_owned);
        let entry = PtyTerminalEntry {
            terminal: terminal.clone(),
            client,
        };
        known.terminals.insert(number, entry);
        tokio::spawn(self.clone().remove_after_exit(number, terminal.clone()));
        Ok(terminal)
    }

    /// Removes a terminal some time after its end, and the oldest ended terminals when there are too many.
    async fn remove_after_exit(self, number: u64, terminal: PtyTerminal) {
        terminal.output.wait_for_exit().await;
        drop(terminal);
        {
            let terminals = &mut self.state.lock().terminals;
            let ended: Vec<u64> = terminals
                .iter()
                .filter(|(_, entry)| entry.terminal.exit_status().is_some())
                .map(|(number, _)| *number)
                .collect();
            for number in &ended[..ended.len().saturating_sub(MAX_ENDED_TERMINALS)] {
                terminals.remove(number);
            }
        }
        tokio::time::sleep(ENDED_TERMINAL_TIMEOUT).await;
        self.state.lock().terminals.remove(&number);
    }
}

/// Returns a new id, short enough to be typed.
fn new_terminal_id() -> Result<String, String> {
    let mut bytes = [0u8; 4];
    getrandom::fill(&mut bytes)
        .map_err(|error| format!("the system provides no random numbers: {error}"))?;
    Ok(hex(bytes))
}

fn is_client_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=MAX_CLIENT_NAME_CHARS).contains(&name.len()) && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::is_client_name;

    #[test]
    fn a_clients_name_is_letters_and_digits() {
        assert!(is_client_name("a-1_b.C"));
        for name in ["", "a/b", "/1", "ä", "a b", &"x".repeat(65)] {
            assert!(!is_client_name(name), "{name}");
        }
    }
}
