//! Differences in `body/` between the body that a run built or rolled back to and the body that ran when the run
//! started.

use super::run_store::KeeperRunStore;
use crate::error::Result;
use crate::image::Body;
use crate::protocol::evolve::{BodyChange, EvolveRecord, FileEdit, RunTask};
use crate::protocol::text_sanitizer::{sanitize_line, sanitize_text};
use similar::TextDiff;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Lines of context around a change.
const DIFF_CONTEXT_LINES: usize = 3;
/// The time limit for one file; after it the rest of the file is reported as changed as a whole.
const FILE_DIFF_TIMEOUT: Duration = Duration::from_millis(200);
/// The time limit for all files of a run; the lines of the remaining files are left out.
const RUN_DIFF_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a file that is compared line by line; a larger file is not.
const MAX_DIFFED_FILE_BYTES: usize = 1 << 20;
/// Bytes of lines in one answer; the lines of the remaining files are left out.
const MAX_DIFF_BYTES: usize = 8 << 20;

type BodyFileMap = BTreeMap<String, Vec<u8>>;

/// The changes of a run, by path; or a sentence that says why they are not known.
pub(super) fn list_run_changes(
    run_store: &KeeperRunStore,
    record: &EvolveRecord,
) -> Result<std::result::Result<Vec<BodyChange>, String>> {
    let run = &record.run;
    // Drop each archive after reading its files: an archive is as large as a body.
    let files = |archive: Vec<u8>| Ok::<_, anyhow::Error>(Body::from_archive(&archive)?.files);
    let Some(after) = run_store.run_body(record)?.map(files).transpose()? else {
        return Ok(Err(match (record.task, &record.body_digest) {
            (RunTask::Evolve, None) => format!("evolve {run} did not read a body"),
            (RunTask::Evolve, Some(_)) => format!("the body of evolve {run} is no longer kept"),
            _ => format!("the body that evolve {run} rolls back to is unknown"),
        }));
    };
    let before = match (run_store.previous_body(record)?, &record.previous_image) {
        (Some(archive), _) => files(archive)?,
        // No container ran.
        (None, None) => BodyFileMap::new(),
        (None, Some(_)) => {
            return Ok(Err(format!(
                "the body that ran before evolve {run} is unknown"
            )));
        }
    };
    Ok(Ok(
        match Body::is_whole_body(&before) == Body::is_whole_body(&after) {
            true => compare_bodies(&before, &after),
            // The default body and an extension of it.
            false => compare_bodies(
                &Body::image_files(&before).unwrap_or(before),
                &Body::image_files(&after).unwrap_or(after),
            ),
        },
    ))
}

fn compare_bodies(before: &BodyFileMap, after: &BodyFileMap) -> Vec<BodyChange> {
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let deadline = Instant::now() + RUN_DIFF_TIMEOUT;
    let mut remaining = MAX_DIFF_BYTES;
    let changes = paths.into_iter().filter_map(|path| {
        let (old, new) = (before.get(path), after.get(path));
        let edit = match (old, new) {
            (Some(old), Some(new)) if old == new => return None,
            (Some(_), Some(_)) => FileEdit::Changed,
            (None, _) => FileEdit::Added,
            (_, None) => FileEdit::Removed,
        };
        let diff = (Instant::now() < deadline && remaining > 0)
            .then(|| diff_file_lines(path, old, new))
            .flatten();
        // A file whose lines exceed the remaining bytes is reported without lines, as are all files after it.
        let diff = diff.filter(|diff| {
            remaining = remaining.saturating_sub(diff.len());
            remaining > 0
        });
        Some(BodyChange {
            path: path.clone(),
            edit,
            diff,
        })
    });
    changes.collect()
}

fn diff_file_lines(path: &str, old: Option<&Vec<u8>>, new: Option<&Vec<u8>>) -> Option<String> {
    let text = |content: Option<&Vec<u8>>| -> Option<String> {
        let content = content.map_or(&[][..], Vec::as_slice);
        let short = content.len() <= MAX_DIFFED_FILE_BYTES && !content.contains(&0);
        let text = std::str::from_utf8(content).ok().filter(|_| short)?;
        Some(match Body::is_package_file(path) {
            true => text.lines().map(remove_hashes).collect(),
            false => text.to_owned(),
        })
    };
    let (old_text, new_text) = (text(old)?, text(new)?);
    let name = |side: &str, content: Option<&Vec<u8>>| match content {
        // A line break in the path must not look like a line of the diff.
        Some(_) => sanitize_line(&format!("{side}/{path}")),
        None => "/dev/null".into(),
    };
    let mut differ = TextDiff::configure();
    // For some files the shortest diff takes hours to compute.
    let diff = differ
        .timeout(FILE_DIFF_TIMEOUT)
        .diff_lines(&old_text, &new_text);
    let mut unified = diff.unified_diff();
    let (from, to) = (name("a", old), name("b", new));
    let patch = unified
        .context_radius(DIFF_CONTEXT_LINES)
        .header(&from, &to);
    Some(sanitize_text(&patch.to_string()))
}

