//! What the bridge of MCP clients does with changed answers of the hub.

use crate::fake_companion::{FakeCompanion, Request, respond, respond_without_end};
use crate::harness::{Home, TEST_TIMEOUT};
use crate::memory::{MAX_HELD_BYTES, Watched};
use crate::mutations::{for_each, mutation};
use crate::trials;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

trials![
    changed_answers_of_the_hub_end_no_bridge,
    an_answer_of_the_hub_without_an_end_is_not_held,
    a_stream_of_the_hub_with_too_long_an_event_is_closed,
    values_of_the_hub_beyond_their_bound_are_not_held,
    unread_messages_of_a_client_are_not_held,
];

/// The bytes that the bridge accepts for a client that reads nothing: at least, and at most.
const MIN_ACCEPTED_BYTES: usize = 56 << 20;
const MAX_ACCEPTED_BYTES: usize = 200 << 20;

/// The client's requests, one line each.
const REQUESTS: [&str; 4] = ["initialize", "tools/list", "tools/call", "resources/read"];

fn line(id: usize, method: &str) -> String {
    let params = match method {
        "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {},
                               "clientInfo": {"name": "test", "version": "1"}}),
        "resources/read" => json!({"uri": "os://x"}),
        _ => json!({"name": "os__execute", "arguments": {}}),
    };
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn result(method: &str) -> Value {
    match method {
        "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                               "serverInfo": {"name": "osctl", "version": "1"}}),
        "tools/list" => json!({"tools": [{"name": "os__execute", "description": "Executes",
                                          "inputSchema": {"type": "object"}}]}),
        _ => json!({"content": [{"type": "text", "text": "42"}], "isError": false}),
    }
}

/// The hub's answer: an event stream with a notification before it, or a document.
fn answer(asked: &Value) -> (&'static str, Vec<u8>) {
    let method = asked["method"].as_str().unwrap_or_default();
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result(method)});
    if ["initialize", "resources/read"].contains(&method) {
        return ("application/json", answer.to_string().into_bytes());
    }
    let news =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}});
    let events = format!("id: 1.0\ndata: \n\nid: 1.1\ndata: {news}\n\nid: 1.2\ndata: {answer}\n\n");
    ("text/event-stream", events.into_bytes())
}

const STATUS: &[u8] = br#"{"status":"ok","version":"1","sessions":0,"servers":[],"problems":[]}"#;

fn hub(change: impl Fn(&Value, &mut TcpStream) -> bool + Send + Sync + 'static) -> FakeCompanion {
    hub_with_stream(
        |stream| respond(stream, "405 Method Not Allowed", &[], b""),
        change,
    )
}

/// A hub that also answers requests for a stream of messages that belong to no request.
fn hub_with_stream(
    listen: impl Fn(&mut TcpStream) + Send + Sync + 'static,
    change: impl Fn(&Value, &mut TcpStream) -> bool + Send + Sync + 'static,
) -> FakeCompanion {
    FakeCompanion::start(move |request: &Request, stream| {
        if request.path == "/status" {
            return respond(stream, "200 OK", &[], STATUS);
        }
        if request.method != "POST" {
            return match request.method.as_str() {
                "GET" => listen(stream),
                _ => respond(stream, "405 Method Not Allowed", &[], b""),
            };
        }
        let asked: Value = serde_json::from_slice(&request.body).unwrap();
        if asked["id"].is_null() {
            return respond(stream, "202 Accepted", &[], b"");
        }
        if !change(&asked, stream) {
            let (kind, body) = answer(&asked);
            let headers = [("Content-Type", kind), ("mcp-session-id", "s")];
            respond(stream, "200 OK", &headers, &body);
        }
    })
}

/// Sends each request through the bridge, which must answer, end, and hold little.
#[track_caller]
fn ask_all(home: &Home) -> String {
    let mut command = home.command(["mcp", "stdio"]);
    command.stdin(Stdio::piped());
    let mut watched = Watched::start(command);
    let mut stdin = watched.child.stdin.take().unwrap();
    let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned();
    let mut lines: Vec<String> = REQUESTS
        .iter()
        .enumerate()
        .map(|(id, m)| line(id, m))
        .collect();
    lines.insert(1, ready);
    stdin
        .write_all((lines.join("\n") + "\n").as_bytes())
        .unwrap();
    drop(stdin);
    let (ran, peak) = watched.end();
    assert_eq!(ran.code, 0, "{:.2000}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{:.2000}", ran.stderr);
    let held = peak >> 20;
    assert!(
        peak < MAX_HELD_BYTES,
        "the process held {held} MiB: {:.2000}",
        ran.stderr
    );
    ran.stdout
}

fn changed_answers_of_the_hub_end_no_bridge() {
    let change = Arc::new(Mutex::new(None));
    let (given, changed) = (Arc::clone(&change), Arc::new(Mutex::new(BTreeSet::new())));
    let seen = Arc::clone(&changed);
    let companion = hub(move |asked, stream| {
        let method = asked["method"].as_str().unwrap().to_owned();
        let (which, mutation): (usize, crate::mutations::Mutation) =
            given.lock().unwrap().clone().unwrap();
        // Once only: the bridge sends a lost request again.
        if method != REQUESTS[which] || !seen.lock().unwrap().insert(method) {
            return false;
        }
        let (kind, body) = answer(asked);
        let headers = [
            ("Content-Type", kind),
            ("mcp-session-id", "s"),
            ("osctl-stream", "1"),
        ];
        respond(stream, "200 OK", &headers, &mutation.apply(&body));
        // The end of a stream ends its connection.
        let _ = stream.shutdown(Shutdown::Both);
        true
    });
    let home = companion.home("bridge");
    for_each(40, (0..REQUESTS.len(), mutation()), |(which, mutation)| {
        *change.lock().unwrap() = Some((which, mutation));
        changed.lock().unwrap().clear();
        ask_all(&home);
    });
}

