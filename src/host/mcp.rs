//! The hub's API as methods, used without a session, and the servers that the configuration adds.

use super::bounded_response::{MAX_JSON_BYTES, check_values};
use super::client::CompanionClient;
use crate::archive::Folder;
use crate::error::{Error, Result};
use crate::protocol::mcp::HubStatus;
use crate::protocol::mcp_header::encode_header;
use anyhow::Context;
use bytes::Bytes;
use reqwest::header::ACCEPT;
use reqwest::{Method, Response, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::Path;

/// The protocol revision without a handshake.
const STATELESS_HUB_VERSION: &str = "2026-07-28";

/// The code of JSON-RPC for wrong arguments, and the type of the error for them.
const INVALID_PARAMS_CODE: i64 = -32602;
pub(crate) const INVALID_ARGUMENTS: &str = "invalid_arguments";
/// The type of another error of a server, and of the hub's error for a name that no server has.
pub(crate) const SERVER_REFUSED: &str = "server_refused";
pub(crate) const UNKNOWN_SERVER: &str = "unknown_server";

/// The file with the configured servers, in an instance's data folder.
pub(crate) const CONFIGURED_SERVERS_FILE: &str = "mcp/servers.json";

/// The content of one JSON-RPC response.
#[derive(Debug, Deserialize)]
struct HubResponse {
    result: Option<Box<RawValue>>,
    error: Option<HubCallError>,
}

#[derive(Debug, Deserialize)]
struct HubCallError {
    #[serde(default)]
    code: i64,
    message: String,
    data: Option<Value>,
}

/// The additional data in an error of the hub.
#[derive(Debug, Deserialize)]
struct HubErrorData {
    #[serde(rename = "type")]
    kind: String,
    hint: Option<String>,
}

/// The log of a server, as a stream.
#[derive(Debug)]
pub(crate) struct ServerLog {
    response: Response,
    client: CompanionClient,
}

impl ServerLog {
    /// The next chunk, which need not end with a line.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        let piece = self.response.chunk().await;
        piece.map_err(|error| self.client.unreachable_error(&error))
    }
}

impl CompanionClient {
    /// The status of the servers.
    pub(crate) async fn fetch_hub_status(&self) -> Result<HubStatus> {
        let request = self.hub_request(Method::GET, "/status");
        let response = self.send_request(request).await?;
        self.read_json(response).await
    }

    /// The log of a server: its output besides protocol messages. With `follow`, also future output.
    pub(crate) async fn server_log(
        &self,
        server: &str,
        tail: Option<usize>,
        follow: bool,
    ) -> Result<ServerLog> {
        let request = self
            .hub_request(Method::GET, &format!("/servers/{server}/log"))
            .query(&[("follow", follow)])
            .query(&tail.map(|tail| ("tail", tail)).as_slice());
        Ok(ServerLog {
            response: self.send_request(request).await?,
            client: self.clone(),
        })
    }

    /// Sends one request to a server, or to all servers combined.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(crate) async fn send_server_request(
        &self,
        server: Option<&str>,
        method: &str,
        mut params: Value,
    ) -> Result<Box<RawValue>> {
        let path = server.map_or("/mcp?profile=full".into(), |name| {
            format!("/servers/{name}/mcp")
        });
        let meta = &mut params["_meta"];
        meta["io.modelcontextprotocol/protocolVersion"] = STATELESS_HUB_VERSION.into();
        meta["io.modelcontextprotocol/clientInfo"] =
            json!({"name": "osctl", "version": env!("CARGO_PKG_VERSION")});
        meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let mut request = self
            .hub_request(Method::POST, &path)
            .header(ACCEPT, "application/json")
            .header("mcp-protocol-version", STATELESS_HUB_VERSION)
            .header("mcp-method", method);
        if let Some(name) = params["name"].as_str() {
            request = request.header("mcp-name", encode_header(name));
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let response = request.json(&body).send().await;
        let response = response.map_err(|e| self.unreachable_error(&e))?;
        let status = response.status().as_u16();
        let text = self.read_bounded(response, MAX_JSON_BYTES).await?;
        check_values(&text).map_err(|failure| self.read_error(&failure))?;
        let refused = |kind: &str, message: String, hint: Option<String>| {
            let log = server.filter(|server| is_server_failure(server, &message));
            let hint = hint.unwrap_or_else(|| match log {
                Some(server) => format!("`osctl logs mcp/{server}` shows the log of the server"),
                None => "`osctl mcp ls` shows the state of the servers".into(),
            });
            Error::Refused {
                status,
                kind: kind.into(),
                message,
                hint: Some(hint),
            }
        };
        if let Ok(failed) = serde_json::from_slice::<crate::protocol::error::FailedReply>(&text) {
            let error = failed.error;
            return Err(refused(&error.kind, error.message, error.hint).into());
        }
        let answer: HubResponse = self.parse_json(&text)?;
        match (answer.result, answer.error) {
            (Some(result), _) => Ok(result),
            (
                None,
                Some(HubCallError {
                    code,
                    message,
                    data,
                }),
            ) => {
                let own = data.filter(|_| status >= 400);
                let own = own.and_then(|own| serde_json::from_value::<HubErrorData>(own).ok());
                Err(match own {
                    Some(own) => refused(&own.kind, message, own.hint),
                    None => refused(
                        match code {
                            INVALID_PARAMS_CODE => INVALID_ARGUMENTS,
                            _ => SERVER_REFUSED,
                        },
                        format!("the server refused the request: {message}"),
                        None,
                    ),
                }
                .into())
            }
            (None, None) => {
                Err(refused(SERVER_REFUSED, "the server gave no reason".into(), None).into())
            }
        }
    }
}

