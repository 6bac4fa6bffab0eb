//! Which era of the protocol a server is of, and how messages are dressed for it: pure functions.
//!
//! Servers of the older era are shaken hands with, and may refuse what the newest revision says with every
//! request. Those that know the newest alone refuse the handshake, and want an envelope around each request.
//!
//! ```text
//!            refuses `initialize`             answers `server/discover`
//! Handshake ──────────────────────▶ (asked) ──────────────────────────▶ Stateless
//! ```

use crate::companion::mcp::member::Member;
use crate::companion::mcp::message::{self, Message, Span, find};
use crate::companion::mcp::server::NEWEST_WITH_HELLO;
use bytes::Bytes;

/// The revision without a handshake.
pub(in crate::companion::mcp) const MODERN: &str = "2026-07-28";

/// What every request of that revision says of itself.
pub(in crate::companion::mcp) const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(in crate::companion::mcp) const CAPABILITIES: &str =
    "io.modelcontextprotocol/clientCapabilities";
const INFO: &str = "io.modelcontextprotocol/clientInfo";
const LEVEL: &str = "io.modelcontextprotocol/logLevel";
const ENVELOPE: [&str; 4] = [VERSION, INFO, CAPABILITIES, LEVEL];
/// Where a server says who it is.
const SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// What a client of the older era can be asked for a server of the newest.
const ASKABLE: [&str; 3] = ["sampling", "elicitation", "roots"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    Handshake,
    Stateless,
}

