//! Model of runs: what the companion has in memory, what the journal contains, and what a client was sent, through
//! crashes between any two steps.
//!
//! Two clients request a run each: the first client names an id and repeats its request, the second client gets an id.
//! Each step represents a function of the code:
//!
//! | step | function |
//! |---|---|
//! | `Request` | `RunRegistry::begin_run`; `RunStoreShared::begin_run` puts the record of the start into the queue |
//! | `Write`, `Sync` | `write_batch`: `append_bytes`, then `sync_segment`, for all that is queued |
//! | `Execute` | `KernelSessions::execute`, `Shells::execute`: the code starts after the run is recorded |
//! | `Acknowledge` | the reply names the id after the record is synced |
//! | `Finish` | `TrackedRun::finish`; `RunRecorder::push_end` puts the record of the end into the queue |
//! | `ReportEnd` | `RunStoreShared::complete_batch` publishes the end after the sync |
//! | `Boot` | `RunStore::recover_runs`: earlier journals are read, and their runs queued for the own journal |
//! | `Serve` | `RunStore::wait_synced`, then `RetainedRuns::remove_stale` removes the earlier journals |
//!
//! [`replay`] drives the real journal through the traces.

mod replay;

use crate::model_checker::{Model, assert_finds, assert_holds};
use crate::protocol::kernel::RunStatus;

const RUN_MODEL_RUNS: usize = 2;
/// The client that names its run sends the request twice.
const RUN_MODEL_REQUESTS: [u8; RUN_MODEL_RUNS] = [2, 1];
const MAX_RUN_MODEL_CRASHES: u8 = 2;

