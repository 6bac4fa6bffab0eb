//! A fake companion, as an agent could start it: the agent is root in its container and can replace the program
//! behind the published port.

use crate::harness::Home;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

const TOKEN: &str = "osctl_0123456789abcdef";

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// A companion that a trial controls, and the requests that it received.
#[derive(Debug, Clone)]
pub(crate) struct FakeCompanion {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FakeCompanion {
    /// Answers each request except `/ping` with `answer`, and proves like a companion that it knows the token's digest.
    pub(crate) fn start(answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::start_with(Some(TOKEN), answer)
    }

    /// A fake companion that does not know the token.
    pub(crate) fn start_without_token(
        answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(Some("another token"), answer)
    }

    /// A fake companion that also answers `/ping` with `answer`.
    pub(crate) fn start_without_proof(
        answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(None, answer)
    }

    fn start_with(
        token: Option<&'static str>,
        answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, received) = (Arc::new(answer), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, received) = (Arc::clone(&answer), Arc::clone(&received));
                thread::spawn(move || {
                    let mut writer = stream.try_clone().unwrap();
                    let mut reader = BufReader::new(stream);
                    while let Some(request) = read_request(&mut reader) {
                        received.lock().unwrap().push(request.clone());
                        match token.zip(request.path.strip_prefix("/ping?nonce=")) {
                            Some((token, nonce)) => {
                                let proof = json!({"status": "ok", "proof": prove(token, nonce)});
                                respond(&mut writer, "200 OK", &[], proof.to_string().as_bytes());
                            }
                            None => answer(&request, &mut writer),
                        }
                    }
                });
            }
        });
        Self { port, requests }
    }

    /// A home whose instance has this listener at its ports and a token.
    pub(crate) fn home(&self, name: &str) -> Home {
        let home = Home::new(name);
        fs::create_dir_all(home.state()).unwrap();
        let port = self.port;
        let record = json!({
            "project": home.project,
            "engine": "docker",
            "ports": {"kernel": port, "mcp": port, "vnc": port},
        });
        fs::write(home.state().join("instance.json"), record.to_string()).unwrap();
        fs::write(home.state().join("token"), TOKEN).unwrap();
        home
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn prove(token: &str, nonce: &str) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let digest = hex(&Sha256::digest(token));
    let mut mac = Hmac::<Sha256>::new_from_slice(digest.as_bytes()).unwrap();
    mac.update(b"osctl ping\0");
    mac.update(nonce.as_bytes());
    hex(&mac.finalize().into_bytes())
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|length| *length > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    let length = headers.get("content-length").and_then(|l| l.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        headers,
        body,
    })
}

/// Writes a response with the required headers.
pub(crate) fn respond(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut head = format!(
        "HTTP/1.1 {status}\r\nosctl-protocol: 1\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    // The client may have disconnected.
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    let _ = stream.write_all(body);
}

/// Writes the head of an endless response, then `piece` until the client disconnects; returns the number of bytes
/// that the client accepted.
pub(crate) fn respond_without_end(
    stream: &mut TcpStream,
    kind: &str,
    begin: &[u8],
    piece: &[u8],
) -> usize {
    let head = format!(
        "HTTP/1.1 200 OK\r\nosctl-protocol: 1\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
    );
    let mut sent = 0;
    for bytes in [head.as_bytes(), begin]
        .into_iter()
        .chain(std::iter::repeat(piece))
    {
        if stream.write_all(bytes).is_err() {
            return sent;
        }
        sent += bytes.len();
    }
    sent
}
