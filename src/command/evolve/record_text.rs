//! The complete record of an evolve run as text for people.

use crate::command::{format_age, format_duration, short_image_id};
use crate::protocol::cryo::CryoVerdict;
use crate::protocol::evolve::container_reports::{NonVariableState, RestoreMethod, SessionReceipt};
use crate::protocol::evolve::{
    CANCELLED_BY_USER, EvolveCaller, EvolveRecord, EvolveRunId, EvolveStage, RunTask,
};

/// The record as lines.
pub(super) fn record_lines(record: &EvolveRecord) -> Vec<String> {
    let mut lines = Vec::new();
    let mut row = |what: &str, value: String| lines.push(format!("{what:<10}{value}"));
    row("id", record.run.to_string());
    row("task", task_word(record).into());
    row("by", caller_words(record).into());
    row("started", format!("{} ago", format_age(record.started)));
    row("status", status_words(record).into());
    row("took", format_duration(record.total_seconds()));
    for (what, text) in [("reason", &record.reason), ("why", &record.why)] {
        text.iter().for_each(|text| row(what, text.clone()));
    }
    if let Some(why) = &record.not_committed_because {
        row("git", format!("no commit: {why}"));
    }
    if let Some(ms) = record.refused_ms {
        let refused = format_duration(ms / 1e3);
        row("refused", format!("requests for {refused}"));
    }
    let images = [
        ("image", &record.image),
        ("previous", &record.previous_image),
    ];
    for (what, id) in images.into_iter().chain([("body", &record.body_digest)]) {
        id.iter().for_each(|id| row(what, id.to_string()));
    }
    lines.extend(stage_lines(record));
    lines.extend(failed_stage_lines(record));
    lines.extend(receipt_lines(record));
    lines
}

/// The image to which a run rolls back, and the evolve that built the image, if the history has it.
pub(super) fn rollback_target(run: &EvolveRunId, records: &[EvolveRecord]) -> Option<String> {
    let record = records.iter().find(|record| record.run == *run)?;
    let image = record.image.as_ref()?;
    let has_built = |other: &&EvolveRecord| {
        other.task == RunTask::Evolve
            && other.has_replaced_container()
            && other.image.as_ref() == Some(image)
    };
    let id = short_image_id(image);
    Some(match records.iter().find(has_built) {
        Some(built) => format!("the image of evolve {} ({id})", built.run),
        None => format!("the image {id}"),
    })
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

/// The reason of a failure, or else the reason given for the run, or else who requested the run: a table can cut only
/// its last column.
pub(super) fn why_or_reason(record: &EvolveRecord) -> &str {
    let why = record.why.as_deref().or(record.reason.as_deref());
    why.unwrap_or(match record.requested_by {
        EvolveCaller::Host => "requested by the user",
        EvolveCaller::Agent => "requested by the agent",
        EvolveCaller::Keeper => "requested by the keeper",
    })
}

fn caller_words(record: &EvolveRecord) -> &'static str {
    match (record.requested_by, record.force) {
        (EvolveCaller::Host, false) => "the host",
        (EvolveCaller::Host, true) => "the host, with --force",
        (EvolveCaller::Agent, _) => "the agent",
        (EvolveCaller::Keeper, _) => "the keeper",
    }
}

/// Whether a run has ended because the user cancelled it, by its status and its reason.
fn is_cancelled(status: EvolveStage, why: Option<&str>) -> bool {
    let has_failed = matches!(status, EvolveStage::Failed | EvolveStage::RolledBack);
    has_failed && why.is_some_and(|why| why.starts_with(CANCELLED_BY_USER))
}

/// The status in a word.
pub(super) fn status_word(status: EvolveStage, why: Option<&str>) -> &'static str {
    match is_cancelled(status, why) {
        true => "cancelled",
        false => status.as_str(),
    }
}

fn status_words(record: &EvolveRecord) -> &'static str {
    let cancelled = is_cancelled(record.status, record.why.as_deref());
    match (record.status, record.failed_stage) {
        (EvolveStage::Succeeded, _) if record.unchanged => {
            "succeeded: nothing has changed, the container was not replaced"
        }
        (EvolveStage::Succeeded, _) if record.dry_run => {
            "succeeded: dry run, the container was not replaced"
        }
        (EvolveStage::RolledBack, _) if cancelled => "cancelled: the old image runs again",
        (EvolveStage::RolledBack, _) => "rolled_back: the old image runs again",
        // The keeper has given up on the run.
        (EvolveStage::Failed, Some(EvolveStage::Swapping | EvolveStage::Verifying)) => {
            "failed: the running container is unknown"
        }
        (EvolveStage::Failed, _) if cancelled => "cancelled: nothing was changed",
        (EvolveStage::Failed, _) => "failed: nothing was changed",
        (other, _) => other.as_str(),
    }
}

/// The start of each stage relative to the start of the run, and its duration.
fn stage_lines(record: &EvolveRecord) -> Vec<String> {
    let each = record.stages.iter().map(|stage| {
        let after = format_duration((stage.started - record.started).max(0.0));
        let took = match stage.seconds {
            Some(seconds) => format_duration(seconds),
            None if record.status.has_ended() => "?".into(),
            None => "in progress".into(),
        };
        format!("  {:<10} after {after:<8} {took}", stage.stage.as_str())
    });
    with_title("stages", each.collect())
}

