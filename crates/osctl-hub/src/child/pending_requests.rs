//! The table of pending requests: which call an answer belongs to, and the id under which the server knows the call.
//!
//! A child of one client receives the client's own ids. Clients that share a child may use the same ids, so their
//! calls are numbered. Unusual ids (`1.0`, `null`, numbers that do not fit a double) are numbered, too, because a
//! server may write them back in other bytes. Progress tokens are handled the same way.

use crate::message::{RpcMessage, is_same_id};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The longest string that is passed on as an id without a number.
const MAX_PLAIN_ID_BYTES: usize = 256;

/// A call that is not answered yet; `T` is the recipient of the answer.
#[derive(Debug)]
pub(super) struct PendingRequest<T> {
    pub(super) client_number: u64,
    /// The id that the client uses.
    pub(super) client_request_id: Box<str>,
    progress_token: Option<ProgressToken>,
    pub(super) deadline: Instant,
    pub(super) timeout: Duration,
    pub(super) origin: T,
}

#[derive(Debug)]
struct ProgressToken {
    /// The token that the server received.
    server_token: Box<str>,
    /// The token that the client sent.
    client_token: Box<str>,
}

#[derive(Debug)]
pub(super) struct PendingRequests<T> {
    /// Whether clients share the child.
    renumbers_ids: bool,
    last_id: u64,
    requests: HashMap<Box<str>, PendingRequest<T>>,
}

