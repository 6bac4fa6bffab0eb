//! What a shell may offer to complete: what exists, quickly or not at all, and silent about
//! everything that is wrong.

use super::Context;
use crate::error::Result;
use crate::host::client::Client;
use crate::host::folders::Folders;
use crate::host::instance::Instance;
use crate::ui::Ui;
use clap_complete::engine::CompletionCandidate;
use std::time::Duration;

/// How long a person waits.
const PATIENCE: Duration = Duration::from_millis(300);

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

fn candidates<F: Future<Output = Result<Vec<String>>>>(
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
        runtime.block_on(async { tokio::time::timeout(PATIENCE, ask(client)).await? })
    };
    let names = asked().unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}
