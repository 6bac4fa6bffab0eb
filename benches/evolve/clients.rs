//! Clients that repeat a request while the container is replaced, and the longest time that each was without an answer.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const REQUEST_INTERVAL: Duration = Duration::from_millis(10);
/// The timeout of a request, after which the client repeats it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A time without an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gap {
    pub(crate) seconds: f64,
    /// The time of the first answer after the gap, in seconds since 1970.
    pub(crate) ended: f64,
}

/// Clients that send a request every 10 ms, each over a new connection.
pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    threads: [JoinHandle<Gap>; 2],
}

impl Clients {
    /// Starts a client of `/ping` and a client of a queued `/exec`.
    pub(crate) fn start(address: &str, token: &str) -> Self {
        let head = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n");
        let stop = Arc::new(AtomicBool::new(false));
        let asks = [
            format!("GET /ping HTTP/1.1\r\n{head}Connection: close\r\n\r\n"),
            post(&head, r#"{"code":"1","queue":true}"#),
        ];
        let threads = asks.map(|ask| {
            let (address, stop) = (address.to_owned(), Arc::clone(&stop));
            thread::spawn(move || longest_gap(&address, &ask, &stop))
        });
        Self { stop, threads }
    }

    /// Ends the clients; returns the longest time that each was without an answer.
    pub(crate) fn end(self) -> [Gap; 2] {
        thread::sleep(Duration::from_secs(1));
        self.stop.store(true, Ordering::Relaxed);
        self.threads
            .map(|thread| thread.join().expect("a client does not panic"))
    }
}

fn post(head: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /exec HTTP/1.1\r\n{head}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn longest_gap(address: &str, ask: &str, stop: &AtomicBool) -> Gap {
    let (mut last, mut longest) = (Instant::now(), Gap::default());
    let mut end = |last: Instant| {
        let seconds = last.elapsed().as_secs_f64();
        if seconds > longest.seconds {
            let ended = now();
            longest = Gap { seconds, ended };
        }
        longest
    };
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        if answered(address, ask).is_ok_and(|fine| fine) {
            end(last);
            last = Instant::now();
        }
        thread::sleep(REQUEST_INTERVAL.saturating_sub(begin.elapsed()));
    }
    end(last)
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |d| d.as_secs_f64())
}

fn answered(address: &str, ask: &str) -> Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(ask.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

/// A client of `osctl mcp stdio`, which repeats a call of a tool.
pub(crate) struct Bridge {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<f64>>,
}

impl Bridge {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut wire = Wire {
            stdin: child.stdin.take().context("a pipe")?,
            stdout: BufReader::new(child.stdout.take().context("a pipe")?),
            id: 0,
            child,
        };
        let who = json!({"name": "bench", "version": "1"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who});
        wire.ask("initialize", &hello)?;
        wire.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let thread = thread::spawn(move || wire.longest_call(&ended));
        Ok(Self { stop, thread })
    }

    /// Ends the client; returns the seconds of the longest call.
    ///
    /// # Errors
    /// When one of the calls failed.
    pub(crate) fn end(self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        ended.unwrap_or_else(|_| anyhow::bail!("the client of the bridge panicked"))
    }
}

struct Wire {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    id: u64,
    child: Child,
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The process would also end with its stdin.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Wire {
    fn say(&mut self, message: &Value) -> Result<()> {
        Ok(self.stdin.write_all(format!("{message}\n").as_bytes())?)
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.id += 1;
        let id = self.id;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        loop {
            let mut line = String::new();
            ensure!(
                self.stdout.read_line(&mut line)? > 0,
                "the bridge has ended"
            );
            let message: Value = serde_json::from_str(&line)?;
            // Other messages are notifications.
            if message["id"] == id && message.get("method").is_none() {
                ensure!(message["error"].is_null(), "{message}");
                return Ok(message["result"].clone());
            }
        }
    }

    fn longest_call(&mut self, stop: &AtomicBool) -> Result<f64> {
        let mut longest = Duration::ZERO;
        let call = json!({"name": "execute_python_code", "arguments": {"code": "1"}});
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            let result = self.ask("tools/call", &call)?;
            ensure!(result["isError"] != true, "{result}");
            longest = longest.max(begin.elapsed());
            thread::sleep(REQUEST_INTERVAL.saturating_sub(begin.elapsed()));
        }
        Ok(longest.as_secs_f64())
    }
}
