//! A keep-alive connection to the companion, spoken by hand: what is measured is the other side.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

pub(crate) const VALUE: &str = r#"{"code":"1+1"}"#;
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

    /// Executes code; the reply of a run that completed.
    ///
    /// # Errors
    /// When it did not.
    pub(crate) fn execute(&mut self, code: &str) -> Result<Value> {
        let request = self.request(&json!({"code": code}).to_string());
        let body = self.exchange(&request)?;
        reply(&body)
    }

    /// The seconds of `count` requests in a row, and what the companion says each run took.
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

    fn request(&self, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("{}Content-Length: {length}\r\n\r\n{body}", self.head).into_bytes()
    }

    /// The body of a 200.
    fn exchange(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        self.stream.get_mut().write_all(request)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line.starts_with("HTTP/1.1 200 "), "answered: {line:?}");
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            ensure!(
                self.stream.read_line(&mut line)? > 0,
                "cut within the headers"
            );
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }
}

fn reply(body: &[u8]) -> Result<Value> {
    let reply: Value = serde_json::from_slice(body)?;
    ensure!(reply["status"] == "completed", "{reply}");
    Ok(reply)
}

/// Requests per second of `clients` connections that ask all at once and wait for their turns.
pub(crate) fn throughput(api: &(String, String), clients: usize, each: usize) -> Result<f64> {
    let start = Barrier::new(clients + 1);
    thread::scope(|scope| {
        let client = || -> Result<()> {
            let opened = Connection::open(api);
            start.wait();
            opened?.time(QUEUED, each).map(drop)
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
