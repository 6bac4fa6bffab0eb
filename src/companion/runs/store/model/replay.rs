//! The real journal, driven through the traces of the model up to what a client reads after the crashes.
//!
//! The model's writes and syncs are left out: the code itself waited for all bytes that are on the disk. A loss of power
//! leaves the synced bytes of each segment. An acknowledgement that no longer follows the sync fails here.

use super::{RUN_MODEL_RUNS, RunModelAction, RunModelClient, RunModelOrder, RunModelState};
use crate::companion::runs::store::RunStore;
use crate::companion::runs::store::writer::SEGMENT_FILE_PREFIX;
use crate::companion::runs::{RetainedRuns, RunRegistry, TrackedRun};
use crate::model_checker::assert_holds;
use crate::protocol::kernel::{Execute, KernelReport, KernelState, RunStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of traces that are replayed.
const RUN_MODEL_REPLAYS: usize = 100;

const RUN_REPLAY_REPORT: KernelReport = KernelReport {
    restored: false,
    restored_from: None,
    origin: None,
    generation: 1,
    state: KernelState::Kept,
};

/// The real journal, and what its clients have received.
struct RealRunJournal {
    folder: tempfile::TempDir,
    companion_count: u32,
    companion: Option<(RunStore, RunRegistry<Execute>, RetainedRuns)>,
    runs: [Option<Arc<TrackedRun<Execute>>>; RUN_MODEL_RUNS],
    /// Whether this companion is to start the run's code.
    is_new: [bool; RUN_MODEL_RUNS],
    is_executing: [bool; RUN_MODEL_RUNS],
    clients: [RunModelClient; RUN_MODEL_RUNS],
    executions: [u8; RUN_MODEL_RUNS],
    /// The id that the second client received.
    generated_id: Option<String>,
    /// Synced bytes of the segments of all companions, by path in the folder.
    synced_bytes: BTreeMap<PathBuf, u64>,
}

impl RealRunJournal {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            companion_count: 0,
            companion: None,
            runs: Default::default(),
            is_new: [false; RUN_MODEL_RUNS],
            is_executing: [false; RUN_MODEL_RUNS],
            clients: [RunModelClient::default(); RUN_MODEL_RUNS],
            executions: [0; RUN_MODEL_RUNS],
            generated_id: None,
            synced_bytes: BTreeMap::new(),
        }
    }

    /// Performs the step if possible. Only what the code itself waits for is written or synced; the model may have done
    /// this before.
    async fn apply_action(&mut self, action: RunModelAction) {
        match action {
            RunModelAction::Boot => {
                self.companion_count += 1;
                let folder = self.folder.path().join("runs");
                let retained_runs = RetainedRuns::new(folder, self.companion_count.to_string());
                let store = RunStore::open(&retained_runs);
                self.companion = Some((
                    store.clone(),
                    RunRegistry::open("run", store),
                    retained_runs,
                ));
            }
            RunModelAction::Serve => {
                let (store, _, retained_runs) = self.companion.as_ref().unwrap();
                assert!(store.wait_synced().await);
                retained_runs.remove_stale();
                self.assert_runs();
            }
            RunModelAction::Request(run) => {
                let (_, runs, _) = self.companion.as_ref().unwrap();
                let id = (run == 0).then(|| "named".to_owned());
                let request = Execute {
                    id,
                    ..Execute::new("1")
                };
                let (found, is_new) = runs.begin_run(request).unwrap();
                if run == 1 {
                    self.generated_id = Some(found.id.clone());
                }
                self.is_new[run] |= is_new;
                self.runs[run] = Some(found);
            }
            RunModelAction::Execute(run) => {
                if std::mem::take(&mut self.is_new[run]) {
                    self.runs[run]
                        .as_ref()
                        .unwrap()
                        .wait_recorded()
                        .await
                        .unwrap();
                    self.executions[run] += 1;
                    self.is_executing[run] = true;
                }
            }
            RunModelAction::Acknowledge(run) => {
                if let Some(found) = &self.runs[run] {
                    found.wait_begin_synced().await;
                    self.clients[run].is_acknowledged = true;
                }
            }
            RunModelAction::Finish(run) => self.finish_run(run, RunStatus::Completed),
            RunModelAction::KernelCrash => {
                (0..RUN_MODEL_RUNS).for_each(|run| self.finish_run(run, RunStatus::Failed))
            }
            RunModelAction::ReportEnd(run) => {
                if let Some(found) = &self.runs[run]
                    && !self.is_new[run]
                    && !self.is_executing[run]
                {
                    found.wait_finished().await;
                    self.clients[run].reported_end.get_or_insert(found.status());
                }
            }
            RunModelAction::CompanionCrash => self.crash_companion(),
            RunModelAction::PowerLoss => {
                self.crash_companion();
                self.remove_unsynced_bytes();
            }
            RunModelAction::Write | RunModelAction::Sync => {}
        }
    }

    fn finish_run(&mut self, run: usize, end: RunStatus) {
        if std::mem::take(&mut self.is_executing[run]) {
            self.runs[run]
                .as_ref()
                .unwrap()
                .finish(end, RUN_REPLAY_REPORT);
        }
    }

    /// Ends the companion: the next one starts with the content of the disk.
    fn crash_companion(&mut self) {
        if let Some((store, ..)) = &self.companion {
            let root = self.folder.path();
            let synced = store.synced_bytes().into_iter();
            self.synced_bytes.extend(
                synced.map(|(path, bytes)| (path.strip_prefix(root).unwrap().to_owned(), bytes)),
            );
        }
        let next = tempfile::tempdir().unwrap();
        copy_folder(self.folder.path(), next.path());
        if let Some((store, ..)) = self.companion.take() {
            store.close();
        }
        self.runs = Default::default();
        (self.is_new, self.is_executing) = ([false; RUN_MODEL_RUNS], [false; RUN_MODEL_RUNS]);
        self.folder = next;
    }

    fn remove_unsynced_bytes(&self) {
        let root = self.folder.path();
        for segment in list_segments(root) {
            let synced = self.synced_bytes.get(segment.strip_prefix(root).unwrap());
            let file = OpenOptions::new().write(true).open(&segment).unwrap();
            file.set_len(synced.copied().unwrap_or_default()).unwrap();
        }
    }

    fn assert_runs(&mut self) {
        let (_, runs, _) = self.companion.as_ref().unwrap();
        for run in 0..RUN_MODEL_RUNS {
            let id = match run {
                0 => Some("named"),
                _ => self.generated_id.as_deref(),
            };
            let found = id.and_then(|id| runs.find_run(id));
            let (client, status) = (self.clients[run], found.as_ref().map(|run| run.status()));
            assert!(
                !client.is_acknowledged || status.is_some(),
                "run {run} is gone"
            );
            assert!(status != Some(RunStatus::Running), "run {run} has no end");
            assert!(
                client.reported_end.is_none() || client.reported_end == status,
                "{status:?}"
            );
            assert!(self.executions[run] < 2, "run {run} was executed twice");
            self.runs[run] = found;
        }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (
            entry.as_ref().unwrap().path(),
            to.join(entry.unwrap().file_name()),
        );
        match from.is_dir() {
            true => {
                fs::create_dir(&to).unwrap();
                copy_folder(&from, &to);
            }
            false => drop(fs::copy(from, to).unwrap()),
        }
    }
}

/// The segments of all journals beneath the folder.
fn list_segments(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(SEGMENT_FILE_PREFIX)
    };
    let inner = folders.iter().flat_map(|folder| list_segments(folder));
    inner.chain(files.into_iter().filter(is_segment)).collect()
}

#[tokio::test]
async fn the_journal_matches_the_model() {
    let search = assert_holds(&RunModelOrder::default(), RunModelState::default());
    let mut traces: BTreeSet<Vec<RunModelAction>> = BTreeSet::new();
    for (mut trace, _) in search.traces() {
        if trace.last() == Some(&RunModelAction::Serve) {
            trace.retain(|action| !matches!(action, RunModelAction::Write | RunModelAction::Sync));
            traces.insert(trace);
        }
    }
    let every = traces.len().div_ceil(RUN_MODEL_REPLAYS);
    for trace in traces.iter().step_by(every) {
        let mut real = RealRunJournal::new();
        for action in trace {
            real.apply_action(*action).await;
        }
    }
    let power_losses = traces.iter().step_by(every);
    assert!(
        power_losses
            .filter(|trace| trace.contains(&RunModelAction::PowerLoss))
            .count()
            > 20
    );
}
