//! The revision of 2026-07-28, without sessions: every request says who asks and in which version, and
//! its connection's end takes it back.
//!
//! Servers that were shaken hands with may well know nothing of it: what it asks of a result that they do not
//! say is added, and nothing else is touched. Such a client can't be asked anything by an older server; one that
//! speaks this revision is handed every request as it came.

use super::events::{self, AtEnd, Form, Ids};
use super::refusal::{self, json, rpc};
use super::{Accepted, text};
use crate::companion::mcp::child::era::{self, MODERN};
use crate::companion::mcp::member::{Ears, Reply, Shape};
use crate::companion::mcp::message::{self, Kind, Message, find};
use crate::companion::mcp::params::{BEGIN, Given};
use crate::companion::mcp::server::WITH_HELLO;
use crate::companion::mcp::session::Backend;
use crate::companion::mcp::stream::Stream;
use crate::companion::mcp::{Hub, Wish};
use crate::protocol::VERSION_HEADER;
use crate::protocol::header::decoded;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

const VERSION: &str = "mcp-protocol-version";
const META: [&str; 2] = ["_meta", era::VERSION];
const HEADER_MISMATCH: i64 = -32020;
const NO_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;
const NO_METHOD: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const CAPABILITIES: [&str; 2] = ["_meta", era::CAPABILITIES];

/// What went with the sessions.
const GONE: [&str; 5] = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
];

/// Hears nothing: such a client is told what belongs to its calls alone.
#[derive(Debug)]
struct Deaf;

impl Ears for Deaf {
    fn hear(&self, _text: Bytes, _is_related: bool) {}
}

/// Whether a message is of this revision, or of one still to come.
pub(super) fn is_meant(headers: &HeaderMap, message: &Message) -> bool {
    message.param(&META).is_some() || text(headers, VERSION) == Some(MODERN)
}

pub(super) async fn post(
    hub: Hub,
    wish: Wish,
    headers: &HeaderMap,
    message: Message,
    accepted: Accepted,
) -> Response {
    let id = message.id().unwrap_or("null").to_owned();
    if let Err(refusal) = check(headers, &message, &id) {
        return *refusal;
    }
    // The only one there is, `notifications/cancelled`, means nothing over HTTP.
    if message.kind != Kind::Request {
        return refusal::accepted();
    }
    let method = message.method.clone();
    if GONE.contains(&method.as_str()) {
        let why = format!("the revision {MODERN} has no method `{method}`");
        return rpc(StatusCode::NOT_FOUND, &id, NO_METHOD, &why);
    }
    if method == "subscriptions/listen" {
        return listen(&hub, &wish, &message, &id);
    }
    let backend = match hub.passing(&wish, Arc::new(Deaf)) {
        Ok(backend) => Arc::new(backend),
        Err(refusal) => return refusal.answer(Some(&id)),
    };
    if method == "server/discover" {
        return discover(&backend, &id).await;
    }
    if method == "tools/call"
        && let Some(why) = backend.disagreement(&message, given(headers))
    {
        return mismatch(&id, &why);
    }
    let stream = Arc::new(Stream::of_answers(hub.next(), 1));
    let shape = Shape {
        completed: true,
        ..Shape::default()
    };
    let reply = Reply {
        stream: stream.clone(),
        shape,
    };
    let at_end = AtEnd::new({
        let (backend, stream) = (backend.clone(), stream.clone());
        move || {
            if !stream.is_closed() {
                backend.give_up(stream.number);
            }
        }
    });
    backend.request(message, reply);
    let form = Form {
        ids: Ids::None,
        primed: false,
    };
    let response = events::answer(stream.clone(), form, accepted, false, at_end).await;
    with_status(response, &stream).await
}

/// A method that a server does not know is a path that there is not, and what the revision refuses is a bad request.
async fn with_status(mut response: Response, stream: &Stream) -> Response {
    if text(response.headers(), "content-type") != Some("application/json") {
        return response;
    }
    let answer = stream
        .only()
        .await
        .and_then(|text| Message::parse(text).ok());
    let code = answer.and_then(|answer| {
        let whole = std::str::from_utf8(answer.text()).ok()?;
        whole[find(whole, &["error", "code"])?].parse::<i64>().ok()
    });
    match code {
        Some(NO_METHOD) => *response.status_mut() = StatusCode::NOT_FOUND,
        Some(HEADER_MISMATCH | NO_CAPABILITY | UNSUPPORTED_VERSION) => {
            *response.status_mut() = StatusCode::BAD_REQUEST;
        }
        _ => {}
    }
    response
}

