//! A minimal HTTP client over sockets of any kind, which does not normalize requests or responses.

use crate::harness::TEST_TIMEOUT;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Status, error type and message of a failure in the documented format.
    #[track_caller]
    pub(crate) fn error(&self) -> (u16, String, String) {
        let body = self.json();
        assert_eq!(body["status"], "failed", "{body}");
        let text = |key: &str| body["error"][key].as_str().unwrap().to_owned();
        (self.status, text("type"), text("message"))
    }
}

/// A keep-alive connection.
#[derive(Debug)]
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    address: String,
    token: String,
}

impl Connection {
    #[track_caller]
    pub(crate) fn open_to(address: &str, token: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            reader: BufReader::new(stream),
            address: address.into(),
            token: token.into(),
        }
    }

    /// A request with the right `Host` and token, unless `headers` say otherwise.
    #[track_caller]
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        self.write(method, path, headers, body);
        self.receive()
    }

    fn write(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let given = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !given("host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        if !given("authorization") && !given("x-api-key") {
            head += &format!("Authorization: Bearer {}\r\n", self.token);
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            head += &format!("{name}: {value}\r\n");
        }
        if !given("content-length") {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        // A server may refuse a body before it has read it.
        let _ = self.reader.get_mut().write_all(&bytes);
    }

    /// Requests NDJSON events; [`Events`] reads them.
    #[track_caller]
    pub(crate) fn events(
        mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Events {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.write(method, path, headers, body.as_bytes());
        let (status, headers) = head(&mut self.reader);
        assert_eq!(status, 200);
        Events {
            reader: self.reader,
            kind: headers["content-type"].clone(),
            unread: Vec::new(),
        }
    }

    pub(crate) fn write_raw(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// Requests server-sent events; [`Events::line`] reads them.
    #[track_caller]
    pub(crate) fn open(
        self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Events {
        let (status, events) = self.try_open(method, path, headers, body);
        assert_eq!(status, 200);
        events
    }

    /// Requests server-sent events; an error contains the refusal.
    #[track_caller]
    pub(crate) fn try_open(
        mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, Events) {
        self.write(method, path, headers, body.as_bytes());
        let (status, headers) = head(&mut self.reader);
        let kind = headers.get("content-type").cloned().unwrap_or_default();
        let events = Events {
            reader: self.reader,
            kind,
            unread: Vec::new(),
        };
        (status, events)
    }

    /// The bytes of the first read of the response.
    pub(crate) fn first_bytes(&mut self, method: &str, path: &str) -> Vec<u8> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
            self.address, self.token
        );
        self.write_raw(head.as_bytes());
        let mut bytes = vec![0; 65536];
        let length = self.reader.get_mut().read(&mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }

    #[track_caller]
    pub(crate) fn receive(&mut self) -> Response {
        receive(&mut self.reader)
    }
}

/// The events of a run, in order of arrival.
#[derive(Debug)]
pub(crate) struct Events {
    reader: BufReader<TcpStream>,
    pub(crate) kind: String,
    unread: Vec<u8>,
}

impl Events {
    /// The next line; `None` at the end.
    pub(crate) fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap().trim_end().to_owned());
            }
            self.unread.append(&mut chunk(&mut self.reader)?);
        }
    }
}

impl Events {
    /// The ID and the data of the next server-sent event with data; `None` at the end.
    pub(crate) fn sse(&mut self) -> Option<(String, String)> {
        let mut id = String::new();
        loop {
            let line = self.line()?;
            if let Some(found) = line.strip_prefix("id: ") {
                id = found.into();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((id, data.into()));
            }
        }
    }
}

impl Iterator for Events {
    type Item = Value;

    /// The next NDJSON event.
    fn next(&mut self) -> Option<Value> {
        let line = self.line()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}")))
    }
}

#[track_caller]
fn head(reader: &mut impl BufRead) -> (u16, BTreeMap<String, String>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    (status, headers)
}

#[track_caller]
pub(crate) fn receive(reader: &mut impl BufRead) -> Response {
    let (status, headers) = head(reader);
    let mut body = Vec::new();
    if headers
        .get("transfer-encoding")
        .is_some_and(|t| t == "chunked")
    {
        while let Some(mut chunk) = chunk(reader) {
            body.append(&mut chunk);
        }
    } else {
        body.resize(
            headers
                .get("content-length")
                .map_or(0, |l| l.parse().unwrap()),
            0,
        );
        reader.read_exact(&mut body).unwrap();
    }
    Response {
        status,
        headers,
        body,
    }
}

fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let length = usize::from_str_radix(line.trim(), 16).unwrap();
    let mut bytes = vec![0; length + 2];
    reader.read_exact(&mut bytes).unwrap();
    bytes.truncate(length);
    (length > 0).then_some(bytes)
}
