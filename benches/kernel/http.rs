//! A minimal HTTP client with a keep-alive connection, so that the benchmark measures the companion.
//!
//! The client reads a response as osctl does: a stream line by line, each event's text into a string.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Deserializer, Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// The request of `1+1`, not recorded on disk, because the peers record nothing.
pub(crate) const VALUE: &str = r#"{"code":"1+1","durable":false}"#;
const QUEUED: &str = r#"{"code":"1+1","queue":true}"#;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    head: String,
}

impl Connection {
    pub(crate) fn open((address, token): &(String, String)) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let head = format!(
            "POST /exec HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\n"
        );
        Ok(Self {
            stream: BufReader::new(stream),
            head,
        })
    }

    /// Executes code; returns the reply of a completed run.
    ///
    /// # Errors
    /// When the run did not complete.
    pub(crate) fn execute(&mut self, code: &str) -> Result<Value> {
        let request = self.request(&json!({"code": code}).to_string());
        let body = self.exchange(&request)?;
        reply(&body)
    }

    /// The seconds of `count` sequential requests, and the time of each run according to the companion.
    pub(crate) fn time(&mut self, body: &str, count: usize) -> Result<(Vec<f64>, Vec<f64>)> {
        let request = self.request(body);
        let sample = |_| {
            let begin = Instant::now();
            let body = self.exchange(&request)?;
            let took = begin.elapsed().as_secs_f64();
            let inner = reply(&body)?["timing_ms"].as_f64();
            Ok((took, inner.context("`timing_ms` is missing")? / 1e3))
        };
        (0..count).map(sample).collect()
    }

    /// Executes code and follows it to its end; returns the number of bytes on stdout, all of which have arrived.
    ///
    /// # Errors
    /// When the run did not complete.
    pub(crate) fn follow(&mut self, code: &str) -> Result<usize> {
        let body = json!({"code": code}).to_string();
        let request = self.request_for("application/x-ndjson", &body);
        self.stream.get_mut().write_all(&request)?;
        let length = self.head()?;
        ensure!(length.is_none(), "a stream has no length");
        let (mut unread, mut written, mut status) = (Vec::new(), 0, None);
        while let Some(fresh) = self.chunk(&mut unread)? {
            let Some(end) = unread[fresh..].iter().rposition(|byte| *byte == b'\n') else {
                continue;
            };
            let end = fresh + end + 1;
            for event in Deserializer::from_slice(&unread[..end]).into_iter() {
                match event? {
                    Event::Stdout { text } => written += text.len(),
                    Event::Done { reply } => status = Some(reply.status),
                    Event::Other => {}
                }
            }
            unread.drain(..end);
        }
        ensure!(unread.is_empty(), "cut within an event");
        ensure!(status.as_deref() == Some("completed"), "ended: {status:?}");
        Ok(written)
    }

    fn request(&self, body: &str) -> Vec<u8> {
        self.request_for("application/json", body)
    }

    fn request_for(&self, accepted: &str, body: &str) -> Vec<u8> {
        let (head, length) = (&self.head, body.len());
        format!("{head}Accept: {accepted}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    }

    /// The body of a response with status 200.
    fn exchange(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        self.stream.get_mut().write_all(request)?;
        let length = self.head()?.context("the answer has no length")?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    /// The content length of a response with status 200, if any.
    fn head(&mut self) -> Result<Option<usize>> {
        let mut line = self.line()?;
        ensure!(line.starts_with("HTTP/1.1 200 "), "answered: {line:?}");
        let mut length = None;
        while line != "\r\n" {
            line = self.line()?;
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = Some(value.trim().parse()?);
            }
        }
        Ok(length)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "cut");
        Ok(line)
    }

    /// Appends the next chunk of a stream to `to`; returns its start, or `None` at the end.
    fn chunk(&mut self, to: &mut Vec<u8>) -> Result<Option<usize>> {
        let line = self.line()?;
        let length = usize::from_str_radix(line.trim_end(), 16)?;
        let begin = to.len();
        to.resize(begin + length, 0);
        self.stream.read_exact(&mut to[begin..])?;
        ensure!(self.line()? == "\r\n", "a piece is longer than it says");
        Ok((length > 0).then_some(begin))
    }
}

/// The fields of an event that the client needs.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    Stdout {
        text: String,
    },
    Done {
        reply: Ended,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct Ended {
    status: String,
}

fn reply(body: &[u8]) -> Result<Value> {
    let reply: Value = serde_json::from_slice(body)?;
    ensure!(reply["status"] == "completed", "{reply}");
    Ok(reply)
}

/// Requests per second of `clients` concurrent connections whose requests queue.
pub(crate) fn throughput(api: &(String, String), clients: usize, each: usize) -> Result<f64> {
    throughput_of(api, QUEUED, clients, each)
}

/// Requests per second for a given request, which must queue.
pub(crate) fn throughput_of(
    api: &(String, String),
    body: &str,
    clients: usize,
    each: usize,
) -> Result<f64> {
    let start = Barrier::new(clients + 1);
    thread::scope(|scope| {
        let client = || -> Result<()> {
            let opened = Connection::open(api);
            start.wait();
            opened?.time(body, each).map(drop)
        };
        let running: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        start.wait();
        let begin = Instant::now();
        for client in running {
            client.join().expect("clients do not panic")?;
        }
        Ok((clients * each) as f64 / begin.elapsed().as_secs_f64())
    })
}
