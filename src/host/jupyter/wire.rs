//! Jupyter's messages as frames: `[identities…, <IDS|MSG>, signature, header, parent header,
//! metadata, content]`, the last four in JSON and signed together.

use crate::error::Result;
use crate::protocol::hex::hex;
use bytes::Bytes;
use chrono::{SecondsFormat, Utc};
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// The version of the messaging protocol.
pub(super) const JUPYTER_PROTOCOL_VERSION: &str = "5.3";

const JUPYTER_DELIMITER: &[u8] = b"<IDS|MSG>";

/// A request of a front end.
#[derive(Debug, Clone)]
pub(super) struct JupyterRequest {
    /// The routing prefix of the reply.
    identities: Vec<Bytes>,
    /// Returned unchanged, as the parent of every reply.
    header: Box<RawValue>,
    pub(super) kind: String,
    content: Bytes,
}

impl JupyterRequest {
    /// # Errors
    /// When the content does not fit its type.
    pub(super) fn parse_content<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(serde_json::from_slice(&self.content)?)
    }
}

#[derive(Debug, Deserialize)]
struct JupyterHeader {
    msg_type: String,
}

/// Encodes and decodes messages: verifies and makes signatures.
#[derive(Debug, Clone)]
pub(super) struct JupyterCodec {
    /// `None`: messages are not signed.
    key: Option<Hmac<Sha256>>,
    session: String,
}

impl JupyterCodec {
    pub(super) fn new(key: &str) -> Result<Self> {
        let signed = !key.is_empty();
        Ok(Self {
            key: signed
                .then(|| Hmac::new_from_slice(key.as_bytes()))
                .transpose()?,
            session: fresh_id()?,
        })
    }

    /// Decodes a request; `None` if malformed or wrongly signed.
    pub(super) fn decode_request(&self, mut frames: Vec<Bytes>) -> Option<JupyterRequest> {
        let at = frames
            .iter()
            .position(|frame| **frame == *JUPYTER_DELIMITER)?;
        let parts = frames.split_off(at + 1);
        frames.truncate(at);
        let [signature, header, parent, metadata, content, ..] = parts.as_slice() else {
            return None;
        };
        let expected = self.sign([header, parent, metadata, content]);
        if self.key.is_some() && !bool::from(expected.as_bytes().ct_eq(signature)) {
            return None;
        }
        Some(JupyterRequest {
            identities: frames,
            kind: serde_json::from_slice::<JupyterHeader>(header)
                .ok()?
                .msg_type,
            header: serde_json::from_slice(header).ok()?,
            content: content.clone(),
        })
    }

    /// A reply to the requester.
    pub(super) fn encode_reply(
        &self,
        to: &JupyterRequest,
        kind: &str,
        content: &Value,
    ) -> Result<Vec<Bytes>> {
        self.encode_message(to.identities.clone(), Some(to), kind, content)
    }

    /// A message to all subscribers; its topic is its type.
    pub(super) fn encode_iopub(
        &self,
        parent: Option<&JupyterRequest>,
        kind: &str,
        content: &Value,
    ) -> Result<Vec<Bytes>> {
        let topic = Bytes::copy_from_slice(kind.as_bytes());
        self.encode_message(vec![topic], parent, kind, content)
    }

    fn encode_message(
        &self,
        mut frames: Vec<Bytes>,
        parent: Option<&JupyterRequest>,
        kind: &str,
        content: &Value,
    ) -> Result<Vec<Bytes>> {
        let header = json!({
            "msg_id": fresh_id()?,
            "session": self.session,
            "username": "osctl",
            "date": Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true),
            "msg_type": kind,
            "version": JUPYTER_PROTOCOL_VERSION,
        });
        let header = Bytes::from(serde_json::to_vec(&header)?);
        let parent = parent.map_or("{}", |parent| parent.header.get());
        let parent = Bytes::copy_from_slice(parent.as_bytes());
        let metadata = Bytes::from_static(b"{}");
        let content = Bytes::from(serde_json::to_vec(content)?);
        let signature = self.sign([&header, &parent, &metadata, &content]);
        frames.extend([
            Bytes::from_static(JUPYTER_DELIMITER),
            signature.into(),
            header,
            parent,
            metadata,
            content,
        ]);
        Ok(frames)
    }

    fn sign(&self, parts: [&Bytes; 4]) -> String {
        let Some(mut mac) = self.key.clone() else {
            return String::new();
        };
        for part in parts {
            mac.update(part);
        }
        hex(mac.finalize().into_bytes())
    }
}