/// What a client says of its call's arguments.
fn given(headers: &HeaderMap) -> Given {
    let ours = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with(BEGIN));
    let value = |value: &HeaderValue| value.to_str().ok().and_then(decoded);
    Given {
        arguments: ours
            .map(|(name, said)| (name.as_str().to_owned(), value(said)))
            .collect(),
        // osctl's own clients send none: nobody is between who would look at them.
        is_partial: headers.contains_key(VERSION_HEADER),
    }
}

fn mismatch(id: &str, why: &str) -> Response {
    let why = format!("Header mismatch: {why}");
    rpc(StatusCode::BAD_REQUEST, id, HEADER_MISMATCH, &why)
}

/// The headers must say what the body says.
fn check(headers: &HeaderMap, message: &Message, id: &str) -> Result<(), Box<Response>> {
    let mismatch = |why: String| Err(Box::new(mismatch(id, &why)));
    let version = text(headers, VERSION).unwrap_or_default();
    let Some(said) = message.text_param(&META) else {
        let why = format!("`_meta` does not say `{}`", META[1]);
        return Err(Box::new(rpc(
            StatusCode::BAD_REQUEST,
            id,
            INVALID_PARAMS,
            &why,
        )));
    };
    if version.is_empty() || version != said {
        return mismatch(format!(
            "`MCP-Protocol-Version` is `{version}`, the body says `{said}`"
        ));
    }
    if version != MODERN {
        let error = json!({
            "code": UNSUPPORTED_VERSION,
            "message": "Unsupported protocol version",
            "data": {"supported": versions(), "requested": version},
        });
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
        return Err(Box::new(json(StatusCode::BAD_REQUEST, text.into())));
    }
    if message.kind != Kind::Request {
        return Ok(());
    }
    let capabilities = message.raw_param(&CAPABILITIES).unwrap_or_default();
    if !capabilities.starts_with('{') {
        let why = format!("`_meta` does not say `{}`", CAPABILITIES[1]);
        return Err(Box::new(rpc(
            StatusCode::BAD_REQUEST,
            id,
            INVALID_PARAMS,
            &why,
        )));
    }
    let method = text(headers, "mcp-method").unwrap_or_default();
    if method != message.method {
        return mismatch(format!(
            "`Mcp-Method` is `{method}`, the body says `{}`",
            message.method
        ));
    }
    let name = match message.method.as_str() {
        "tools/call" | "prompts/get" => message.text_param(&["name"]),
        "resources/read" => message.text_param(&["uri"]),
        _ => return Ok(()),
    };
    let given = text(headers, "mcp-name").and_then(decoded);
    if given.is_none() || given != name {
        let words = |name: Option<String>| name.unwrap_or_default();
        let (given, name) = (words(given), words(name));
        return mismatch(format!("`Mcp-Name` is `{given}`, the body says `{name}`"));
    }
    Ok(())
}

fn versions() -> Vec<&'static str> {
    let older = WITH_HELLO.iter().rev().copied();
    std::iter::once(MODERN).chain(older).collect()
}

/// What the handshake would have told.
async fn discover(backend: &Backend, id: &str) -> Response {
    let hello = match backend.hello().await {
        Ok(hello) => hello,
        Err(why) => return crate::companion::mcp::Refusal::Hello(why).answer(Some(id)),
    };
    let hello: Value = serde_json::from_slice(&hello).unwrap_or_default();
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": versions(),
        "capabilities": hello["capabilities"],
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": hello["serverInfo"]},
    });
    if hello["instructions"].is_string() {
        result["instructions"] = hello["instructions"].clone();
    }
    json(StatusCode::OK, message::result(id, &result.to_string()))
}

/// One who wants to hear of changes.
#[derive(Debug)]
struct Listener {
    /// The raw id of the request, which names the subscription.
    id: String,
    methods: BTreeSet<&'static str>,
    uris: BTreeSet<String>,
    stream: Arc<Stream>,
}

