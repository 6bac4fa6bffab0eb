//! Tests of messages: their parts, and edits that keep the parts.

use super::{
    RpcMessage, RpcMessageKind, RpcParseError, array_elements, find_value, is_lost_response,
    is_same_id, lost_response, without_fields,
};
use bytes::Bytes;
use std::cell::Cell;
use std::ops::Deref;

std::thread_local! {
    /// How many messages this thread has parsed.
    pub(crate) static PARSE_COUNT: Cell<usize> = const { Cell::new(0) };
}

// Tests write a message as its text, and compare it with a text. A text that is no message has no parts.
impl From<&str> for RpcMessage {
    fn from(text: &str) -> Self {
        let text = Bytes::copy_from_slice(text.as_bytes());
        let kind = RpcMessageKind::Notification;
        let empty = Self::compose(kind, "", "", [""; 3]);
        Self::parse(text.clone()).unwrap_or(Self { text, ..empty })
    }
}

impl Deref for RpcMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.text
    }
}

impl AsRef<[u8]> for RpcMessage {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<T: AsRef<[u8]>> PartialEq<T> for RpcMessage {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

fn parse(text: &'static str) -> RpcMessage {
    RpcMessage::parse(Bytes::from_static(text.as_bytes())).unwrap()
}

#[test]
fn the_parts_are_found_and_the_rest_is_left_as_it_was() {
    let text = r#"{ "x":1e400, "id" : "\u0041", "method":"a\/b","params":{"_meta":{"progressToken":1.0,"y":[ ]},"n":123456789012345678901234567890} }"#;
    let message = parse(text);
    assert_eq!(
        (message.kind, message.method.as_str()),
        (RpcMessageKind::Request, "a/b")
    );
    assert_eq!(message.id(), Some(r#""\u0041""#));
    let token = message.param_span(&["_meta", "progressToken"]).unwrap();
    let edits = vec![(token, "7"), message.id_edit("99").unwrap()];
    let expected = text.replace(r#""\u0041""#, "99").replace("1.0", "7");
    assert_eq!(message.with_edits(edits), expected.as_bytes());
}

#[test]
fn an_edited_message_has_the_parts_of_its_text() {
    let has_parts_of_its_text = |message: &RpcMessage| {
        let parsed = RpcMessage::parse(message.text().clone()).unwrap();
        assert_eq!(
            (parsed.kind, &parsed.method),
            (message.kind, &message.method)
        );
        assert_eq!(parsed.id(), message.id());
        assert_eq!(parsed.params(), message.params());
        assert_eq!(parsed.result(), message.result());
        assert_eq!(parsed.raw_error(&[]), message.raw_error(&[]));
    };
    for text in [
        r#"{"id":1,"method":"m","params":{"name":"a__b","x":2}}"#,
        r#"{ "params" : {"x":2,"name":"a__b"} ,"method":"m", "id":"long id"}"#,
    ] {
        let message = parse(text);
        let name = message.param_span(&["name"]).unwrap();
        let start = message.param_span(&[]).unwrap().start + 1;
        let edits = vec![
            (name, "\"b\""),
            message.id_edit("12345").unwrap(),
            (start..start, "\"y\":1,"),
        ];
        let edited = message.with_edits(edits);
        has_parts_of_its_text(&edited);
        has_parts_of_its_text(&edited.with_id("1"));
    }
    has_parts_of_its_text(&parse(r#"{"method":"m","id":1 }"#).with_new_params("{}"));
    for answer in [r#"{"result":[1], "id":1}"#, r#"{"id":1,"result":{"a":1}}"#] {
        has_parts_of_its_text(&parse(answer).with_id("\"22\"").with_result("{}"));
    }
    has_parts_of_its_text(&super::error_response("1", 2, "x"));
    has_parts_of_its_text(&super::result_response("\"a\"", "{}"));
    has_parts_of_its_text(&super::request_message("1", "m", "{}"));
    has_parts_of_its_text(&super::notification_message("m", ""));
    has_parts_of_its_text(&super::notification_message("m", "{}"));
}

#[test]
fn requests_notifications_and_answers_are_distinguished() {
    assert_eq!(
        parse(r#"{"method":"a","id":null}"#).kind,
        RpcMessageKind::Request
    );
    assert_eq!(
        parse(r#"{"method":"a"}"#).kind,
        RpcMessageKind::Notification
    );
    assert_eq!(
        parse(r#"{"id":1,"result":null}"#).kind,
        RpcMessageKind::Answer
    );
    let error = parse(r#"{"id":null,"error":{}}"#);
    assert_eq!(
        (error.kind, error.id()),
        (RpcMessageKind::Answer, Some("null"))
    );
    let none = RpcMessage::parse(Bytes::from_static(br#"{"id":1}"#));
    assert!(matches!(none, Err(RpcParseError::NotRpc(_, Some(id))) if id == "1"));
    let none = RpcMessage::parse(Bytes::from_static(br#"{"id":"a","method":7}"#));
    assert!(matches!(none, Err(RpcParseError::NotRpc(_, Some(id))) if id == "\"a\""));
    for id in ["{}", "[1]", "true"] {
        let text = format!(r#"{{"id":{id},"method":"a"}}"#);
        let none = RpcMessage::parse(text.into());
        assert!(matches!(none, Err(RpcParseError::NotRpc(_, None))), "{id}");
    }
    let none = RpcMessage::parse(Bytes::from_static(b"{"));
    assert!(matches!(none, Err(RpcParseError::NotJson(_))));
}

#[test]
fn a_lost_call_is_distinguished_from_an_error_of_a_server() {
    assert!(is_lost_response(&lost_response("1")));
    for other in [
        r#"{"id":1,"error":{"code":-32603,"message":"x","data":{"type":"lost"}}}"#,
        r#"{"id":1,"error":{"code":-32000,"message":"x"}}"#,
        r#"{"id":1,"result":{"error":{"code":-32000,"data":{"type":"lost"}}}}"#,
    ] {
        assert!(!is_lost_response(other.as_bytes()), "{other}");
    }
}

#[test]
fn a_message_becomes_a_line() {
    let message = parse("{\n  \"method\": \"a\",\r\n  \"params\": {\"b\": \"\\n\"}\n}");
    assert!(!message.text().contains(&b'\n'));
    assert_eq!(message.params(), Some(r#"{"b": "\n"}"#));
}

#[test]
fn a_batch_is_its_messages() {
    let text = Bytes::from_static(br#" [{"method":"a"},{"id":1,"method":"b"}]"#);
    let (all, is_batch) = RpcMessage::parse_all(text).unwrap();
    assert!(is_batch);
    assert_eq!(all[1].method, "b");
}

#[test]
fn ids_are_compared_by_value() {
    assert!(is_same_id("1.0", "1") && is_same_id("\"a\"", "\"a\"") && is_same_id("1e2", "100"));
    assert!(is_same_id("\"A\"", r#""\u0041""#));
    assert!(!is_same_id("1", "\"1\"") && !is_same_id("null", "0"));
    assert!(!is_same_id("9007199254740992", "9007199254740993"));
}

#[test]
fn values_are_found_below_objects_and_in_arrays() {
    let text = r#"{"a":{"b":[1, {"c":2}]},"a":{"b":[3]}}"#;
    assert_eq!(&text[find_value(text, &["a", "b"]).unwrap()], "[3]");
    assert_eq!(find_value(text, &["a", "c"]), None);
    assert_eq!(array_elements("[1, {\"c\":2} ]"), ["1", "{\"c\":2}"]);
    let rest = without_fields(r#"{"a":1,"b" : 1.0}"#, |name| name == "a");
    assert_eq!(rest.as_deref(), Some(r#"{"b":1.0}"#));
}
