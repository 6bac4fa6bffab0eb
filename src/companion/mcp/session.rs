//! A client's session: its backend, and the streams on which it receives messages.

use super::cache::CACHED_LIST_METHODS;
use super::child::HandshakeError;
use super::client::{NotificationSink, ReplySender};
use super::merged_servers::MergedServers;
use super::message::{self, RpcMessage, RpcMessageKind};
use super::param_headers::ClientParamHeaders;
use super::persisted_sessions::ClientSubscriptions;
use super::server::{ServerAccess, ServerEntry};
use super::stream::MessageStream;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Ended streams are kept for clients that lost their connection before they received the end. These are the limits
/// of streams that were not read to the end, of streams that were written out but may be lost on the way, and of the
/// bytes of all. The newest ended stream is kept whatever its size.
const MAX_ENDED_UNREAD_STREAMS: usize = 32;
const MAX_ENDED_READ_STREAMS: usize = 4;
const MAX_ENDED_STREAM_BYTES: usize = 16 << 20;

/// The servers that a client talks to.
#[derive(Debug)]
pub(super) enum Backend {
    One(ServerAccess),
    All(Arc<MergedServers>),
}

impl Backend {
    /// The result of `initialize`.
    pub(super) async fn initialize_result(&self) -> Result<Bytes, HandshakeError> {
        match self {
            Self::One(access) => access.initialize_result().await,
            Self::All(merge) => Ok(merge.initialize_result()),
        }
    }

    /// Describes a mismatch between a client's headers and its tool call. Starts no server.
    pub(super) fn header_mismatch(
        &self,
        call: &RpcMessage,
        given: ClientParamHeaders,
    ) -> Option<String> {
        let tool = call.text_param(&["name"])?;
        match self {
            Self::One(access) => access.header_mismatch(&tool, call, given),
            Self::All(merge) => merge.header_mismatch(&tool, call, given),
        }
    }

    pub(super) fn send_request(&self, message: RpcMessage, reply: ReplySender) {
        match self {
            Self::One(access) => access.send_request(message, reply),
            Self::All(merge) => merge.send_request(message, reply),
        }
    }

    pub(super) fn send_message(&self, message: RpcMessage) {
        match self {
            Self::One(access) => access.send_message(message),
            Self::All(merge) => merge.send_message(&message),
        }
    }

    /// Sends a request and discards the answer.
    pub(super) fn send_unawaited_request(&self, method: &str, params: &str) {
        if let Ok(request) = RpcMessage::parse(message::request_message("0", method, params)) {
            let unread = Arc::new(MessageStream::of_answers(0, 1));
            self.send_request(request, ReplySender::plain(unread));
        }
    }

    /// Whether the server that owns this resource is known. That server has then received the subscription already.
    fn has_origin(&self, uri: &str) -> bool {
        match self {
            Self::One(_) => false,
            Self::All(merge) => merge.has_origin(uri),
        }
    }

    /// Passes on the parameters of a `logging/setLevel` that was sent earlier. Starts no server.
    pub(super) fn set_level(&self, level: &str) {
        match self {
            Self::One(access) => access.set_level(level),
            Self::All(merge) => merge.set_level(level),
        }
    }

    /// From now on delivers messages that belong to no call, also to a client without a session.
    pub(super) fn start_listening(&self) {
        match self {
            Self::One(access) => access.start_listening(),
            Self::All(merge) => merge.start_listening(),
        }
    }

    /// Stops waiting for the call of this stream.
    pub(super) fn give_up(&self, stream: u64) {
        match self {
            Self::One(access) => access.give_up(stream),
            Self::All(merge) => merge.give_up(stream),
        }
    }

    /// Whether its server has retired and has answered all open calls.
    fn is_over(&self) -> bool {
        matches!(self, Self::One(access) if access.is_over())
    }
}

#[derive(Debug)]
pub(super) struct HubSession {
    pub(super) id: String,
    /// The protocol version of the handshake.
    pub(super) version: String,
    /// The server's name; `None` for all servers.
    pub(super) server: Option<String>,
    backend: Mutex<Arc<Backend>>,
    /// Previous backends; kept while their calls are open.
    former: Mutex<Vec<Arc<Backend>>>,
    /// The client's subscriptions and log level.
    lasting: Mutex<ClientSubscriptions>,
    pub(super) outlet: Arc<ClientStreams>,
    touched: Mutex<Instant>,
}

impl HubSession {
    pub(super) fn new(
        id: String,
        version: String,
        server: Option<String>,
        backend: Backend,
        lasting: ClientSubscriptions,
        outlet: Arc<ClientStreams>,
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

    fn lock_former(&self) -> MutexGuard<'_, Vec<Arc<Backend>>> {
        let former = self.former.lock();
        let mut former = former.unwrap_or_else(PoisonError::into_inner);
        former.retain(|backend| !backend.is_over());
        former
    }

