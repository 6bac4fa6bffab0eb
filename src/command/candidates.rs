//! What a shell may offer to complete: what exists, quickly or not at all, and silent about
//! everything that is wrong.

use super::Context;
use super::cp::INSIDE;
use crate::error::Result;
use crate::host::client::Client;
use crate::host::folders::Folders;
use crate::host::instance::Instance;
use crate::protocol::files::{EntryKind, encode};
use crate::ui::Ui;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use std::ffi::OsStr;
use std::time::Duration;

/// How long a person waits.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long for what may be far down a tree.
const SHORT: Duration = Duration::from_millis(150);

pub(crate) fn instance_names() -> Vec<CompletionCandidate> {
    let all = Folders::find().and_then(|folders| Instance::all(&folders));
    let names = all.unwrap_or_default().into_iter().map(|i| i.name);
    names.map(CompletionCandidate::new).collect()
}

pub(super) fn session_names() -> Vec<CompletionCandidate> {
    candidates(|client| async move {
        let found = client.sessions().await?;
        Ok(found.sessions.into_iter().map(|s| s.name).collect())
    })
}

pub(super) fn run_ids() -> Vec<CompletionCandidate> {
    candidates(|client| async move {
        let found = client.runs().await?;
        Ok(found.runs.into_iter().rev().map(|r| r.id).collect())
    })
}

pub(super) fn terminal_ids() -> Vec<CompletionCandidate> {
    candidates(|client| async move {
        let found = client.terminals().await?.terminals.into_iter();
        let living = found.filter(|terminal| terminal.exit.is_none());
        Ok(living.map(|terminal| terminal.id).collect())
    })
}

/// Paths here, and behind `os:` those inside.
pub(super) fn places(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let Some(path) = text.strip_prefix(INSIDE) else {
        let mut found = PathCompleter::any().stdio().complete(current);
        if INSIDE.starts_with(text.as_ref()) {
            found.push(CompletionCandidate::new(INSIDE));
        }
        return found;
    };
    within(SHORT, async |client| {
        below("/", path, INSIDE, &client).await
    })
}

/// Paths inside, for the words of a command: relative ones begin where the session's shell is.
pub(super) fn words(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(path) = current.to_str().filter(|path| !path.is_empty()) else {
        return Vec::new();
    };
    within(SHORT, async |client| {
        let cwd = client.located().await?.cwd;
        below(&cwd, path, "", &client).await
    })
}

/// What is there that begins as `path` does, which is relative to `base` unless it is absolute.
async fn below(base: &str, path: &str, prefix: &str, client: &Client) -> Result<Vec<String>> {
    let (folder, begin) = path.split_at(path.rfind('/').map_or(0, |slash| slash + 1));
    let whole = match folder.starts_with('/') {
        true => folder.to_owned(),
        false => format!("{}/{folder}", base.trim_end_matches('/')),
    };
    let found = client.list(&encode(whole.as_bytes())).await?.entries;
    // What is no UTF-8 can't be typed.
    let found = found
        .into_iter()
        .filter(|e| e.name.starts_with(begin) && !e.name.contains('\u{fffd}'));
    let place = found.map(|entry| match entry.kind {
        EntryKind::Folder => format!("{prefix}{folder}{}/", entry.name),
        _ => format!("{prefix}{folder}{}", entry.name),
    });
    Ok(place.collect())
}

fn candidates<F: Future<Output = Result<Vec<String>>>>(
    ask: impl FnOnce(Client) -> F,
) -> Vec<CompletionCandidate> {
    within(PATIENCE, ask)
}

fn within<F: Future<Output = Result<Vec<String>>>>(
    patience: Duration,
    ask: impl FnOnce(Client) -> F,
) -> Vec<CompletionCandidate> {
    let asked = || {
        let name = std::env::var("OSCTL_INSTANCE").unwrap_or_else(|_| "default".into());
        let folders = Folders::find()?;
        let cx = Context {
            ui: Ui::new(false, true, 0, None),
            instance: Instance::new(&name, &folders)?,
            config_file: folders.config_file(None),
            folders,
        };
        let client = cx.client()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async { tokio::time::timeout(patience, ask(client)).await? })
    };
    let names = asked().unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}
