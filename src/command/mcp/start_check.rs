//! The check of `up` and `evolve` whether the MCP servers start. A server that does not start is a warning: the
//! container is healthy without the server.

use super::is_plain_name;
use crate::command::CommandContext;
use crate::host::client::CompanionClient;
use crate::protocol::mcp::{HubStatus, ServerState};
use futures_util::future::join_all;
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

/// How long the servers may take to start. The next `up` checks a slower server again.
const START_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of servers that are started, and of warnings. Their names come from the container.
const MAX_CHECKED_SERVERS: usize = 64;

/// Starts the servers that have never listed their tools, and warns of the servers that are refused or failed.
pub(in crate::command) async fn warn_of_failed_servers(
    client: &CompanionClient,
    cx: &CommandContext,
) {
    let Ok(status) = client.fetch_hub_status().await else {
        return;
    };
    let untested = untested_servers(&status).into_iter();
    let starts =
        untested.map(|name| client.send_server_request(Some(name), "tools/list", json!({})));
    let work = cx.ui.start_request("starting the MCP servers");
    // The next status has the reason of a failure.
    let _ = timeout(START_CHECK_TIMEOUT, join_all(starts)).await;
    drop(work);
    let Ok(status) = client.fetch_hub_status().await else {
        return;
    };
    for warning in describe_failed_servers(&status, &|verb| cx.instance.osctl_command(verb)) {
        cx.ui.print_warning(warning);
    }
}

fn untested_servers(status: &HubStatus) -> Vec<&str> {
    let is_untested = |state| !matches!(state, ServerState::Running | ServerState::Refused);
    let servers = status.servers.iter();
    let untested = servers.filter(|server| server.tools.is_none() && is_untested(server.state));
    let names = untested.map(|server| server.name.as_str());
    let plain = names.filter(|name| is_plain_name(name));
    plain.take(MAX_CHECKED_SERVERS).collect()
}

fn describe_failed_servers(status: &HubStatus, command: &dyn Fn(&str) -> String) -> Vec<String> {
    let mut warnings = status.problems.clone();
    let servers = status.servers.iter();
    warnings.extend(
        servers
            .filter(|server| is_plain_name(&server.name))
            .filter_map(|server| {
                let (name, why) = (&server.name, &server.detail);
                match server.state {
                    ServerState::Failed | ServerState::BackingOff => {
                        let logs = command(&format!("logs mcp/{name}"));
                        Some(format!(
                            "the MCP server `{name}` failed: {why}; `{logs}` shows its log"
                        ))
                    }
                    ServerState::Starting => {
                        let list = command("mcp ls");
                        Some(format!(
                            "the MCP server `{name}` is still starting; `{list}` shows its state"
                        ))
                    }
                    ServerState::Unstarted | ServerState::Running | ServerState::Refused => None,
                }
            }),
    );
    // The lists come from the container.
    warnings.truncate(MAX_CHECKED_SERVERS);
    warnings
}

#[cfg(test)]
mod tests {
    use super::{MAX_CHECKED_SERVERS, describe_failed_servers, untested_servers};
    use crate::protocol::mcp::HubStatus;
    use serde_json::{Value, json};

    fn status(servers: &[(&str, &str, Option<u32>)]) -> HubStatus {
        let server = |(name, state, tools): &(&str, &str, Option<u32>)| {
            json!({
                "name": name, "kind": "child", "state": state, "detail": "it exited with code 1", "start": "lazy",
                "shared": false, "pids": [], "calls": 0, "crashes": 0, "title": null, "tools": tools,
                "path": format!("/servers/{name}/mcp"),
            })
        };
        let servers: Vec<Value> = servers.iter().map(server).collect();
        let status = json!({
            "status": "ok", "version": "1", "sessions": 0, "servers": servers,
            "problems": ["the server `e` in `/data/mcp.json` is refused: why"],
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_container_can_not_cause_any_number_of_warnings() {
        let servers = [("c", "failed", None); 2 * MAX_CHECKED_SERVERS];
        let warnings = describe_failed_servers(&status(&servers), &str::to_owned);
        assert_eq!(warnings.len(), MAX_CHECKED_SERVERS);
    }

    #[test]
    fn a_server_without_known_tools_is_started_and_a_failed_one_is_named() {
        let status = status(&[
            ("a", "unstarted", None),
            ("b", "unstarted", Some(3)),
            ("c", "failed", None),
            ("d", "starting", None),
            ("e", "refused", None),
            ("f; reboot", "failed", None),
            ("g", "running", None),
        ]);
        assert_eq!(untested_servers(&status), ["a", "c", "d"]);
        let warnings = describe_failed_servers(&status, &|verb| format!("osctl {verb}"));
        assert_eq!(
            warnings,
            [
                "the server `e` in `/data/mcp.json` is refused: why",
                "the MCP server `c` failed: it exited with code 1; `osctl logs mcp/c` shows its log",
                "the MCP server `d` is still starting; `osctl mcp ls` shows its state",
            ]
        );
    }
}
