//! `osctl evolve status`, `history`, `show`, `logs` and `diff`.

use super::CommandContext;
use super::record_text::{record_lines, status_word, task_word, why_or_reason};
use crate::command::answers::{
    EvolveDiffAnswer, EvolveHistoryAnswer, EvolveRunAnswer, EvolveStatusAnswer,
};
use crate::command::follow::CTRL_C_EXIT_CODE;
use crate::command::format_duration;
use crate::command::logs::LogChunkPrinter;
use crate::error::{Result, VerbOutcome};
use crate::host::keeper::{KeeperContainer, unexpected_reply_error};
use crate::protocol::evolve::{EvolveRecord, EvolveRunId, FileEdit, KeeperReply, KeeperRequest};

pub(super) async fn show_status(
    keeper: &KeeperContainer<'_>,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let status = match keeper.request_reply(&KeeperRequest::Status {}).await? {
        KeeperReply::Status(status) => status,
        other => return Err(unexpected_reply_error(&other)),
    };
    if cx.ui.json {
        cx.ui.print_json(&EvolveStatusAnswer::from(status))?;
        return Ok(VerbOutcome::Done);
    }
    let Some(run) = &status.latest_run else {
        cx.ui.print_line("no evolve yet");
        return Ok(VerbOutcome::Done);
    };
    let word = |latest| status_word(latest, status.why.as_deref());
    let word = status.latest_status.map_or("?", word);
    let mut rows = vec![("id", run.to_string()), ("status", word.into())];
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
    let head = ["ID", "TASK", "STATUS", "TOOK", "WHY"].map(str::to_owned);
    let rows = std::iter::once(head.to_vec()).chain(runs.iter().map(history_row));
    cx.ui.print_list(&rows.collect::<Vec<_>>(), "no evolve yet");
    Ok(VerbOutcome::Done)
}

fn history_row(record: &EvolveRecord) -> Vec<String> {
    vec![
        record.run.to_string(),
        task_word(record).into(),
        status_word(record.status, record.why.as_deref()).into(),
        format_duration(record.total_seconds()),
        why_or_reason(record).into(),
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
    let mut printer = LogChunkPrinter::default();
    let mut on_reply = |reply| match reply {
        KeeperReply::Log { text, .. } => printer.print_chunk(text.as_bytes(), cx),
        _ => Ok(()),
    };
    tokio::select! {
        outcome = keeper.send_request(&request, &mut on_reply) => outcome?,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            return Ok(VerbOutcome::Code(CTRL_C_EXIT_CODE));
        }
    }
    printer.print_rest(cx)?;
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
        cx.ui.print_json(&EvolveDiffAnswer { id: run, changes })?;
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
