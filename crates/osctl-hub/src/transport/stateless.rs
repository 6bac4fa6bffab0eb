//! The revision 2026-07-28 without sessions: every request carries its client's identity and protocol version, and
//! the end of its connection cancels it.
//!
//! Servers with a handshake may not know this revision: the hub adds the result fields that the revision requires and
//! that they omit, and changes nothing else. An older server can't send requests to such a client; a server of this
//! revision receives every request unchanged.

use super::refusal::{self, json_response, rpc_error_response};
use super::stream_response::{self, OnDisconnect, SseFormat, SseIdKind};
use super::{AcceptedTypes, header_text};
use crate::call_record::CallRecord;
use crate::child::protocol_revision::HANDSHAKE_REVISIONS;
use crate::child::protocol_revision::{self, STATELESS_REVISION};
use crate::client::{NotificationSink, NullSink, ReplySender, ReplyShape};
use crate::message::{self, RpcMessage, RpcMessageKind, find_raw};
use crate::message_stream::MessageStream;
use crate::param_headers::{ClientParamHeaders, PARAM_HEADER_PREFIX};
use crate::session::Backend;
use crate::{Hub, HubTarget};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use osctl_protocol::PROTOCOL_VERSION_HEADER;
use osctl_protocol::activity_text::client_name;
use osctl_protocol::mcp_header::decode_header;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

const HUB_VERSION_HEADER: &str = "mcp-protocol-version";
const PROTOCOL_VERSION_PATH: [&str; 2] = ["_meta", protocol_revision::META_PROTOCOL_VERSION];
const HEADER_MISMATCH_CODE: i64 = -32020;
const MISSING_CAPABILITY_CODE: i64 = -32021;
const UNSUPPORTED_VERSION_CODE: i64 = -32022;
const METHOD_NOT_FOUND_CODE: i64 = -32601;
const STATELESS_INVALID_PARAMS_CODE: i64 = -32602;
const CLIENT_CAPABILITIES_PATH: [&str; 2] = ["_meta", protocol_revision::META_CLIENT_CAPABILITIES];

/// The methods that were removed together with sessions.
const SESSION_ONLY_METHODS: [&str; 5] = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
];

/// Whether a message belongs to this revision or a later one.
pub(super) fn is_stateless_request(headers: &HeaderMap, message: &RpcMessage) -> bool {
    message.param_span(&PROTOCOL_VERSION_PATH).is_some()
        || header_text(headers, HUB_VERSION_HEADER) == Some(STATELESS_REVISION)
}

pub(super) async fn handle_message(
    hub: Hub,
    target: HubTarget,
    headers: &HeaderMap,
    message: RpcMessage,
    accepted: AcceptedTypes,
) -> Response {
    let id = message.id().unwrap_or("null").to_owned();
    if let Err(refusal) = check_headers(headers, &message, &id) {
        return *refusal;
    }
    // Over HTTP the only notification, `notifications/cancelled`, has no meaning.
    if message.kind != RpcMessageKind::Request {
        return refusal::accepted_response();
    }
    let method = message.method.clone();
    if SESSION_ONLY_METHODS.contains(&method.as_str()) {
        let why = format!("the revision {STATELESS_REVISION} has no method `{method}`");
        return rpc_error_response(StatusCode::NOT_FOUND, &id, METHOD_NOT_FOUND_CODE, &why);
    }
    if method == "subscriptions/listen" {
        return open_subscription(&hub, &target, &message, &id);
    }
    // A client without a session receives only messages of its calls.
    let backend = match hub.sessionless_backend(&target, &message, Arc::new(NullSink)) {
        Ok(backend) => Arc::new(backend),
        Err(refusal) => return refusal.into_http_response(Some(&id)),
    };
    if method == "server/discover" {
        return respond_to_discover(&backend, &id).await;
    }
    if method == "tools/call"
        && let Some(why) = backend.header_mismatch(&message, client_param_headers(headers))
    {
        return header_mismatch_response(&id, &why);
    }
    let stream = Arc::new(MessageStream::of_answers(hub.next_number(), 1));
    let shape = ReplyShape {
        adds_stateless_fields: true,
        ..ReplyShape::default()
    };
    let reply = ReplySender {
        shape,
        record: CallRecord::begin(
            hub.context(),
            &stateless_client_name(&message),
            target.server.as_deref(),
            &message,
        ),
        ..ReplySender::unshaped(stream.clone())
    };
    let at_end = OnDisconnect::new({
        let (backend, stream) = (backend.clone(), stream.clone());
        move || {
            if !stream.is_closed() {
                backend.cancel_stream(stream.number);
            }
        }
    });
    backend.send_request(message, reply);
    let format = SseFormat {
        id_kind: SseIdKind::None,
        primed: false,
    };
    let response =
        stream_response::answer_requests(stream.clone(), format, accepted, false, at_end).await;
    with_http_status(response, &stream).await
}

