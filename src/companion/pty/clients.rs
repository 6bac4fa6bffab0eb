//! The clients of a terminal, and which of them is the writer.
//!
//! ```text
//!            first, or takes over                       leaves
//!   none ──────────────────────▶ a writer, connected ────────▶ none
//!     ▲                           │ lost   ▲ reconnects
//!     └── another, after ─────── reserved ─┘
//!         WRITER_RECONNECT_TIMEOUT
//! ```
//!
//! The terminal counts the typed bytes of each remembered client, so that after a lost connection the client sends
//! exactly the bytes that did not arrive. Clients without a name are not remembered.

use crate::protocol::pty::TerminalRole;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// How long the place of a writer that lost its connection is reserved.
const WRITER_RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of clients whose count of typed bytes is remembered.
const MAX_REMEMBERED_CLIENTS: usize = 16;

/// The id of a connection.
pub(super) type PtyConnectionId = u64;

#[derive(Debug, Default)]
pub(super) struct PtyClients {
    last_id: PtyConnectionId,
    connected: BTreeMap<PtyConnectionId, PtyClientName>,
    writer: Option<PtyWriter>,
    /// Typed bytes of each client, the latest client at the end.
    typed_counts: VecDeque<(String, u64)>,
}

type PtyClientName = Option<String>;

#[derive(Debug)]
struct PtyWriter {
    connection_id: PtyConnectionId,
    client: PtyClientName,
    /// When the writer lost its connection; `None` while it is connected.
    disconnected_at: Option<Instant>,
}

/// An admitted connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PtyAdmission {
    pub(super) connection_id: PtyConnectionId,
    /// The same client's earlier connection, which ends now.
    pub(super) replaced_id: Option<PtyConnectionId>,
    /// Bytes of the client that have arrived; `None` when unknown.
    pub(super) typed_bytes: Option<u64>,
}

impl PtyClients {
    pub(super) fn add_client(
        &mut self,
        client: PtyClientName,
        role: TerminalRole,
        take: bool,
        now: Instant,
    ) -> PtyAdmission {
        self.last_id += 1;
        let connection_id = self.last_id;
        let is_same = |theirs: &PtyClientName| client.is_some() && *theirs == client;
        let mut taken = self.connected.iter();
        let replaced_id = taken.find(|(_, theirs)| is_same(theirs)).map(|(s, _)| *s);
        if let Some(old) = replaced_id {
            self.connected.remove(&old);
        }
        let is_free = match &self.writer {
            None => true,
            Some(writer) if is_same(&writer.client) => true,
            Some(writer) => writer
                .disconnected_at
                .is_some_and(|at| now - at >= WRITER_RECONNECT_TIMEOUT),
        };
        if role == TerminalRole::Write && (is_free || take) {
            let (client, disconnected_at) = (client.clone(), None);
            self.writer = Some(PtyWriter {
                connection_id,
                client,
                disconnected_at,
            });
        } else if self.writer.as_ref().is_some_and(|w| is_same(&w.client)) {
            // The former writer returns as a viewer.
            self.writer = None;
        }
        let typed_bytes = self.restore_typed_count(connection_id, &client);
        self.connected.insert(connection_id, client);
        PtyAdmission {
            connection_id,
            replaced_id,
            typed_bytes,
        }
    }

    /// The typed bytes of a client that connects; `None` for an unknown client. A new client has typed nothing; a
    /// forgotten client looks like a new one, and counts its own bytes.
    fn restore_typed_count(
        &mut self,
        connection_id: PtyConnectionId,
        client: &PtyClientName,
    ) -> Option<u64> {
        let key = client
            .clone()
            .unwrap_or_else(|| anonymous_name(connection_id));
        if let Some(at) = self
            .typed_counts
            .iter()
            .position(|(known, _)| *known == key)
        {
            let found = self.typed_counts.remove(at)?;
            let typed_bytes = found.1;
            self.typed_counts.push_back(found);
            return Some(typed_bytes);
        }
        self.typed_counts.push_back((key, 0));
        while self.typed_counts.len() > MAX_REMEMBERED_CLIENTS {
            // A connected client, or one with a reserved place, still types.
            let Some(at) = self
                .typed_counts
                .iter()
                .position(|(known, _)| self.is_forgettable(known))
            else {
                break;
            };
            self.typed_counts.remove(at);
        }
        None
    }

