//! Connections that end with their server: those of the older transport, on which everything is told, with a
//! session once hands were shaken, and those that listen without one.

use super::lasting::Lasting;
use super::member::Ears;
use super::message::Message;
use super::session::{Outlet, Session, lists_may_differ};
use super::stream::Stream;
use super::{Hub, Refusal, Wish, new_id, version};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Debug)]
pub(super) struct Visit {
    id: String,
    wish: Wish,
    pub(super) stream: Arc<Stream>,
    /// Who listens without a session, and is told before the end that there was a change.
    listener: Option<Arc<dyn Ears>>,
    session: OnceLock<Arc<Session>>,
}

impl Visit {
    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        self.session.get()
    }

    /// Ends it, once it has brought what it owes: its servers may be others by now.
    pub(super) fn retire(&self) {
        if let Some(listener) = &self.listener {
            lists_may_differ(&**listener);
        }
        self.stream.retire();
    }
}

#[derive(Debug, Default)]
pub(super) struct Visits(Mutex<HashMap<String, Arc<Visit>>>);

impl Visits {
    /// Ends those who have nobody to go on with, once they have had the answers that are on their way. `goes_on` is
    /// asked for the session, where hands were shaken, and for the server's name, or none for all.
    pub(super) fn follow(&self, goes_on: impl Fn(Option<&Session>, Option<&str>) -> bool) {
        self.lock().retain(|_, visit| {
            let session = visit.session().map(|session| &**session);
            let stays = goes_on(session, visit.wish.server.as_deref());
            if !stays {
                visit.retire();
            }
            stays
        });
    }

    /// How many have shaken hands.
    pub(super) fn greeted(&self) -> usize {
        let visits = self.lock();
        visits.values().filter(|v| v.session().is_some()).count()
    }

    pub(super) fn end(&self) {
        let all = std::mem::take(&mut *self.lock());
        all.into_values().for_each(|visit| visit.stream.close());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Visit>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hub {
    /// A connection was opened: its id, and what it is to be told.
    pub(super) fn begin(&self, wish: Wish) -> Result<(String, Arc<Stream>), Refusal> {
        let stream = Arc::new(Stream::endless(self.next()));
        let visit = self.count(wish, stream.clone(), None)?;
        Ok((visit.id.clone(), stream))
    }

    /// Counts a connection as one that listens, and ends when its servers change; `before` it was opened there were so
    /// many changes.
    pub(super) fn count_listener(
        &self,
        wish: Wish,
        stream: Arc<Stream>,
        listener: Arc<dyn Ears>,
        before: u64,
    ) -> Result<String, Refusal> {
        let visit = self.count(wish, stream, Some(listener))?;
        // That change did not find it yet.
        if self.changes() != before {
            visit.retire();
        }
        Ok(visit.id.clone())
    }

    /// Counts a connection as one that ends with its server.
    fn count(
        &self,
        wish: Wish,
        stream: Arc<Stream>,
        listener: Option<Arc<dyn Ears>>,
    ) -> Result<Arc<Visit>, Refusal> {
        let visit = Arc::new(Visit {
            id: new_id()?,
            wish,
            stream,
            listener,
            session: OnceLock::new(),
        });
        let mut visits = self.0.visits.lock();
        visits.insert(visit.id.clone(), visit.clone());
        drop(visits);
        Ok(visit)
    }

    pub(super) fn visit(&self, id: &str) -> Option<Arc<Visit>> {
        self.0.visits.lock().get(id).cloned()
    }

    /// Shakes hands; the result of `initialize`.
    pub(super) async fn greet(&self, visit: &Visit, message: &Message) -> Result<Bytes, Refusal> {
        let hello = Bytes::copy_from_slice(message.params().unwrap_or("{}").as_bytes());
        let outlet = Outlet::new(visit.stream.clone());
        let before = self.changes();
        let backend = self.backend(&visit.wish, Some(hello), outlet.clone())?;
        let result = backend.hello().await.map_err(Refusal::Hello)?;
        let (id, server) = (visit.id.clone(), visit.wish.server.clone());
        let lasting = Lasting::default();
        let session = Session::new(id, version(&result), server, backend, lasting, outlet);
        // Whoever shakes hands twice keeps the first session.
        let _ = visit.session.set(Arc::new(session));
        if let Some(session) = visit.session()
            && self.changes() != before
            && !session.follow(&self.servers().clone(), || self.next())
        {
            visit.stream.retire();
        }
        Ok(result)
    }

    /// The connection is gone.
    pub(super) fn leave(&self, id: &str) {
        self.0.visits.lock().remove(id);
    }
}