fn an_answer_of_the_hub_without_an_end_is_not_held() {
    let piece = vec![b'7'; 1 << 20];
    for (method, kind, begin) in [
        ("resources/read", "application/json", "{\"result\":\""),
        ("tools/list", "text/event-stream", "data: "),
        ("tools/call", "text/event-stream", "id: "),
    ] {
        let piece = piece.clone();
        let companion = hub(move |asked, stream| {
            if asked["method"] != method {
                return false;
            }
            respond_without_end(stream, kind, begin.as_bytes(), &piece);
            true
        });
        let asked = ask_all(&companion.home("bridge-endless"));
        let answers = asked
            .lines()
            .filter(|line| line.contains("longer than 67108864 bytes"));
        assert_eq!(answers.count(), 1, "{asked:.2000}");
        let posts = companion
            .requests()
            .into_iter()
            .filter(|r| r.method == "POST");
        assert_eq!(posts.count(), REQUESTS.len() + 1, "each is asked once");
    }
}

fn a_stream_of_the_hub_with_too_long_an_event_is_closed() {
    let (done, left) = mpsc::channel();
    let listen = move |stream: &mut TcpStream| {
        let piece = vec![b'7'; 1 << 20];
        let taken = respond_without_end(stream, "text/event-stream", b"data: ", &piece);
        let _ = done.send(taken);
    };
    let companion = hub_with_stream(listen, |_, _| false);
    let mut command = companion.home("bridge-stream").command(["mcp", "stdio"]);
    command.stdin(Stdio::piped());
    let mut watched = Watched::start(command);
    let mut stdin = watched.child.stdin.take().unwrap();
    let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let asked = [&line(0, "initialize"), ready].join("\n") + "\n";
    stdin.write_all(asked.as_bytes()).unwrap();
    let taken = left.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(taken >= 64 << 20, "{taken}");
    drop(stdin);
    let (ran, peak) = watched.end();
    assert!(peak < MAX_HELD_BYTES, "it held {} MiB", peak >> 20);
    let words = "the bridge stopped reading the hub's stream error=the response is longer than 67108864 bytes";
    assert!(ran.stderr.contains(words), "{ran:?}");
    let listened = companion.requests();
    let listened = listened
        .iter()
        .filter(|r| r.method == "GET" && r.path.starts_with("/mcp"));
    assert_eq!(listened.count(), 1);
}

/// Small values that take much more memory than their text.
pub(crate) fn many_values(begin: &str, value: &str, end: &str, bytes: usize) -> Vec<u8> {
    let values = value.repeat(bytes / value.len());
    [begin, &values, "0", end].concat().into_bytes()
}

fn values_of_the_hub_beyond_their_bound_are_not_held() {
    for value in ["{\"\":0},", "[[]],", "0,"] {
        let companion = hub(move |asked, stream| {
            if asked["method"] != "resources/read" {
                return false;
            }
            let begin = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":[", asked["id"]);
            let body = many_values(&begin, value, "]}", 30 << 20);
            let kind = [("Content-Type", "application/json")];
            respond(stream, "200 OK", &kind, &body);
            true
        });
        ask_all(&companion.home("bridge-values"));
    }
}

/// Writes events until the bridge accepts no more, at the earliest after [`MIN_ACCEPTED_BYTES`]; the number of accepted bytes.
fn accepted_until_stalled(stream: &mut TcpStream, event: &[u8]) -> usize {
    let head = "HTTP/1.1 200 OK\r\nosctl-protocol: 1\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let pause = Duration::from_millis(500);
    stream.set_write_timeout(Some(pause)).unwrap();
    let (begin, mut taken) = (Instant::now(), 0);
    while taken < 2 * MAX_ACCEPTED_BYTES {
        match stream.write(&event[taken % event.len()..]) {
            Ok(length) => taken += length,
            // On a busy machine a write may also time out.
            Err(_) if taken < MIN_ACCEPTED_BYTES && begin.elapsed() < TEST_TIMEOUT => {}
            Err(_) => break,
        }
    }
    taken
}

fn unread_messages_of_a_client_are_not_held() {
    let (done, finished) = mpsc::channel();
    let companion = hub(move |asked, stream| {
        if asked["method"] != "tools/list" {
            return false;
        }
        let news = json!({"jsonrpc": "2.0", "method": "x", "params": "7".repeat(8 << 20)});
        let event = format!("data: {news}\n\n");
        let _ = done.send(accepted_until_stalled(stream, event.as_bytes()));
        let _ = stream.shutdown(Shutdown::Both);
        true
    });
    let mut command = companion.home("bridge-unread").command(["mcp", "stdio"]);
    command.stdin(Stdio::piped());
    let mut watched = Watched::start_unread(command);
    let mut stdin = watched.child.stdin.take().unwrap();
    let asked = [line(0, "initialize"), line(1, "tools/list")].join("\n") + "\n";
    stdin.write_all(asked.as_bytes()).unwrap();
    let taken = finished.recv_timeout(2 * TEST_TIMEOUT).unwrap();
    // The client disconnects, which ends the bridge.
    drop((stdin, watched.child.stdout.take()));
    let (ran, peak) = watched.end();
    let held = peak >> 20;
    assert!(
        peak < MAX_HELD_BYTES && (MIN_ACCEPTED_BYTES..MAX_ACCEPTED_BYTES).contains(&taken),
        "{held} MiB of {taken} bytes: {ran:?}"
    );
}
