//! `osctl mcp stdio`: the bridge that clients start which speak MCP with a command.

use super::candidates::server_names;
use super::mcp::NarrowArgs;
use super::{Context, ended};
use crate::config::Resolved;
use crate::error::{Error, Outcome, Result};
use crate::host::bridge::{self, Find, Start, Unread, Way};
use crate::host::client::{Client, not_running};
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

/// Lines on their way, each way.
const DEPTH: usize = 64;
/// For what was said already to be read, by a client that wants the end.
const LAST: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct StdioArgs {
    /// Only this server, under its own names; all of them as one unless this is given
    #[arg(long, value_name = "NAME", conflicts_with = "servers", add = ArgValueCandidates::new(server_names))]
    server: Option<String>,
    #[command(flatten)]
    narrow: NarrowArgs,
}

pub(crate) async fn run(args: StdioArgs, cx: &Context) -> Result<Outcome> {
    let StdioArgs { server, narrow } = args;
    // Listening begins before the first word is said.
    let ended = ended()?.shared();
    let starts = cx.config(None, Vec::new())?.config.mcp.start;
    let way = Way {
        find: find(cx),
        start: starts.then(|| start(cx)),
        wish: narrow.of(server),
    };
    let (line, lines) = mpsc::channel(DEPTH);
    let (out, told) = mpsc::channel(DEPTH);
    // Stdin can't be waited for, and its thread must keep nobody from ending.
    std::thread::spawn(move || read(&line));
    let output = cx.ui.output();
    let writer = std::thread::spawn(move || write(output, told));
    bridge::run(way, lines, out, ended.clone()).await?;
    // The last line is to be out before the process ends, unless that is wanted now.
    let written = tokio::task::spawn_blocking(move || writer.join());
    let wanted = async {
        ended.await;
        tokio::time::sleep(LAST).await;
    };
    tokio::select! {
        _ = written => {}
        () = wanted => {}
    }
    Ok(Outcome::Done)
}

fn read(line: &mpsc::Sender<Bytes>) {
    let mut stdin = std::io::stdin().lock();
    loop {
        let mut text = Vec::new();
        // What can't be read is the end, too.
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

/// Ends when nobody reads, which ends the bridge.
fn write(mut output: impl Write, mut told: mpsc::Receiver<Unread>) {
    while let Some(unread) = told.blocking_recv() {
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

/// The instance as it is now.
fn find(cx: &Context) -> Find {
    let instance = cx.instance.clone();
    let file = cx.trusted_config_file().ok().map(Path::to_owned);
    Box::new(move || {
        let record = instance.record()?.ok_or_else(|| not_running(&instance))?;
        let project = Some(record.project.as_path());
        let (resolved, _) =
            Resolved::load_without_bad_project(file.as_deref(), project, Vec::new())?;
        Client::new(&instance, &record, record.bind(resolved.config.bind))
    })
}

/// `osctl up`, whose words are for the log of the client.
fn start(cx: &Context) -> Start {
    let (instance, file) = (cx.instance.clone(), cx.config_file.clone());
    Box::new(move || {
        let (instance, file) = (instance.clone(), file.clone());
        async move {
            // From where it is started says nothing about the project.
            let record = instance.record()?.ok_or_else(|| not_running(&instance))?;
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
            let message = format!("`{}` can't be started", instance.container());
            let hint = format!("`{}` says why", instance.command("up"));
            Err(Error::precondition(message, hint).into())
        }
        .boxed()
    })
}