/// Orders of steps that the code does not have.
#[derive(Debug, Clone, Copy, Default)]
struct RunModelOrder {
    acknowledges_before_the_record: bool,
    executes_before_the_record: bool,
    forgets_on_crash: bool,
    reports_the_end_before_its_record: bool,
    removes_before_the_copy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RunModelRecord {
    Begin(usize),
    End(usize, RunStatus),
}

/// The journal of one companion. Records after `synced` may be lost with the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct RunModelJournal {
    records: Vec<RunModelRecord>,
    synced: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RunModelRun {
    is_executing: bool,
    end: Option<RunStatus>,
    /// Whether the end was read from the disk.
    is_replayed: bool,
}

/// The running companion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct RunModelCompanion {
    is_serving: bool,
    queue: Vec<RunModelRecord>,
    runs: [Option<RunModelRun>; RUN_MODEL_RUNS],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct RunModelClient {
    request_count: u8,
    is_acknowledged: bool,
    reported_end: Option<RunStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct RunModelState {
    earlier_journals: Vec<RunModelJournal>,
    own_journal: RunModelJournal,
    companion: Option<RunModelCompanion>,
    clients: [RunModelClient; RUN_MODEL_RUNS],
    executions: [u8; RUN_MODEL_RUNS],
    crashes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum RunModelAction {
    Boot,
    Serve,
    Request(usize),
    Write,
    Sync,
    Acknowledge(usize),
    Execute(usize),
    Finish(usize),
    ReportEnd(usize),
    KernelCrash,
    /// The companion or its container ends: written records stay.
    CompanionCrash,
    /// Records that were not synced may be lost.
    PowerLoss,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunModelViolation {
    AcknowledgedRunLost,
    ReportedEndChanged,
    ExecutedTwice,
    TwoEndsOnDisk,
    NoEnd,
}

impl RunModelJournal {
    fn has_synced_record(&self, record: RunModelRecord) -> bool {
        self.records[..self.synced].contains(&record)
    }

    fn recorded_ends(&self, run: usize) -> impl Iterator<Item = RunStatus> {
        self.records.iter().filter_map(move |record| match record {
            RunModelRecord::End(of, end) if *of == run => Some(*end),
            _ => None,
        })
    }
}

impl RunModelState {
    /// The most complete record of each run, as `recovery::read_journals` finds it.
    fn recovered_ends(&self) -> [Option<Option<RunStatus>>; RUN_MODEL_RUNS] {
        std::array::from_fn(|run| {
            let journals = self.earlier_journals.iter().chain([&self.own_journal]);
            let matching =
                journals.filter(|journal| journal.records.contains(&RunModelRecord::Begin(run)));
            matching
                .map(|journal| journal.recorded_ends(run).next())
                .max_by_key(Option::is_some)
        })
    }

    fn boot_companion(&self, order: RunModelOrder) -> Self {
        let mut next = self.clone();
        let mut companion = RunModelCompanion::default();
        if !order.forgets_on_crash {
            for (run, found) in self.recovered_ends().into_iter().enumerate() {
                let Some(end) = found else { continue };
                let end = end.unwrap_or(RunStatus::Lost);
                companion
                    .queue
                    .extend([RunModelRecord::Begin(run), RunModelRecord::End(run, end)]);
                companion.runs[run] = Some(RunModelRun {
                    is_executing: false,
                    end: Some(end),
                    is_replayed: true,
                });
            }
        }
        let own = std::mem::take(&mut next.own_journal);
        if !own.records.is_empty() {
            next.earlier_journals.push(own);
        }
        next.companion = Some(companion);
        next
    }

    fn finish_run(&mut self, run: usize, end: RunStatus) {
        if let Some(companion) = &mut self.companion
            && let Some(known) = &mut companion.runs[run]
        {
            (known.is_executing, known.end) = (false, Some(end));
            companion.queue.push(RunModelRecord::End(run, end));
        }
    }

    /// All states after a loss of records that were not synced.
    fn states_after_power_loss(&self) -> Vec<Self> {
        let mut all = vec![Self {
            earlier_journals: Vec::new(),
            own_journal: RunModelJournal::default(),
            ..self.clone()
        }];
        for journal in self.earlier_journals.iter().chain([&self.own_journal]) {
            let mut more = Vec::new();
            for length in journal.synced..=journal.records.len() {
                for state in &all {
                    let mut state = state.clone();
                    state.earlier_journals.push(RunModelJournal {
                        records: journal.records[..length].to_vec(),
                        synced: length,
                    });
                    more.push(state);
                }
            }
            all = more;
        }
        for state in &mut all {
            state
                .earlier_journals
                .retain(|journal| !journal.records.is_empty());
        }
        all
    }
}

impl RunModelOrder {
    fn steps_of_run(
        self,
        state: &RunModelState,
        companion: &RunModelCompanion,
        run: usize,
    ) -> Vec<(RunModelAction, RunModelState)> {
        let mut steps = Vec::new();
        let mut add = |action, change: &dyn Fn(&mut RunModelState)| {
            let mut next = state.clone();
            change(&mut next);
            steps.push((action, next));
        };
        let client = state.clients[run];
        if client.request_count < RUN_MODEL_REQUESTS[run] {
            let is_new = companion.runs[run].is_none();
            add(RunModelAction::Request(run), &|next| {
                next.clients[run].request_count += 1;
                if let Some(companion) = next.companion.as_mut().filter(|_| is_new) {
                    companion.queue.push(RunModelRecord::Begin(run));
                    companion.runs[run] = Some(RunModelRun {
                        is_executing: false,
                        end: None,
                        is_replayed: false,
                    });
                }
            });
        }
        let Some(known) = companion.runs[run] else {
            return steps;
        };
        let has_begun = state
            .own_journal
            .has_synced_record(RunModelRecord::Begin(run));
        if !client.is_acknowledged && (has_begun || self.acknowledges_before_the_record) {
            add(RunModelAction::Acknowledge(run), &|next| {
                next.clients[run].is_acknowledged = true;
            });
        }
        let is_named = run == 0;
        let may_execute = has_begun || !is_named || self.executes_before_the_record;
        if !known.is_executing && known.end.is_none() && may_execute {
            add(RunModelAction::Execute(run), &|next| {
                next.executions[run] += 1;
                if let Some(known) = next
                    .companion
                    .as_mut()
                    .and_then(|companion| companion.runs[run].as_mut())
                {
                    known.is_executing = true;
                }
            });
        }
        if known.is_executing {
            add(RunModelAction::Finish(run), &|next| {
                next.finish_run(run, RunStatus::Completed);
            });
        }
        if let Some(end) = known.end
            && client.reported_end != Some(end)
        {
            let is_recorded = state
                .own_journal
                .has_synced_record(RunModelRecord::End(run, end))
                || known.is_replayed;
            if is_recorded || self.reports_the_end_before_its_record {
                add(RunModelAction::ReportEnd(run), &|next| {
                    // The first answer counts; a different second one is a violation.
                    next.clients[run].reported_end.get_or_insert(end);
                });
            }
        }
        steps.retain(|(_, next)| next != state);
        steps
    }
}

impl Model for RunModelOrder {
    type State = RunModelState;
    type Action = RunModelAction;
    type Violation = RunModelViolation;

    fn steps(&self, state: &RunModelState) -> Vec<(RunModelAction, RunModelState)> {
        let Some(companion) = &state.companion else {
            return vec![(RunModelAction::Boot, state.boot_companion(*self))];
        };
        let mut steps = Vec::new();
        if !companion.queue.is_empty() {
            let mut next = state.clone();
            next.own_journal.records.extend(&companion.queue);
            next.companion = Some(RunModelCompanion {
                queue: Vec::new(),
                ..companion.clone()
            });
            steps.push((RunModelAction::Write, next));
        }
        if state.own_journal.synced < state.own_journal.records.len() {
            let mut next = state.clone();
            next.own_journal.synced = next.own_journal.records.len();
            steps.push((RunModelAction::Sync, next));
        }
        if companion.is_serving {
            steps.extend(
                (0..RUN_MODEL_RUNS).flat_map(|run| self.steps_of_run(state, companion, run)),
            );
        } else {
            let is_settled = companion.queue.is_empty()
                && state.own_journal.synced == state.own_journal.records.len();
            if is_settled || self.removes_before_the_copy {
                let mut next = state.clone();
                next.earlier_journals.clear();
                next.companion = Some(RunModelCompanion {
                    is_serving: true,
                    ..companion.clone()
                });
                steps.push((RunModelAction::Serve, next));
            }
        }
        steps
    }

    fn crashes(&self, state: &RunModelState) -> Vec<(RunModelAction, RunModelState)> {
        let mut crashes = Vec::new();
        if state.crashes == MAX_RUN_MODEL_CRASHES {
            return crashes;
        }
        let crashed = RunModelState {
            companion: None,
            crashes: state.crashes + 1,
            ..state.clone()
        };
        let after_power_loss = crashed.states_after_power_loss().into_iter();
        crashes.extend(after_power_loss.map(|state| (RunModelAction::PowerLoss, state)));
        let Some(companion) = &state.companion else {
            return crashes;
        };
        let mut killed = RunModelState {
            crashes: state.crashes + 1,
            ..state.clone()
        };
        for (run, known) in companion.runs.iter().enumerate() {
            if known.is_some_and(|known| known.is_executing) {
                killed.finish_run(run, RunStatus::Failed);
            }
        }
        if killed.companion != state.companion {
            crashes.push((RunModelAction::KernelCrash, killed));
        }
        crashes.push((RunModelAction::CompanionCrash, crashed));
        crashes
    }

    fn violations(&self, state: &RunModelState, is_at_rest: bool) -> Vec<RunModelViolation> {
        let mut found = Vec::new();
        let serving = state
            .companion
            .as_ref()
            .filter(|companion| companion.is_serving);
        for (run, client) in state.clients.iter().enumerate() {
            if state.executions[run] > 1 {
                found.push(RunModelViolation::ExecutedTwice);
            }
            let mut journals = state.earlier_journals.iter().chain([&state.own_journal]);
            if journals.any(|journal| journal.recorded_ends(run).count() > 1) {
                found.push(RunModelViolation::TwoEndsOnDisk);
            }
            if let Some(companion) = serving {
                let known = companion.runs[run];
                if client.is_acknowledged && known.is_none() {
                    found.push(RunModelViolation::AcknowledgedRunLost);
                }
                if client.reported_end.is_some()
                    && known.and_then(|known| known.end) != client.reported_end
                {
                    found.push(RunModelViolation::ReportedEndChanged);
                }
            }
            if is_at_rest && client.is_acknowledged && client.reported_end.is_none() {
                found.push(RunModelViolation::NoEnd);
            }
        }
        found
    }
}

#[test]
fn run_invariants_survive_every_crash() {
    let search = assert_holds(&RunModelOrder::default(), RunModelState::default());
    assert!(search.len() > 1000, "{} states", search.len());
}

#[test]
fn wrong_run_orders_break_an_invariant() {
    let today = RunModelOrder::default();
    for (name, order, violation) in [
        (
            "acknowledge before the record",
            RunModelOrder {
                acknowledges_before_the_record: true,
                ..today
            },
            RunModelViolation::AcknowledgedRunLost,
        ),
        (
            "execute before the record",
            RunModelOrder {
                executes_before_the_record: true,
                ..today
            },
            RunModelViolation::ExecutedTwice,
        ),
        (
            "runs only in memory",
            RunModelOrder {
                forgets_on_crash: true,
                ..today
            },
            RunModelViolation::AcknowledgedRunLost,
        ),
        (
            "runs only in memory, and a repeated request",
            RunModelOrder {
                forgets_on_crash: true,
                ..today
            },
            RunModelViolation::ExecutedTwice,
        ),
        (
            "report the end before its record",
            RunModelOrder {
                reports_the_end_before_its_record: true,
                ..today
            },
            RunModelViolation::ReportedEndChanged,
        ),
        (
            "remove earlier journals before the copy",
            RunModelOrder {
                removes_before_the_copy: true,
                ..today
            },
            RunModelViolation::AcknowledgedRunLost,
        ),
    ] {
        assert_finds(name, &order, RunModelState::default(), violation);
    }
}
