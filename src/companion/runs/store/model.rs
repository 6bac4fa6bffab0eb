//! Model of runs: what the companion has in memory, what the journal contains, and what a client was sent, through
//! crashes between any two steps.
//!
//! Two clients request a run each: the first client names an id and repeats its request, the second client gets an id.
//! Each step represents a function of the code:
//!
//! | step | function |
//! |---|---|
//! | `Ask` | `RunRegistry::begin_run`; `RunStoreShared::begin_run` puts the record of the start into the queue |
//! | `Write`, `Sync` | `write_batch`: `append_bytes`, then `sync_segment`, for all that is queued |
//! | `Execute` | `Sessions::execute`, `Shells::execute`: the code starts after the run is recorded |
//! | `Acknowledge` | the reply names the id after the record is synced |
//! | `Finish` | `TrackedRun::finish`; `RunRecorder::push_end` puts the record of the end into the queue |
//! | `Tell` | `RunStoreShared::complete_batch` publishes the end after the sync |
//! | `Boot` | `RunStore::recover_runs`: earlier journals are read, and their runs queued for the own journal |
//! | `Serve` | `RunStore::wait_synced`, then `RetainedRuns::remove_stale` removes the earlier journals |
//!
//! [`replay`] drives the real journal through the traces.

mod replay;

use crate::model::{Model, assert_finds, assert_holds};
use crate::protocol::kernel::RunStatus;

const RUN_MODEL_RUNS: usize = 2;
/// The client that names its run sends the request twice.
const ASKS: [u8; RUN_MODEL_RUNS] = [2, 1];
const RUN_MODEL_DEATHS: u8 = 2;

