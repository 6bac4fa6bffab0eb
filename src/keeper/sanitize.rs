//! Sanitizing of a container's reports about itself, cut to the sizes that are worth keeping: the container's output
//! is untrusted.

use crate::protocol::cryo::ReceiptRow;
use crate::protocol::evolve::container_reports::{EvolveCheck, NonVariableState, SessionReceipt};
use crate::protocol::text_sanitizer::sanitize_text;

/// Bytes of output that a verb in the container may write.
const MAX_VERB_OUTPUT_BYTES: usize = 1 << 20;
/// Bytes of output for verbs that report one row per variable.
const MAX_RECEIPT_OUTPUT_BYTES: usize = 8 << 20;
/// Bytes of the state that the next container must reproduce: it is passed as an argument, whose size Linux limits.
pub(super) const MAX_EXPECTED_STATE_BYTES: usize = 100 << 10;
/// Characters of a sentence, and of a name.
const MAX_REPORTED_SENTENCE_CHARS: usize = 2000;
const MAX_REPORTED_NAME_CHARS: usize = 200;
const MAX_REPORTED_CHECKS: usize = 256;
const MAX_REPORTED_SESSIONS: usize = 64;
const MAX_REPORTED_NON_VARIABLES: usize = 256;
/// Rows of one session.
const MAX_REPORTED_ROWS: usize = 1000;

/// Bytes of output that this verb may write.
pub(super) fn max_output_bytes(verb: &str) -> usize {
    match verb {
        "quiesce" | "verify" => MAX_RECEIPT_OUTPUT_BYTES,
        _ => MAX_VERB_OUTPUT_BYTES,
    }
}

pub(super) fn sanitize_sentence(text: &str) -> String {
    truncate_printable(text, MAX_REPORTED_SENTENCE_CHARS)
}

/// If there are too many checks, the failed ones come first.
pub(super) fn sanitize_checks(mut all: Vec<EvolveCheck>) -> Vec<EvolveCheck> {
    if all.len() > MAX_REPORTED_CHECKS {
        all.sort_by_key(|check| check.passed);
        all.truncate(MAX_REPORTED_CHECKS);
    }
    let each = all.into_iter().map(|check| EvolveCheck {
        name: truncate_printable(&check.name, MAX_REPORTED_NAME_CHARS),
        detail: sanitize_sentence(&check.detail),
        ..check
    });
    each.collect()
}

pub(super) fn sanitize_receipt(mut all: Vec<SessionReceipt>) -> Vec<SessionReceipt> {
    all.truncate(MAX_REPORTED_SESSIONS);
    all.into_iter().map(sanitize_session).collect()
}

fn sanitize_session(mut receipt: SessionReceipt) -> SessionReceipt {
    let beyond = receipt.rows.len().saturating_sub(MAX_REPORTED_ROWS);
    receipt.rows.truncate(MAX_REPORTED_ROWS);
    let more = (beyond > 0).then(|| format!("{beyond} more are not listed"));
    let why: Vec<String> = receipt.why.into_iter().chain(more).collect();
    let rows = receipt.rows.into_iter().map(|row| ReceiptRow {
        name: truncate_printable(&row.name, MAX_REPORTED_NAME_CHARS),
        kind: truncate_printable(&row.kind, MAX_REPORTED_NAME_CHARS),
        why: row
            .why
            .as_deref()
            .map(|why| truncate_printable(why, MAX_REPORTED_NAME_CHARS)),
        ..row
    });
    SessionReceipt {
        session: truncate_printable(&receipt.session, MAX_REPORTED_NAME_CHARS),
        rows: rows.collect(),
        why: (!why.is_empty()).then(|| sanitize_sentence(&why.join("; "))),
        restored_by: receipt.restored_by,
    }
}

