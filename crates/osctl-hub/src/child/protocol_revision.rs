//! The two kinds of protocol revisions, with and without a handshake, and how messages are adapted to a server's
//! kind. Pure functions.
//!
//! Servers with a handshake may reject the fields that the newest revision requires in every request. Servers that
//! support only the newest revision refuse the handshake, and require an envelope in each request.
//!
//! ```text
//!            refuses `initialize`             answers `server/discover`
//! Handshake ──────────────────────▶ (probed) ─────────────────────────▶ Stateless
//! ```

use crate::client::McpClient;
use crate::message::{self, RpcMessage, Span, find_raw};
use bytes::Bytes;

/// The newest revision with a handshake, which the hub declares to shared servers. [`HANDSHAKE_REVISIONS`] are all
/// revisions with a handshake that it supports.
pub(crate) const NEWEST_HANDSHAKE_REVISION: &str = "2025-11-25";
pub(crate) const HANDSHAKE_REVISIONS: [&str; 4] = [
    "2024-11-05",
    "2025-03-26",
    "2025-06-18",
    NEWEST_HANDSHAKE_REVISION,
];

/// The revision without a handshake.
pub(crate) const STATELESS_REVISION: &str = "2026-07-28";

/// The keys in `_meta` of every request of that revision.
pub(crate) const META_PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const META_CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub(crate) const META_CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
const ENVELOPE_META_KEYS: [&str; 4] = [
    META_PROTOCOL_VERSION,
    META_CLIENT_INFO,
    META_CLIENT_CAPABILITIES,
    META_LOG_LEVEL,
];
/// The key under which a server describes itself.
const META_SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// Requests that a server of the newest revision can send to a client of an older revision.
const CLIENT_REQUEST_CAPABILITIES: [&str; 3] = ["sampling", "elicitation", "roots"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtocolRevision {
    Handshake,
    Stateless,
}

/// The envelope of the hub's own requests.
pub(super) fn hub_envelope() -> String {
    let info = serde_json::json!({"name": "osctl", "version": env!("CARGO_PKG_VERSION")});
    format!(
        r#""{META_PROTOCOL_VERSION}":"{STATELESS_REVISION}","{META_CLIENT_INFO}":{info},"{META_CLIENT_CAPABILITIES}":{{}}"#
    )
}

/// The envelope for a client's request, from the client's `initialize` parameters.
pub(super) fn client_envelope(client: &McpClient, level: Option<&str>) -> String {
    let params = client.initialize_params.as_deref().unwrap_or_default();
    let params = std::str::from_utf8(params).unwrap_or_default();
    let level = level.map(|level| format!(r#","{META_LOG_LEVEL}":{level}"#));
    let level = level.unwrap_or_default();
    let Some(info) = find_raw(params, &["clientInfo"]) else {
        return hub_envelope() + &level;
    };
    let can = CLIENT_REQUEST_CAPABILITIES.iter().filter_map(|name| {
        let capability = find_raw(params, &["capabilities", name])?;
        Some(format!("\"{name}\":{capability}"))
    });
    let can = can.collect::<Vec<_>>().join(",");
    format!(
        r#""{META_PROTOCOL_VERSION}":"{STATELESS_REVISION}","{META_CLIENT_INFO}":{info},"{META_CLIENT_CAPABILITIES}":{{{can}}}{level}"#
    )
}

/// Whether a request has the envelope of the newest revision.
pub(super) fn is_enveloped(message: &RpcMessage) -> bool {
    message
        .param_span(&["_meta", META_PROTOCOL_VERSION])
        .is_some()
}

/// Adds an envelope to a request. Returns the request unchanged if it has one, or if its parameters are an array.
pub(super) fn with_envelope(message: RpcMessage, envelope: &str) -> RpcMessage {
    if is_enveloped(&message) {
        return message;
    }
    if let Some(meta) = message.param_span(&["_meta"]) {
        return with_object_fields(message, meta, envelope);
    }
    with_params(message, &format!("\"_meta\":{{{envelope}}}"))
}

/// Adds fields to the parameters of a request.
pub(super) fn with_params(message: RpcMessage, fields: &str) -> RpcMessage {
    if fields.is_empty() {
        return message;
    }
    if let Some(params) = message.param_span(&[]) {
        return with_object_fields(message, params, fields);
    }
    message.with_new_params(&format!("{{{fields}}}"))
}

/// Adds fields to the object at this place.
fn with_object_fields(message: RpcMessage, object: Span, fields: &str) -> RpcMessage {
    let inner = &message.text()[object.start..object.end];
    let rest = inner.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    let comma = match rest {
        Some(rest) if rest.starts_with(b"}") => "",
        Some(_) => ",",
        // Positional parameters have no names.
        None => return message,
    };
    let start = object.start + 1;
    message.with_edits([(start..start, &*format!("{fields}{comma}"))])
}

/// Removes the envelope for a server with a handshake, because some of these servers reject it.
pub(super) fn without_envelope(message: RpcMessage) -> RpcMessage {
    let meta = message.raw_param(&["_meta"]);
    let rest = meta
        .and_then(|meta| message::without_fields(meta, |name| ENVELOPE_META_KEYS.contains(&name)));
    match rest {
        Some(rest) => message.with_param(&["_meta"], &rest),
        None => message,
    }
}

/// Builds an `initialize` result from the result of `server/discover`.
///
/// # Errors
/// Fails when the server does not support the newest revision either.
pub(super) fn initialize_result_from_discovery(found: &str) -> Result<Bytes, String> {
    let versions = find_raw(found, &["supportedVersions"]).unwrap_or("[]");
    let supported = message::array_elements(versions);
    if !supported.contains(&format!("\"{STATELESS_REVISION}\"").as_str()) {
        return Err(format!(
            "it supports only the protocol revisions {versions}"
        ));
    }
    let raw = |path: &[&str]| find_raw(found, path);
    let capabilities = raw(&["capabilities"]).unwrap_or("{}");
    let info = raw(&["_meta", META_SERVER_INFO]).or_else(|| raw(&["serverInfo"]));
    let info = info.unwrap_or(r#"{"name":"","version":""}"#);
    let instructions = raw(&["instructions"]).map(|text| format!(",\"instructions\":{text}"));
    let instructions = instructions.unwrap_or_default();
    let text = format!(
        r#"{{"protocolVersion":"{NEWEST_HANDSHAKE_REVISION}","capabilities":{capabilities},"serverInfo":{info}{instructions}}}"#
    );
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::{initialize_result_from_discovery, with_envelope, with_params, without_envelope};
    use crate::child::protocol_revision;
    use crate::client::{McpClient, NotificationSink};
    use crate::message::RpcMessage;
    use bytes::Bytes;
    use std::sync::Arc;

    fn message(text: &str) -> RpcMessage {
        RpcMessage::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[derive(Debug)]
    struct EnvelopeNullSink;

    impl NotificationSink for EnvelopeNullSink {
        fn deliver(&self, _message: RpcMessage, _is_related: bool) {}
    }

    #[test]
    fn an_envelope_is_added_and_nothing_else_changes() {
        for (text, expected) in [
            (
                r#"{"id":1.0,"method":"m"}"#,
                r#"{"id":1.0,"method":"m","params":{"_meta":{E}}}"#,
            ),
            (
                r#"{"id":1,"method":"m","params":{ }}"#,
                r#"{"id":1,"method":"m","params":{"_meta":{E} }}"#,
            ),
            (
                r#"{"id":1,"params":{"n":1e400},"method":"m"}"#,
                r#"{"id":1,"params":{"_meta":{E},"n":1e400},"method":"m"}"#,
            ),
            (
                r#"{"id":1,"method":"m","params":{"_meta":{"progressToken":1.0}}}"#,
                r#"{"id":1,"method":"m","params":{"_meta":{E,"progressToken":1.0}}}"#,
            ),
            (
                r#"{"id":1,"method":"m","params":[1]}"#,
                r#"{"id":1,"method":"m","params":[1]}"#,
            ),
        ] {
            let dressed = with_envelope(message(text), &protocol_revision::hub_envelope());
            let expected =
                expected.replace("{E", &format!("{{{}", protocol_revision::hub_envelope()));
            assert_eq!(dressed.text(), expected.as_bytes());
            assert_eq!(
                with_envelope(dressed.clone(), "\"x\":1").text(),
                match text.contains('[') {
                    true => text.as_bytes(),
                    false => expected.as_bytes(),
                }
            );
        }
        let dressed = with_envelope(
            message(r#"{"id":1,"method":"m","params":{"_meta":{"a":1.0}}}"#),
            &protocol_revision::hub_envelope(),
        );
        let expected = r#"{"id":1,"method":"m","params":{"_meta":{"a":1.0}}}"#;
        assert_eq!(without_envelope(dressed).text(), expected.as_bytes());
        for text in [r#"{"id":1,"method":"m"}"#, r#"{"method":"m","id":1}"#] {
            let more = with_params(message(text), "\"a\":1");
            assert_eq!(more.params(), Some(r#"{"a":1}"#));
            assert_eq!(more.id(), Some("1"));
            let parsed = RpcMessage::parse(more.text().clone()).unwrap();
            assert_eq!((parsed.params(), parsed.id()), (more.params(), more.id()));
            assert_eq!(with_params(more.clone(), "").text(), more.text());
        }
    }

    #[test]
    fn envelope_has_client_capabilities() {
        let initialize_params = r#"{"clientInfo":{"name":"c","n":1.0},"capabilities":{"roots":{"listChanged":true},"x":{}}}"#;
        let client = McpClient {
            number: 1,
            initialize_params: Some(initialize_params.into()),
            notification_sink: Arc::new(EnvelopeNullSink),
        };
        let envelope = format!(
            "{{{}}}",
            protocol_revision::client_envelope(&client, Some("\"info\""))
        );
        let envelope: serde_json::Value = serde_json::from_str(&envelope).unwrap();
        let roots = serde_json::json!({"roots": {"listChanged": true}});
        assert_eq!(envelope[protocol_revision::META_CLIENT_CAPABILITIES], roots);
        assert_eq!(envelope[protocol_revision::META_LOG_LEVEL], "info");
        assert_eq!(envelope[protocol_revision::META_CLIENT_INFO]["name"], "c");
    }

    #[test]
    fn a_discovery_becomes_the_result_of_a_handshake() {
        let found = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"n":1.0}},"instructions":"\u0041","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}"#;
        let expected = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"n":1.0}},"serverInfo":{"name":"s","version":"1"},"instructions":"\u0041"}"#;
        assert_eq!(initialize_result_from_discovery(found).unwrap(), expected);
        let other = initialize_result_from_discovery(r#"{"supportedVersions":["2099-01-01"]}"#);
        assert!(other.unwrap_err().contains("2099-01-01"));
    }
}
