//! A client that has shaken hands: whom it talks to, and the streams on which it is talked to.

use super::cache::LISTS;
use super::child::NoHello;
use super::lasting::Lasting;
use super::member::{Ears, Reply};
use super::merge::Merge;
use super::message::{self, Kind, Message};
use super::params::Given;
use super::server::{Access, Served};
use super::stream::Stream;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Streams that ended, kept for clients whose connection was lost before they heard the end: those that nobody has read
/// to it, and those that were written out and may be lost on the way. The last one whatever its size.
const KEPT: usize = 32;
const KEPT_READ: usize = 4;
const KEPT_BYTES: usize = 16 << 20;

/// Whom a client talks to.
#[derive(Debug)]
pub(super) enum Backend {
    One(Access),
    All(Arc<Merge>),
}

impl Backend {
    /// The result of `initialize`.
    pub(super) async fn hello(&self) -> Result<Bytes, NoHello> {
        match self {
            Self::One(access) => access.hello().await,
            Self::All(merge) => Ok(merge.hello()),
        }
    }

    /// What a client's headers do not say as its call of a tool does; starts nothing.
    pub(super) fn disagreement(&self, call: &Message, given: Given) -> Option<String> {
        let tool = call.text_param(&["name"])?;
        match self {
            Self::One(access) => access.disagreement(&tool, call, given),
            Self::All(merge) => merge.disagreement(&tool, call, given),
        }
    }

    pub(super) fn request(&self, message: Message, reply: Reply) {
        match self {
            Self::One(access) => access.request(message, reply),
            Self::All(merge) => merge.request(message, reply),
        }
    }

    pub(super) fn tell(&self, message: Message) {
        match self {
            Self::One(access) => access.tell(message),
            Self::All(merge) => merge.tell(&message),
        }
    }

    /// A request whose answer nobody waits for.
    pub(super) fn ask_quietly(&self, method: &str, params: &str) {
        if let Ok(request) = Message::parse(message::request("0", method, params)) {
            let unread = Arc::new(Stream::of_answers(0, 1));
            self.request(request, Reply::plain(unread));
        }
    }

    /// Whether it is known who has that resource, and who so has been told who listens to it.
    fn has_told_of(&self, uri: &str) -> bool {
        match self {
            Self::One(_) => false,
            Self::All(merge) => merge.has_told_of(uri),
        }
    }

    /// The parameters of a `logging/setLevel` of former days; starts nothing.
    pub(super) fn set_level(&self, level: &str) {
        match self {
            Self::One(access) => access.set_level(level),
            Self::All(merge) => merge.set_level(level),
        }
    }

    /// Hears from now on what belongs to no call, also without a session.
    pub(super) fn listen(&self) {
        match self {
            Self::One(access) => access.listen(),
            Self::All(merge) => merge.listen(),
        }
    }

    /// The call behind that stream is not waited for any more.
    pub(super) fn give_up(&self, stream: u64) {
        match self {
            Self::One(access) => access.give_up(stream),
            Self::All(merge) => merge.give_up(stream),
        }
    }

    /// Whether its server has retired and answered all that was open.
    fn is_over(&self) -> bool {
        matches!(self, Self::One(access) if access.is_over())
    }
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    /// What was agreed on.
    pub(super) version: String,
    /// The server's name; none for all.
    pub(super) server: Option<String>,
    backend: Mutex<Arc<Backend>>,
    /// Those before it, as long as their calls are open.
    former: Mutex<Vec<Arc<Backend>>>,
    /// What it has asked for once and for all.
    lasting: Mutex<Lasting>,
    pub(super) outlet: Arc<Outlet>,
    touched: Mutex<Instant>,
}

impl Session {
    pub(super) fn new(
        id: String,
        version: String,
        server: Option<String>,
        backend: Backend,
        lasting: Lasting,
        outlet: Arc<Outlet>,
    ) -> Self {
        Self {
            id,
            version,
            server,
            backend: Mutex::new(Arc::new(backend)),
            former: Mutex::default(),
            lasting: Mutex::new(lasting),
            outlet,
            touched: Mutex::new(Instant::now()),
        }
    }