/// The non-variable state that the old container reported or the new one `found`. Where both report an item, `found`
/// counts.
pub(super) fn merge_non_variables(
    reported: Vec<NonVariableState>,
    found: Vec<NonVariableState>,
) -> Vec<NonVariableState> {
    let is_found = |one: &NonVariableState| found.iter().any(|other| other.name == one.name);
    let mut all: Vec<NonVariableState> =
        reported.into_iter().filter(|one| !is_found(one)).collect();
    all.extend(found);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.truncate(MAX_REPORTED_NON_VARIABLES);
    let each = all.into_iter().map(|one| NonVariableState {
        name: truncate_printable(&one.name, MAX_REPORTED_NAME_CHARS),
        detail: sanitize_sentence(&one.detail),
        ..one
    });
    each.collect()
}

fn truncate_printable(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", sanitize_text(&text[..end])),
        None => sanitize_text(text),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        MAX_REPORTED_CHECKS, MAX_REPORTED_NON_VARIABLES, merge_non_variables, sanitize_checks,
        sanitize_receipt, sanitize_sentence,
    };
    use crate::protocol::cryo::{CryoVerdict, ReceiptRow};
    use crate::protocol::evolve::container_reports::{
        EvolveCheck, NonVariableState, RestoreMethod, SessionReceipt,
    };

    #[test]
    fn a_sentence_is_shortened_and_sanitized() {
        assert_eq!(sanitize_sentence("it is `so`"), "it is `so`");
        assert_eq!(sanitize_sentence("\x1b[2J"), "\\u{1b}[2J");
        let long = sanitize_sentence(&"ä".repeat(5000));
        assert_eq!(long.chars().count(), 2001);
        assert!(long.ends_with("ä…"));
    }

    #[test]
    fn failed_checks_are_kept_when_there_are_too_many() {
        let check = |n: usize| EvolveCheck {
            name: n.to_string(),
            passed: n != 999,
            detail: "x".repeat(3000),
            timing_ms: 0.0,
        };
        let checks = sanitize_checks((0..1000).map(check).collect());
        assert_eq!(
            (checks.len(), checks[0].name.as_str()),
            (MAX_REPORTED_CHECKS, "999")
        );
        assert!(checks.iter().all(|check| check.detail.len() < 2100));
        let few = sanitize_checks((0..3).map(check).collect());
        assert_eq!(few[2].name, "2");
    }

    #[test]
    fn a_shortened_receipt_counts_its_omitted_rows() {
        let row = ReceiptRow {
            name: "x".into(),
            verdict: CryoVerdict::Saved,
            kind: "int".into(),
            bytes: 1,
            why: None,
        };
        let whole = SessionReceipt {
            session: "s".repeat(500),
            restored_by: RestoreMethod::Objects,
            rows: vec![row; 1003],
            why: Some("so".into()),
        };
        let receipts = sanitize_receipt(vec![whole; 100]);
        assert_eq!((receipts.len(), receipts[0].rows.len()), (64, 1000));
        assert_eq!(
            receipts[0].why.as_deref(),
            Some("so; 3 more are not listed")
        );
        assert_eq!(receipts[0].session.chars().count(), 201);
    }

    #[test]
    fn findings_of_the_new_container_replace_earlier_ones() {
        let state = |what: &str, kept: bool, detail: &str| NonVariableState {
            name: what.into(),
            kept,
            detail: detail.into(),
        };
        let before = vec![
            state("shell:default", true, "it is in `/a`"),
            state("job:default", false, "`sleep` ends"),
            state("job:default", false, "`make` ends"),
        ];
        let found = vec![state("shell:default", false, "it starts\x1b empty")];
        let all = merge_non_variables(before, found);
        let merged: Vec<_> = all.iter().map(|b| (b.name.as_str(), b.kept)).collect();
        let expected = [
            ("job:default", false),
            ("job:default", false),
            ("shell:default", false),
        ];
        assert_eq!(merged, expected);
        assert!(all[2].detail.contains("\\u{1b}"), "{all:?}");
        let many = vec![all[0].clone(); 1000];
        assert_eq!(
            merge_non_variables(many, Vec::new()).len(),
            MAX_REPORTED_NON_VARIABLES
        );
    }
}
