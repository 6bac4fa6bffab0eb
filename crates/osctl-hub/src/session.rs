//! A client's session: its backend, and the streams on which it receives messages.

use super::call_record::CallRecord;
use super::child::HandshakeError;
use super::client::{NotificationSink, ReplySender};
use super::client_subscriptions::ClientSubscriptions;
use super::merged_servers::MergedServers;
use super::message::{self, RpcMessage, RpcMessageKind};
use super::message_stream::MessageStream;
use super::param_headers::ClientParamHeaders;
use super::server_cache::CACHED_LIST_METHODS;
use super::server_entry::{ServerAccess, ServerEntry};
use crate::settings::HubContext;
use bytes::Bytes;
use osctl_protocol::mcp::HubClientStatus;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Ended streams are kept for clients that lost their connection before they received the end. These are the limits
/// of streams that were not read to the end, of streams that were written out but may be lost on the way, and of the
/// bytes of all. The newest ended stream is kept whatever its size. A stream that was written out is dropped after one
/// to two minutes ([`ClientStreams::sweep`]).
const MAX_ENDED_UNREAD_STREAMS: usize = 32;
const MAX_ENDED_READ_STREAMS: usize = 4;
const MAX_ENDED_STREAM_BYTES: usize = 16 << 20;

/// The most characters of a client's name in the status.
pub(super) const MAX_SHOWN_CLIENT_CHARS: usize = 100;

/// The servers that a client talks to.
#[derive(Debug)]
pub(super) enum Backend {
    Single(ServerAccess),
    Merged(Arc<MergedServers>),
}

impl Backend {
    /// The result of `initialize`.
    pub(super) async fn initialize_result(&self) -> Result<Bytes, HandshakeError> {
        match self {
            Self::Single(access) => access.initialize_result().await,
            Self::Merged(merge) => Ok(merge.initialize_result()),
        }
    }

    /// The parameters of the client's `initialize` request.
    fn initialize_params(&self) -> Option<&Bytes> {
        match self {
            Self::Single(access) => access.client.initialize_params.as_ref(),
            Self::Merged(merge) => merge.initialize_params(),
        }
    }

    /// Describes a mismatch between a client's headers and its tool call. Starts no server.
    pub(super) fn header_mismatch(
        &self,
        call: &RpcMessage,
        headers: ClientParamHeaders,
    ) -> Option<String> {
        let tool = call.text_param(&["name"])?;
        match self {
            Self::Single(access) => access.header_mismatch(&tool, call, headers),
            Self::Merged(merge) => merge.header_mismatch(&tool, call, headers),
        }
    }

    pub(super) fn send_request(&self, message: RpcMessage, reply: ReplySender) {
        match self {
            Self::Single(access) => access.send_request(message, reply),
            Self::Merged(merge) => merge.send_request(message, reply),
        }
    }

    pub(super) fn send_message(&self, message: RpcMessage) {
        match self {
            Self::Single(access) => access.send_message(message),
            Self::Merged(merge) => merge.send_message(&message),
        }
    }

    /// Sends a request and discards the answer.
    pub(super) fn send_unawaited_request(&self, method: &str, params: &str) {
        let unread = Arc::new(MessageStream::of_answers(0, 1));
        let request = message::request_message("0", method, params);
        self.send_request(request, ReplySender::unshaped(unread));
    }

    /// Whether the server that owns this resource is known. That server has then received the subscription already.
    fn has_origin(&self, uri: &str) -> bool {
        match self {
            Self::Single(_) => false,
            Self::Merged(merge) => merge.has_origin(uri),
        }
    }

    /// Passes on the parameters of a `logging/setLevel` that was sent earlier. Starts no server.
    pub(super) fn set_level(&self, level: &str) {
        match self {
            Self::Single(access) => access.set_level(level),
            Self::Merged(merge) => merge.set_level(level),
        }
    }

    /// From now on delivers messages that belong to no call, also to a client without a session.
    pub(super) fn start_listening(&self) {
        match self {
            Self::Single(access) => access.start_listening(),
            Self::Merged(merge) => merge.start_listening(),
        }
    }

