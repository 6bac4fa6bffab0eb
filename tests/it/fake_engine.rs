//! A fake engine at the port of a fake companion; the trial chooses the output of the container and the keeper.

use crate::fake_companion::{FakeCompanion, Request, respond};
use crate::harness::Home;
use serde_json::{Value, json};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

/// The answers of the fake engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeAnswers {
    /// The body of each response of the companion.
    pub(crate) companion: Vec<u8>,
    /// The container's log.
    pub(crate) log: Vec<u8>,
    /// The replies of the keeper, one a line.
    pub(crate) keeper: Vec<u8>,
    /// How often the keeper's replies and the log are repeated.
    pub(crate) times: usize,
}

/// A fake engine with one instance, whose container and keeper run.
pub(crate) fn engine(name: &str) -> (Arc<Mutex<FakeAnswers>>, Home) {
    let answers = Arc::new(Mutex::new(FakeAnswers::default()));
    let (shared_answers, label) = (Arc::clone(&answers), Arc::new(Mutex::new(String::new())));
    let instance = Arc::clone(&label);
    let companion = FakeCompanion::start(move |request, stream| {
        let answers = shared_answers.lock().unwrap().clone();
        answer(request, stream, &answers, &instance.lock().unwrap());
    });
    let mut home = companion.home(name);
    let address = format!("tcp://127.0.0.1:{}", companion.port);
    home.env.insert("DOCKER_HOST".into(), address);
    label.lock().unwrap().clone_from(&home.instance);
    (answers, home)
}

fn answer(request: &Request, stream: &mut TcpStream, answers: &FakeAnswers, instance: &str) {
    let path = request.path.split('?').next().unwrap();
    let is_engine = ["/v", "/containers/", "/exec/e/", "/images/", "/build"]
        .iter()
        .any(|begin| path.starts_with(begin));
    let document = match path.rsplit('/').next().unwrap() {
        _ if !is_engine => {
            let kind = [("Content-Type", "application/json")];
            return respond(stream, "200 OK", &kind, &answers.companion);
        }
        "version" => {
            json!({"Version": "20.10.5", "ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"})
        }
        "json" if path.contains("/exec/") => json!({"ID": "e", "Running": false, "ExitCode": 0}),
        "json" => json!({
            "Id": "c",
            "Image": "sha256:1",
            "State": {"Status": "running", "Running": true},
            "Config": {"Labels": {"osctl.instance": instance}},
        }),
        "exec" => json!({"Id": "e"}),
        "start" => {
            let head = "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n\
                        Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
            return stream_out(stream, head, &answers.keeper, answers.times);
        }
        "logs" => {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\
                        Connection: close\r\n\r\n";
            return stream_out(stream, head, &answers.log, answers.times);
        }
        _ => Value::Null,
    };
    let kind = [("Content-Type", "application/json")];
    respond(stream, "200 OK", &kind, document.to_string().as_bytes());
}

/// Sends the stdout of a process in the frames of the engine, `times` times.
fn stream_out(stream: &mut TcpStream, head: &str, text: &[u8], times: usize) {
    let mut sent = stream.write_all(head.as_bytes());
    for piece in std::iter::repeat_n(text.chunks(16 << 10), times).flatten() {
        let length = u32::try_from(piece.len()).unwrap().to_be_bytes();
        let frame = [&[1, 0, 0, 0], &length[..], piece].concat();
        sent = sent.and_then(|()| stream.write_all(&frame));
        if sent.is_err() {
            break;
        }
    }
    // The client may have disconnected.
    let _ = stream.shutdown(Shutdown::Both);
}