/// The client's name in the envelope.
fn stateless_client_name(message: &RpcMessage) -> Arc<str> {
    let path = ["_meta", protocol_revision::META_CLIENT_INFO, "name"];
    client_name(&message.text_param(&path).unwrap_or_default()).into()
}

/// Sets the HTTP status that the revision requires: 404 for an unknown method, 400 for an error code of the revision.
async fn with_http_status(mut response: Response, stream: &MessageStream) -> Response {
    if header_text(response.headers(), "content-type") != Some("application/json") {
        return response;
    }
    let answer = stream.wait_for_answer().await.unwrap_or_default();
    let answer = std::str::from_utf8(&answer).unwrap_or_default();
    let code = find_raw(answer, &["error", "code"]).map(str::parse);
    match code.and_then(Result::ok) {
        Some(METHOD_NOT_FOUND_CODE) => *response.status_mut() = StatusCode::NOT_FOUND,
        Some(HEADER_MISMATCH_CODE | MISSING_CAPABILITY_CODE | UNSUPPORTED_VERSION_CODE) => {
            *response.status_mut() = StatusCode::BAD_REQUEST;
        }
        _ => {}
    }
    response
}

/// The argument headers of a client's call.
fn client_param_headers(headers: &HeaderMap) -> ClientParamHeaders {
    let param_headers = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with(PARAM_HEADER_PREFIX));
    let value = |value: &HeaderValue| value.to_str().ok().and_then(decode_header);
    ClientParamHeaders {
        arguments: param_headers
            .map(|(name, requested_version)| (name.as_str().to_owned(), value(requested_version)))
            .collect(),
        // osctl's own clients do not send these headers: no intermediary reads them.
        is_partial: headers.contains_key(PROTOCOL_VERSION_HEADER),
    }
}

fn header_mismatch_response(id: &str, why: &str) -> Response {
    let why = format!("Header mismatch: {why}");
    rpc_error_response(StatusCode::BAD_REQUEST, id, HEADER_MISMATCH_CODE, &why)
}

/// Checks that the headers agree with the body.
fn check_headers(headers: &HeaderMap, message: &RpcMessage, id: &str) -> Result<(), Box<Response>> {
    let mismatch = |why: String| Err(Box::new(header_mismatch_response(id, &why)));
    let version = header_text(headers, HUB_VERSION_HEADER).unwrap_or_default();
    let Some(requested_version) = message.text_param(&PROTOCOL_VERSION_PATH) else {
        let why = format!("`_meta` does not contain `{}`", PROTOCOL_VERSION_PATH[1]);
        return Err(Box::new(rpc_error_response(
            StatusCode::BAD_REQUEST,
            id,
            STATELESS_INVALID_PARAMS_CODE,
            &why,
        )));
    };
    if version.is_empty() || version != requested_version {
        return mismatch(format!(
            "`MCP-Protocol-Version` is `{version}`, but the body has `{requested_version}`"
        ));
    }
    if version != STATELESS_REVISION {
        let error = json!({
            "code": UNSUPPORTED_VERSION_CODE,
            "message": "Unsupported protocol version",
            "data": {"supported": supported_revisions(), "requested": version},
        });
        let refused = message::raw_error_response(id, &error.to_string());
        return Err(Box::new(json_response(
            StatusCode::BAD_REQUEST,
            refused.into_text(),
        )));
    }
    if message.kind != RpcMessageKind::Request {
        return Ok(());
    }
    let capabilities = message
        .raw_param(&CLIENT_CAPABILITIES_PATH)
        .unwrap_or_default();
    if !capabilities.starts_with('{') {
        let why = format!("`_meta` does not contain `{}`", CLIENT_CAPABILITIES_PATH[1]);
        return Err(Box::new(rpc_error_response(
            StatusCode::BAD_REQUEST,
            id,
            STATELESS_INVALID_PARAMS_CODE,
            &why,
        )));
    }
    let method = header_text(headers, "mcp-method").unwrap_or_default();
    if method != message.method {
        return mismatch(format!(
            "`Mcp-Method` is `{method}`, but the body has `{}`",
            message.method
        ));
    }
    let name = match message.method.as_str() {
        "tools/call" | "prompts/get" => message.text_param(&["name"]),
        "resources/read" => message.text_param(&["uri"]),
        _ => return Ok(()),
    };
    let header_name = header_text(headers, "mcp-name").and_then(decode_header);
    if header_name.is_none() || header_name != name {
        let words = |name: Option<String>| name.unwrap_or_default();
        let (header_name, name) = (words(header_name), words(name));
        return mismatch(format!(
            "`Mcp-Name` is `{header_name}`, but the body has `{name}`"
        ));
    }
    Ok(())
}