/// The failed stage with its details.
fn failed_stage_lines(record: &EvolveRecord) -> Vec<String> {
    let Some(stage) = record.failed_stage else {
        return Vec::new();
    };
    let failed = record.checks.iter().filter(|check| !check.passed);
    let failed = failed.map(|check| format!("  {}: {}", check.name, check.detail));
    let log = record.log_tail.iter();
    let log = log.map(|text| format!("  | {}", text));
    let all: Vec<String> = failed.chain(log).collect();
    let title = format!("failed stage: {}", stage.as_str());
    match all.is_empty() {
        true => vec![title],
        false => with_title(&title, all),
    }
}

/// The variables that each session kept; empty unless another container took over.
fn receipt_lines(record: &EvolveRecord) -> Vec<String> {
    if !record.has_replaced_container() {
        return Vec::new();
    }
    let sessions = record.receipt.iter().flat_map(session_lines);
    with_title(
        "kept and lost",
        sessions
            .chain(record.other_state.iter().map(non_variable_line))
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
    let how = match receipt.restored_by {
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
    format!("  {lost}{}: {}", one.name, one.detail)
}

fn with_title(title: &str, lines: Vec<String>) -> Vec<String> {
    match lines.is_empty() {
        true => lines,
        false => std::iter::once(title.to_owned()).chain(lines).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{record_lines, rollback_target, status_word, why_or_reason};
    use crate::protocol::evolve::{CANCELLED_BY_USER, EvolveRecord, EvolveStage};
    use serde_json::json;

    fn record(more: serde_json::Value) -> EvolveRecord {
        let mut record = json!({
            "run": "20261121-100000", "task": "evolve", "reason": "more",
            "by": "host", "force": false, "dry_run": false, "began": 1000.0, "status": "succeeded",
            "stages": [
                {"stage": "building", "began": 1000.0, "seconds": 12.5},
                {"stage": "testing", "began": 1012.5, "seconds": 3.0},
            ],
            "failed_stage": null, "why": null, "log_tail": [], "image": "sha256:2", "previous": "sha256:1",
            "body": "sha256:b", "refused_ms": 640.0,
            "receipt": [{"session": "default", "by": "objects", "rows": [
                {"name": "x", "verdict": "saved", "type": "int", "bytes": 1, "why": null},
                {"name": "s", "verdict": "lost", "type": "socket", "bytes": 0, "why": "it is a socket"},
            ]}],
            "other_state": [
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
    fn the_why_of_a_run_takes_the_place_of_its_reason() {
        assert_eq!(why_or_reason(&record(json!({}))), "more");
        let failed = record(json!({"why": "the build failed"}));
        assert_eq!(why_or_reason(&failed), "the build failed");
        let agents = record(json!({"reason": null, "by": "agent"}));
        assert_eq!(why_or_reason(&agents), "requested by the agent");
    }

    #[test]
    fn kept_and_lost_state_is_listed_item_by_item() {
        let lines = record_lines(&record(json!({})));
        assert_has(
            &lines,
            &[
                "id        20261121-100000",
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
    fn the_failed_stage_is_shown_with_its_last_lines() {
        let lines = record_lines(&record(json!({
            "status": "rolled_back", "failed_stage": "verifying", "why": "`kernel` is not ready",
            "log_tail": ["no module named x"],
            "checks": [
                {"name": "exec", "passed": true, "detail": "fine", "ms": 1.0},
                {"name": "services", "passed": false, "detail": "`kernel` is not ready", "ms": 1.0},
            ],
        })));
        assert_has(
            &lines,
            &[
                "status    rolled_back: the old image runs again",
                "why       `kernel` is not ready",
                "failed stage: verifying",
                "  services: `kernel` is not ready",
                "  | no module named x",
            ],
        );
        assert!(
            !lines.iter().any(|line| line.contains("lost")),
            "{lines:#?}"
        );
        let lines = record_lines(&record(
            json!({"status": "failed", "failed_stage": "building"}),
        ));
        assert_has(&lines, &["status    failed: nothing was changed"]);
    }

    #[test]
    fn a_rollback_names_its_image_and_the_evolve_that_built_the_image() {
        let back = record(json!({"run": "20261121-120000", "task": "rollback"}));
        let built = record(json!({}));
        let other = record(json!({"run": "20261121-110000", "image": "sha256:3"}));
        let target = |records: &[EvolveRecord]| rollback_target(&back.run, records);
        assert_eq!(
            target(&[back.clone(), other.clone(), built]).unwrap(),
            "the image of evolve 20261121-100000 (sha256:2)"
        );
        assert_eq!(
            target(&[back.clone(), other.clone()]).unwrap(),
            "the image sha256:2"
        );
        assert_eq!(target(&[other]), None);
    }

    #[test]
    fn a_run_that_the_user_stopped_is_cancelled_and_not_failed() {
        let why = format!("{CANCELLED_BY_USER} while building");
        for (status, end) in [
            ("failed", "nothing was changed"),
            ("rolled_back", "the old image runs again"),
        ] {
            let fields = json!({"status": status, "failed_stage": "building", "why": why});
            let stopped = record_lines(&record(fields));
            let wanted = format!("cancelled: {end}");
            assert!(
                stopped.iter().any(|line| line.contains(&wanted)),
                "{stopped:#?}"
            );
        }
        assert_eq!(status_word(EvolveStage::Failed, Some(&why)), "cancelled");
        assert_eq!(status_word(EvolveStage::Failed, Some("no")), "failed");
        assert_eq!(status_word(EvolveStage::Succeeded, None), "succeeded");
    }
}