/// What is said of ourselves.
pub(super) fn own_envelope() -> String {
    let info = serde_json::json!({"name": "osctl", "version": env!("CARGO_PKG_VERSION")});
    format!(r#""{VERSION}":"{MODERN}","{INFO}":{info},"{CAPABILITIES}":{{}}"#)
}

/// What is said of a client: what it said in its own handshake, as far as it counts.
pub(super) fn envelope(member: &Member, level: Option<&str>) -> String {
    let hello = member.hello.as_deref().unwrap_or_default();
    let hello = std::str::from_utf8(hello).unwrap_or_default();
    let level = level.map(|level| format!(r#","{LEVEL}":{level}"#));
    let level = level.unwrap_or_default();
    let Some(info) = find(hello, &["clientInfo"]) else {
        return own_envelope() + &level;
    };
    let can = ASKABLE.iter().filter_map(|name| {
        let span = find(hello, &["capabilities", name])?;
        Some(format!("\"{name}\":{}", &hello[span]))
    });
    let can = can.collect::<Vec<_>>().join(",");
    let info = &hello[info];
    format!(r#""{VERSION}":"{MODERN}","{INFO}":{info},"{CAPABILITIES}":{{{can}}}{level}"#)
}

/// Whether a request says of itself what the newest revision wants.
pub(super) fn is_enveloped(message: &Message) -> bool {
    message.param(&["_meta", VERSION]).is_some()
}

/// A request with an envelope; as it is, where it has one or there is no place for it.
pub(super) fn enveloped(message: Message, envelope: &str) -> Message {
    if is_enveloped(&message) {
        return message;
    }
    if let Some(meta) = message.param(&["_meta"]) {
        return with_fields(message, meta, envelope);
    }
    with_params(message, &format!("\"_meta\":{{{envelope}}}"))
}

/// A request with more parameters.
pub(super) fn with_params(message: Message, fields: &str) -> Message {
    if let Some(params) = message.param(&[]) {
        return with_fields(message, params, fields);
    }
    let text = message.text();
    let Some(end) = text.iter().rposition(|byte| *byte == b'}') else {
        return message;
    };
    let params = format!(",\"params\":{{{fields}}}");
    again(&message, end..end, &params)
}

/// The same, with more fields in the object that lies there.
fn with_fields(message: Message, object: Span, fields: &str) -> Message {
    let inner = &message.text()[object.start..object.end];
    let rest = inner.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    let comma = match rest {
        Some(rest) if rest.starts_with(b"}") => "",
        Some(_) => ",",
        // Parameters by position have no names.
        None => return message,
    };
    let start = object.start + 1;
    again(&message, start..start, &format!("{fields}{comma}"))
}

fn again(message: &Message, place: Span, text: &str) -> Message {
    let edited = message.with(vec![(place, text)]);
    Message::parse(edited).unwrap_or_else(|_| message.clone())
}

/// What a server with a handshake understands: some refuse what says of itself that it needs none.
pub(super) fn without_envelope(message: Message) -> Message {
    let meta = message.raw_param(&["_meta"]);
    let rest = meta.and_then(|meta| message::without(meta, |name| ENVELOPE.contains(&name)));
    let (Some(span), Some(rest)) = (message.param(&["_meta"]), rest) else {
        return message;
    };
    again(&message, span, &rest)
}

/// What the handshake would have told, made of the answer to `server/discover`.
///
/// # Errors
/// When the server does not speak the newest revision either.
pub(super) fn greeting(found: &str) -> Result<Bytes, String> {
    let versions = find(found, &["supportedVersions"]).map(|span| &found[span]);
    let versions = versions.unwrap_or("[]");
    let known = message::elements(versions);
    if !known.contains(&format!("\"{MODERN}\"").as_str()) {
        return Err(format!("it speaks the revisions {versions} alone"));
    }
    let raw = |path: &[&str]| find(found, path).map(|span| &found[span]);
    let capabilities = raw(&["capabilities"]).unwrap_or("{}");
    let info = raw(&["_meta", SERVER]).or_else(|| raw(&["serverInfo"]));
    let info = info.unwrap_or(r#"{"name":"","version":""}"#);
    let instructions = raw(&["instructions"]).map(|text| format!(",\"instructions\":{text}"));
    let instructions = instructions.unwrap_or_default();
    let text = format!(
        r#"{{"protocolVersion":"{NEWEST_WITH_HELLO}","capabilities":{capabilities},"serverInfo":{info}{instructions}}}"#
    );
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::{enveloped, greeting, with_params, without_envelope};
    use crate::companion::mcp::child::era;
    use crate::companion::mcp::member::{Ears, Member};
    use crate::companion::mcp::message::Message;
    use bytes::Bytes;
    use std::sync::Arc;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[derive(Debug)]
    struct Deaf;

    impl Ears for Deaf {
        fn hear(&self, _text: Bytes, _is_related: bool) {}
    }

    #[test]
    fn an_envelope_is_put_around_and_nothing_else_changes() {
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
            let dressed = enveloped(message(text), &era::own_envelope());
            let expected = expected.replace("{E", &format!("{{{}", era::own_envelope()));
            assert_eq!(dressed.text(), expected.as_bytes());
            assert_eq!(
                enveloped(dressed.clone(), "\"x\":1").text(),
                match text.contains('[') {
                    true => text.as_bytes(),
                    false => expected.as_bytes(),
                }
            );
        }
        let dressed = enveloped(
            message(r#"{"id":1,"method":"m","params":{"_meta":{"a":1.0}}}"#),
            &era::own_envelope(),
        );
        let expected = r#"{"id":1,"method":"m","params":{"_meta":{"a":1.0}}}"#;
        assert_eq!(without_envelope(dressed).text(), expected.as_bytes());
        let more = with_params(message(r#"{"id":1,"method":"m"}"#), "\"a\":1");
        assert_eq!(more.params(), Some(r#"{"a":1}"#));
    }

    #[test]
    fn what_a_client_can_is_said_for_it() {
        let hello = r#"{"clientInfo":{"name":"c","n":1.0},"capabilities":{"roots":{"listChanged":true},"x":{}}}"#;
        let member = Member {
            number: 1,
            hello: Some(hello.into()),
            ears: Arc::new(Deaf),
        };
        let said = format!("{{{}}}", era::envelope(&member, Some("\"info\"")));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let roots = serde_json::json!({"roots": {"listChanged": true}});
        assert_eq!(said[era::CAPABILITIES], roots);
        assert_eq!(said[era::LEVEL], "info");
        assert_eq!(said[era::INFO]["name"], "c");
    }

    #[test]
    fn what_is_discovered_becomes_a_handshakes_result() {
        let found = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"n":1.0}},"instructions":"\u0041","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}"#;
        let expected = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"n":1.0}},"serverInfo":{"name":"s","version":"1"},"instructions":"\u0041"}"#;
        assert_eq!(greeting(found).unwrap(), expected);
        let other = greeting(r#"{"supportedVersions":["2099-01-01"]}"#);
        assert!(other.unwrap_err().contains("2099-01-01"));
    }
}