fn supported_revisions() -> Vec<&'static str> {
    let older = HANDSHAKE_REVISIONS.iter().rev().copied();
    std::iter::once(STATELESS_REVISION).chain(older).collect()
}

/// Answers `server/discover` from the server's `initialize` result.
async fn respond_to_discover(backend: &Backend, id: &str) -> Response {
    let initialized = match backend.initialize_result().await {
        Ok(initialized) => initialized,
        Err(why) => {
            return crate::HubRefusal::Handshake(why).into_http_response(Some(id));
        }
    };
    let initialized: Value = serde_json::from_slice(&initialized).unwrap_or_default();
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": supported_revisions(),
        "capabilities": initialized["capabilities"],
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": initialized["serverInfo"]},
    });
    if initialized["instructions"].is_string() {
        result["instructions"] = initialized["instructions"].clone();
    }
    json_response(
        StatusCode::OK,
        message::result_response(id, &result.to_string()).into_text(),
    )
}

/// A client that listens for changes.
#[derive(Debug)]
struct SubscriptionListener {
    /// The raw id of the request; it identifies the subscription.
    id: String,
    methods: BTreeSet<&'static str>,
    subscribed_uris: BTreeSet<String>,
    stream: Arc<MessageStream>,
}

impl NotificationSink for SubscriptionListener {
    fn deliver(&self, message: RpcMessage, _is_related: bool) {
        let method = message.method.as_str();
        let uri = message.text_param(&["uri"]);
        let is_wanted = match &uri {
            Some(uri) => {
                method == "notifications/resources/updated" && self.subscribed_uris.contains(uri)
            }
            None => self.methods.contains(method),
        };
        if is_wanted {
            let uri = uri
                .map(|uri| format!(",\"uri\":{}", Value::from(uri)))
                .unwrap_or_default();
            self.send_notification(method, &uri);
        }
    }
}

impl SubscriptionListener {
    fn send_notification(&self, method: &str, fields: &str) {
        let meta = format!(
            r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{}}}"#,
            self.id
        );
        let message = message::notification_message(method, &format!("{{{meta}{fields}}}"));
        self.stream.push_event(message.into_text());
    }
}

