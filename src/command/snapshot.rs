//! The store of all sessions before their container is stopped. The configuration can disable it. A failed store is
//! reported and does not stop the command.

use super::CommandContext;
use crate::engine::{Container, ContainerPhase, Engine, EngineProgress};
use crate::error::{Error, Result};
use crate::host::instance::InstanceLock;
use crate::host::replace::ContainerReplacer;
use crate::protocol::cryo::{CryoVerdict, SessionSnapshot, StoreReason};

/// Prepares the container of the instance for its stop: a paused container continues, and the sessions of a running
/// one are stored.
///
/// # Errors
/// When the engine does not answer, or the container belongs to another owner.
pub(super) async fn prepare_stop(
    reason: StoreReason,
    engine: &Engine,
    _lock: &InstanceLock,
    cx: &CommandContext,
) -> Result<Option<Container>> {
    let found = cx.instance.find_container(engine).await?;
    match found.as_ref().map(|container| container.phase) {
        Some(ContainerPhase::Running | ContainerPhase::Restarting) => {}
        Some(ContainerPhase::Paused) => continue_paused(engine, cx).await?,
        _ => return Ok(found),
    }
    store_before_stop(reason, cx).await?;
    Ok(found)
}

/// Continues a paused container, whose processes can't store anything. A failure does not stop the command.
async fn continue_paused(engine: &Engine, cx: &CommandContext) -> Result<()> {
    let record = cx.require_record()?;
    let config = cx.lenient_config(Some(&record.project), Vec::new())?.config;
    let name = cx.instance.container_name();
    let work = cx.ui.start_work(&format!("continuing the paused `{name}`"));
    let replacer = ContainerReplacer {
        instance: &cx.instance,
        engine,
        bind: record.bind_address(config.bind),
        progress: &work,
    };
    if let Err(error) = replacer.restore_container(&name).await {
        work.warn(&format!("`{name}` does not continue: {error:#}"));
    }
    Ok(())
}

/// Stores the sessions of a container that is about to stop.
async fn store_before_stop(reason: StoreReason, cx: &CommandContext) -> Result<()> {
    let record = cx.require_record()?;
    let config = cx.lenient_config(Some(&record.project), Vec::new())?.config;
    if !config
        .cryo
        .before
        .iter()
        .any(|word| word == reason.as_str())
    {
        // Tell the companion not to store: it does not know which verb stops it. A companion of an earlier version
        // ignores the request, and a stopped one does not need it.
        if let Ok(client) = cx.companion_client() {
            let _ = client.cryo_snapshot(reason, false).await;
        }
        return Ok(());
    }
    let work = cx.ui.start_work("storing the variables of the sessions");
    let reply = cx.companion_client()?.cryo_snapshot(reason, true).await;
    drop(work);
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => {
            let error = cx.explain_error(error).await;
            // A stopped companion has nothing to store.
            if !matches!(error.downcast_ref(), Some(Error::NotRunning { .. })) {
                cx.ui.print_warning(format!(
                    "the variables of the sessions were not stored: {error:#}"
                ));
            }
            return Ok(());
        }
    };
    for SessionSnapshot {
        session,
        stored,
        error,
    } in reply.snapshots
    {
        if stored.is_none() && error.is_none() {
            cx.ui
                .print_message(format!("session `{session}` has no changes to store"));
        }
        if let Some(stored) = stored {
            cx.ui
                .print_message(format!("session `{session}` is stored: {}", stored.message));
            for (verdict, what) in [
                (CryoVerdict::Lost, "lost"),
                (CryoVerdict::Altered, "altered"),
                (CryoVerdict::Unverified, "unverified"),
            ] {
                let rows = stored.receipt.iter().filter(|row| row.verdict == verdict);
                let names: Vec<String> = rows.map(|row| format!("`{}`", row.name)).collect();
                if !names.is_empty() {
                    let names = names.join(", ");
                    cx.ui
                        .print_warning(format!("session `{session}`: {what}: {names}"));
                }
            }
        }
        if error.as_ref().is_some_and(|error| error.kind == "busy") {
            cx.ui.print_message(format!(
                "session `{session}` runs code and is stored when the code has ended or was interrupted"
            ));
        } else if let Some(error) = error {
            cx.ui.print_warning(format!(
                "session `{session}` is not stored: {}",
                error.message
            ));
        }
    }
    Ok(())
}
