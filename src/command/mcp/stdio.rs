//! `osctl mcp stdio`: the bridge for MCP clients that start a server as a command.

use super::filter::McpFilterArgs;
use crate::command::candidates::server_names;
use crate::command::{CommandContext, shutdown_signal};
use crate::config::ResolvedConfig;
use crate::error::{Error, Result, VerbOutcome};
use crate::host::bridge::{self, BridgeOptions, BridgeOutputLine, FindInstance, StartInstance};
use crate::host::client::{CompanionClient, not_running_error};
use bytes::Bytes;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use futures_util::FutureExt;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::mpsc;

/// Maximum number of queued lines in each direction.
const MAX_QUEUED_STDIO_LINES: usize = 64;
/// Time for a client that ends the bridge to read the remaining output.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct McpStdioArgs {
    /// Offer only this server, with its own tool names [default: all servers, combined]
    #[arg(long, value_name = "NAME", conflicts_with = "servers", add = ArgValueCandidates::new(server_names))]
    server: Option<String>,
    #[command(flatten)]
    narrow: McpFilterArgs,
}

pub(crate) async fn run(args: McpStdioArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let McpStdioArgs { server, narrow } = args;
    // Listen for signals before the first message.
    let ended = shutdown_signal()?.shared();
    let starts = cx.lenient_config(None, Vec::new())?.config.mcp.start;
    let options = BridgeOptions {
        find_instance: instance_finder(cx),
        start_instance: starts.then(|| instance_starter(cx)),
        target: narrow.into_target(server),
    };
    let (line, lines) = mpsc::channel(MAX_QUEUED_STDIO_LINES);
    let (output_lines, receiver) = mpsc::channel(MAX_QUEUED_STDIO_LINES);
    // Reading stdin blocks, so a separate thread does it, and the process ends without waiting for it.
    std::thread::spawn(move || read_lines(&line));
    let output = cx.ui.stdout_writer();
    let writer = std::thread::spawn(move || write_lines(output, receiver));
    bridge::run_bridge(options, lines, output_lines, ended.clone()).await?;
    // Write the last line before the process ends. After a signal, wait at most `LAST_OUTPUT_TIMEOUT`.
    let written = tokio::task::spawn_blocking(move || writer.join());
    let wanted = async {
        ended.await;
        tokio::time::sleep(LAST_OUTPUT_TIMEOUT).await;
    };
    tokio::select! {
        _ = written => {}
        () = wanted => {}
    }
    Ok(VerbOutcome::Done)
}

fn read_lines(line: &mpsc::Sender<Bytes>) {
    let mut stdin = std::io::stdin().lock();
    loop {
        let mut text = Vec::new();
        // A read error counts as the end of the input.
        match stdin.read_until(b'\n', &mut text) {
            Ok(1..) if text.trim_ascii().is_empty() => {}
            Ok(1..) => {
                if line.blocking_send(text.into()).is_err() {
                    return;
                }
            }
            Ok(0) | Err(_) => return,
        }
    }
}

/// Writes lines until stdout is closed, which ends the bridge.
fn write_lines(mut output: impl Write, mut lines: mpsc::Receiver<BridgeOutputLine>) {
    while let Some(unread) = lines.blocking_recv() {
        let line = [&unread.text[..], b"\n"].concat();
        if output
            .write_all(&line)
            .and_then(|()| output.flush())
            .is_err()
        {
            return;
        }
    }
}

/// Finds the instance in its current state.
fn instance_finder(cx: &CommandContext) -> FindInstance {
    let instance = cx.instance.clone();
    let file = cx.trusted_config_file().ok().map(Path::to_owned);
    Box::new(move || {
        let record = instance
            .read_record()?
            .ok_or_else(|| not_running_error(&instance))?;
        let project = Some(record.project.as_path());
        let (file, name) = (file.as_deref(), &instance.name);
        let (resolved, _) =
            ResolvedConfig::load_ignoring_bad_project(file, project, name, Vec::new())?;
        CompanionClient::new(
            &instance,
            &record,
            record.bind_address(resolved.config.bind),
        )
    })
}

/// Runs `osctl up`; its output goes to the log of the client.
fn instance_starter(cx: &CommandContext) -> StartInstance {
    let (instance, file) = (cx.instance.clone(), cx.config_file.clone());
    Box::new(move || {
        let (instance, file) = (instance.clone(), file.clone());
        async move {
            // The working directory of the client is unrelated to the project.
            let record = instance
                .read_record()?
                .ok_or_else(|| not_running_error(&instance))?;
            let mut command = Command::new(std::env::current_exe()?);
            command
                .arg("--instance")
                .arg(&instance.name)
                .arg("--config")
                .arg(file)
                .args(["up", "--yes", "--project"])
                .arg(&record.project)
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            let status = command.status().await?;
            if status.success() {
                return Ok(());
            }
            let message = format!("cannot start `{}`", instance.container_name());
            let hint = format!("run `{}` to see the cause", instance.osctl_command("up"));
            Err(Error::precondition(message, hint).into())
        }
        .boxed()
    })
}