    /// Whether the client of that name is neither connected nor waited for. The client that connects now is not listed
    /// yet, and is the last entry.
    fn is_forgettable(&self, name: &str) -> bool {
        let newest = self.typed_counts.back().map(|(known, _)| known.as_str());
        let is_it = |client: &PtyClientName| client.as_deref() == Some(name);
        let is_here = newest == Some(name)
            || self.connected.values().any(is_it)
            || self
                .writer
                .as_ref()
                .is_some_and(|writer| is_it(&writer.client));
        let is_nameless = |connection_id: &PtyConnectionId| anonymous_name(*connection_id) == name;
        !is_here && !self.connected.keys().any(is_nameless)
    }

    /// `is_lost`: the connection ended without a message that the client leaves.
    pub(super) fn remove_client(
        &mut self,
        connection_id: PtyConnectionId,
        is_lost: bool,
        now: Instant,
    ) {
        if let Some(None) = self.connected.remove(&connection_id) {
            // A client without a name cannot return.
            let name = anonymous_name(connection_id);
            self.typed_counts.retain(|(known, _)| *known != name);
        }
        match &mut self.writer {
            Some(writer) if writer.connection_id == connection_id => {
                if is_lost && writer.client.is_some() {
                    writer.disconnected_at = Some(now);
                } else {
                    self.writer = None;
                }
            }
            _ => {}
        }
    }

    /// Makes this connection the writer.
    pub(super) fn take_writer(&mut self, connection_id: PtyConnectionId) {
        if let Some(client) = self.connected.get(&connection_id) {
            let (client, disconnected_at) = (client.clone(), None);
            self.writer = Some(PtyWriter {
                connection_id,
                client,
                disconnected_at,
            });
        }
    }

    /// Whether this connection is the connected writer.
    pub(super) fn is_writer(&self, connection_id: PtyConnectionId) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|writer| {
            writer.connection_id == connection_id && writer.disconnected_at.is_none()
        })
    }

    /// The writer, if it is connected.
    pub(super) fn connected_writer(&self) -> Option<PtyConnectionId> {
        self.writer
            .as_ref()
            .filter(|w| w.disconnected_at.is_none())
            .map(|w| w.connection_id)
    }

    /// Whether there is a writer, or a place reserved for one.
    pub(super) fn has_writer(&self) -> bool {
        self.writer.is_some()
    }

    /// Adds to the typed bytes of a connection; returns its total.
    pub(super) fn add_typed_bytes(&mut self, connection_id: PtyConnectionId, bytes: u64) -> u64 {
        let client = self.connected.get(&connection_id).cloned().flatten();
        let key = client.unwrap_or_else(|| anonymous_name(connection_id));
        match self
            .typed_counts
            .iter_mut()
            .find(|(known, _)| *known == key)
        {
            Some((_, count)) => {
                *count += bytes;
                *count
            }
            None => bytes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.connected.len()
    }
}

/// A name that no client can have.
fn anonymous_name(connection_id: PtyConnectionId) -> String {
    format!("/{connection_id}")
}

#[cfg(test)]
mod tests {
    use super::{PtyClients, WRITER_RECONNECT_TIMEOUT};
    use crate::protocol::pty::TerminalRole::{View, Write};
    use tokio::time::Instant;

    fn name(name: &str) -> Option<String> {
        Some(name.into())
    }

    #[test]
    fn the_first_client_writes_and_others_view_until_they_take_over() {
        let (mut clients, now) = (PtyClients::default(), Instant::now());
        let viewer_only = clients
            .add_client(name("l"), View, false, now)
            .connection_id;
        let first = clients
            .add_client(name("a"), Write, false, now)
            .connection_id;
        let second = clients
            .add_client(name("b"), Write, false, now)
            .connection_id;
        assert!(
            !clients.is_writer(viewer_only)
                && clients.is_writer(first)
                && !clients.is_writer(second)
        );
        clients.take_writer(second);
        assert!(!clients.is_writer(first) && clients.is_writer(second));
        let third = clients.add_client(None, Write, true, now).connection_id;
        assert_eq!(clients.connected_writer(), Some(third));
        clients.remove_client(third, false, now);
        assert!(!clients.has_writer());
    }