fn open_subscription(hub: &Hub, target: &HubTarget, message: &RpcMessage, id: &str) -> Response {
    let wants = |key: &str| message.raw_param(&["notifications", key]) == Some("true");
    let mut agreed = serde_json::Map::new();
    let mut methods = BTreeSet::new();
    for (key, method) in [
        ("toolsListChanged", "notifications/tools/list_changed"),
        ("promptsListChanged", "notifications/prompts/list_changed"),
        (
            "resourcesListChanged",
            "notifications/resources/list_changed",
        ),
    ] {
        if wants(key) {
            methods.insert(method);
            agreed.insert(key.into(), true.into());
        }
    }
    let subscribed_uris = message.raw_param(&["notifications", "resourceSubscriptions"]);
    let subscribed_uris: BTreeSet<String> = subscribed_uris
        .and_then(|subscribed_uris| serde_json::from_str(subscribed_uris).ok())
        .unwrap_or_default();
    if !subscribed_uris.is_empty() {
        agreed.insert("resourceSubscriptions".into(), json!(subscribed_uris));
    }
    let stream = Arc::new(MessageStream::general(hub.next_number()));
    let listener = Arc::new(SubscriptionListener {
        id: id.into(),
        methods,
        subscribed_uris,
        stream: stream.clone(),
    });
    let before = hub.change_count();
    let backend = match hub.sessionless_backend(target, message, listener.clone()) {
        Ok(backend) => backend,
        Err(refusal) => return refusal.into_http_response(Some(id)),
    };
    let fields = format!(",\"notifications\":{}", Value::from(agreed));
    listener.send_notification("notifications/subscriptions/acknowledged", &fields);
    backend.start_listening();
    for uri in &listener.subscribed_uris {
        let params = json!({"uri": uri}).to_string();
        backend.send_unawaited_request("resources/subscribe", &params);
    }
    let counted = hub.register_listener(target.clone(), stream.clone(), listener, before);
    let connection = match counted {
        Ok(connection) => connection,
        Err(refusal) => return refusal.into_http_response(Some(id)),
    };
    let reader = stream.attach_reader();
    let format = SseFormat {
        id_kind: SseIdKind::None,
        primed: false,
    };
    // The closure owns the backend, so the end of the connection ends the subscriptions.
    let at_end = OnDisconnect::new({
        let hub = hub.clone();
        move || {
            hub.remove_connection(&connection);
            drop(backend);
        }
    });
    stream_response::respond_with_events(stream, reader, 0, format, at_end)
}

#[cfg(test)]
mod tests {
    use super::{SubscriptionListener, check_headers};
    use crate::client::NotificationSink;
    use crate::message::RpcMessage;
    use crate::message_stream::MessageStream;
    use axum::http::{HeaderMap, HeaderName, HeaderValue};
    use std::sync::Arc;

    const STATELESS_TEST_BODY: &str = r#"{"id":1,"method":"tools/call","params":{"name":"é","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        all.iter().map(pair).collect()
    }

    #[test]
    fn headers_must_match_the_body() {
        let version = ("mcp-protocol-version", "2026-07-28");
        let method = ("mcp-method", "tools/call");
        let name = ("mcp-name", "=?base64?w6k=?=");
        let message = RpcMessage::parse(STATELESS_TEST_BODY.into()).unwrap();
        let is_fine = |all: &[_]| check_headers(&headers(all), &message, "1").is_ok();
        assert!(is_fine(&[version, method, name]));
        for bad in [
            &[method, name][..],
            &[version, name],
            &[version, method],
            &[version, ("mcp-method", "tools/list"), name],
            &[version, method, ("mcp-name", "e")],
            &[("mcp-protocol-version", "2025-11-25"), method, name],
        ] {
            assert!(!is_fine(bad), "{bad:?}");
        }
        let without =
            STATELESS_TEST_BODY.replace(r#","io.modelcontextprotocol/clientCapabilities":{}"#, "");
        let without = RpcMessage::parse(without.into()).unwrap();
        let refused = check_headers(&headers(&[version, method, name]), &without, "1");
        assert_eq!(refused.unwrap_err().status(), 400);
    }

    #[tokio::test]
    async fn a_listener_receives_the_requested_changes_under_its_own_id() {
        let stream = Arc::new(MessageStream::endless(1));
        let listener = SubscriptionListener {
            id: "\"x\"".into(),
            methods: ["notifications/tools/list_changed"].into(),
            subscribed_uris: ["a:b".to_owned()].into(),
            stream: stream.clone(),
        };
        for text in [
            r#"{"method":"notifications/prompts/list_changed"}"#,
            r#"{"method":"notifications/resources/updated","params":{"uri":"a:c"}}"#,
            r#"{"method":"notifications/resources/updated","params":{"uri":"a:b"}}"#,
        ] {
            listener.deliver(text.into(), false);
        }
        let reader = stream.attach_reader();
        let event = stream.next_event(0, reader).await.unwrap();
        let expected = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"x"},"uri":"a:b"}}"#;
        assert_eq!(event.text, expected);
    }
}