    /// Stops waiting for the call of this stream.
    pub(super) fn cancel_stream(&self, stream: u64) {
        match self {
            Self::Single(access) => access.cancel_stream(stream),
            Self::Merged(merge) => merge.cancel_stream(stream),
        }
    }

    /// Whether its server is drained: removed, with all open calls answered.
    fn has_ended(&self) -> bool {
        matches!(self, Self::Single(access) if access.has_ended())
    }
}

#[derive(Debug)]
pub(super) struct HubSession {
    pub(super) id: String,
    /// The protocol version of the handshake.
    pub(super) protocol_version: String,
    /// The server's name; `None` for all servers.
    pub(super) server_name: Option<String>,
    /// The name in `clientInfo` of the handshake.
    client_name: Arc<str>,
    backend: Mutex<Arc<Backend>>,
    /// Previous backends; kept while their calls are open.
    previous_backends: Mutex<Vec<Arc<Backend>>>,
    /// The client's subscriptions and log level.
    subscriptions: Mutex<ClientSubscriptions>,
    pub(super) streams: Arc<ClientStreams>,
    last_used: Mutex<Instant>,
}

impl HubSession {
    pub(super) fn new(
        id: String,
        protocol_version: String,
        server_name: Option<String>,
        client_name: Arc<str>,
        backend: Backend,
        subscriptions: ClientSubscriptions,
        streams: Arc<ClientStreams>,
    ) -> Self {
        Self {
            id,
            protocol_version,
            server_name,
            client_name,
            backend: Mutex::new(Arc::new(backend)),
            previous_backends: Mutex::default(),
            subscriptions: Mutex::new(subscriptions),
            streams,
            last_used: Mutex::new(Instant::now()),
        }
    }

    /// Forwards a request of the client. The activity log records the call of a tool.
    pub(super) fn send_request(
        &self,
        context: &Arc<dyn HubContext>,
        message: RpcMessage,
        reply: ReplySender,
    ) {
        let server = self.server_name.as_deref();
        let record = CallRecord::begin(context, &self.client_name, server, &message);
        self.backend()
            .send_request(message, reply.recorded_by(record));
    }

    pub(super) fn client_status(&self) -> HubClientStatus {
        let backend = self.backend();
        let params = backend.initialize_params();
        let params = params.and_then(|params| std::str::from_utf8(params).ok());
        let text = |key: &str| -> Option<String> {
            let text = message::find_string(params?, &["clientInfo", key])?;
            Some(text.chars().take(MAX_SHOWN_CLIENT_CHARS).collect())
        };
        HubClientStatus {
            name: text("name").unwrap_or_default(),
            version: text("version").unwrap_or_default(),
            server: self.server_name.clone(),
            revision: self.protocol_version.clone(),
            idle_seconds: self.idle_time().as_secs(),
        }
    }

    pub(super) fn backend(&self) -> Arc<Backend> {
        self.backend.lock().clone()
    }

    fn lock_previous_backends(&self) -> MutexGuard<'_, Vec<Arc<Backend>>> {
        let mut previous_backends = self.previous_backends.lock();
        previous_backends.retain(|backend| !backend.has_ended());
        previous_backends
    }

    /// Forwards a notification or an answer of the client. It may concern a call that was open when the server
    /// changed, so previous backends receive it, too.
    pub(super) fn send_message(&self, message: RpcMessage) {
        if message.kind == RpcMessageKind::Answer || message.method == message::CANCELLED_METHOD {
            for backend in &*self.lock_previous_backends() {
                backend.send_message(message.clone());
            }
        }
        self.backend().send_message(message);
    }

    pub(super) fn lock_subscriptions(&self) -> MutexGuard<'_, ClientSubscriptions> {
        self.subscriptions.lock()
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
            Backend::Merged(merge) => {
                if !merge.update_servers(servers, level.as_deref(), next) {
                    return true;
                }
            }
            Backend::Single(access) => {
                let Some(entry) = servers.get(access.name()) else {
                    return false;
                };
                if access.is_connected_to(entry) {
                    return true;
                }
                access.drain();
                let access = access.reopen_to(entry, next());
                if let Some(level) = level {
                    access.set_level(&level);
                }
                let mut backend = self.backend.lock();
                *backend = Arc::new(Backend::Single(access));
                drop(backend);
                self.lock_previous_backends().push(before.clone());
            }
        }
        self.resubscribe();
        self.streams.notify_lists_changed();
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
            .lock_previous_backends()
            .iter()
            .cloned()
            .chain([self.backend()])
            .collect();
        for stream in self.streams.unanswered_streams() {
            backends
                .iter()
                .for_each(|backend| backend.cancel_stream(stream));
        }
        self.streams.close();
    }

    pub(super) fn record_use(&self) {
        *self.last_used.lock() = Instant::now();
    }

    /// The time since the last request; zero while the client listens or has open calls.
    pub(super) fn idle_time(&self) -> Duration {
        if self.streams.is_listening() || self.streams.has_open_calls() {
            return Duration::ZERO;
        }
        self.last_used.lock().elapsed()
    }
}

