//! A probe that starts the client's command and lists its tools.

use super::launch_command::LaunchCommand;
use crate::error::{Error, Result};
use crate::protocol::mcp::{LIST_WAIT_KEY, ListMeta};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

/// Time limit from the start to the last tool.
const CONNECT_PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// The part of this limit in which the servers start.
const CONNECT_LIST_TIMEOUT: Duration = Duration::from_secs(45);

/// Time limit for the command to exit before it is killed.
const CONNECT_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A protocol revision that the servers of all clients support.
const CONNECT_PROBE_VERSION: &str = "2025-06-18";

/// The tools and servers that the client will find.
#[derive(Debug, Default)]
pub(crate) struct ConnectProbeResult {
    /// The names of the tools.
    pub(crate) tools: Vec<String>,
    /// Servers that have not listed their tools in time.
    pub(crate) missing: Vec<String>,
}

/// # Errors
/// When the command does not start, or does not answer as a server.
pub(crate) async fn probe_command(call: &LaunchCommand) -> Result<ConnectProbeResult> {
    let mut child = Command::new(&call.program)
        .args(&call.args)
        .envs(&call.environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| probe_error(call, &error.to_string()))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let mut stderr = child.stderr.take().context("no stderr")?;
    let mut server = ConnectProbeServer {
        stdin: stdin.context("no stdin")?,
        lines: BufReader::new(stdout.context("no stdout")?).lines(),
        id: 0,
    };
    let complaint = tokio::spawn(async move {
        let mut stderr_text = String::new();
        // Report the output read so far, also when the rest cannot be read.
        let _ = stderr.read_to_string(&mut stderr_text).await;
        stderr_text
    });
    let listed = match tokio::time::timeout(CONNECT_PROBE_TIMEOUT, server.list_tools()).await {
        Ok(listed) => listed,
        Err(_) => Err(anyhow::anyhow!(
            "no response within {} s",
            CONNECT_PROBE_TIMEOUT.as_secs()
        )),
    };
    // Closing its input makes it exit.
    drop(server);
    let left = tokio::time::timeout(CONNECT_EXIT_TIMEOUT, child.wait()).await;
    if left.is_err() {
        child.start_kill()?;
    }
    match listed {
        Ok(tools) => Ok(tools),
        Err(why) => {
            let stderr_text = complaint.await.unwrap_or_default();
            Err(probe_error(
                call,
                last_error_line(&stderr_text).unwrap_or(&why.to_string()),
            ))
        }
    }
}

/// The command's own error message, if any.
fn last_error_line(stderr_text: &str) -> Option<&str> {
    let lines = || {
        stderr_text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    let error = lines().find_map(|line| line.strip_prefix("error: "));
    error.or_else(|| lines().next_back())
}

fn probe_error(call: &LaunchCommand, why: &str) -> anyhow::Error {
    let arguments = [&call.program].into_iter().chain(&call.args);
    let command: Vec<&str> = arguments.map(String::as_str).collect();
    let message = format!(
        "the MCP server `{}` did not start: {why}",
        command.join(" ")
    );
    let hint = "`osctl up` starts the instance; `--no-verify` skips the connection test";
    Error::precondition(message, hint).into()
}

#[derive(Debug)]
struct ConnectProbeServer {
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    id: u64,
}

impl ConnectProbeServer {
    async fn list_tools(&mut self) -> Result<ConnectProbeResult> {
        let client = json!({"name": "osctl", "version": env!("CARGO_PKG_VERSION")});
        let hello = json!({"protocolVersion": CONNECT_PROBE_VERSION, "capabilities": {}, "clientInfo": client});
        self.send_request("initialize", hello).await?;
        self.send_message(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await?;
        let mut found = ConnectProbeResult::default();
        let mut params = json!({"_meta": {LIST_WAIT_KEY: CONNECT_LIST_TIMEOUT.as_secs()}});
        loop {
            let mut page = self.send_request("tools/list", params).await?;
            let tools = page["tools"]
                .as_array()
                .context("the response lists no tools")?;
            let name = |tool: &Value| tool["name"].as_str().map(str::to_owned);
            found.tools.extend(tools.iter().filter_map(name));
            let meta = serde_json::from_value::<ListMeta>(page["_meta"].take());
            found.missing.extend(meta.unwrap_or_default().missing);
            match page["nextCursor"].as_str() {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => return Ok(found),
            }
        }
    }

    async fn send_request(&mut self, method: &str, params: Value) -> Result<Value> {
        self.id += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        self.send_message(&request).await?;
        while let Some(line) = self.lines.next_line().await? {
            let mut message: Value = serde_json::from_str(&line)
                .with_context(|| format!("invalid message: `{line}`"))?;
            if message["id"] != self.id || message.get("method").is_some() {
                continue;
            }
            if let Some(why) = message["error"]["message"].as_str() {
                bail!("`{method}` failed: {why}");
            }
            return Ok(message["result"].take());
        }
        bail!("the process exited")
    }

    async fn send_message(&mut self, message: &Value) -> Result<()> {
        let line = format!("{message}\n");
        self.stdin.write_all(line.as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::{LaunchCommand, probe_command};

    fn call(arguments: &[&str]) -> LaunchCommand {
        LaunchCommand {
            program: "python3".into(),
            args: arguments.iter().map(|&word| word.to_owned()).collect(),
            environment: Default::default(),
        }
    }

    #[tokio::test]
    async fn a_probe_lists_the_tools_of_a_server() {
        let found = probe_command(&call(&["tests/mcp/echo.py"])).await.unwrap();
        assert_eq!(found.tools, ["echo", "other"]);
    }

    #[tokio::test]
    async fn a_command_that_is_not_a_server_is_named_with_its_message() {
        for (arguments, why) in [
            (
                &["-c", "import sys; sys.exit('error: it is off')"][..],
                "it is off",
            ),
            (&["-c", "print('hello')"], "invalid message"),
            (&["-c", "input()"], "the process exited"),
        ] {
            let message = probe_command(&call(arguments))
                .await
                .unwrap_err()
                .to_string();
            assert!(message.contains(why), "{message}");
        }
        let none = LaunchCommand {
            program: "/nonexistent".into(),
            ..call(&[])
        };
        assert!(probe_command(&none).await.is_err());
    }
}