/// A unique name.
pub(super) fn fresh_id() -> Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|e| anyhow::anyhow!("no random numbers available: {e}"))?;
    Ok(hex(bytes))
}

#[cfg(test)]
mod tests {
    use super::{JupyterCodec, JupyterRequest};
    use bytes::Bytes;
    use serde_json::{Value, json};

    /// A request as a front end with this key would send it.
    fn frames(key: &str, header: &str, content: &str) -> Vec<Bytes> {
        let codec = JupyterCodec::new(key).unwrap();
        let parts =
            [header, "{}", "{}", content].map(|part| Bytes::copy_from_slice(part.as_bytes()));
        let signature = codec.sign(parts.each_ref());
        let mut frames = vec!["who".into(), "<IDS|MSG>".into(), Bytes::from(signature)];
        frames.extend(parts);
        frames
    }

    const HEADER: &str = r#"{"msg_id": "1",  "msg_type":"execute_request"}"#;

    fn read(key: &str, frames: Vec<Bytes>) -> Option<JupyterRequest> {
        JupyterCodec::new(key).unwrap().decode_request(frames)
    }

    #[test]
    fn a_signature_is_the_one_that_others_compute() {
        let parts = ["a", "b", "c", "d"].map(Bytes::from);
        let signed = JupyterCodec::new("key").unwrap().sign(parts.each_ref());
        // Python: hmac.new(b'key', b'abcd', 'sha256').hexdigest()
        assert_eq!(
            signed,
            "2a31ec0ee8d878c9eece9fb0df79b3b90b2256240163aa5ee50d176d3d1121f8"
        );
    }

    #[test]
    fn only_messages_signed_with_the_key_are_read() {
        assert!(read("key", frames("key", HEADER, "{}")).is_some());
        assert!(read("key", frames("other", HEADER, "{}")).is_none());
        assert!(read("key", frames("", HEADER, "{}")).is_none());
        assert!(read("", frames("", HEADER, "{}")).is_some());
        let mut changed = frames("key", HEADER, "{}");
        changed[6] = r#"{"code": "evil"}"#.into();
        assert!(read("key", changed).is_none());
    }

    #[test]
    fn a_malformed_message_is_dropped() {
        let whole = frames("key", HEADER, "{}");
        for length in 0..whole.len() {
            assert!(read("key", whole[..length].to_vec()).is_none());
        }
        assert!(read("key", frames("key", "not json", "{}")).is_none());
        assert!(read("key", frames("key", r#"{"msg_id": 1}"#, "{}")).is_none());
    }

    #[test]
    fn a_reply_goes_back_where_its_request_came_from() {
        let request = read("key", frames("key", HEADER, r#"{"code": "1"}"#)).unwrap();
        assert_eq!(request.kind, "execute_request");
        assert_eq!(
            request.parse_content::<Value>().unwrap(),
            json!({"code": "1"})
        );
        let codec = JupyterCodec::new("key").unwrap();
        let reply = codec
            .encode_reply(&request, "execute_reply", &json!({}))
            .unwrap();
        assert_eq!(reply[0], "who");
        assert_eq!(reply[4], HEADER);
        assert_eq!(codec.decode_request(reply).unwrap().kind, "execute_reply");
    }

    #[test]
    fn an_announcement_is_found_by_its_type() {
        let codec = JupyterCodec::new("").unwrap();
        let frames = codec.encode_iopub(None, "status", &json!({})).unwrap();
        assert_eq!((&*frames[0], &*frames[4]), (&b"status"[..], &b"{}"[..]));
    }
}