    /// Forwards a notification or an answer of the client. It may concern a call that was open when the server
    /// changed, so previous backends receive it, too.
    pub(super) fn send_message(&self, message: RpcMessage) {
        if message.kind == RpcMessageKind::Answer || message.method == message::CANCELLED_METHOD {
            for backend in &*self.lock_former() {
                backend.send_message(message.clone());
            }
        }
        self.backend().send_message(message);
    }

    pub(super) fn lock_subscriptions(&self) -> MutexGuard<'_, ClientSubscriptions> {
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches to the current servers. Connections to unchanged servers stay; open calls to other servers still
    /// bring their answers. Returns `false` when the session's server was removed.
    pub(super) fn update_servers(
        &self,
        servers: &BTreeMap<String, Arc<ServerEntry>>,
        mut next: impl FnMut() -> u64,
    ) -> bool {
        let before = self.backend();
        let level = self.lock_subscriptions().log_level();
        match &*before {
            Backend::All(merge) => {
                if !merge.update_servers(servers, level.as_deref(), next) {
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
                access.drain();
                let access = access.reopen_to(served, next());
                if let Some(level) = level {
                    access.set_level(&level);
                }
                let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
                *backend = Arc::new(Backend::One(access));
                drop(backend);
                self.lock_former().push(before.clone());
            }
        }
        self.resubscribe();
        self.outlet.notify_lists_changed();
        true
    }

    /// Subscribes to the client's resources where no server has the subscription yet.
    pub(super) fn resubscribe(&self) {
        let backend = self.backend();
        let subscribed = self.lock_subscriptions().subscribed.clone();
        for uri in subscribed.iter().filter(|uri| !backend.has_origin(uri)) {
            let params = serde_json::json!({"uri": uri}).to_string();
            backend.send_unawaited_request("resources/subscribe", &params);
        }
    }

    /// Gives up all open calls and closes all streams; the client has ended the session.
    pub(super) fn close(&self) {
        let backends: Vec<_> = self
            .lock_former()
            .iter()
            .cloned()
            .chain([self.backend()])
            .collect();
        for stream in self.outlet.unanswered_streams() {
            backends.iter().for_each(|backend| backend.give_up(stream));
        }
        self.outlet.close();
    }

    pub(super) fn touch(&self) {
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// The time since the last request; zero while the client listens or has open calls.
    pub(super) fn idle_time(&self) -> Duration {
        if self.outlet.is_listening() || self.outlet.is_busy() {
            return Duration::ZERO;
        }
        let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.elapsed()
    }
}

/// Sends every `list_changed` notification: the servers may have changed.
pub(super) fn notify_lists_changed(ears: &dyn NotificationSink) {
    let told: BTreeSet<&str> = CACHED_LIST_METHODS
        .iter()
        .map(|(_, _, changed)| *changed)
        .collect();
    for method in told {
        ears.deliver(message::notification_message(method, ""), false);
    }
}

/// The streams on which a client receives messages.
#[derive(Debug)]
pub(super) struct ClientStreams {
    /// Messages that belong to no call.
    pub(super) general: Arc<MessageStream>,
    listens: AtomicBool,
    calls: Mutex<BTreeMap<u64, Arc<MessageStream>>>,
}

impl ClientStreams {
    pub(super) fn new(general: Arc<MessageStream>) -> Arc<Self> {
        Arc::new(Self {
            general,
            listens: AtomicBool::new(false),
            calls: Mutex::default(),
        })
    }

    /// Records whether a connection reads the general stream.
    pub(super) fn set_listening(&self, listens: bool) {
        self.listens.store(listens, Ordering::Relaxed);
    }

    fn is_listening(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    /// Whether calls are open.
    fn is_busy(&self) -> bool {
        self.lock_streams()
            .values()
            .any(|stream| !stream.is_closed())
    }

    /// The numbers of streams with a missing answer.
    fn unanswered_streams(&self) -> Vec<u64> {
        let calls = self.lock_streams();
        let open = calls.values().filter(|stream| !stream.is_closed());
        open.map(|stream| stream.number).collect()
    }

    /// Sends every `list_changed` notification: the servers may have changed.
    pub(super) fn notify_lists_changed(&self) {
        notify_lists_changed(self);
    }

    /// Adds the stream of a call and drops old ended streams beyond the limits.
    pub(super) fn add_stream(&self, stream: &Arc<MessageStream>) {
        let mut calls = self.lock_streams();
        let ended = calls.values().filter(|stream| stream.is_closed());
        let ended: Vec<_> = ended
            .map(|s| (s.number, s.kept_bytes(), s.is_read()))
            .collect();
        let (unread, read): (Vec<_>, Vec<_>) = ended.into_iter().rev().partition(|s| !s.2);
        let too_many = read
            .get(MAX_ENDED_READ_STREAMS..)
            .unwrap_or_default()
            .iter();
        let too_many = too_many.chain(unread.get(MAX_ENDED_UNREAD_STREAMS..).unwrap_or_default());
        too_many.for_each(|(number, ..)| drop(calls.remove(number)));
        let kept = unread
            .iter()
            .take(MAX_ENDED_UNREAD_STREAMS)
            .chain(read.iter().take(MAX_ENDED_READ_STREAMS));
        let mut bytes = 0;
        for (place, (number, size, _)) in kept.enumerate() {
            bytes += size;
            if place > 0 && bytes > MAX_ENDED_STREAM_BYTES {
                calls.remove(number);
            }
        }
        calls.insert(stream.number, stream.clone());
    }

    /// Removes a stream that no client will resume.
    pub(super) fn remove_stream(&self, stream: u64) {
        self.lock_streams().remove(&stream);
    }

    /// Finds the stream of a call.
    pub(super) fn find_stream(&self, stream: u64) -> Option<Arc<MessageStream>> {
        self.lock_streams().get(&stream).cloned()
    }

    /// Ends the general stream after the answers that it still owes.
    pub(super) fn drain(&self) {
        self.general.drain();
    }

    /// Closes all streams.
    pub(super) fn close(&self) {
        self.general.close();
        self.lock_streams()
            .values()
            .for_each(|stream| stream.close());
    }

    fn lock_streams(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<MessageStream>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NotificationSink for ClientStreams {
    fn deliver(&self, text: Bytes, is_related: bool) {
        if is_related {
            let calls = self.lock_streams();
            let mut open = calls.values().filter(|stream| !stream.is_closed());
            if let Some(first) = open.next() {
                match open.next_back() {
                    None => return first.push_event(text),
                    // The message may belong to any open call. A client that reads the general stream receives it
                    // there.
                    Some(last) if !self.is_listening() => return last.push_event(text),
                    Some(_) => {}
                }
            }
        }
        self.general.push_event(text);
    }
}

#[cfg(test)]
mod tests {
    use super::ClientStreams;
    use crate::companion::mcp::client::NotificationSink;
    use crate::companion::mcp::stream::MessageStream;
    use std::sync::Arc;

    #[tokio::test]
    async fn messages_that_may_belong_to_the_open_call_are_sent_on_its_stream() {
        let general = Arc::new(MessageStream::endless(1));
        let outlet = ClientStreams::new(general.clone());
        let call = Arc::new(MessageStream::of_answers(2, 1));
        outlet.add_stream(&call);
        outlet.deliver("related".into(), true);
        outlet.deliver("other".into(), false);
        let (of_call, of_all) = (call.take_over(), general.take_over());
        assert_eq!(call.next_event(0, of_call).await.unwrap().text, "related");
        assert_eq!(general.next_event(0, of_all).await.unwrap().text, "other");
        call.push_answer("done".into());
        outlet.deliver("late".into(), true);
        assert_eq!(general.next_event(1, of_all).await.unwrap().text, "late");
    }

    #[tokio::test]
    async fn only_the_last_ended_streams_are_kept() {
        let outlet = ClientStreams::new(Arc::new(MessageStream::endless(0)));
        for number in 1..=100 {
            let stream = Arc::new(MessageStream::of_answers(number, 1));
            outlet.add_stream(&stream);
            stream.push_answer("x".into());
        }
        assert!(outlet.find_stream(1).is_none() && outlet.find_stream(100).is_some());
        assert!(outlet.lock_streams().len() <= super::MAX_ENDED_UNREAD_STREAMS + 1);
        // Streams that were read are dropped before streams that were not.
        for number in 101..=120 {
            let stream = Arc::new(MessageStream::of_answers(number, 1));
            outlet.add_stream(&stream);
            stream.push_answer("x".into());
            assert_eq!(stream.wait_for_answer().await.unwrap(), "x");
            assert!(stream.next_event(1, stream.take_over()).await.is_none());
        }
        assert!(outlet.find_stream(100).is_some());
        assert!(outlet.find_stream(101).is_none() && outlet.find_stream(120).is_some());
        let large = vec![b'x'; super::MAX_ENDED_STREAM_BYTES];
        for number in 201..=203 {
            let stream = Arc::new(MessageStream::of_answers(number, 1));
            outlet.add_stream(&stream);
            stream.push_answer(large.clone().into());
        }
        outlet.add_stream(&Arc::new(MessageStream::of_answers(204, 1)));
        assert!(outlet.find_stream(202).is_none() && outlet.find_stream(203).is_some());
    }
}