impl Ears for Listener {
    fn hear(&self, text: Bytes, _is_related: bool) {
        let Ok(message) = Message::parse(text) else {
            return;
        };
        let method = message.method.as_str();
        let uri = message.text_param(&["uri"]);
        let is_wanted = match &uri {
            Some(uri) => method == "notifications/resources/updated" && self.uris.contains(uri),
            None => self.methods.contains(method),
        };
        if is_wanted {
            let uri = uri
                .map(|uri| format!(",\"uri\":{}", Value::from(uri)))
                .unwrap_or_default();
            self.tell(method, &uri);
        }
    }
}

impl Listener {
    fn tell(&self, method: &str, fields: &str) {
        let meta = format!(
            r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{}}}"#,
            self.id
        );
        let text = message::notification(method, &format!("{{{meta}{fields}}}"));
        self.stream.tell(text);
    }
}

fn listen(hub: &Hub, wish: &Wish, message: &Message, id: &str) -> Response {
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
    let uris = message.raw_param(&["notifications", "resourceSubscriptions"]);
    let uris: BTreeSet<String> = uris
        .and_then(|uris| serde_json::from_str(uris).ok())
        .unwrap_or_default();
    if !uris.is_empty() {
        agreed.insert("resourceSubscriptions".into(), json!(uris));
    }
    let stream = Arc::new(Stream::general(hub.next()));
    let listener = Arc::new(Listener {
        id: id.into(),
        methods,
        uris,
        stream: stream.clone(),
    });
    let before = hub.changes();
    let backend = match hub.passing(wish, listener.clone()) {
        Ok(backend) => backend,
        Err(refusal) => return refusal.answer(Some(id)),
    };
    let fields = format!(",\"notifications\":{}", Value::from(agreed));
    listener.tell("notifications/subscriptions/acknowledged", &fields);
    backend.listen();
    for uri in &listener.uris {
        let params = json!({"uri": uri}).to_string();
        backend.ask_quietly("resources/subscribe", &params);
    }
    let counted = hub.count_listener(wish.clone(), stream.clone(), listener, before);
    let visit = match counted {
        Ok(visit) => visit,
        Err(refusal) => return refusal.answer(Some(id)),
    };
    let reader = stream.take_over();
    let form = Form {
        ids: Ids::None,
        primed: false,
    };
    // With the connection the backend goes, and with it the subscriptions.
    let at_end = AtEnd::new({
        let hub = hub.clone();
        move || {
            hub.leave(&visit);
            drop(backend);
        }
    });
    events::respond(stream, reader, 0, form, at_end)
}

#[cfg(test)]
mod tests {
    use super::{Listener, check};
    use crate::companion::mcp::member::Ears;
    use crate::companion::mcp::message::Message;
    use crate::companion::mcp::stream::Stream;
    use axum::http::{HeaderMap, HeaderName, HeaderValue};
    use std::sync::Arc;

    const BODY: &str = r#"{"id":1,"method":"tools/call","params":{"name":"é","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

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
    fn headers_must_say_what_the_body_says() {
        let version = ("mcp-protocol-version", "2026-07-28");
        let method = ("mcp-method", "tools/call");
        let name = ("mcp-name", "=?base64?w6k=?=");
        let message = Message::parse(BODY.into()).unwrap();
        let is_fine = |all: &[_]| check(&headers(all), &message, "1").is_ok();
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
        let without = BODY.replace(r#","io.modelcontextprotocol/clientCapabilities":{}"#, "");
        let without = Message::parse(without.into()).unwrap();
        let refused = check(&headers(&[version, method, name]), &without, "1");
        assert_eq!(refused.unwrap_err().status(), 400);
    }

    #[tokio::test]
    async fn a_listener_hears_what_it_asked_for_under_its_own_id() {
        let stream = Arc::new(Stream::endless(1));
        let listener = Listener {
            id: "\"x\"".into(),
            methods: ["notifications/tools/list_changed"].into(),
            uris: ["a:b".to_owned()].into(),
            stream: stream.clone(),
        };
        for text in [
            r#"{"method":"notifications/prompts/list_changed"}"#,
            r#"{"method":"notifications/resources/updated","params":{"uri":"a:c"}}"#,
            r#"{"method":"notifications/resources/updated","params":{"uri":"a:b"}}"#,
        ] {
            listener.hear(text.into(), false);
        }
        let reader = stream.take_over();
        let told = stream.next(0, reader).await.unwrap();
        let expected = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"x"},"uri":"a:b"}}"#;
        assert_eq!(told.text, expected);
    }
}
