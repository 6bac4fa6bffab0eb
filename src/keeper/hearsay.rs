//! What a container tells of itself, cut to what is worth keeping: whoever the agent is wrote it.

use crate::protocol::cryo::Row;
use crate::protocol::evolve::inside::{Besides, Check, Kept};
use crate::protocol::plain::printable;

/// Bytes that a verb inside may answer.
const LONGEST: usize = 1 << 20;
/// The same where every variable has a row.
const LONGEST_ROWS: usize = 8 << 20;
/// Bytes of what the next container has to live up to: an argument carries it, which Linux bounds.
pub(super) const LONGEST_EXPECTED: usize = 100 << 10;
/// Characters of a sentence, and of a name.
const SENTENCE: usize = 2000;
const NAME: usize = 200;
const CHECKS: usize = 256;
const SESSIONS: usize = 64;
const BESIDES: usize = 256;
/// Rows of one session.
const ROWS: usize = 1000;

/// Bytes that the verb may answer.
pub(super) fn longest(verb: &str) -> usize {
    match verb {
        "quiesce" | "verify" => LONGEST_ROWS,
        _ => LONGEST,
    }
}

pub(super) fn sentence(text: &str) -> String {
    cut(text, SENTENCE)
}

/// Those that did not pass come first where there are too many.
pub(super) fn checks(mut all: Vec<Check>) -> Vec<Check> {
    if all.len() > CHECKS {
        all.sort_by_key(|check| check.passed);
        all.truncate(CHECKS);
    }
    let each = all.into_iter().map(|check| Check {
        name: cut(&check.name, NAME),
        detail: sentence(&check.detail),
        ..check
    });
    each.collect()
}

pub(super) fn receipt(mut all: Vec<Kept>) -> Vec<Kept> {
    all.truncate(SESSIONS);
    all.into_iter().map(kept).collect()
}

fn kept(mut kept: Kept) -> Kept {
    let beyond = kept.rows.len().saturating_sub(ROWS);
    kept.rows.truncate(ROWS);
    let more = (beyond > 0).then(|| format!("{beyond} more are not listed"));
    let why: Vec<String> = kept.why.into_iter().chain(more).collect();
    let rows = kept.rows.into_iter().map(|row| Row {
        name: cut(&row.name, NAME),
        kind: cut(&row.kind, NAME),
        why: row.why.as_deref().map(|why| cut(why, NAME)),
        ..row
    });
    Kept {
        session: cut(&kept.session, NAME),
        rows: rows.collect(),
        why: (!why.is_empty()).then(|| sentence(&why.join("; "))),
        by: kept.by,
    }
}

/// What the old container said, but for what the new one has `found` of it.
pub(super) fn besides(told: Vec<Besides>, found: Vec<Besides>) -> Vec<Besides> {
    let is_found = |one: &Besides| found.iter().any(|other| other.what == one.what);
    let mut all: Vec<Besides> = told.into_iter().filter(|one| !is_found(one)).collect();
    all.extend(found);
    all.sort_by(|a, b| a.what.cmp(&b.what));
    all.truncate(BESIDES);
    let each = all.into_iter().map(|one| Besides {
        what: cut(&one.what, NAME),
        detail: sentence(&one.detail),
        ..one
    });
    each.collect()
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", printable(&text[..end])),
        None => printable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::{BESIDES, CHECKS, besides, checks, receipt, sentence};
    use crate::protocol::cryo::{Row, Verdict};
    use crate::protocol::evolve::inside::{Besides, Check, Kept, KeptBy};

    #[test]
    fn a_sentence_is_short_and_no_command_to_a_terminal() {
        assert_eq!(sentence("it is `so`"), "it is `so`");
        assert_eq!(sentence("\x1b[2J"), "\\u{1b}[2J");
        let long = sentence(&"ä".repeat(5000));
        assert_eq!(long.chars().count(), 2001);
        assert!(long.ends_with("ä…"));
    }

    #[test]
    fn of_too_many_checks_those_that_failed_are_kept() {
        let check = |n: usize| Check {
            name: n.to_string(),
            passed: n != 999,
            detail: "x".repeat(3000),
            ms: 0.0,
        };
        let kept = checks((0..1000).map(check).collect());
        assert_eq!((kept.len(), kept[0].name.as_str()), (CHECKS, "999"));
        assert!(kept.iter().all(|check| check.detail.len() < 2100));
        let few = checks((0..3).map(check).collect());
        assert_eq!(few[2].name, "2");
    }

    #[test]
    fn what_of_a_receipt_is_not_kept_is_told() {
        let row = Row {
            name: "x".into(),
            verdict: Verdict::Saved,
            kind: "int".into(),
            bytes: 1,
            why: None,
        };
        let whole = Kept {
            session: "s".repeat(500),
            by: KeptBy::Objects,
            rows: vec![row; 1003],
            why: Some("so".into()),
        };
        let kept = receipt(vec![whole; 100]);
        assert_eq!((kept.len(), kept[0].rows.len()), (64, 1000));
        assert_eq!(kept[0].why.as_deref(), Some("so; 3 more are not listed"));
        assert_eq!(kept[0].session.chars().count(), 201);
    }

    #[test]
    fn what_the_new_container_has_found_counts_and_what_ended_is_still_told() {
        let told = |what: &str, kept: bool, detail: &str| Besides {
            what: what.into(),
            kept,
            detail: detail.into(),
        };
        let before = vec![
            told("shell:default", true, "it is in `/a`"),
            told("job:default", false, "`sleep` ends"),
            told("job:default", false, "`make` ends"),
        ];
        let found = vec![told("shell:default", false, "it begins\x1b anew")];
        let all = besides(before, found);
        let told: Vec<_> = all.iter().map(|b| (b.what.as_str(), b.kept)).collect();
        let expected = [
            ("job:default", false),
            ("job:default", false),
            ("shell:default", false),
        ];
        assert_eq!(told, expected);
        assert!(all[2].detail.contains("\\u{1b}"), "{all:?}");
        let many = vec![all[0].clone(); 1000];
        assert_eq!(besides(many, Vec::new()).len(), BESIDES);
    }
}
