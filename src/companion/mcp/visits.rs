//! Connections that end with their server: those of the older transport, on which everything is told, with a
//! session once hands were shaken, and those that listen without one.

use super::lasting::Lasting;
use super::message::Message;
use super::session::{Outlet, Session};
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
    session: OnceLock<Arc<Session>>,
}

impl Visit {
    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        self.session.get()
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
                visit.stream.retire();
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
        Ok((self.count(wish, stream.clone())?, stream))
    }

    /// Counts a connection as one that ends with its server.
    pub(super) fn count(&self, wish: Wish, stream: Arc<Stream>) -> Result<String, Refusal> {
        let id = new_id()?;
        let visit = Visit {
            id: id.clone(),
            wish,
            stream,
            session: OnceLock::new(),
        };
        self.0.visits.lock().insert(id.clone(), Arc::new(visit));
        Ok(id)
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
