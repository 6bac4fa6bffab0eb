//! The first list that a client requests after the start of the container.

use crate::instance::Instance;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// A single request without a session, for the server with the slowest start.
const BODY: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

/// The published address of the hub.
pub(crate) fn hub_address(instance: &Instance) -> Result<String> {
    let output = instance.osctl(&["--json", "status"]).output()?;
    let status: Value = serde_json::from_slice(&output.stdout)?;
    let address = status["endpoints"]["mcp"].as_str().context("no address")?;
    Ok(address.trim_start_matches("http://").to_owned())
}

/// Seconds from the connection to the list.
pub(crate) fn list(instance: &Instance) -> Result<f64> {
    let address = hub_address(instance)?;
    let (_, token) = instance.api()?;
    let begin = Instant::now();
    let mut stream = TcpStream::connect(&address)?;
    let length = BODY.len();
    let head = format!(
        "POST /servers/linux/mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nAccept: application/json\r\nConnection: close\r\n\
         MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\nContent-Length: {length}\r\n\r\n{BODY}"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let took = begin.elapsed().as_secs_f64();
    ensure!(answer.contains("list_processes"), "{answer}");
    Ok(took)
}
