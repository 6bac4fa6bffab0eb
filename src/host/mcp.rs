//! The hub's API as methods, spoken without a session, and the servers that the configuration adds.

use super::client::Client;
use crate::error::{Error, Result};
use crate::protocol::header::encoded;
use crate::protocol::mcp::HubStatus;
use anyhow::Context;
use bytes::Bytes;
use futures_util::Stream;
use reqwest::Method;
use reqwest::Url;
use reqwest::header::ACCEPT;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The revision that needs no handshake.
const VERSION: &str = "2026-07-28";

/// What is said in one JSON-RPC answer.
#[derive(Debug, Deserialize)]
struct Answer {
    result: Option<Box<RawValue>>,
    error: Option<Fault>,
}

#[derive(Debug, Deserialize)]
struct Fault {
    message: String,
    data: Option<Value>,
}

/// What an error of the hub's own has beside.
#[derive(Debug, Deserialize)]
struct Own {
    #[serde(rename = "type")]
    kind: String,
}

impl Client {
    /// How the servers stand.
    pub(crate) async fn servers(&self) -> Result<HubStatus> {
        let request = self.hub_request(Method::GET, "/status");
        let response = self.open(request).await?;
        response.json().await.map_err(|e| self.unreachable(&e))
    }

    /// What a server has said beside its messages, and, if that is wanted, what it goes on to say.
    pub(crate) async fn server_log(
        &self,
        server: &str,
        tail: Option<usize>,
        follow: bool,
    ) -> Result<impl Stream<Item = reqwest::Result<Bytes>> + use<>> {
        let request = self
            .hub_request(Method::GET, &format!("/servers/{server}/log"))
            .query(&[("follow", follow)])
            .query(&tail.map(|tail| ("tail", tail)).as_slice());
        Ok(self.open(request).await?.bytes_stream())
    }

    /// One request to a server, or to all as one.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(crate) async fn ask_server(
        &self,
        server: Option<&str>,
        method: &str,
        mut params: Value,
    ) -> Result<Box<RawValue>> {
        let path = server.map_or("/mcp".into(), |name| format!("/servers/{name}/mcp"));
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "osctl", "version": env!("CARGO_PKG_VERSION")},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let mut request = self
            .hub_request(Method::POST, &path)
            .header(ACCEPT, "application/json")
            .header("mcp-protocol-version", VERSION)
            .header("mcp-method", method);
        if let Some(name) = params["name"].as_str() {
            request = request.header("mcp-name", encoded(name));
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let response = request.json(&body).send().await;
        let response = response.map_err(|e| self.unreachable(&e))?;
        let status = response.status().as_u16();
        let text = response.bytes().await.map_err(|e| self.unreachable(&e))?;
        let hint = Some("`osctl mcp list` shows how the servers stand".into());
        let refused = |kind: &str, message: String| {
            let (kind, hint) = (kind.into(), hint.clone());
            Error::Refused {
                status,
                kind,
                message,
                hint,
            }
        };
        if let Ok(failed) = serde_json::from_slice::<crate::protocol::fault::Failed>(&text) {
            let fault = failed.error;
            return Err(refused(&fault.kind, fault.message).into());
        }
        let answer: Answer = serde_json::from_slice(&text).context("reading the hub's answer")?;
        match (answer.result, answer.error) {
            (Some(result), _) => Ok(result),
            (None, Some(Fault { message, data })) => {
                let own = data.filter(|_| status >= 400);
                let own = own.and_then(|own| serde_json::from_value::<Own>(own).ok());
                Err(match own {
                    Some(own) => refused(&own.kind, message),
                    None => refused("server_refused", format!("the server refuses: {message}")),
                }
                .into())
            }
            (None, None) => Err(refused("server_refused", "no reason is told".into()).into()),
        }
    }
}

/// Puts the configuration's servers where the companion looks for them; a running one takes them over.
///
/// # Errors
/// When the file can't be written.
pub(crate) fn hand_in(servers: &BTreeMap<String, Value>, data: &Path) -> Result<()> {
    let folder = data.join("mcp");
    let path = folder.join("servers.json");
    let text = serde_json::to_vec(&json!({"mcpServers": servers}))?;
    if folder.is_symlink() {
        let message = format!(
            "`{}` is a link, as code inside may have made it",
            folder.display()
        );
        let hint = "remove it: osctl writes there, and would write where it leads";
        return Err(Error::precondition(message, hint).into());
    }
    if fs::read(&path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    if servers.is_empty() && !path.exists() {
        return Ok(());
    }
    fs::create_dir_all(&folder).with_context(|| format!("making `{}`", folder.display()))?;
    // Only its owner reads it: a server's environment may hold secrets.
    let mut file = tempfile::NamedTempFile::new_in(&folder)?;
    std::io::Write::write_all(&mut file, &text)?;
    file.persist(&path)?;
    Ok(())
}

/// Whom a server's address leads to: a key may be in the rest of it.
pub(crate) fn whose(url: &str) -> String {
    match Url::parse(url).map(|url| url.origin()) {
        Ok(origin) if origin.is_tuple() => format!("{}/…", origin.ascii_serialization()),
        _ => "…".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::hand_in;
    use serde_json::json;
    use std::fs;

    #[test]
    fn servers_are_handed_in_and_taken_away() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("mcp/servers.json");
        let none = std::collections::BTreeMap::new();
        hand_in(&none, data.path()).unwrap();
        assert!(!path.exists());
        let one = [("a".to_owned(), json!({"command": "x"}))].into();
        hand_in(&one, data.path()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"{"mcpServers":{"a":{"command":"x"}}}"#);
        hand_in(&none, data.path()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"mcpServers":{}}"#);
    }
}