    #[test]
    fn a_lost_writer_returns_to_its_place_and_count() {
        let (mut clients, now) = (PtyClients::default(), Instant::now());
        let first = clients.add_client(name("a"), Write, false, now);
        assert_eq!((first.typed_bytes, first.replaced_id), (None, None));
        assert_eq!(clients.add_typed_bytes(first.connection_id, 5), 5);
        clients.remove_client(first.connection_id, true, now);
        assert!(clients.has_writer() && clients.connected_writer().is_none());
        let other = clients
            .add_client(name("b"), Write, false, now)
            .connection_id;
        assert!(!clients.is_writer(other), "the place is reserved");
        let again = clients.add_client(name("a"), Write, false, now);
        assert_eq!((again.typed_bytes, again.replaced_id), (Some(5), None));
        assert!(clients.is_writer(again.connection_id));
    }

    #[test]
    fn a_new_connection_replaces_the_clients_earlier_one() {
        let (mut clients, now) = (PtyClients::default(), Instant::now());
        let first = clients
            .add_client(name("a"), Write, false, now)
            .connection_id;
        let again = clients.add_client(name("a"), Write, false, now);
        assert_eq!(again.replaced_id, Some(first));
        assert!(clients.is_writer(again.connection_id) && !clients.is_writer(first));
        // The late end of the old connection changes nothing.
        clients.remove_client(first, true, now);
        assert!(clients.is_writer(again.connection_id));
        assert_eq!(clients.len(), 1);
    }

    #[test]
    fn writer_reservation_expires() {
        let (mut clients, now) = (PtyClients::default(), Instant::now());
        let first = clients
            .add_client(name("a"), Write, false, now)
            .connection_id;
        clients.remove_client(first, true, now);
        let other = clients
            .add_client(name("b"), Write, false, now + WRITER_RECONNECT_TIMEOUT)
            .connection_id;
        assert!(clients.is_writer(other));
    }

    #[test]
    fn a_client_without_a_name_is_new_each_time() {
        let (mut clients, now) = (PtyClients::default(), Instant::now());
        let first = clients.add_client(None, Write, false, now);
        clients.add_typed_bytes(first.connection_id, 9);
        clients.remove_client(first.connection_id, true, now);
        let second = clients.add_client(None, Write, false, now);
        assert_eq!(second.typed_bytes, None);
        assert!(clients.is_writer(second.connection_id));
        assert_eq!(clients.add_typed_bytes(second.connection_id, 1), 1);
    }

    #[test]
    fn connected_and_reserved_clients_are_not_evicted() {
        let (mut clients, now) = (PtyClients::default(), Instant::now());
        let writer = clients
            .add_client(name("w"), Write, false, now)
            .connection_id;
        let viewer = clients.add_client(None, View, false, now).connection_id;
        assert_eq!(
            (
                clients.add_typed_bytes(writer, 5),
                clients.add_typed_bytes(viewer, 7)
            ),
            (5, 7)
        );
        let come_and_go = |clients: &mut PtyClients, kind: &str| {
            for number in 0..2 * super::MAX_REMEMBERED_CLIENTS {
                let connection_id = clients
                    .add_client(name(&format!("{kind}{number}")), View, false, now)
                    .connection_id;
                clients.remove_client(connection_id, false, now);
            }
        };
        come_and_go(&mut clients, "a");
        assert_eq!(
            (
                clients.add_typed_bytes(writer, 1),
                clients.add_typed_bytes(viewer, 1)
            ),
            (6, 8)
        );
        clients.remove_client(writer, true, now);
        come_and_go(&mut clients, "b");
        assert_eq!(
            clients.add_client(name("w"), Write, false, now).typed_bytes,
            Some(6)
        );
        assert!(clients.typed_counts.len() <= super::MAX_REMEMBERED_CLIENTS);
        clients.remove_client(viewer, true, now);
        assert!(
            clients
                .typed_counts
                .iter()
                .all(|(known, _)| !known.starts_with('/'))
        );
    }

    #[test]
    fn old_clients_are_evicted() {
        let (mut clients, now) = (PtyClients::default(), Instant::now());
        let first = clients
            .add_client(name("a"), Write, false, now)
            .connection_id;
        clients.add_typed_bytes(first, 3);
        clients.remove_client(first, false, now);
        for number in 0..super::MAX_REMEMBERED_CLIENTS {
            let admission = clients.add_client(name(&number.to_string()), Write, false, now);
            clients.remove_client(admission.connection_id, false, now);
        }
        assert_eq!(
            clients.add_client(name("a"), Write, false, now).typed_bytes,
            None
        );
    }
}
