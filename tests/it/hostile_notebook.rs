//! What the kernel of notebooks does with changed answers of the companion.

use crate::fake_companion::{FakeCompanion, respond, respond_without_end};
use crate::hostile_bridge::many_values;
use crate::memory::{MAX_HELD_BYTES, Watched};
use crate::mutations::{Mutation, for_each, mutation};
use crate::trials;
use bytes::Bytes;
use proptest::prelude::any;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

trials![
    changed_answers_end_no_kernel_of_a_notebook,
    the_highest_count_ends_no_kernel_of_a_notebook,
    answers_without_an_end_are_not_held_for_a_notebook,
];

/// The requests of a Jupyter client on `shell`.
const REQUESTS: [&str; 6] = [
    "execute_request",
    "kernel_info_request",
    "complete_request",
    "inspect_request",
    "is_complete_request",
    "history_request",
];

fn content(kind: &str) -> Value {
    match kind {
        "execute_request" => json!({"code": "6*7", "user_expressions": {"x": "x"}}),
        "history_request" => json!({"hist_access_type": "tail", "n": 9, "output": true}),
        _ => json!({"code": "pri", "cursor_pos": 3}),
    }
}

fn events() -> String {
    let reply = json!({
        "id": "1", "status": "completed", "stdout": "a\n", "stderr": "", "result": "42", "data": [], "error": null,
        "execution_count": 3, "timing_ms": 1.5, "kernel": {"generation": 1, "state": "kept"}, "truncated": null,
    });
    let result = json!({"text/plain": "42", "text/markdown": "# x", "image/svg+xml": "<svg/>",
                        "text/latex": "$x$", "application/json": {"a": [1]}});
    let happened = [
        json!({"type": "stdout", "text": "a\n"}),
        json!({"type": "display", "data": {"text/plain": "x", "text/html": "<b>x</b>", "image/png": "iVBO"},
               "metadata": {"image/png": {"width": 3}}, "display_id": "d"}),
        json!({"type": "clear", "wait": true}),
        json!({"type": "result", "data": result}),
        json!({"type": "error", "error": {"type": "E", "message": "m", "traceback": ["t"]}}),
        json!({"type": "done", "reply": reply}),
    ];
    let numbered = happened.into_iter().enumerate().map(|(seq, mut event)| {
        event["seq"] = seq.into();
        format!("{event}\n")
    });
    numbered.collect()
}

/// What the companion answers at a path.
fn answer(path: &str) -> String {
    let session = json!({"name": "default", "busy": false, "python": "3.13.1", "exec_count": 1});
    let found = match path {
        "/sessions" => json!({"sessions": [session]}),
        "/complete" => json!({"matches": ["print"], "cursor_start": 0, "cursor_end": 3,
                              "types": [{"text": "print", "type": "function"}]}),
        "/inspect" => json!({"found": true, "data": {"text/plain": "print(*args)"}}),
        "/is_complete" => json!({"status": "incomplete", "indent": "    "}),
        "/history" => json!({"cells": [[1, "x = 1"], [2, "print(x)"]]}),
        _ => return events(),
    };
    found.to_string()
}

/// A kernel as a Jupyter client starts it.
struct Notebook {
    watched: Watched,
    shell: DealerSocket,
    runtime: Runtime,
}

impl Notebook {
    fn start(companion: &FakeCompanion, name: &str) -> Self {
        let home = companion.home(name);
        // All are open at the same time, so that they differ.
        let held = [(); 5].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = held.map(|listener| listener.local_addr().unwrap().port());
        let file = home.folder.join("connection.json");
        let connection = json!({
            "transport": "tcp", "ip": "127.0.0.1", "key": "", "signature_scheme": "hmac-sha256",
            "shell_port": ports[0], "iopub_port": ports[1], "stdin_port": ports[2],
            "control_port": ports[3], "hb_port": ports[4],
        });
        fs::write(&file, connection.to_string()).unwrap();
        let command = home.command(["jupyter", "kernel", "-f", file.to_str().unwrap()]);
        let watched = Watched::start(command);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let at = |port: u16| format!("tcp://127.0.0.1:{port}");
        let shell = runtime.block_on(async {
            let mut iopub = SubSocket::new();
            connect(&mut iopub, &at(ports[1])).await;
            iopub.subscribe("").await.unwrap();
            // The test only reads what the kernel publishes.
            tokio::spawn(async move { while iopub.recv().await.is_ok() {} });
            let mut shell = DealerSocket::new();
            connect(&mut shell, &at(ports[0])).await;
            shell
        });
        Self {
            watched,
            shell,
            runtime,
        }
    }

