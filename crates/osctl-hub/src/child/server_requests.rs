//! Open requests of the server to its clients, and the ids under which the clients know them.
//!
//! A client may write an unusual id (`1.0`, `null`, a number that does not fit a double) back in other bytes. The
//! client therefore receives an id of the hub instead, and the server receives its own id exactly as it wrote it.

use super::pending_requests::is_plain_id;
use crate::message::{RpcMessage, is_same_id};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct ServerRequests {
    last_id: u64,
    /// By the id that the client knows.
    requests: BTreeMap<Box<str>, ServerRequest>,
}

#[derive(Debug)]
struct ServerRequest {
    client_number: u64,
    /// The id that the server knows.
    server_request_id: Box<str>,
}

impl ServerRequests {
    /// Registers a request, and returns the message for the client.
    pub(super) fn register_request(
        &mut self,
        message: &RpcMessage,
        client_number: u64,
    ) -> RpcMessage {
        let server_request_id = message.id().unwrap_or("null");
        let is_fit = is_plain_id(server_request_id)
            && !server_request_id.starts_with("\"osctl-")
            && !self.requests.contains_key(server_request_id);
        let hub_id: Box<str> = match is_fit {
            true => server_request_id.into(),
            false => {
                self.last_id += 1;
                format!("\"osctl-asks-{}\"", self.last_id).into()
            }
        };
        let renumbered = message.with_id(&hub_id);
        let server_request_id = server_request_id.into();
        self.requests.insert(
            hub_id,
            ServerRequest {
                client_number,
                server_request_id,
            },
        );
        renumbered
    }

    /// Returns a client's answer under the server's id; `None` if the client has no such request.
    pub(super) fn take_answered(
        &mut self,
        message: &RpcMessage,
        client_number: u64,
    ) -> Option<RpcMessage> {
        let id = message.id()?;
        let mut all = self.requests.iter();
        let is_meant = |hub_id: &str, by: u64| by == client_number && is_same_id(hub_id, id);
        let hub_id = all.find(|(hub_id, question)| is_meant(hub_id, question.client_number))?;
        let hub_id = hub_id.0.clone();
        let question = self.requests.remove(&hub_id)?;
        Some(message.with_id(&question.server_request_id))
    }

    /// Finds the client of a request that the server cancels. Returns the client with the cancellation under the
    /// client's id.
    pub(super) fn take_cancelled(&mut self, message: &RpcMessage) -> Option<(u64, RpcMessage)> {
        let id = message.raw_param(&["requestId"])?;
        let mut all = self.requests.iter();
        let hub_id = all
            .find(|(_, question)| is_same_id(&question.server_request_id, id))?
            .0
            .clone();
        let question = self.requests.remove(&hub_id)?;
        let renumbered = message.with_param(&["requestId"], &hub_id);
        Some((question.client_number, renumbered))
    }

    /// Removes the open requests to a client that is gone. Returns their ids as the server knows them.
    pub(super) fn take_unanswered(&mut self, client_number: u64) -> Vec<Box<str>> {
        let mut removed = Vec::new();
        self.requests.retain(|_, question| {
            if question.client_number == client_number {
                removed.push(question.server_request_id.clone());
            }
            question.client_number != client_number
        });
        removed
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::ServerRequests;
    use crate::message::RpcMessage;

    fn message(text: &str) -> RpcMessage {
        RpcMessage::parse(text.to_owned().into()).unwrap()
    }

    #[test]
    fn odd_ids_of_a_server_come_back_in_their_own_bytes() {
        for id in [
            "null",
            "1.0",
            "-0",
            "1e3",
            "12345678901234567890",
            "\"\\u0041\"",
            "\"osctl-1\"",
            "7",
            "\"plain\"",
        ] {
            let mut questions = ServerRequests::default();
            let request = format!(r#"{{"id":{id},"method":"m","params":{{"n":1.0}}}}"#);
            let hub_id = questions.register_request(&message(&request), 1);
            let hub_id = message(std::str::from_utf8(&hub_id).unwrap());
            assert_eq!(hub_id.params(), Some(r#"{"n":1.0}"#));
            // A client that parses the id and serializes it again.
            let value: serde_json::Value = serde_json::from_str(hub_id.id().unwrap()).unwrap();
            let answer = message(&format!(r#"{{"id":{value},"result":1e400}}"#));
            assert_eq!(questions.take_answered(&answer, 2), None);
            let client_answer = questions.take_answered(&answer, 1).unwrap();
            let expected = format!(r#"{{"id":{id},"result":1e400}}"#);
            assert_eq!(client_answer, expected.as_bytes());
            assert_eq!(questions.take_answered(&answer, 1), None);
        }
    }

    #[test]
    fn duplicate_id_is_two_requests() {
        let mut questions = ServerRequests::default();
        let request = message(r#"{"id":1,"method":"m"}"#);
        assert_eq!(questions.register_request(&request, 1), request.text());
        assert_ne!(questions.register_request(&request, 2), request.text());
        let answer = message(r#"{"id":1,"result":{}}"#);
        assert!(questions.take_answered(&answer, 2).is_none());
        assert!(questions.take_answered(&answer, 1).is_some());
        assert_eq!(questions.take_unanswered(2), ["1".into()]);
        assert!(questions.take_unanswered(2).is_empty());
    }

    #[test]
    fn server_cancel_uses_the_client_id() {
        let mut questions = ServerRequests::default();
        questions.register_request(&message(r#"{"id":9007199254740993,"method":"m"}"#), 1);
        questions.register_request(&message(r#"{"id":9007199254740992,"method":"m"}"#), 2);
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":9007199254740992,"x":1.0}}"#;
        let (client_number, text) = questions.take_cancelled(&message(cancel)).unwrap();
        assert_eq!(client_number, 2);
        assert!(text.ends_with(br#""params":{"requestId":"osctl-asks-2","x":1.0}}"#));
        assert_eq!(questions.take_cancelled(&message(cancel)), None);
    }
}