    pub(super) fn backend(&self) -> Arc<Backend> {
        let backend = self.backend.lock();
        backend.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn former(&self) -> MutexGuard<'_, Vec<Arc<Backend>>> {
        let former = self.former.lock();
        let mut former = former.unwrap_or_else(PoisonError::into_inner);
        former.retain(|backend| !backend.is_over());
        former
    }

    /// A notification or an answer of the client. It may be about a call that was open when the server changed.
    pub(super) fn tell(&self, message: Message) {
        if message.kind == Kind::Answer || message.method == message::CANCELLED {
            for backend in &*self.former() {
                backend.tell(message.clone());
            }
        }
        self.backend().tell(message);
    }

    pub(super) fn lasting(&self) -> MutexGuard<'_, Lasting> {
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with the servers as they are now: those that are the same are left alone, and calls to others
    /// still bring their answers. `false` when there is nobody to go on with.
    pub(super) fn follow(
        &self,
        servers: &BTreeMap<String, Arc<Served>>,
        mut next: impl FnMut() -> u64,
    ) -> bool {
        let before = self.backend();
        let level = self.lasting().level();
        match &*before {
            Backend::All(merge) => {
                if !merge.follow(servers, level.as_deref(), next) {
                    return true;
                }
            }
            Backend::One(access) => {
                let Some(served) = servers.get(access.name()) else {
                    return false;
                };
                if access.is_of(served) {
                    return true;
                }
                access.retire();
                let access = access.to(served, next());
                if let Some(level) = level {
                    access.set_level(&level);
                }
                let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
                *backend = Arc::new(Backend::One(access));
                drop(backend);
                self.former().push(before.clone());
            }
        }
        self.subscribe();
        self.outlet.lists_may_differ();
        true
    }

    /// Asks for what the client listens to, where it does not yet.
    pub(super) fn subscribe(&self) {
        let backend = self.backend();
        let subscribed = self.lasting().subscribed.clone();
        for uri in subscribed.iter().filter(|uri| !backend.has_told_of(uri)) {
            let params = serde_json::json!({"uri": uri}).to_string();
            backend.ask_quietly("resources/subscribe", &params);
        }
    }

    /// The client is gone for good: nobody waits for what is open.
    pub(super) fn end(&self) {
        let backends: Vec<_> = self
            .former()
            .iter()
            .cloned()
            .chain([self.backend()])
            .collect();
        for stream in self.outlet.unanswered() {
            backends.iter().for_each(|backend| backend.give_up(stream));
        }
        self.outlet.close();
    }

    pub(super) fn touch(&self) {
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// For how long nobody has asked or listened.
    pub(super) fn idle(&self) -> Duration {
        if self.outlet.listens() || self.outlet.is_busy() {
            return Duration::ZERO;
        }
        let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.elapsed()
    }
}

/// Tells that the servers may be others by now.
pub(super) fn lists_may_differ(ears: &dyn Ears) {
    let told: BTreeSet<&str> = LISTS.iter().map(|(_, _, changed)| *changed).collect();
    for method in told {
        ears.hear(message::notification(method, ""), false);
    }
}

/// Where a client hears.
#[derive(Debug)]
pub(super) struct Outlet {
    /// What belongs to no call.
    pub(super) general: Arc<Stream>,
    listens: AtomicBool,
    calls: Mutex<BTreeMap<u64, Arc<Stream>>>,
}

impl Outlet {
    pub(super) fn new(general: Arc<Stream>) -> Arc<Self> {
        Arc::new(Self {
            general,
            listens: AtomicBool::new(false),
            calls: Mutex::default(),
        })
    }

    /// Whether somebody reads the general stream.
    pub(super) fn set_listens(&self, listens: bool) {
        self.listens.store(listens, Ordering::Relaxed);
    }

