//! A message from the client: its unchanged text, and the fields that the bridge needs.

use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BridgeMessageKind {
    Request,
    /// A notification, or a response to a request of the server.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BridgeMessage {
    pub(super) text: Bytes,
    pub(super) kind: BridgeMessageKind,
    /// The raw JSON of the id.
    pub(super) id: Box<str>,
    pub(super) method: String,
    /// The protocol revision, if the message states it: such clients have no session.
    pub(super) version: Option<String>,
    /// The value of the header that accompanies the method.
    pub(super) name: Option<String>,
    /// The raw id of the request that this message cancels.
    pub(super) cancelled: Option<Box<str>>,
}

#[derive(Deserialize)]
struct BridgeEnvelope<'a> {
    /// Includes `null`.
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// Raw, because numbers that do not fit a double pass unchanged.
#[derive(Default, Deserialize)]
struct BridgeParams<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    uri: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "requestId")]
    cancelled: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct BridgeMeta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: &'a RawValue,
}

/// The text, if the value is a string.
fn raw_to_string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl BridgeMessage {
    /// The messages of a line: one, unless the line is a batch.
    ///
    /// # Errors
    /// When the line is not JSON.
    pub(super) fn parse_all(text: &Bytes) -> Result<Vec<Self>, String> {
        let trimmed = text.trim_ascii();
        if !trimmed.starts_with(b"[") {
            return Ok(vec![Self::parse(text.slice_ref(trimmed))?]);
        }
        let all: Vec<&RawValue> = serde_json::from_slice(trimmed).map_err(|e| e.to_string())?;
        let part = |raw: &RawValue| Self::parse(Bytes::copy_from_slice(raw.get().as_bytes()));
        all.into_iter().map(part).collect()
    }

    fn parse(text: Bytes) -> Result<Self, String> {
        let envelope: BridgeEnvelope<'_> =
            serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        let method = envelope.method.clone();
        let id: Box<str> = envelope.id.map_or("null", RawValue::get).into();
        let kind = match (&method, envelope.id) {
            (Some(_), Some(_)) => BridgeMessageKind::Request,
            _ => BridgeMessageKind::Other,
        };
        let method = method.unwrap_or_default();
        // Parameters may be an array, or absent.
        let raw = envelope.params.map_or("{}", RawValue::get);
        let params: BridgeParams<'_> = serde_json::from_str(raw).unwrap_or_default();
        let name = match method.as_str() {
            "tools/call" | "prompts/get" => params.name.and_then(raw_to_string),
            "resources/read" => params.uri.and_then(raw_to_string),
            _ => None,
        };
        let meta = params.meta.map_or("{}", RawValue::get);
        let meta: Option<BridgeMeta<'_>> = serde_json::from_str(meta).ok();
        let version = meta.and_then(|meta| raw_to_string(meta.version));
        let cancelled = params
            .cancelled
            .filter(|_| method == "notifications/cancelled");
        let cancelled = cancelled.map(|id| id.get().into());
        Ok(Self {
            kind,
            id,
            method,
            version,
            name,
            cancelled,
            text,
        })
    }

    /// Whether a message of the hub answers this request.
    pub(super) fn is_answered_by(&self, text: &[u8]) -> bool {
        let Ok(envelope) = serde_json::from_slice::<BridgeEnvelope<'_>>(text) else {
            return false;
        };
        envelope.method.is_none() && envelope.id.is_some_and(|id| *id.get() == *self.id)
    }
}

/// A message without line breaks, which JSON allows only between values.
pub(super) fn to_single_line(text: &[u8]) -> Bytes {
    let text = text.trim_ascii();
    let is_break = |byte: &u8| *byte == b'\n' || *byte == b'\r';
    match text.iter().any(is_break) {
        false => Bytes::copy_from_slice(text),
        true => {
            let plain = |byte: &u8| if is_break(byte) { b' ' } else { *byte };
            text.iter().map(plain).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BridgeMessage, BridgeMessageKind, to_single_line};
    use bytes::Bytes;

    fn line(text: &'static str) -> BridgeMessage {
        BridgeMessage::parse_all(&Bytes::from_static(text.as_bytes()))
            .unwrap()
            .remove(0)
    }

    #[test]
    fn a_line_is_classified_and_stays_unchanged() {
        let text = r#" {"id":1.0,"method":"tools/call","params":{"name":"a", "n":1e400, "_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}} "#;
        let call = line(text);
        assert_eq!(call.text, text.trim().as_bytes());
        assert_eq!(
            (call.kind, &*call.id, call.name.as_deref()),
            (BridgeMessageKind::Request, "1.0", Some("a"))
        );
        assert_eq!(call.version.as_deref(), Some("2026-07-28"));
        assert!(call.is_answered_by(br#"{"result":{},"id":1.0}"#));
        assert!(!call.is_answered_by(br#"{"result":{},"id":1}"#));
        assert!(!call.is_answered_by(br#"{"method":"ping","id":1.0}"#));
        assert_eq!(
            line(r#"{"id":null,"method":"x"}"#).kind,
            BridgeMessageKind::Request
        );
        assert_eq!(
            line(r#"{"id":1,"result":1}"#).kind,
            BridgeMessageKind::Other
        );
        let odd = line(r#"{"method":"x","params":[1]}"#);
        assert_eq!((odd.kind, odd.version), (BridgeMessageKind::Other, None));
    }

    #[test]
    fn a_batch_is_its_messages_and_invalid_json_has_none() {
        let batch = Bytes::from_static(br#"[{"id":1,"method":"a"},{"method":"b"}]"#);
        assert_eq!(BridgeMessage::parse_all(&batch).unwrap().len(), 2);
        for bad in ["", "{", "1", "[1]"] {
            assert!(
                BridgeMessage::parse_all(&Bytes::from_static(bad.as_bytes())).is_err(),
                "{bad}"
            );
        }
        let cancel = line(r#"{"method":"notifications/cancelled","params":{"requestId":"a"}}"#);
        assert_eq!(cancel.cancelled.as_deref(), Some("\"a\""));
    }

    #[test]
    fn an_outgoing_message_is_one_line() {
        assert_eq!(
            to_single_line(b"{\n \"a\": 1\r\n}\n"),
            &b"{  \"a\": 1  }"[..]
        );
    }
}
