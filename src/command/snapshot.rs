//! What the sessions hold is stored before their container goes, unless the configuration says
//! otherwise. What could not be stored is said, and holds nothing up.

use super::Context;
use crate::error::{Error, Result};
use crate::protocol::cryo::{OfSession, Reason, Verdict};

/// Stores what an instance holds that is about to go.
pub(super) async fn before(reason: Reason, cx: &Context) -> Result<()> {
    let record = cx.record()?;
    let config = cx.config(Some(&record.project), Vec::new())?.config;
    if !config.cryo.before.iter().any(|word| word == reason.word()) {
        // The companion can't tell by itself which verb stops it. One of an earlier version does not
        // know what is said here, and one that does not run need not.
        if let Ok(client) = cx.client() {
            let _ = client.cryo_snapshot(reason, false).await;
        }
        return Ok(());
    }
    let work = cx.ui.work("storing what the sessions hold");
    let asked = cx.client()?.cryo_snapshot(reason, true).await;
    drop(work);
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => {
            let error = cx.explain(error).await;
            // One that does not run holds nothing that could be stored.
            if !matches!(error.downcast_ref(), Some(Error::NotRunning { .. })) {
                cx.ui
                    .warn(format!("what the sessions hold is not stored: {error:#}"));
            }
            return Ok(());
        }
    };
    for OfSession {
        session,
        stored,
        error,
    } in asked.snapshots
    {
        if stored.is_none() && error.is_none() {
            cx.ui
                .say(format!("session `{session}` holds nothing new to store"));
        }
        if let Some(stored) = stored {
            cx.ui
                .say(format!("session `{session}` is stored: {}", stored.message));
            for (verdict, said) in [
                (Verdict::Lost, "it can't bring back"),
                (Verdict::Altered, "it does not bring back as they are"),
                (
                    Verdict::Unverified,
                    "it was not checked that these come back:",
                ),
            ] {
                let rows = stored.receipt.iter().filter(|row| row.verdict == verdict);
                let names: Vec<String> = rows.map(|row| format!("`{}`", row.name)).collect();
                if !names.is_empty() {
                    cx.ui.warn(format!("{said} {}", names.join(", ")));
                }
            }
        }
        if error.as_ref().is_some_and(|error| error.kind == "busy") {
            cx.ui.say(format!(
                "session `{session}` executes code, and is stored when that has ended or was stopped"
            ));
        } else if let Some(error) = error {
            cx.ui.warn(format!(
                "session `{session}` is not stored: {}",
                error.message
            ));
        }
    }
    Ok(())
}
