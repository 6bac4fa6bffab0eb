//! Following an evolve run to its end, and the report of its result.

use super::CommandContext;
use super::record_text::non_variable_line;
use crate::command::answers::EvolveRunAnswer;
use crate::command::format_duration;
use crate::command::mcp::warn_of_failed_servers;
use crate::error::{EXIT_INTERRUPTED, EXIT_NEGATIVE, Result, VerbOutcome};
use crate::host::follow_evolve::{
    FollowOutcome, follow_keeper_run, wait_for_interrupt, wait_for_run_end,
};
use crate::host::keeper::KeeperContainer;
use crate::protocol::cryo::CryoVerdict;
use crate::protocol::evolve::{CANCELLED_BY_USER, EvolveRecord, EvolveRunId, EvolveStage};
use crate::protocol::words::count_noun;
use crate::ui::WorkSpinner;

/// Follows a run to its end and reports the result. `target` is the image of a rollback.
pub(super) async fn to_the_end(
    keeper: &KeeperContainer<'_>,
    run: &EvolveRunId,
    target: Option<&str>,
    work: WorkSpinner,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let end = follow_keeper_run(keeper, run, wait_for_interrupt(), &work).await?;
    drop(work);
    let FollowOutcome::RunEnded(record) = end else {
        let logs = cx.instance.osctl_command(&format!("evolve logs -f {run}"));
        cx.ui.print_message(format!(
            "detached from evolve {run}, which continues; `{logs}` follows it again"
        ));
        return Ok(VerbOutcome::Code(EXIT_INTERRUPTED));
    };
    let outcome = match record.status {
        EvolveStage::Succeeded => VerbOutcome::Done,
        _ => VerbOutcome::Code(EXIT_NEGATIVE),
    };
    let outcome = report_end(&record, target, outcome, cx)?;
    if record.status == EvolveStage::Succeeded
        && !record.dry_run
        && let Ok(client) = cx.companion_client()
    {
        warn_of_failed_servers(&client, cx).await;
    }
    Ok(outcome)
}

/// Like [`to_the_end`], but for a run that is being cancelled: a successful run is reported with exit code 1.
pub(super) async fn to_its_stop(
    keeper: &KeeperContainer<'_>,
    run: &EvolveRunId,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let work = cx.ui.start_work(&format!("cancelling evolve {run}"));
    let record = wait_for_run_end(keeper, run, &work).await?;
    drop(work);
    let outcome = match record.status {
        EvolveStage::Succeeded => VerbOutcome::Code(EXIT_NEGATIVE),
        _ => VerbOutcome::Done,
    };
    report_end(&record, None, outcome, cx)
}

fn report_end(
    record: &EvolveRecord,
    target: Option<&str>,
    outcome: VerbOutcome,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    if cx.ui.json {
        cx.ui.print_json(&EvolveRunAnswer::from(record.clone()))?;
        return Ok(outcome);
    }
    match record.status {
        EvolveStage::Succeeded => print_success(record, target, cx),
        _ => print_failed_stage(record, outcome, cx),
    }
    if let Some(why) = &record.not_committed_because {
        cx.ui
            .print_message(format!("no commit on `osctl/evolve`: {why}"));
    }
    Ok(outcome)
}

/// Prints the result of a successful run for people.
fn print_success(record: &EvolveRecord, target: Option<&str>, cx: &CommandContext) {
    let run = &record.run;
    if record.unchanged {
        let rebuild = cx.instance.osctl_command("evolve --rebuild");
        cx.ui
            .print_line("nothing has changed: the container runs this body");
        cx.ui.print_message(format!(
            "next: edit body/, or replace the container anyway: {rebuild}"
        ));
        return;
    }
    let took = format_duration(record.total_seconds());
    let end = match record.dry_run {
        true => "passed the dry run",
        false => "succeeded",
    };
    cx.ui.print_line(format!("evolve {run} {end} ({took})"));
    if let Some(target) = target {
        cx.ui.print_line(format!("  the container runs {target}"));
    }
    if let Some(ms) = record.refused_ms {
        let refused = format_duration(ms / 1e3);
        cx.ui.print_line(format!("  downtime {refused}"));
    }
    for receipt in &record.receipt {
        let lost = receipt
            .rows
            .iter()
            .filter(|r| r.verdict == CryoVerdict::Lost);
        let (session, lost) = (&receipt.session, lost.count());
        let whole = receipt.rows.len() - lost;
        let kept = count_noun(whole, "variable");
        cx.ui
            .print_line(format!("  session `{session}`: {kept} kept, {lost} lost"));
    }
    for lost in record.other_state.iter().filter(|one| !one.kept) {
        cx.ui.print_line(non_variable_line(lost));
    }
}

/// Prints the failed stage for people: an error, unless the user has cancelled the run.
fn print_failed_stage(record: &EvolveRecord, outcome: VerbOutcome, cx: &CommandContext) {
    let run = &record.run;
    for text in &record.log_tail {
        cx.ui.print_detail(text);
    }
    let stage = record.failed_stage.map_or("unknown", EvolveStage::as_str);
    let why = record.why.as_deref().unwrap_or("unknown reason");
    let end = match (record.status, record.failed_stage) {
        (EvolveStage::RolledBack, _) => "the old image runs again",
        // The keeper has given up on the run.
        (_, Some(EvolveStage::Swapping | EvolveStage::Verifying)) => {
            "the running container is unknown"
        }
        _ => "nothing was changed",
    };
    let sentence = match why.strip_prefix(CANCELLED_BY_USER) {
        // The keeper may have added what else happened.
        Some(rest) => format!("evolve {run} was cancelled while {stage}{rest}; {end}"),
        None => format!("evolve {run}: the stage `{stage}` failed: {why}; {end}"),
    };
    match outcome {
        VerbOutcome::Done => cx.ui.print_warning(sentence),
        VerbOutcome::Code(_) => cx.ui.print_error(sentence),
    }
    let show = cx.instance.osctl_command(&format!("evolve show {run}"));
    let logs = cx.instance.osctl_command(&format!("evolve logs {run}"));
    cx.ui.print_message(format!("next: {show}, or {logs}"));
}