/// A line of a list of packages without the hashes of its files.
fn remove_hashes(line: &str) -> String {
    let package = line.split(" --hash=").next().unwrap_or_default();
    format!("{package}\n")
}

#[cfg(test)]
mod tests {
    use super::{BodyFileMap, compare_bodies, list_run_changes};
    use crate::image::Body;
    use crate::keeper::run_store::KeeperRunStore;
    use crate::keeper::test_samples;
    use crate::protocol::evolve::{EvolveRecord, EvolveStage, FileEdit, RunTask, built_body_name};

    fn files(all: &[(&str, &[u8])]) -> BodyFileMap {
        let all = all.iter();
        all.map(|(path, content)| ((*path).into(), content.to_vec()))
            .collect()
    }

    #[test]
    fn a_change_is_listed_by_file_and_line() {
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
        let changes = compare_bodies(&before, &after);
        let edits: Vec<_> = changes.iter().map(|c| (c.path.as_str(), c.edit)).collect();
        let expected = [
            ("a", FileEdit::Changed),
            ("bin", FileEdit::Changed),
            ("gone", FileEdit::Removed),
            ("new", FileEdit::Added),
        ];
        assert_eq!(edits, expected);
        let diff = changes[0].diff.as_ref().unwrap();
        assert!(
            diff.contains("--- a/a\n+++ b/a\n") && diff.contains("-2\n+two\n"),
            "{diff}"
        );
        assert_eq!(changes[1].diff, None, "a binary file has no lines");
        assert!(changes[3].diff.as_ref().unwrap().contains("--- /dev/null"));
    }

    #[test]
    fn the_first_extension_of_the_default_body_is_what_it_adds() {
        let mut runs = RunDiffFixture::new();
        let body = Body::embedded().to_archive().unwrap();
        runs.upload_archive("host", &body);
        let extension = files(&[
            ("Dockerfile", b"FROM host\nRUN true\n"),
            ("note", b"mine\n"),
        ]);
        let extension = Body::from_files(extension).to_archive().unwrap();
        let run = runs.run(RunTask::Evolve, EvolveStage::Succeeded, "one", "host");
        runs.run_store.save_body(&run.run, &extension).unwrap();
        let changes = list_run_changes(&runs.run_store, &run).unwrap().unwrap();
        let edits: Vec<_> = changes.iter().map(|c| (c.path.as_str(), c.edit)).collect();
        let expected = [("Dockerfile", FileEdit::Changed), ("note", FileEdit::Added)];
        assert_eq!(edits, expected);
        assert!(
            changes[0]
                .diff
                .as_ref()
                .unwrap()
                .ends_with("+FROM host\n+RUN true\n")
        );
    }

    #[test]
    fn packages_are_listed_without_hashes() {
        let path = ".osctl/packages/pip/requirements.lock";
        let after = files(&[(path, b"six==1.17.0 --hash=sha256:1 --hash=sha256:2\n")]);
        let changes = compare_bodies(&BodyFileMap::new(), &after);
        assert!(
            changes[0]
                .diff
                .as_ref()
                .unwrap()
                .ends_with("+six==1.17.0\n")
        );
    }

    #[test]
    fn the_size_of_a_diff_is_bounded_for_any_body() {
        let text = vec![b'\n'; super::MAX_DIFFED_FILE_BYTES];
        let names = (0..12).map(|number| format!("file-{number:02}"));
        let after: BodyFileMap = names.map(|name| (name, text.clone())).collect();
        let changes = compare_bodies(&BodyFileMap::new(), &after);
        assert_eq!(changes.len(), 12, "every change is listed");
        let total: usize = changes
            .iter()
            .filter_map(|change| Some(change.diff.as_ref()?.len()))
            .sum();
        assert!(total > 0 && total <= super::MAX_DIFF_BYTES, "{total}");
        assert_eq!(changes[11].diff, None);
    }

    /// A run store, in which runs are created one after the other.
    struct RunDiffFixture {
        folder: tempfile::TempDir,
        run_store: KeeperRunStore,
        second: f64,
    }