/// Orders of steps that the code does not have.
#[derive(Debug, Clone, Copy, Default)]
struct RunModelOrder {
    acknowledges_before_the_record: bool,
    executes_before_the_record: bool,
    forgets_at_death: bool,
    tells_the_end_before_its_record: bool,
    removes_before_the_copy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Note {
    Begin(usize),
    End(usize, RunStatus),
}

/// The journal of one companion. Notes after `synced` may be lost with the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct RunModelJournal {
    notes: Vec<Note>,
    synced: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RunModelKnown {
    is_executing: bool,
    end: Option<RunStatus>,
    /// Whether the end was read from the disk.
    is_replayed: bool,
}

/// The running companion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct RunModelGeneration {
    is_serving: bool,
    queue: Vec<Note>,
    runs: [Option<RunModelKnown>; RUN_MODEL_RUNS],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct RunModelClient {
    asked: u8,
    is_acknowledged: bool,
    told: Option<RunStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct RunModelState {
    earlier: Vec<RunModelJournal>,
    own: RunModelJournal,
    life: Option<RunModelGeneration>,
    clients: [RunModelClient; RUN_MODEL_RUNS],
    executions: [u8; RUN_MODEL_RUNS],
    deaths: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum RunModelAction {
    Boot,
    Serve,
    Ask(usize),
    Write,
    Sync,
    Acknowledge(usize),
    Execute(usize),
    Finish(usize),
    Tell(usize),
    KernelDies,
    /// The companion or its container ends: written notes stay.
    CompanionDies,
    /// Notes that were not synced may be lost.
    PowerFails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunModelViolation {
    AcknowledgedRunIsGone,
    ToldEndHasChanged,
    ExecutedTwice,
    TwoEndsOnDisk,
    NoEnd,
}

impl RunModelJournal {
    fn holds(&self, note: Note) -> bool {
        self.notes[..self.synced].contains(&note)
    }

    fn ends(&self, run: usize) -> impl Iterator<Item = RunStatus> {
        self.notes.iter().filter_map(move |note| match note {
            Note::End(of, end) if *of == run => Some(*end),
            _ => None,
        })
    }
}

impl RunModelState {
    /// The most complete record of each run, as `recovery::read` finds it.
    fn recovered(&self) -> [Option<Option<RunStatus>>; RUN_MODEL_RUNS] {
        std::array::from_fn(|run| {
            let journals = self.earlier.iter().chain([&self.own]);
            let accounts = journals.filter(|one| one.notes.contains(&Note::Begin(run)));
            accounts
                .map(|one| one.ends(run).next())
                .max_by_key(Option::is_some)
        })
    }

    fn boot(&self, order: RunModelOrder) -> Self {
        let mut next = self.clone();
        let mut life = RunModelGeneration::default();
        if !order.forgets_at_death {
            for (run, found) in self.recovered().into_iter().enumerate() {
                let Some(end) = found else { continue };
                let end = end.unwrap_or(RunStatus::Lost);
                life.queue.extend([Note::Begin(run), Note::End(run, end)]);
                life.runs[run] = Some(RunModelKnown {
                    is_executing: false,
                    end: Some(end),
                    is_replayed: true,
                });
            }
        }
        let own = std::mem::take(&mut next.own);
        if !own.notes.is_empty() {
            next.earlier.push(own);
        }
        next.life = Some(life);
        next
    }

    fn finish(&mut self, run: usize, end: RunStatus) {
        if let Some(life) = &mut self.life
            && let Some(known) = &mut life.runs[run]
        {
            (known.is_executing, known.end) = (false, Some(end));
            life.queue.push(Note::End(run, end));
        }
    }

    /// All states after a loss of notes that were not synced.
    fn cut(&self) -> Vec<Self> {
        let mut all = vec![Self {
            earlier: Vec::new(),
            own: RunModelJournal::default(),
            ..self.clone()
        }];
        for journal in self.earlier.iter().chain([&self.own]) {
            let mut more = Vec::new();
            for length in journal.synced..=journal.notes.len() {
                for state in &all {
                    let mut state = state.clone();
                    state.earlier.push(RunModelJournal {
                        notes: journal.notes[..length].to_vec(),
                        synced: length,
                    });
                    more.push(state);
                }
            }
            all = more;
        }
        for state in &mut all {
            state.earlier.retain(|journal| !journal.notes.is_empty());
        }
        all
    }
}

impl RunModelOrder {
    fn steps_of_run(
        self,
        state: &RunModelState,
        life: &RunModelGeneration,
        run: usize,
    ) -> Vec<(RunModelAction, RunModelState)> {
        let mut steps = Vec::new();
        let mut add = |action, change: &dyn Fn(&mut RunModelState)| {
            let mut next = state.clone();
            change(&mut next);
            steps.push((action, next));
        };
        let client = state.clients[run];
        if client.asked < ASKS[run] {
            let is_new = life.runs[run].is_none();
            add(RunModelAction::Ask(run), &|next| {
                next.clients[run].asked += 1;
                if let Some(life) = next.life.as_mut().filter(|_| is_new) {
                    life.queue.push(Note::Begin(run));
                    life.runs[run] = Some(RunModelKnown {
                        is_executing: false,
                        end: None,
                        is_replayed: false,
                    });
                }
            });
        }
        let Some(known) = life.runs[run] else {
            return steps;
        };
        let has_begun = state.own.holds(Note::Begin(run));
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
                if let Some(known) = next.life.as_mut().and_then(|life| life.runs[run].as_mut()) {
                    known.is_executing = true;
                }
            });
        }
        if known.is_executing {
            add(RunModelAction::Finish(run), &|next| {
                next.finish(run, RunStatus::Completed);
            });
        }
        if let Some(end) = known.end
            && client.told != Some(end)
        {
            let is_recorded = state.own.holds(Note::End(run, end)) || known.is_replayed;
            if is_recorded || self.tells_the_end_before_its_record {
                add(RunModelAction::Tell(run), &|next| {
                    // The first answer counts; a different second one is a violation.
                    next.clients[run].told.get_or_insert(end);
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
        let Some(life) = &state.life else {
            return vec![(RunModelAction::Boot, state.boot(*self))];
        };
        let mut steps = Vec::new();
        if !life.queue.is_empty() {
            let mut next = state.clone();
            next.own.notes.extend(&life.queue);
            next.life = Some(RunModelGeneration {
                queue: Vec::new(),
                ..life.clone()
            });
            steps.push((RunModelAction::Write, next));
        }
        if state.own.synced < state.own.notes.len() {
            let mut next = state.clone();
            next.own.synced = next.own.notes.len();
            steps.push((RunModelAction::Sync, next));
        }
        if life.is_serving {
            steps.extend((0..RUN_MODEL_RUNS).flat_map(|run| self.steps_of_run(state, life, run)));
        } else {
            let is_settled = life.queue.is_empty() && state.own.synced == state.own.notes.len();
            if is_settled || self.removes_before_the_copy {
                let mut next = state.clone();
                next.earlier.clear();
                next.life = Some(RunModelGeneration {
                    is_serving: true,
                    ..life.clone()
                });
                steps.push((RunModelAction::Serve, next));
            }
        }
        steps
    }

    fn deaths(&self, state: &RunModelState) -> Vec<(RunModelAction, RunModelState)> {
        let mut deaths = Vec::new();
        if state.deaths == RUN_MODEL_DEATHS {
            return deaths;
        }
        let died = RunModelState {
            life: None,
            deaths: state.deaths + 1,
            ..state.clone()
        };
        let powerless = died.cut().into_iter();
        deaths.extend(powerless.map(|state| (RunModelAction::PowerFails, state)));
        let Some(life) = &state.life else {
            return deaths;
        };
        let mut killed = RunModelState {
            deaths: state.deaths + 1,
            ..state.clone()
        };
        for (run, known) in life.runs.iter().enumerate() {
            if known.is_some_and(|known| known.is_executing) {
                killed.finish(run, RunStatus::Failed);
            }
        }
        if killed.life != state.life {
            deaths.push((RunModelAction::KernelDies, killed));
        }
        deaths.push((RunModelAction::CompanionDies, died));
        deaths
    }

    fn violations(&self, state: &RunModelState, is_at_rest: bool) -> Vec<RunModelViolation> {
        let mut found = Vec::new();
        let serving = state.life.as_ref().filter(|life| life.is_serving);
        for (run, client) in state.clients.iter().enumerate() {
            if state.executions[run] > 1 {
                found.push(RunModelViolation::ExecutedTwice);
            }
            let mut journals = state.earlier.iter().chain([&state.own]);
            if journals.any(|journal| journal.ends(run).count() > 1) {
                found.push(RunModelViolation::TwoEndsOnDisk);
            }
            if let Some(life) = serving {
                let known = life.runs[run];
                if client.is_acknowledged && known.is_none() {
                    found.push(RunModelViolation::AcknowledgedRunIsGone);
                }
                if client.told.is_some() && known.and_then(|known| known.end) != client.told {
                    found.push(RunModelViolation::ToldEndHasChanged);
                }
            }
            if is_at_rest && client.is_acknowledged && client.told.is_none() {
                found.push(RunModelViolation::NoEnd);
            }
        }
        found
    }
}

#[test]
fn runs_keep_their_promises_through_every_death() {
    let search = assert_holds(&RunModelOrder::default(), RunModelState::default());
    assert!(search.len() > 1000, "{} states", search.len());
}

#[test]
fn every_other_order_of_a_run_breaks_a_promise() {
    let today = RunModelOrder::default();
    for (name, order, violation) in [
        (
            "acknowledge before the record",
            RunModelOrder {
                acknowledges_before_the_record: true,
                ..today
            },
            RunModelViolation::AcknowledgedRunIsGone,
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
                forgets_at_death: true,
                ..today
            },
            RunModelViolation::AcknowledgedRunIsGone,
        ),
        (
            "runs only in memory, and a repeated request",
            RunModelOrder {
                forgets_at_death: true,
                ..today
            },
            RunModelViolation::ExecutedTwice,
        ),
        (
            "report the end before its record",
            RunModelOrder {
                tells_the_end_before_its_record: true,
                ..today
            },
            RunModelViolation::ToldEndHasChanged,
        ),
        (
            "remove earlier journals before the copy",
            RunModelOrder {
                removes_before_the_copy: true,
                ..today
            },
            RunModelViolation::AcknowledgedRunIsGone,
        ),
    ] {
        assert_finds(name, &order, RunModelState::default(), violation);
    }
}