    /// Sends a request, and waits for the reply.
    #[track_caller]
    fn ask(&mut self, kind: &str) -> Value {
        let header = json!({"msg_id": "1", "session": "s", "username": "u", "version": "5.3",
                            "date": "2026-11-21T10:00:00Z", "msg_type": kind});
        let parts = [
            "<IDS|MSG>",
            "",
            &header.to_string(),
            "{}",
            "{}",
            &content(kind).to_string(),
        ];
        let frames: Vec<Bytes> = parts.map(|part| Bytes::from(part.to_owned())).into();
        let message = ZmqMessage::try_from(frames).unwrap();
        let reply = self.runtime.block_on(async {
            self.shell.send(message).await.unwrap();
            let reply = tokio::time::timeout(Duration::from_secs(60), self.shell.recv());
            reply.await.unwrap().unwrap().into_vec()
        });
        serde_json::from_slice(reply.last().unwrap()).unwrap()
    }

    /// Shuts the kernel down; it must have run until now, and have held little.
    #[track_caller]
    fn end(mut self) {
        self.ask("shutdown_request");
        let (ran, peak) = self.watched.end();
        assert_eq!(ran.code, 0, "{:.2000}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{:.2000}", ran.stderr);
        let held = peak >> 20;
        assert!(peak < MAX_HELD_BYTES, "the process held {held} MiB");
    }
}

async fn connect(socket: &mut impl Socket, address: &str) {
    for _ in 0..100 {
        let connected = tokio::time::timeout(Duration::from_secs(1), socket.connect(address));
        if matches!(connected.await, Ok(Ok(()))) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no kernel listens at {address}");
}

fn changed_answers_end_no_kernel_of_a_notebook() {
    let change: Arc<Mutex<Option<Mutation>>> = Arc::default();
    let (given, changed) = (Arc::clone(&change), Arc::new(Mutex::new(BTreeSet::new())));
    let seen = Arc::clone(&changed);
    let companion = FakeCompanion::start(move |request, stream| {
        let path = request.path.split('?').next().unwrap();
        let mut body = answer(path).into_bytes();
        let mutation = given.lock().unwrap().clone();
        // Once only: the notebook's kernel finds a lost run again.
        let is_first = seen.lock().unwrap().insert(path[..4].to_owned());
        if let Some(mutation) = mutation.filter(|_| is_first) {
            body = mutation.apply(&body);
        }
        respond(stream, "200 OK", &[], &body);
    });
    let notebook = std::cell::RefCell::new(Notebook::start(&companion, "notebook"));
    for kind in REQUESTS {
        let reply = notebook.borrow_mut().ask(kind);
        assert_ne!(reply["status"], "error", "{kind}: {reply}");
    }
    for_each(
        200,
        (0..REQUESTS.len(), mutation(), any::<bool>()),
        |(which, mutation, _)| {
            *change.lock().unwrap() = Some(mutation);
            changed.lock().unwrap().clear();
            notebook.borrow_mut().ask(REQUESTS[which]);
        },
    );
    *change.lock().unwrap() = None;
    let reply = notebook.borrow_mut().ask("execute_request");
    assert_eq!(reply["execution_count"], 3, "{reply}");
    notebook.into_inner().end();
}

fn the_highest_count_ends_no_kernel_of_a_notebook() {
    let companion = FakeCompanion::start(|request, stream| {
        let body = match request.path.as_str() {
            "/sessions" => "{}".to_owned(),
            path => answer(path).replace(
                "\"execution_count\":3",
                &format!("\"execution_count\":{}", u64::MAX),
            ),
        };
        respond(stream, "200 OK", &[], body.as_bytes());
    });
    let mut notebook = Notebook::start(&companion, "notebook-count");
    for _ in 0..2 {
        let reply = notebook.ask("execute_request");
        assert_eq!(reply["execution_count"], u64::MAX, "{reply}");
    }
    notebook.end();
}

fn answers_without_an_end_are_not_held_for_a_notebook() {
    let piece = vec![b'7'; 1 << 20];
    let companion = FakeCompanion::start(move |_, stream| {
        respond_without_end(
            stream,
            "application/x-ndjson",
            b"{\"seq\":0,\"x\":\"",
            &piece,
        );
    });
    let mut notebook = Notebook::start(&companion, "notebook-endless");
    for kind in REQUESTS {
        notebook.ask(kind);
    }
    notebook.end();
    let companion = FakeCompanion::start(move |_, stream| {
        let begin = r#"{"seq":0,"type":"display","data":{"application/json":["#;
        let line = many_values(begin, "{\"\":0},", "]}}\n", 30 << 20);
        respond(stream, "200 OK", &[], &line);
    });
    let mut notebook = Notebook::start(&companion, "notebook-values");
    notebook.ask("execute_request");
    notebook.end();
}
