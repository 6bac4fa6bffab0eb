//! What is known of runs.

use super::Context;
use super::shown::{shown, task};
use crate::command::duration;
use crate::error::{Error, Outcome, Result};
use crate::host::keeper::{Keeper, unasked};
use crate::protocol::evolve::{Ask, Edit, Record, Reply, Run, Stage};
use serde_json::json;

/// What `--json` holds of a log, which is one text there.
const MAX_LOG_BYTES: usize = 32 << 20;

pub(super) async fn status(keeper: &Keeper<'_>, cx: &Context) -> Result<Outcome> {
    let status = match keeper.answer(&Ask::Status {}).await? {
        Reply::Status(status) => status,
        other => return Err(unasked(&other)),
    };
    if cx.ui.json {
        cx.ui.document(&status)?;
        return Ok(Outcome::Done);
    }
    let Some(run) = &status.latest_run else {
        cx.ui.line("no run yet");
        return Ok(Outcome::Done);
    };
    let mut rows = vec![
        ("run", run.to_string()),
        (
            "status",
            status.latest_status.map_or("?", Stage::word).into(),
        ),
    ];
    rows.extend(status.reason.map(|reason| ("reason", reason)));
    rows.extend(status.why.map(|why| ("why", why)));
    for (what, value) in rows {
        cx.ui.line(format!("{what:<10}{value}"));
    }
    Ok(Outcome::Done)
}

pub(super) async fn history(keeper: &Keeper<'_>, cx: &Context) -> Result<Outcome> {
    let runs = match keeper.answer(&Ask::History {}).await? {
        Reply::History { runs } => runs,
        other => return Err(unasked(&other)),
    };
    if cx.ui.json {
        cx.ui.document(&json!({"runs": runs}))?;
        return Ok(Outcome::Done);
    }
    if runs.is_empty() {
        cx.ui.line("no run yet");
        return Ok(Outcome::Done);
    }
    let head = ["RUN", "TASK", "STATUS", "TOOK", "WHY"].map(str::to_owned);
    let rows = std::iter::once(head.to_vec()).chain(runs.iter().map(row));
    cx.ui.table(&rows.collect::<Vec<_>>());
    Ok(Outcome::Done)
}

fn row(record: &Record) -> Vec<String> {
    let why = record.why.as_ref().or(record.reason.as_ref());
    vec![
        record.run.to_string(),
        task(record).into(),
        record.status.to_string(),
        duration(record.seconds()),
        why.cloned().unwrap_or_default(),
    ]
}

pub(super) async fn show(keeper: &Keeper<'_>, run: &Run, cx: &Context) -> Result<Outcome> {
    let record = match keeper.answer(&Ask::Show { run: run.clone() }).await? {
        Reply::Record(record) => record,
        other => return Err(unasked(&other)),
    };
    if cx.ui.json {
        cx.ui.document(&record)?;
        return Ok(Outcome::Done);
    }
    shown(&record).iter().for_each(|line| cx.ui.line(line));
    Ok(Outcome::Done)
}

pub(super) async fn logs(
    keeper: &Keeper<'_>,
    run: &Run,
    follow: bool,
    cx: &Context,
) -> Result<Outcome> {
    let question = Ask::Log {
        run: run.clone(),
        offset: 0,
        follow,
    };
    let mut whole = String::new();
    let mut last = None;
    let mut each = |reply| {
        match reply {
            Reply::Log { text, .. } if cx.ui.json => {
                whole.push_str(&text);
                if whole.len() > MAX_LOG_BYTES {
                    let message = format!("the log is longer than {MAX_LOG_BYTES} bytes");
                    let logs = cx.instance.command(&format!("evolve logs {run}"));
                    let hint = format!("`{logs}` shows it piece by piece");
                    return Err(Error::precondition(message, hint).into());
                }
            }
            Reply::Log { text, .. } => cx.ui.text(&text)?,
            Reply::Record(record) => last = Some(record),
            _ => {}
        }
        Ok(())
    };
    tokio::select! {
        asked = keeper.ask(&question, &mut each) => asked?,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            return Err(Error::Interrupted.into());
        }
    }
    if cx.ui.json {
        let status = last.map(|record| record.status);
        cx.ui
            .document(&json!({"run": run, "status": status, "log": whole}))?;
    }
    Ok(Outcome::Done)
}

pub(super) async fn diff(keeper: &Keeper<'_>, run: &Run, cx: &Context) -> Result<Outcome> {
    let (run, changes) = match keeper.answer(&Ask::Diff { run: run.clone() }).await? {
        Reply::Diff { run, changes } => (run, changes),
        other => return Err(unasked(&other)),
    };
    if cx.ui.json {
        cx.ui.document(&json!({"run": run, "changes": changes}))?;
        return Ok(Outcome::Done);
    }
    if changes.is_empty() {
        cx.ui.say("nothing in body/ has changed");
    }
    for change in changes {
        let what = match change.edit {
            Edit::Added => "added",
            Edit::Removed => "removed",
            Edit::Changed => "changed",
        };
        match change.diff {
            Some(diff) => cx.ui.text(&diff)?,
            None => cx.ui.line(format!("{what}: {} (no text)", change.path)),
        }
    }
    Ok(Outcome::Done)
}