/// Whether an error says that the process of a server has failed.
pub(crate) fn is_server_failure(server: &str, message: &str) -> bool {
    message.contains(&format!("the server `{server}` failed: "))
}

/// The document that [`write_configured_servers`] writes.
///
/// # Errors
/// When a server cannot be written as JSON.
pub(crate) fn servers_document(servers: &BTreeMap<String, Value>) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&json!({"mcpServers": servers}))
}

/// Writes the configured servers where the companion reads them; a running companion loads them. Returns whether the
/// servers have changed.
///
/// # Errors
/// When the file cannot be written, or code in the container has replaced its folder by another entry, which is not
/// followed.
pub(crate) fn write_configured_servers(
    servers: &BTreeMap<String, Value>,
    data: &Path,
) -> Result<bool> {
    let path = data.join(CONFIGURED_SERVERS_FILE);
    let written = write_servers_file(servers, data);
    match written {
        Err(error) if Folder::is_link(&error) => {
            let message = format!(
                "`{}` is a link, which code in the container may have created",
                path.display()
            );
            let hint = format!(
                "remove the link: `rm {}`; osctl then writes to a folder of that name",
                data.join("mcp").display()
            );
            Err(Error::precondition(message, hint).into())
        }
        written => written.with_context(|| format!("writing `{}`", path.display())),
    }
}

/// The sentence about changed servers of the configuration.
pub(crate) fn describe_changed_servers(servers: &BTreeMap<String, Value>) -> String {
    let names: Vec<String> = servers.keys().map(|name| format!("`{name}`")).collect();
    match names.is_empty() {
        true => "the configuration has no MCP servers now".into(),
        false => format!(
            "the container loads the MCP servers of the configuration: {}",
            names.join(", ")
        ),
    }
}

fn write_servers_file(servers: &BTreeMap<String, Value>, data: &Path) -> io::Result<bool> {
    let (folder, name) = (OsStr::new("mcp"), OsStr::new("servers.json"));
    let text = servers_document(servers)?;
    let data = Folder::open(data)?;
    let folder = match data.open_folder(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound && servers.is_empty() => {
            return Ok(false);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            data.create_folder(folder)?;
            data.open_folder(folder)?
        }
        found => found?,
    };
    match folder.read_file(name, text.len() as u64) {
        Ok(Some(held)) if held == text => return Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound && servers.is_empty() => {
            return Ok(false);
        }
        _ => {}
    }
    // Only its owner may read the file: a server's environment may hold secrets.
    folder.replace_file(name, 0o600, &text)?;
    Ok(true)
}

/// The host of a server's URL: the rest may contain a key.
pub(crate) fn redact_url(url: &str) -> String {
    match Url::parse(url).map(|url| url.origin()) {
        Ok(origin) if origin.is_tuple() => format!("{}/…", origin.ascii_serialization()),
        _ => "…".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::write_configured_servers;
    use serde_json::json;
    use std::fs;

    #[test]
    fn configured_servers_are_written_and_removed() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("mcp/servers.json");
        let none = std::collections::BTreeMap::new();
        assert!(!write_configured_servers(&none, data.path()).unwrap());
        assert!(!path.exists());
        let one = [("a".to_owned(), json!({"command": "x"}))].into();
        assert!(write_configured_servers(&one, data.path()).unwrap());
        assert!(!write_configured_servers(&one, data.path()).unwrap());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"{"mcpServers":{"a":{"command":"x"}}}"#);
        write_configured_servers(&none, data.path()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"mcpServers":{}}"#);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_of_code_in_the_container_is_not_followed() {
        let data = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), data.path().join("mcp")).unwrap();
        let one = [("a".to_owned(), json!({"command": "x"}))].into();
        let refused = write_configured_servers(&one, data.path()).unwrap_err();
        assert!(refused.to_string().contains("is a link"), "{refused}");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        // A link at the file's path is replaced.
        fs::remove_file(data.path().join("mcp")).unwrap();
        fs::create_dir(data.path().join("mcp")).unwrap();
        let file = data.path().join("mcp/servers.json");
        std::os::unix::fs::symlink(elsewhere.path().join("file"), &file).unwrap();
        write_configured_servers(&one, data.path()).unwrap();
        assert!(file.symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