    impl RunDiffFixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let run_store = KeeperRunStore::open(folder.path()).unwrap();
            Self {
                folder,
                run_store,
                second: 1e9,
            }
        }

        fn body(word: &str) -> Vec<u8> {
            let files = files(&[("word", format!("{word}\n").as_bytes()), ("same", b"s")]);
            Body::from_files(files).to_archive().unwrap()
        }

        /// Uploads a body as the host does after a build.
        fn upload_body(&self, image: &str, word: &str) {
            self.upload_archive(image, &Self::body(word));
        }

        fn upload_archive(&self, image: &str, archive: &[u8]) {
            let path = self.folder.path().join(built_body_name(image));
            std::fs::write(path, archive).unwrap();
        }

        /// A run that replaced `previous`, or tried to.
        fn run(
            &mut self,
            task: RunTask,
            status: EvolveStage,
            image: &str,
            previous: &str,
        ) -> EvolveRecord {
            self.second += 1.0;
            let record = EvolveRecord {
                run: self.run_store.create_run(self.second).unwrap(),
                task,
                ..test_samples::sample_record(status, image, previous)
            };
            self.run_store.save_previous_body(&record).unwrap();
            if task == RunTask::Evolve {
                self.run_store
                    .save_body(&record.run, &Self::body(image))
                    .unwrap();
            }
            self.run_store.save_record(&record).unwrap();
            record
        }

        /// The changed lines, or why they are not known.
        fn diff_text(&self, record: &EvolveRecord) -> String {
            match list_run_changes(&self.run_store, record).unwrap() {
                Ok(changes) => {
                    let diffs = changes.into_iter().map(|change| change.diff.unwrap());
                    let text: String = diffs.collect();
                    let lines = text
                        .lines()
                        .filter(|l| !l.starts_with("--- ") && !l.starts_with("+++ "));
                    let lines = lines.filter(|line| line.starts_with(['-', '+']));
                    lines.collect::<Vec<_>>().join(" ")
                }
                Err(why) => why,
            }
        }
    }

    #[test]
    fn a_run_is_compared_with_the_body_that_ran_at_its_start() {
        let mut runs = RunDiffFixture::new();
        runs.upload_body("host", "by-the-host");
        let first = runs.run(RunTask::Evolve, EvolveStage::Succeeded, "one", "host");
        let second = runs.run(RunTask::Evolve, EvolveStage::Succeeded, "two", "one");
        let failed = runs.run(RunTask::Evolve, EvolveStage::RolledBack, "bad", "two");
        let back = runs.run(RunTask::Rollback, EvolveStage::Succeeded, "one", "two");
        // A body that was rolled back from, or that failed, is not the body that ran.
        let third = runs.run(RunTask::Evolve, EvolveStage::Succeeded, "three", "one");
        let home = runs.run(RunTask::Rescue, EvolveStage::Succeeded, "host", "three");
        let fourth = runs.run(RunTask::Evolve, EvolveStage::Failed, "four", "host");
        for (record, expected) in [
            (&first, "-by-the-host +one"),
            (&second, "-one +two"),
            (&failed, "-two +bad"),
            (&back, "-two +one"),
            (&third, "-one +three"),
            (&home, "-three +by-the-host"),
            (&fourth, "-by-the-host +four"),
        ] {
            assert_eq!(runs.diff_text(record), expected, "{record:?}");
        }
        // Later builds of the host and deleted runs do not change the result.
        std::fs::remove_file(runs.folder.path().join(built_body_name("host"))).unwrap();
        runs.upload_body("later", "later");
        runs.run_store.prune_runs(1, 1 << 20).unwrap();
        assert_eq!(runs.diff_text(&fourth), "-by-the-host +four");
    }

    #[test]
    fn an_unknown_body_is_reported_as_unknown() {
        let mut runs = RunDiffFixture::new();
        let first = runs.run(RunTask::Evolve, EvolveStage::Succeeded, "one", "unknown");
        let why = runs.diff_text(&first);
        assert!(
            why.contains("ran before evolve") && why.contains("unknown"),
            "{why}"
        );
        let back = runs.run(RunTask::Rollback, EvolveStage::Succeeded, "unknown", "one");
        let why = runs.diff_text(&back);
        assert!(why.contains("rolls back to is unknown"), "{why}");
        // A run whose body was refused by a rule has a body; a run whose body could not be read has none.
        let unread = EvolveRecord {
            run: runs.run_store.create_run(runs.second + 1.0).unwrap(),
            ..test_samples::sample_record(EvolveStage::Failed, "none", "one")
        };
        let why = runs.diff_text(&unread);
        assert!(why.contains("did not read a body"), "{why}");
        runs.run_store.prune_runs(9, 0).unwrap();
        let pruned = EvolveRecord {
            body_digest: Some("sha256:1".into()),
            ..first
        };
        let why = runs.diff_text(&pruned);
        assert!(why.contains("is no longer kept"), "{why}");
    }
}
