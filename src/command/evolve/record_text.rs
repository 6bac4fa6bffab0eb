//! The complete record of an evolve run as text for people.

use crate::command::{format_age, format_duration};
use crate::protocol::cryo::CryoVerdict;
use crate::protocol::evolve::container_reports::{NonVariableState, RestoreMethod, SessionReceipt};
use crate::protocol::evolve::{EvolveCaller, EvolveRecord, EvolveStage, RunTask};

/// The record as lines.
pub(super) fn record_lines(record: &EvolveRecord) -> Vec<String> {
    let mut lines = Vec::new();
    let mut row = |what: &str, value: String| lines.push(format!("{what:<10}{value}"));
    row("run", record.run.to_string());
    row("task", task_word(record).into());
    row("by", caller_words(record).into());
    row("began", format!("{} ago", format_age(record.began)));
    row("status", status_words(record).into());
    row("took", format_duration(record.total_seconds()));
    for (what, text) in [("reason", &record.reason), ("why", &record.why)] {
        text.iter().for_each(|text| row(what, text.clone()));
    }
    if let Some(why) = &record.untold {
        row("git", format!("no commit: {why}"));
    }
    if let Some(ms) = record.refused_ms {
        let refused = format_duration(ms / 1e3);
        row("refused", format!("requests for {refused}"));
    }
    let images = [("image", &record.image), ("before", &record.previous)];
    for (what, id) in images.into_iter().chain([("body", &record.body)]) {
        id.iter().for_each(|id| row(what, id.to_string()));
    }
    lines.extend(stage_lines(record));
    lines.extend(gate_lines(record));
    lines.extend(receipt_lines(record));
    lines
}

/// The purpose of a run in a word or two.
pub(super) fn task_word(record: &EvolveRecord) -> &'static str {
    match (record.task, record.dry_run) {
        (RunTask::Evolve, true) => "dry run",
        (RunTask::Evolve, false) => "evolve",
        (RunTask::Rollback, _) => "rollback",
        (RunTask::Rescue, _) => "rescue",
    }
}

fn caller_words(record: &EvolveRecord) -> &'static str {
    match (record.by, record.force) {
        (EvolveCaller::Host, false) => "the host",
        (EvolveCaller::Host, true) => "the host, with --force",
        (EvolveCaller::Agent, _) => "the agent",
        (EvolveCaller::Keeper, _) => "the keeper",
    }
}

fn status_words(record: &EvolveRecord) -> &'static str {
    match (record.status, record.gate) {
        (EvolveStage::Succeeded, _) if record.dry_run => {
            "succeeded: dry run, the container was not replaced"
        }
        (EvolveStage::RolledBack, _) => "rolled_back: the old container keeps running",
        // The keeper has given up on the run.
        (EvolveStage::Failed, Some(EvolveStage::Swapping | EvolveStage::Verifying)) => {
            "failed: the running container is unknown"
        }
        (EvolveStage::Failed, _) => "failed: nothing was changed",
        (other, _) => other.as_str(),
    }
}

/// The start of each stage relative to the start of the run, and its duration.
fn stage_lines(record: &EvolveRecord) -> Vec<String> {
    let each = record.stages.iter().map(|stage| {
        let after = format_duration((stage.began - record.began).max(0.0));
        let took = match stage.seconds {
            Some(seconds) => format_duration(seconds),
            None if record.status.has_ended() => "?".into(),
            None => "in progress".into(),
        };
        format!("  {:<10} after {after:<8} {took}", stage.stage.as_str())
    });
    with_title("stages", each.collect())
}

/// The failed gate with its details.
fn gate_lines(record: &EvolveRecord) -> Vec<String> {
    let Some(gate) = record.gate else {
        return Vec::new();
    };
    let failed = record.checks.iter().filter(|check| !check.passed);
    let failed = failed.map(|check| format!("  {}: {}", check.name, check.detail));
    let log = record.log_tail.iter();
    let log = log.map(|text| format!("  | {}", text));
    let all: Vec<String> = failed.chain(log).collect();
    let title = format!("failed gate: {}", gate.as_str());
    match all.is_empty() {
        true => vec![title],
        false => with_title(&title, all),
    }
}

/// The variables that each session kept; empty unless another container took over.
fn receipt_lines(record: &EvolveRecord) -> Vec<String> {
    if record.status != EvolveStage::Succeeded || record.dry_run {
        return Vec::new();
    }
    let sessions = record.receipt.iter().flat_map(session_lines);
    with_title(
        "kept and lost",
        sessions
            .chain(record.besides.iter().map(non_variable_line))
            .collect(),
    )
}

