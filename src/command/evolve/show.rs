//! `osctl evolve status`, `history`, `show`, `logs` and `diff`.

use super::CommandContext;
use super::record_text::{record_lines, task_word};
use crate::command::answers::{
    EvolveDiffAnswer, EvolveHistoryAnswer, EvolveLogAnswer, EvolveRunAnswer,
};
use crate::command::format_duration;
use crate::error::{Error, Result, VerbOutcome};
use crate::host::keeper::{KeeperContainer, unexpected_reply_error};
use crate::protocol::evolve::{
    EvolveRecord, EvolveRunId, EvolveStage, FileEdit, KeeperReply, KeeperRequest,
};

/// Maximum length of a log in the `--json` document, which holds it as one string.
const MAX_JSON_LOG_BYTES: usize = 32 << 20;

pub(super) async fn show_status(
    keeper: &KeeperContainer<'_>,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let status = match keeper.request_reply(&KeeperRequest::Status {}).await? {
        KeeperReply::Status(status) => status,
        other => return Err(unexpected_reply_error(&other)),
    };
    if cx.ui.json {
        cx.ui.print_json(&status)?;
        return Ok(VerbOutcome::Done);
    }
    let Some(run) = &status.latest_run else {
        cx.ui.print_line("no evolve yet");
        return Ok(VerbOutcome::Done);
    };
    let mut rows = vec![
        ("run", run.to_string()),
        (
            "status",
            status.latest_status.map_or("?", EvolveStage::as_str).into(),
        ),
    ];
    rows.extend(status.reason.map(|reason| ("reason", reason)));
    rows.extend(status.why.map(|why| ("why", why)));
    for (what, value) in rows {
        cx.ui.print_line(format!("{what:<10}{value}"));
    }
    Ok(VerbOutcome::Done)
}

pub(super) async fn show_history(
    keeper: &KeeperContainer<'_>,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let runs = match keeper.request_reply(&KeeperRequest::History {}).await? {
        KeeperReply::History { runs } => runs,
        other => return Err(unexpected_reply_error(&other)),
    };
    if cx.ui.json {
        cx.ui.print_json(&EvolveHistoryAnswer::from(runs))?;
        return Ok(VerbOutcome::Done);
    }
    if runs.is_empty() {
        cx.ui.print_line("no evolve yet");
        return Ok(VerbOutcome::Done);
    }
    let head = ["RUN", "TASK", "STATUS", "TOOK", "WHY"].map(str::to_owned);
    let rows = std::iter::once(head.to_vec()).chain(runs.iter().map(history_row));
    cx.ui.print_table(&rows.collect::<Vec<_>>());
    Ok(VerbOutcome::Done)
}

fn history_row(record: &EvolveRecord) -> Vec<String> {
    let why = record.why.as_ref().or(record.reason.as_ref());
    vec![
        record.run.to_string(),
        task_word(record).into(),
        record.status.to_string(),
        format_duration(record.total_seconds()),
        why.cloned().unwrap_or_default(),
    ]
}

pub(super) async fn show_record(
    keeper: &KeeperContainer<'_>,
    run: &EvolveRunId,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let record = match keeper
        .request_reply(&KeeperRequest::Show { run: run.clone() })
        .await?
    {
        KeeperReply::Record(record) => record,
        other => return Err(unexpected_reply_error(&other)),
    };
    if cx.ui.json {
        cx.ui.print_json(&EvolveRunAnswer::from(*record))?;
        return Ok(VerbOutcome::Done);
    }
    record_lines(&record)
        .iter()
        .for_each(|line| cx.ui.print_line(line));
    Ok(VerbOutcome::Done)
}

pub(super) async fn show_logs(
    keeper: &KeeperContainer<'_>,
    run: &EvolveRunId,
    follow: bool,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let request = KeeperRequest::Log {
        run: run.clone(),
        offset: 0,
        follow,
    };
    let mut whole = String::new();
    let mut last = None;
    let mut on_reply = |reply| {
        match reply {
            KeeperReply::Log { text, .. } if cx.ui.json => {
                whole.push_str(&text);
                if whole.len() > MAX_JSON_LOG_BYTES {
                    let message = format!("the log is longer than {MAX_JSON_LOG_BYTES} bytes");
                    let logs = cx.instance.osctl_command(&format!("evolve logs {run}"));
                    let hint = format!("`{logs}` shows the log without this limit");
                    return Err(Error::precondition(message, hint).into());
                }
            }
            KeeperReply::Log { text, .. } => cx.ui.print_text(&text)?,
            KeeperReply::Record(record) => last = Some(record),
            _ => {}
        }
        Ok(())
    };
    tokio::select! {
        outcome = keeper.send_request(&request, &mut on_reply) => outcome?,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            return Err(Error::Interrupted.into());
        }
    }
    if cx.ui.json {
        let status = last.map(|record| record.status);
        cx.ui.print_json(&EvolveLogAnswer {
            run: run.clone(),
            status,
            log: whole,
        })?;
    }
    Ok(VerbOutcome::Done)
}

pub(super) async fn show_diff(
    keeper: &KeeperContainer<'_>,
    run: &EvolveRunId,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let (run, changes) = match keeper
        .request_reply(&KeeperRequest::Diff { run: run.clone() })
        .await?
    {
        KeeperReply::Diff { run, changes } => (run, changes),
        other => return Err(unexpected_reply_error(&other)),
    };
    if cx.ui.json {
        cx.ui.print_json(&EvolveDiffAnswer { run, changes })?;
        return Ok(VerbOutcome::Done);
    }
    if changes.is_empty() {
        cx.ui.print_message("no changes in body/");
    }
    for change in changes {
        let what = match change.edit {
            FileEdit::Added => "added",
            FileEdit::Removed => "removed",
            FileEdit::Changed => "changed",
        };
        match change.diff {
            Some(diff) => cx.ui.print_text(&diff)?,
            None => cx
                .ui
                .print_line(format!("{what}: {} (no text)", change.path)),
        }
    }
    Ok(VerbOutcome::Done)
}