    fn listens(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    /// Whether calls are open.
    fn is_busy(&self) -> bool {
        self.calls().values().any(|stream| !stream.is_closed())
    }

    /// Streams that still owe an answer.
    fn unanswered(&self) -> Vec<u64> {
        let calls = self.calls();
        let open = calls.values().filter(|stream| !stream.is_closed());
        open.map(|stream| stream.number).collect()
    }

    /// The servers may be others by now.
    pub(super) fn lists_may_differ(&self) {
        lists_may_differ(self);
    }

    /// A stream of answers that can tell more than them.
    pub(super) fn open(&self, stream: &Arc<Stream>) {
        let mut calls = self.calls();
        let ended = calls.values().filter(|stream| stream.is_closed());
        let ended: Vec<_> = ended.map(|s| (s.number, s.bytes(), s.is_read())).collect();
        let (unread, read): (Vec<_>, Vec<_>) = ended.into_iter().rev().partition(|s| !s.2);
        let too_many = read.get(KEPT_READ..).unwrap_or_default().iter();
        let too_many = too_many.chain(unread.get(KEPT..).unwrap_or_default());
        too_many.for_each(|(number, ..)| drop(calls.remove(number)));
        let kept = unread.iter().take(KEPT).chain(read.iter().take(KEPT_READ));
        let mut bytes = 0;
        for (place, (number, size, _)) in kept.enumerate() {
            bytes += size;
            if place > 0 && bytes > KEPT_BYTES {
                calls.remove(number);
            }
        }
        calls.insert(stream.number, stream.clone());
    }

    /// Nobody will ask for it again.
    pub(super) fn forget(&self, stream: u64) {
        self.calls().remove(&stream);
    }

    /// A stream of answers that is still known.
    pub(super) fn find(&self, stream: u64) -> Option<Arc<Stream>> {
        self.calls().get(&stream).cloned()
    }

    /// Ends the stream that belongs to no call, once it has brought the answers that it owes.
    pub(super) fn retire(&self) {
        self.general.retire();
    }

    /// Ends all streams.
    pub(super) fn close(&self) {
        self.general.close();
        self.calls().values().for_each(|stream| stream.close());
    }

    fn calls(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Stream>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ears for Outlet {
    fn hear(&self, text: Bytes, is_related: bool) {
        if is_related {
            let calls = self.calls();
            let mut open = calls.values().filter(|stream| !stream.is_closed());
            if let Some(first) = open.next() {
                match open.next_back() {
                    None => return first.tell(text),
                    // It may be any of them; who listens to all hears it.
                    Some(last) if !self.listens() => return last.tell(text),
                    Some(_) => {}
                }
            }
        }
        self.general.tell(text);
    }
}

#[cfg(test)]
mod tests {
    use super::Outlet;
    use crate::companion::mcp::member::Ears;
    use crate::companion::mcp::stream::Stream;
    use std::sync::Arc;

    #[tokio::test]
    async fn what_may_belong_to_the_open_call_is_told_there() {
        let general = Arc::new(Stream::endless(1));
        let outlet = Outlet::new(general.clone());
        let call = Arc::new(Stream::of_answers(2, 1));
        outlet.open(&call);
        outlet.hear("related".into(), true);
        outlet.hear("other".into(), false);
        let (of_call, of_all) = (call.take_over(), general.take_over());
        assert_eq!(call.next(0, of_call).await.unwrap().text, "related");
        assert_eq!(general.next(0, of_all).await.unwrap().text, "other");
        call.answer("done".into());
        outlet.hear("late".into(), true);
        assert_eq!(general.next(1, of_all).await.unwrap().text, "late");
    }

    #[tokio::test]
    async fn only_the_last_ended_streams_are_kept() {
        let outlet = Outlet::new(Arc::new(Stream::endless(0)));
        for number in 1..=100 {
            let stream = Arc::new(Stream::of_answers(number, 1));
            outlet.open(&stream);
            stream.answer("x".into());
        }
        assert!(outlet.find(1).is_none() && outlet.find(100).is_some());
        assert!(outlet.calls().len() <= super::KEPT + 1);
        // What was read makes room before what was not.
        for number in 101..=120 {
            let stream = Arc::new(Stream::of_answers(number, 1));
            outlet.open(&stream);
            stream.answer("x".into());
            assert_eq!(stream.only().await.unwrap(), "x");
            assert!(stream.next(1, stream.take_over()).await.is_none());
        }
        assert!(outlet.find(100).is_some());
        assert!(outlet.find(101).is_none() && outlet.find(120).is_some());
        let large = vec![b'x'; super::KEPT_BYTES];
        for number in 201..=203 {
            let stream = Arc::new(Stream::of_answers(number, 1));
            outlet.open(&stream);
            stream.answer(large.clone().into());
        }
        outlet.open(&Arc::new(Stream::of_answers(204, 1)));
        assert!(outlet.find(202).is_none() && outlet.find(203).is_some());
    }
}