/// Sends every `list_changed` notification: the servers may have changed.
pub(super) fn notify_lists_changed(notification_sink: &dyn NotificationSink) {
    let notifications: BTreeSet<&str> = CACHED_LIST_METHODS
        .iter()
        .map(|(_, _, changed)| *changed)
        .collect();
    for method in notifications {
        notification_sink.deliver(message::notification_message(method, ""), false);
    }
}

/// The streams on which a client receives messages.
#[derive(Debug)]
pub(super) struct ClientStreams {
    /// Messages that belong to no call.
    pub(super) general_stream: Arc<MessageStream>,
    is_listening: AtomicBool,
    call_streams: Mutex<BTreeMap<u64, Arc<MessageStream>>>,
}

impl ClientStreams {
    pub(super) fn new(general_stream: Arc<MessageStream>) -> Arc<Self> {
        Arc::new(Self {
            general_stream,
            is_listening: AtomicBool::new(false),
            call_streams: Mutex::default(),
        })
    }

    /// Records whether a connection reads the general stream.
    pub(super) fn set_listening(&self, listens: bool) {
        self.is_listening.store(listens, Ordering::Relaxed);
    }

    fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::Relaxed)
    }

    /// Whether calls are open.
    fn has_open_calls(&self) -> bool {
        self.call_streams
            .lock()
            .values()
            .any(|stream| !stream.is_closed())
    }

    /// The numbers of streams with a missing answer.
    fn unanswered_streams(&self) -> Vec<u64> {
        let calls = self.call_streams.lock();
        let open = calls.values().filter(|stream| !stream.is_closed());
        open.map(|stream| stream.number).collect()
    }

    /// Sends every `list_changed` notification: the servers may have changed.
    pub(super) fn notify_lists_changed(&self) {
        notify_lists_changed(self);
    }

    /// Adds the stream of a call and drops old ended streams beyond the limits.
    pub(super) fn add_stream(&self, stream: &Arc<MessageStream>) {
        let mut calls = self.call_streams.lock();
        let ended = calls.values().filter(|stream| stream.is_closed());
        let ended: Vec<_> = ended
            .map(|s| (s.number, s.buffered_bytes(), s.is_fully_read()))
            .collect();
        let (unread, read): (Vec<_>, Vec<_>) = ended.into_iter().rev().partition(|s| !s.2);
        let too_many = read
            .get(MAX_ENDED_READ_STREAMS..)
            .unwrap_or_default()
            .iter();
        let too_many = too_many.chain(unread.get(MAX_ENDED_UNREAD_STREAMS..).unwrap_or_default());
        too_many.for_each(|(number, ..)| drop(calls.remove(number)));
        let unread_streams = unread
            .iter()
            .take(MAX_ENDED_UNREAD_STREAMS)
            .chain(read.iter().take(MAX_ENDED_READ_STREAMS));
        let mut bytes = 0;
        for (index, (number, size, _)) in unread_streams.enumerate() {
            bytes += size;
            if index > 0 && bytes > MAX_ENDED_STREAM_BYTES {
                calls.remove(number);
            }
        }
        calls.insert(stream.number, stream.clone());
    }

    /// Drops the streams that were fully read at the last sweep already.
    pub(super) fn sweep(&self) {
        self.call_streams
            .lock()
            .retain(|_, stream| !stream.mark_fully_read());
    }

    /// Removes a stream that no client will resume.
    pub(super) fn remove_stream(&self, stream: u64) {
        self.call_streams.lock().remove(&stream);
    }

    /// Finds the stream of a call.
    pub(super) fn find_stream(&self, stream: u64) -> Option<Arc<MessageStream>> {
        self.call_streams.lock().get(&stream).cloned()
    }

    /// Ends the general stream after the answers that it still owes.
    pub(super) fn drain(&self) {
        self.general_stream.drain();
    }

    /// Closes all streams.
    pub(super) fn close(&self) {
        self.general_stream.close();
        self.call_streams
            .lock()
            .values()
            .for_each(|stream| stream.close());
    }
}