impl<T> PendingRequests<T> {
    pub(super) fn new(renumbers_ids: bool) -> Self {
        Self {
            renumbers_ids,
            last_id: 0,
            requests: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// A new id for a request of the hub.
    pub(super) fn next_hub_id(&mut self) -> Box<str> {
        self.last_id += 1;
        format!("\"osctl-{}\"", self.last_id).into()
    }

    /// Registers a request, and returns the message for the server.
    pub(super) fn register_request(
        &mut self,
        message: &RpcMessage,
        client_number: u64,
        timeout: Duration,
        origin: T,
    ) -> RpcMessage {
        let id = message.id().unwrap_or("null");
        let server_token = self.assign_server_id(id);
        let mut edits: Vec<_> = message.id_edit(&server_token).into_iter().collect();
        let token_path = ["_meta", "progressToken"];
        let progress_token = message.raw_param(&token_path).map(|client_token| {
            let server_token = if self.renumbers_ids || !is_plain_id(client_token) {
                server_token.clone()
            } else {
                client_token.into()
            };
            ProgressToken {
                server_token,
                client_token: client_token.into(),
            }
        });
        if let (Some(span), Some(token)) = (message.param_span(&token_path), &progress_token) {
            edits.push((span, &*token.server_token));
        }
        let renumbered = message.with_edits(edits);
        let call = PendingRequest {
            client_number,
            client_request_id: id.into(),
            progress_token,
            deadline: Instant::now() + timeout,
            timeout,
            origin,
        };
        self.requests.insert(server_token, call);
        renumbered
    }

    /// Registers a request of the hub.
    pub(super) fn register_hub_request(&mut self, id: Box<str>, timeout: Duration, origin: T) {
        let call = PendingRequest {
            client_number: 0,
            client_request_id: id.clone(),
            progress_token: None,
            deadline: Instant::now() + timeout,
            timeout,
            origin,
        };
        self.requests.insert(id, call);
    }

    fn assign_server_id(&mut self, id: &str) -> Box<str> {
        let is_fit = !self.renumbers_ids && is_plain_id(id) && !id.starts_with("\"osctl-");
        if is_fit && !self.requests.contains_key(id) {
            return id.into();
        }
        self.last_id += 1;
        match self.renumbers_ids {
            true => self.last_id.to_string().into(),
            false => format!("\"osctl-{}\"", self.last_id).into(),
        }
    }

    /// Removes the answered call. Returns it with the answer under the client's id.
    pub(super) fn take_answered(
        &mut self,
        message: &RpcMessage,
    ) -> Option<(PendingRequest<T>, RpcMessage)> {
        let id = message.id()?;
        let call = match self.requests.remove(id) {
            Some(call) => call,
            None => {
                let found = self
                    .requests
                    .keys()
                    .find(|server_token| is_same_id(server_token, id))?
                    .clone();
                self.requests.remove(&found)?
            }
        };
        let answer = message.with_id(&call.client_request_id);
        Some((call, answer))
    }

    /// Finds the call that a progress notification belongs to, and restarts its timeout. Returns the notification
    /// with the client's token.
    pub(super) fn match_progress(
        &mut self,
        message: &RpcMessage,
    ) -> Option<(&PendingRequest<T>, RpcMessage)> {
        let server_token = message.raw_param(&["progressToken"])?;
        let is_meant = |call: &&mut PendingRequest<T>| {
            call.progress_token
                .as_ref()
                .is_some_and(|t| is_same_id(&t.server_token, server_token))
        };
        let call = self.requests.values_mut().find(is_meant)?;
        call.deadline = Instant::now() + call.timeout;
        let own = &call.progress_token.as_ref()?.client_token;
        Some((call, message.with_param(&["progressToken"], own)))
    }

    /// Removes the call that its client cancels. Returns it with the cancellation under the server's id.
    pub(super) fn take_cancelled(
        &mut self,
        client_number: u64,
        message: &RpcMessage,
    ) -> Option<(PendingRequest<T>, RpcMessage)> {
        let id = message.raw_param(&["requestId"])?;
        let is_meant = |call: &PendingRequest<T>| {
            call.client_number == client_number && is_same_id(&call.client_request_id, id)
        };
        let found = self.requests.iter().find(|(_, call)| is_meant(call));
        let server_token = found?.0.clone();
        let cancellation = message.with_param(&["requestId"], &server_token);
        Some((self.requests.remove(&server_token)?, cancellation))
    }

    /// Removes one matching call. Returns it with the id that the server knows.
    pub(super) fn take_matching(
        &mut self,
        is_meant: impl Fn(&PendingRequest<T>) -> bool,
    ) -> Option<(Box<str>, PendingRequest<T>)> {
        let server_token = self
            .requests
            .iter()
            .find(|(_, call)| is_meant(call))?
            .0
            .clone();
        let call = self.requests.remove(&server_token)?;
        Some((server_token, call))
    }

    pub(super) fn take_all(&mut self) -> Vec<PendingRequest<T>> {
        self.requests.drain().map(|(_, call)| call).collect()
    }

    /// The only open call of a client; `None` if no call or several calls are open.
    pub(super) fn only_request(&self) -> Option<&PendingRequest<T>> {
        let mut calls = self
            .requests
            .values()
            .filter(|call| call.client_number != 0);
        let first = calls.next()?;
        calls.next().is_none().then_some(first)
    }

    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.requests.values().map(|call| call.deadline).min()
    }

    /// The only client with open calls; `None` if no client or several clients have some.
    pub(super) fn only_client(&self) -> Option<u64> {
        let mut client_numbers = self
            .requests
            .values()
            .map(|c| c.client_number)
            .filter(|m| *m != 0);
        let first = client_numbers.next()?;
        client_numbers
            .all(|client_number| client_number == first)
            .then_some(first)
    }
}

/// Whether every server returns this id in the same bytes.
pub(super) fn is_plain_id(id: &str) -> bool {
    let digits = id.strip_prefix('-').unwrap_or(id);
    let is_small = digits.len() < 16
        && digits.bytes().all(|b| b.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'))
        && id != "-0";
    let is_plain_text = id.starts_with('"')
        && id.len() <= MAX_PLAIN_ID_BYTES
        && id.bytes().all(|b| (b' '..0x7f).contains(&b) && b != b'\\');
    (is_small && !digits.is_empty()) || is_plain_text
}

#[cfg(test)]
mod tests {
    use super::{PendingRequests, is_plain_id};
    use crate::message::RpcMessage;
    use bytes::Bytes;
    use std::time::Duration;

    const MINUTE: Duration = Duration::from_secs(60);

    fn message(text: &str) -> RpcMessage {
        RpcMessage::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[test]
    fn clients_that_share_a_child_get_their_own_ids_and_tokens_back() {
        let mut calls = PendingRequests::new(true);
        let request =
            message(r#"{"id":1.0,"method":"m","params":{"_meta":{"progressToken":"t"}, "n":1.0}}"#);
        let first = calls.register_request(&request, 1, MINUTE, "first");
        let second = calls.register_request(&request, 2, MINUTE, "second");
        let expected = r#"{"id":2,"method":"m","params":{"_meta":{"progressToken":2}, "n":1.0}}"#;
        assert_eq!(second, expected.as_bytes());
        assert_ne!(first, second);
        assert_eq!(calls.only_client(), None);
        let report = message(r#"{"method":"notifications/progress","params":{"progressToken":2}}"#);
        let (call, text) = calls.match_progress(&report).unwrap();
        assert_eq!(call.origin, "second");
        assert!(text.ends_with(br#"{"progressToken":"t"}}"#));
        let answer = message(r#"{"id":1,"result":{"x":1e400}}"#);
        let (call, text) = calls.take_answered(&answer).unwrap();
        assert_eq!(call.origin, "first");
        assert_eq!(text, r#"{"id":1.0,"result":{"x":1e400}}"#.as_bytes());
        assert!(calls.take_answered(&answer).is_none());
        assert_eq!(calls.only_client(), Some(2));
    }

    #[test]
    fn the_only_client_of_a_child_keeps_its_ids_unless_they_are_odd() {
        let mut calls = PendingRequests::new(false);
        let plain = message(r#"{"id":"a-1","method":"m"}"#);
        assert_eq!(calls.register_request(&plain, 1, MINUTE, 0), plain.text());
        // A second request with an id that is still open must not be confused with the first.
        assert_ne!(calls.register_request(&plain, 1, MINUTE, 1), plain.text());
        let unusual = message(r#"{"id":12345678901234567890,"method":"m"}"#);
        let sent = calls.register_request(&unusual, 1, MINUTE, 2);
        let sent = message(std::str::from_utf8(&sent).unwrap());
        let answer = message(&format!(r#"{{"id":{},"result":1}}"#, sent.id().unwrap()));
        let (call, text) = calls.take_answered(&answer).unwrap();
        assert_eq!(call.origin, 2);
        assert_eq!(text, r#"{"id":12345678901234567890,"result":1}"#.as_bytes());
    }

    #[test]
    fn only_own_calls_are_cancelled() {
        let mut calls = PendingRequests::new(true);
        calls.register_request(&message(r#"{"id":5,"method":"m"}"#), 1, MINUTE, 0);
        let cancel = message(
            r#"{"method":"notifications/cancelled","params":{"requestId":5,"reason":"x"}}"#,
        );
        assert!(calls.take_cancelled(2, &cancel).is_none());
        let (_, text) = calls.take_cancelled(1, &cancel).unwrap();
        assert!(text.ends_with(br#"{"requestId":1,"reason":"x"}}"#));
        assert_eq!(calls.len(), 0);
    }

    #[test]
    fn plain_ids_are_distinguished_from_unusual_ids() {
        for id in ["0", "-7", "999999999999999", r#""x y""#] {
            assert!(is_plain_id(id), "{id}");
        }
        for id in [
            "1.0",
            "1e3",
            "null",
            "-0",
            "01",
            "-",
            r#""\u0041""#,
            "\"é\"",
            "{}",
            "true",
        ] {
            assert!(!is_plain_id(id), "{id}");
        }
    }
}
