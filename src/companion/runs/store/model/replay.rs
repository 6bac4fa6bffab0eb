//! The real journal, driven through the traces of the model up to what a client finds after the deaths.
//!
//! The model's own writes and syncs are left out: what is on the disk is there because the code itself waited for it,
//! so an acknowledgement that no longer follows the sync fails here.

use super::{Action, Client, Order, RUNS, State};
use crate::companion::runs::store::RunStore;
use crate::companion::runs::{Lives, Run, Runs};
use crate::model::assert_holds;
use crate::protocol::kernel::{Execute, KernelReport, KernelState, RunStatus};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Traces that are replayed.
const REPLAYS: usize = 100;

const REPORT: KernelReport = KernelReport {
    restored: false,
    restored_from: None,
    origin: None,
    generation: 1,
    state: KernelState::Kept,
};

/// The real journal, and what its clients know.
struct Real {
    folder: tempfile::TempDir,
    lives: u32,
    life: Option<(RunStore, Runs<Execute>, Lives)>,
    runs: [Option<Arc<Run<Execute>>>; RUNS],
    /// Whether its code is to begin in this life.
    is_new: [bool; RUNS],
    is_executing: [bool; RUNS],
    clients: [Client; RUNS],
    executions: [u8; RUNS],
    /// The id that the second client was told.
    made_up: Option<String>,
}

impl Real {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            lives: 0,
            life: None,
            runs: Default::default(),
            is_new: [false; RUNS],
            is_executing: [false; RUNS],
            clients: [Client::default(); RUNS],
            executions: [0; RUNS],
            made_up: None,
        }
    }

    /// Does what the step stands for, where it is possible: nothing is written or synced but what the code itself
    /// waits for, which the model may have done before.
    async fn act(&mut self, action: Action) {
        match action {
            Action::Boot => {
                self.lives += 1;
                let folder = self.folder.path().join("runs");
                let lives = Lives::new(folder, self.lives.to_string());
                let store = RunStore::open(&lives);
                self.life = Some((store.clone(), Runs::open("run", store), lives));
            }
            Action::Serve => {
                let (store, _, lives) = self.life.as_ref().unwrap();
                assert!(store.settle().await);
                lives.begin();
                self.check();
            }
            Action::Ask(run) => {
                let (_, runs, _) = self.life.as_ref().unwrap();
                let id = (run == 0).then(|| "named".to_owned());
                let work = Execute {
                    id,
                    ..Execute::new("1")
                };
                let (found, is_new) = runs.begin(work).unwrap();
                if run == 1 {
                    self.made_up = Some(found.id.clone());
                }
                self.is_new[run] |= is_new;
                self.runs[run] = Some(found);
            }
            Action::Execute(run) => {
                if std::mem::take(&mut self.is_new[run]) {
                    self.runs[run].as_ref().unwrap().recorded().await.unwrap();
                    self.executions[run] += 1;
                    self.is_executing[run] = true;
                }
            }
            Action::Acknowledge(run) => {
                if let Some(found) = &self.runs[run] {
                    found.acknowledged().await;
                    self.clients[run].is_acknowledged = true;
                }
            }
            Action::Finish(run) => self.finish(run, RunStatus::Completed),
            Action::KernelDies => (0..RUNS).for_each(|run| self.finish(run, RunStatus::Failed)),
            Action::Tell(run) => {
                if let Some(found) = &self.runs[run]
                    && !self.is_new[run]
                    && !self.is_executing[run]
                {
                    found.finished().await;
                    self.clients[run].told.get_or_insert(found.status());
                }
            }
            Action::CompanionDies => self.die(),
            Action::Write | Action::Sync => {}
            Action::PowerFails => unreachable!("no test ends the machine"),
        }
    }

    fn finish(&mut self, run: usize, end: RunStatus) {
        if std::mem::take(&mut self.is_executing[run]) {
            self.runs[run].as_ref().unwrap().finish(end, REPORT);
        }
    }

    /// What is on the disk now is all that the next life has.
    fn die(&mut self) {
        let next = tempfile::tempdir().unwrap();
        copy(self.folder.path(), next.path());
        if let Some((store, ..)) = self.life.take() {
            store.close();
        }
        self.runs = Default::default();
        (self.is_new, self.is_executing) = ([false; RUNS], [false; RUNS]);
        self.folder = next;
    }

    fn check(&mut self) {
        let (_, runs, _) = self.life.as_ref().unwrap();
        for run in 0..RUNS {
            let id = match run {
                0 => Some("named"),
                _ => self.made_up.as_deref(),
            };
            let found = id.and_then(|id| runs.find(id));
            let (client, status) = (self.clients[run], found.as_ref().map(|run| run.status()));
            assert!(
                !client.is_acknowledged || status.is_some(),
                "run {run} is gone"
            );
            assert!(status != Some(RunStatus::Running), "run {run} has no end");
            assert!(client.told.is_none() || client.told == status, "{status:?}");
            assert!(self.executions[run] < 2, "run {run} was executed twice");
            self.runs[run] = found;
        }
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (
            entry.as_ref().unwrap().path(),
            to.join(entry.unwrap().file_name()),
        );
        match from.is_dir() {
            true => {
                fs::create_dir(&to).unwrap();
                copy(&from, &to);
            }
            false => drop(fs::copy(from, to).unwrap()),
        }
    }
}

#[tokio::test]
async fn the_journal_keeps_what_the_model_promises() {
    let search = assert_holds(&Order::default(), State::default());
    let mut traces: BTreeSet<Vec<Action>> = BTreeSet::new();
    for (mut trace, _) in search.traces() {
        let is_whole = trace.last() == Some(&Action::Serve);
        if is_whole && !trace.contains(&Action::PowerFails) {
            trace.retain(|action| !matches!(action, Action::Write | Action::Sync));
            traces.insert(trace);
        }
    }
    let every = traces.len().div_ceil(REPLAYS);
    for trace in traces.iter().step_by(every) {
        let mut real = Real::new();
        for action in trace {
            real.act(*action).await;
        }
    }
}
