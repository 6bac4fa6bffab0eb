//! What in `body/` differs between a run and the one whose image ran before it.

use super::shelf::Shelf;
use crate::error::Result;
use crate::image::Body;
use crate::protocol::evolve::{Change, Edit, Record, Stage};
use crate::protocol::plain::printable;
use similar::TextDiff;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Lines around a change.
const AROUND: usize = 3;
/// For one file; what comes later is told as changed as a whole.
const ENOUGH: Duration = Duration::from_millis(200);
/// Bytes of a file that is compared line by line.
const LONGEST: usize = 1 << 20;

type Files = BTreeMap<String, Vec<u8>>;

/// The changes of a run, by path.
pub(super) fn changes(shelf: &Shelf, record: &Record) -> Result<Vec<Change>> {
    let Some(archive) = shelf.body(&record.run)? else {
        return Ok(Vec::new());
    };
    let before = match before(shelf, record)? {
        Some(archive) => Body::of_archive(&archive)?,
        // The host has built what ran before the first run.
        None => Body::embedded(),
    };
    Ok(compare(&before.files, &Body::of_archive(&archive)?.files))
}

/// The body of the newest run before that succeeded.
fn before(shelf: &Shelf, record: &Record) -> Result<Option<Vec<u8>>> {
    let records = shelf.records()?.into_iter();
    let earlier = records.filter(|r| r.run < record.run && r.status == Stage::Succeeded);
    for earlier in earlier.filter(|r| !r.dry_run) {
        if let Some(archive) = shelf.body(&earlier.run)? {
            return Ok(Some(archive));
        }
    }
    Ok(None)
}

fn compare(before: &Files, after: &Files) -> Vec<Change> {
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changes = paths.into_iter().filter_map(|path| {
        let (old, new) = (before.get(path), after.get(path));
        let edit = match (old, new) {
            (Some(old), Some(new)) if old == new => return None,
            (Some(_), Some(_)) => Edit::Changed,
            (None, _) => Edit::Added,
            (_, None) => Edit::Removed,
        };
        Some(Change {
            path: path.clone(),
            edit,
            diff: lines(path, old, new),
        })
    });
    changes.collect()
}

fn lines(path: &str, old: Option<&Vec<u8>>, new: Option<&Vec<u8>>) -> Option<String> {
    let text = |content: Option<&Vec<u8>>| -> Option<String> {
        let content = content.map_or(&[][..], Vec::as_slice);
        let short = content.len() <= LONGEST && !content.contains(&0);
        let text = std::str::from_utf8(content).ok().filter(|_| short)?;
        Some(text.to_owned())
    };
    let (old_text, new_text) = (text(old)?, text(new)?);
    let name = |side: &str, content: Option<&Vec<u8>>| match content {
        Some(_) => format!("{side}/{path}"),
        None => "/dev/null".into(),
    };
    let mut differ = TextDiff::configure();
    // Files can be written for which the shortest difference takes hours.
    let diff = differ.timeout(ENOUGH).diff_lines(&old_text, &new_text);
    let mut unified = diff.unified_diff();
    let (from, to) = (name("a", old), name("b", new));
    let told = unified.context_radius(AROUND).header(&from, &to);
    Some(printable(&told.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{Files, compare};
    use crate::protocol::evolve::Edit;

    fn files(all: &[(&str, &[u8])]) -> Files {
        let all = all.iter();
        all.map(|(path, content)| ((*path).into(), content.to_vec()))
            .collect()
    }

    #[test]
    fn a_change_is_told_by_file_and_line() {
        let before = files(&[
            ("a", b"1\n2\n3\n"),
            ("gone", b"x\n"),
            ("same", b"s"),
            ("bin", b"\0"),
        ]);
        let after = files(&[
            ("a", b"1\ntwo\n3\n"),
            ("new", b"n\n"),
            ("same", b"s"),
            ("bin", b"\x01\0"),
        ]);
        let changes = compare(&before, &after);
        let told: Vec<_> = changes.iter().map(|c| (c.path.as_str(), c.edit)).collect();
        let expected = [
            ("a", Edit::Changed),
            ("bin", Edit::Changed),
            ("gone", Edit::Removed),
            ("new", Edit::Added),
        ];
        assert_eq!(told, expected);
        let diff = changes[0].diff.as_ref().unwrap();
        assert!(
            diff.contains("--- a/a\n+++ b/a\n") && diff.contains("-2\n+two\n"),
            "{diff}"
        );
        assert_eq!(changes[1].diff, None, "what is no text has no lines");
        assert!(changes[3].diff.as_ref().unwrap().contains("--- /dev/null"));
    }
}