fn session_lines(receipt: &SessionReceipt) -> Vec<String> {
    let lost: Vec<_> = receipt
        .rows
        .iter()
        .filter(|row| row.verdict == CryoVerdict::Lost)
        .collect();
    let (there, all) = (receipt.rows.len() - lost.len(), receipt.rows.len());
    let how = match receipt.by {
        RestoreMethod::Process => "the whole process was kept".into(),
        RestoreMethod::Objects => format!("{there} of {all} variables kept"),
        RestoreMethod::Nothing => "starts empty".into(),
    };
    let why = receipt.why.iter().map(|why| format!("; {why}"));
    let name = &receipt.session;
    let mut lines = vec![format!(
        "  session `{name}`: {how}{}",
        why.collect::<String>()
    )];
    lines.extend(lost.into_iter().map(|row| {
        let why = row.why.as_deref().unwrap_or("unknown reason");
        let (name, kind) = (&row.name, &row.kind);
        format!("    lost: `{name}` ({kind}): {why}")
    }));
    lines
}

/// A line for a part of the state that is not a variable.
pub(super) fn non_variable_line(one: &NonVariableState) -> String {
    let lost = if one.kept { "" } else { "lost: " };
    format!("  {lost}{}: {}", one.what, one.detail)
}

fn with_title(title: &str, lines: Vec<String>) -> Vec<String> {
    match lines.is_empty() {
        true => lines,
        false => std::iter::once(title.to_owned()).chain(lines).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::record_lines;
    use crate::protocol::evolve::EvolveRecord;
    use serde_json::json;

    fn record(more: serde_json::Value) -> EvolveRecord {
        let mut record = json!({
            "run": "20261121-100000", "task": "evolve", "reason": "more",
            "by": "host", "force": false, "dry_run": false, "began": 1000.0, "status": "succeeded",
            "stages": [
                {"stage": "building", "began": 1000.0, "seconds": 12.5},
                {"stage": "testing", "began": 1012.5, "seconds": 3.0},
            ],
            "gate": null, "why": null, "log_tail": [], "image": "sha256:2", "previous": "sha256:1",
            "body": "sha256:b", "refused_ms": 640.0,
            "receipt": [{"session": "default", "by": "objects", "rows": [
                {"name": "x", "verdict": "saved", "type": "int", "bytes": 1, "why": null},
                {"name": "s", "verdict": "lost", "type": "socket", "bytes": 0, "why": "it is a socket"},
            ]}],
            "besides": [
                {"what": "shell:default", "kept": true, "detail": "it is in `/data`"},
                {"what": "job:default", "kept": false, "detail": "`make` ends with the container"},
            ],
        });
        let fields = more.as_object().unwrap().clone();
        record.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(record).unwrap()
    }

    #[track_caller]
    fn assert_has(lines: &[String], wanted: &[&str]) {
        for line in wanted {
            assert!(lines.iter().any(|l| l == line), "{line}: {lines:#?}");
        }
    }

    #[test]
    fn what_was_kept_and_lost_is_told_thing_by_thing() {
        let lines = record_lines(&record(json!({})));
        assert_has(
            &lines,
            &[
                "run       20261121-100000",
                "by        the host",
                "took      15.5 s",
                "reason    more",
                "refused   requests for 640 ms",
                "  building   after 0 ms     12.5 s",
                "  testing    after 12.5 s   3.0 s",
                "kept and lost",
                "  session `default`: 1 of 2 variables kept",
                "    lost: `s` (socket): it is a socket",
                "  shell:default: it is in `/data`",
                "  lost: job:default: `make` ends with the container",
            ],
        );
    }

    #[test]
    fn the_gate_is_told_with_its_last_lines_and_nothing_is_lost_then() {
        let lines = record_lines(&record(json!({
            "status": "rolled_back", "gate": "verifying", "why": "`kernel` is not ready",
            "log_tail": ["no module named x"],
            "checks": [
                {"name": "exec", "passed": true, "detail": "fine", "ms": 1.0},
                {"name": "services", "passed": false, "detail": "`kernel` is not ready", "ms": 1.0},
            ],
        })));
        assert_has(
            &lines,
            &[
                "status    rolled_back: the old container keeps running",
                "why       `kernel` is not ready",
                "failed gate: verifying",
                "  services: `kernel` is not ready",
                "  | no module named x",
            ],
        );
        assert!(
            !lines.iter().any(|line| line.contains("lost")),
            "{lines:#?}"
        );
        let lines = record_lines(&record(json!({"status": "failed", "gate": "building"})));
        assert_has(&lines, &["status    failed: nothing was changed"]);
    }
}