impl NotificationSink for ClientStreams {
    fn deliver(&self, message: RpcMessage, is_related: bool) {
        let text = message.into_text();
        if is_related {
            let calls = self.call_streams.lock();
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
        self.general_stream.push_event(text);
    }
}

#[cfg(test)]
mod tests {
    use super::ClientStreams;
    use crate::client::NotificationSink;
    use crate::message_stream::MessageStream;
    use std::sync::Arc;

    #[tokio::test]
    async fn messages_that_may_belong_to_the_open_call_are_sent_on_its_stream() {
        let general = Arc::new(MessageStream::endless(1));
        let streams = ClientStreams::new(general.clone());
        let call = Arc::new(MessageStream::of_answers(2, 1));
        streams.add_stream(&call);
        streams.deliver("related".into(), true);
        streams.deliver("other".into(), false);
        let (of_call, of_all) = (call.attach_reader(), general.attach_reader());
        assert_eq!(call.next_event(0, of_call).await.unwrap().text, "related");
        assert_eq!(general.next_event(0, of_all).await.unwrap().text, "other");
        call.push_answer("done".into());
        streams.deliver("late".into(), true);
        assert_eq!(general.next_event(1, of_all).await.unwrap().text, "late");
    }

    #[tokio::test]
    async fn only_the_last_ended_streams_are_kept() {
        let streams = ClientStreams::new(Arc::new(MessageStream::endless(0)));
        for number in 1..=100 {
            let stream = Arc::new(MessageStream::of_answers(number, 1));
            streams.add_stream(&stream);
            stream.push_answer("x".into());
        }
        assert!(streams.find_stream(1).is_none() && streams.find_stream(100).is_some());
        assert!(streams.call_streams.lock().len() <= super::MAX_ENDED_UNREAD_STREAMS + 1);
        // Streams that were read are dropped before streams that were not.
        for number in 101..=120 {
            let stream = Arc::new(MessageStream::of_answers(number, 1));
            streams.add_stream(&stream);
            stream.push_answer("x".into());
            assert_eq!(stream.wait_for_answer().await.unwrap(), "x");
            assert!(stream.next_event(1, stream.attach_reader()).await.is_none());
        }
        assert!(streams.find_stream(100).is_some());
        assert!(streams.find_stream(101).is_none() && streams.find_stream(120).is_some());
        // The second sweep drops the streams that the first one found read.
        streams.sweep();
        assert!(streams.find_stream(120).is_some());
        streams.sweep();
        assert!(streams.find_stream(120).is_none() && streams.find_stream(100).is_some());
        let large = vec![b'x'; super::MAX_ENDED_STREAM_BYTES];
        for number in 201..=203 {
            let stream = Arc::new(MessageStream::of_answers(number, 1));
            streams.add_stream(&stream);
            stream.push_answer(large.clone().into());
        }
        streams.add_stream(&Arc::new(MessageStream::of_answers(204, 1)));
        assert!(streams.find_stream(202).is_none() && streams.find_stream(203).is_some());
    }
}
