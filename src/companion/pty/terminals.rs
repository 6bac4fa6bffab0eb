//! The terminals by id: those that live, and for a while those that have ended, so that whoever
//! lost a connection still hears the end.

use super::{Exit, Limits, Refusal, Start, Terminal, Visit, Who};
use crate::protocol::hex::hex;
use crate::protocol::pty::Why;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long one that has ended can be found.
const REMEMBERED: Duration = Duration::from_secs(120);

/// How many of those there may be.
const ENDED: usize = 16;

/// Characters of a client's name.
const LONGEST: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct Terminals {
    limits: Limits,
    all: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// By the order in which they began.
    terminals: BTreeMap<u64, Entry>,
    last: u64,
    is_stopping: bool,
}

#[derive(Debug)]
struct Entry {
    terminal: Terminal,
    /// Who asked for it: a client that lost its connection before it heard the id asks again.
    client: Option<String>,
}

impl Terminals {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: Arc::default(),
        }
    }

    /// All of them, the oldest first.
    pub(crate) fn all(&self) -> Vec<Terminal> {
        let known = self.lock();
        let all = known.terminals.values();
        all.map(|entry| entry.terminal.clone()).collect()
    }

    /// The sessions of those that live.
    pub(crate) fn sessions(&self) -> BTreeSet<String> {
        let all = self.all().into_iter();
        let living = all.filter(|terminal| terminal.exit().is_none());
        living.map(|terminal| terminal.session().into()).collect()
    }

    /// Takes a place before the terminal of that id, or before a new one.
    ///
    /// # Errors
    /// Every [`Refusal`].
    pub(crate) async fn visit(
        &self,
        id: Option<&str>,
        start: &Start,
        mut who: Who,
    ) -> Result<Visit, Refusal> {
        if let Some(client) = who.client.as_deref().filter(|client| !is_name(client)) {
            let message = format!(
                "`{client}` can't be a client's name: use letters, digits, `-`, `_` and `.`, {LONGEST} at most"
            );
            return Err(Refusal::Invalid(message));
        }
        let terminal = match id {
            Some(id) => self.find(id)?,
            None => {
                // All that a new one has shown is for its first client.
                who.since = who.since.or(Some(0));
                self.make(start, who.client.as_deref())?
            }
        };
        terminal.visit(who).await
    }

    /// Ends a terminal and everything that it runs.
    ///
    /// # Errors
    /// [`Refusal::NoTerminal`] or [`Refusal::Stopping`].
    pub(crate) async fn end(&self, id: &str) -> Result<Exit, Refusal> {
        let terminal = self.find(id)?;
        terminal.end(Why::Ended).await.ok_or(Refusal::Stopping)
    }

    /// Ends all of them; none begins any more.
    pub(crate) async fn shutdown(&self) {
        let all: Vec<Terminal> = {
            let mut known = self.lock();
            known.is_stopping = true;
            known
                .terminals
                .values()
                .map(|e| e.terminal.clone())
                .collect()
        };
        futures_util::future::join_all(all.iter().map(|terminal| terminal.end(Why::Stopped))).await;
    }

    fn find(&self, id: &str) -> Result<Terminal, Refusal> {
        let found = self.all().into_iter().find(|terminal| terminal.id() == id);
        found.ok_or_else(|| Refusal::NoTerminal(id.into()))
    }

    /// A new one; the one that this client has asked for before.
    fn make(&self, start: &Start, client: Option<&str>) -> Result<Terminal, Refusal> {
        let mut known = self.lock();
        if known.is_stopping {
            return Err(Refusal::Stopping);
        }
        let mut entries = known.terminals.values();
        let asked = entries.find(|entry| client.is_some() && entry.client.as_deref() == client);
        if let Some(entry) = asked {
            return Ok(entry.terminal.clone());
        }
        let Limits { count, idle } = self.limits;
        let living = known.terminals.values();
        if living.filter(|e| e.terminal.exit().is_none()).count() >= count {
            return Err(Refusal::TooMany(count));
        }
        let id = id().map_err(Refusal::NoShell)?;
        let terminal = Terminal::start(id, start, idle)?;
        known.last += 1;
        let number = known.last;
        let client = client.map(str::to_owned);
        let entry = Entry {
            terminal: terminal.clone(),
            client,
        };
        known.terminals.insert(number, entry);
        tokio::spawn(self.clone().forget(number, terminal.clone()));
        Ok(terminal)
    }

    /// Forgets a terminal some time after its end, and older ones that have ended when there are
    /// too many.
    async fn forget(self, number: u64, terminal: Terminal) {
        terminal.output.ended().await;
        drop(terminal);
        {
            let terminals = &mut self.lock().terminals;
            let ended: Vec<u64> = terminals
                .iter()
                .filter(|(_, entry)| entry.terminal.exit().is_some())
                .map(|(number, _)| *number)
                .collect();
            for number in &ended[..ended.len().saturating_sub(ENDED)] {
                terminals.remove(number);
            }
        }
        tokio::time::sleep(REMEMBERED).await;
        self.lock().terminals.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Short enough to be typed.
fn id() -> Result<String, String> {
    let mut bytes = [0u8; 4];
    getrandom::fill(&mut bytes).map_err(|error| format!("no randomness: {error}"))?;
    Ok(hex(bytes))
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=LONGEST).contains(&name.len()) && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn a_clients_name_is_letters_and_digits() {
        assert!(is_name("a-1_b.C"));
        for name in ["", "a/b", "/1", "ä", "a b", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
