//! Model of stores under one name: numbers, folders and answers, through crashes between any two steps and with two
//! stores at the same time.
//!
//! A requested store and a store at the stop, or a store of the next companion, run in parallel in any order: the model
//! has no lock (`CryoService::name_lock`), because two companions may share the folder for a moment. Each step
//! represents a function of the code:
//!
//! | step | function |
//! |---|---|
//! | `Lock`, `Read` | `generation_number::allocate_number`: `lock_folder`, `newest_number` |
//! | `Record`, `Number` | `generation_number::write_newest_number`: `last` is replaced, then synced; `CryoStorage::next_generation` returns the number |
//! | `Begin` | the kernel's `PartFolder.__enter__`: it makes `NUMBER.part` and removes an earlier one |
//! | `Write` | the kernel's `Writer`: objects, buffers and manifest, synced |
//! | `Rename`, `Sync` | the kernel's `PartFolder.commit_folder`: the folder gets its name, then the name is synced |
//! | `Verify` | `CryoStorage::verify_stored`: the companion reads the manifest in its place |
//! | `Acknowledge` | `CryoService::store_exclusively` returns |
//! | `Prune` | `CryoStorage::prune` and `CryoStorage::discard_generation`: all but the newest are removed |
//! | `Remove` | `CryoStorage::remove_generations` and `generation_number::reserve_up_to`: the newest is removed |
//! | `Sweep` | `CryoStorage::sweep_unfinished` of a companion that starts |
//! | `Run` | `RunCount::increment`, then the kernel executes the code; `run_count::runs_since` reports later runs |
//!
//! [`replay`] drives the real folders through the traces.

mod replay;
mod tests;

use crate::model_checker::Model;

const CRYO_MODEL_STORES: usize = 2;
const CRYO_MODEL_NUMBERS: usize = 5;
const MAX_CRYO_MODEL_CRASHES: u8 = 2;
const CRYO_MODEL_RETAINED: usize = 1;

/// Orders of steps that the code does not have.
#[derive(Debug, Clone, Copy, Default)]
struct CryoModelOrder {
    number_is_the_highest_folder: bool,
    uses_the_number_before_its_sync: bool,
    takes_no_lock: bool,
    acknowledges_before_the_sync: bool,
    removes_without_reservation: bool,
    reserves_without_sync: bool,
    reports_no_runs: bool,
    executes_before_the_count: bool,
}

/// The last completed step of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum CryoModelStep {
    NotStarted,
    Lock,
    Read,
    Record,
    Number,
    Begin,
    Write,
    Rename,
    Sync,
    Verify,
    Acknowledge,
    Prune,
    /// The store was refused, or its companion has ended.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CryoModelStore {
    step: CryoModelStep,
    number: u8,
    /// Whether its companion is dead: the kernel may continue, and nothing is acknowledged.
    is_orphan: bool,
}

/// The content of the disk for one number. A value belongs to the store that wrote it; 0 is not written yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct CryoModelGeneration {
    partial: Option<u8>,
    complete: Option<u8>,
    is_synced: bool,
    /// Removed on request.
    is_removed: bool,
    /// The value that a client received for this number.
    acknowledged: Option<u8>,
    /// The runs before the store: executed, and counted.
    runs_before: (u8, u8),
    /// Whether the machine has stopped since: the number of later runs is an estimate.
    is_estimate: bool,
    times_allocated: u8,
}

/// The runs of the session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct CryoModelRuns {
    /// Runs that no client has requested yet.
    left: u8,
    executed: u8,
    /// The count on the disk: written, and synced.
    counted: (u8, u8),
    /// Whether one of the two steps of a run is missing.
    is_half: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CryoModelState {
    runs: CryoModelRuns,
    /// The content of `last`: written, and synced.
    last_number: (u8, u8),
    lock: Option<usize>,
    generations: [CryoModelGeneration; CRYO_MODEL_NUMBERS],
    stores: [CryoModelStore; CRYO_MODEL_STORES],
    crashes: u8,
    has_removed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum CryoModelAction {
    Step(usize, CryoModelStep),
    Remove,
    Sweep,
    /// A step of a run.
    Run,
    KernelCrash(usize),
    /// One of the companions that share the folder.
    CompanionCrash(usize),
    ContainerCrash,
    PowerLoss,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CryoModelViolation {
    NumberAllocatedTwice,
    AcknowledgedGenerationLost,
    ContentChanged,
    /// A restore reports fewer runs than were executed after the store.
    RunsUnreported,
}

const IDLE_MODEL_STORE: CryoModelStore = CryoModelStore {
    step: CryoModelStep::NotStarted,
    number: 0,
    is_orphan: false,
};

/// An empty folder.
const EMPTY_CRYO_MODEL: CryoModelState = CryoModelState {
    runs: CryoModelRuns {
        left: 0,
        executed: 0,
        counted: (0, 0),
        is_half: false,
    },
    last_number: (0, 0),
    lock: None,
    generations: [CryoModelGeneration {
        partial: None,
        complete: None,
        is_synced: true,
        is_removed: false,
        acknowledged: None,
        runs_before: (0, 0),
        is_estimate: false,
        times_allocated: 0,
    }; CRYO_MODEL_NUMBERS],
    stores: [IDLE_MODEL_STORE; CRYO_MODEL_STORES],
    crashes: 0,
    has_removed: false,
};

/// The state that a version without `last` has left, with an acknowledged generation 1.
fn state_of_earlier_version() -> CryoModelState {
    let mut state = EMPTY_CRYO_MODEL;
    state.generations[1] = CryoModelGeneration {
        complete: Some(9),
        acknowledged: Some(9),
        times_allocated: 1,
        ..state.generations[1]
    };
    state
}

/// A session with runs, and with one store.
fn state_with_runs() -> CryoModelState {
    let mut state = EMPTY_CRYO_MODEL;
    state.runs.left = 2;
    state.stores[1].step = CryoModelStep::Ended;
    state
}

fn value_of_store(store: usize) -> u8 {
    store as u8 + 1
}

impl CryoModelState {
    /// `generation_number::newest_number`: the maximum of `last`, folders and unfinished folders.
    fn newest_number(&self) -> u8 {
        let exists = |one: &CryoModelGeneration| one.partial.is_some() || one.complete.is_some();
        self.last_number.0.max(self.highest_matching(exists))
    }

    fn highest_matching(&self, matches: impl Fn(&CryoModelGeneration) -> bool) -> u8 {
        let found = self.generations.iter().rposition(matches);
        found.unwrap_or_default() as u8
    }

    fn discard_generation(&mut self, number: u8, order: CryoModelOrder) {
        if !order.removes_without_reservation {
            let last = self.last_number.0.max(number);
            let is_synced = self.last_number.0 < number || !order.reserves_without_sync;
            self.last_number = (last, if is_synced { last } else { self.last_number.1 });
        }
        let generation = &mut self.generations[usize::from(number)];
        (generation.complete, generation.is_removed) = (None, true);
    }

    fn end_store(&mut self, store: usize) {
        self.stores[store].step = CryoModelStep::Ended;
        if self.lock == Some(store) {
            self.lock = None;
        }
    }

    /// All states after a loss of unsynced changes.
    fn states_after_power_loss(&self) -> Vec<Self> {
        let mut all = vec![*self];
        if self.last_number.0 != self.last_number.1 {
            all.push(Self {
                last_number: (self.last_number.1, self.last_number.1),
                ..*self
            });
        }
        for number in 0..CRYO_MODEL_NUMBERS {
            let generation = &self.generations[number];
            if generation.complete.is_some() && !generation.is_synced {
                for mut state in all.clone() {
                    // The files are synced, and the folder's name is not.
                    let generation = &mut state.generations[number];
                    generation.partial = generation.complete.take();
                    all.push(state);
                }
            }
        }
        if self.runs.counted.0 != self.runs.counted.1 {
            for mut state in all.clone() {
                state.runs.counted.0 = state.runs.counted.1;
                all.push(state);
            }
        }
        for state in &mut all {
            state.last_number.1 = state.last_number.0;
            state.runs.counted.1 = state.runs.counted.0;
            for one in &mut state.generations {
                one.is_synced = true;
                one.is_estimate = one.partial.is_some() || one.complete.is_some();
            }
        }
        all
    }
}

impl CryoModelOrder {
    fn next_step(
        self,
        state: &CryoModelState,
        store_state: CryoModelStore,
    ) -> Option<CryoModelStep> {
        let is_locked = state.lock.is_some() && !self.takes_no_lock;
        Some(match store_state.step {
            CryoModelStep::NotStarted if is_locked => return None,
            CryoModelStep::NotStarted => CryoModelStep::Lock,
            CryoModelStep::Lock => CryoModelStep::Read,
            CryoModelStep::Read if self.number_is_the_highest_folder => CryoModelStep::Number,
            CryoModelStep::Read => CryoModelStep::Record,
            CryoModelStep::Record => CryoModelStep::Number,
            // A kernel that executes a run stores nothing.
            CryoModelStep::Number if state.runs.is_half => return None,
            CryoModelStep::Number => CryoModelStep::Begin,
            CryoModelStep::Begin => CryoModelStep::Write,
            CryoModelStep::Write => CryoModelStep::Rename,
            CryoModelStep::Rename
                if self.acknowledges_before_the_sync && !store_state.is_orphan =>
            {
                CryoModelStep::Verify
            }
            CryoModelStep::Rename => CryoModelStep::Sync,
            CryoModelStep::Sync if store_state.is_orphan => return None,
            CryoModelStep::Sync => CryoModelStep::Verify,
            CryoModelStep::Verify => CryoModelStep::Acknowledge,
            CryoModelStep::Acknowledge => CryoModelStep::Prune,
            CryoModelStep::Prune | CryoModelStep::Ended => return None,
        })
    }

    fn apply_step(self, state: &mut CryoModelState, store: usize, step: CryoModelStep) {
        let (number, value) = (state.stores[store].number, value_of_store(store));
        state.stores[store].step = step;
        let newest = match self.number_is_the_highest_folder {
            true => state.highest_matching(|one| one.complete.is_some()),
            false => state.newest_number(),
        };
        let generation = &mut state.generations[usize::from(number)];
        match step {
            CryoModelStep::NotStarted | CryoModelStep::Ended => {}
            CryoModelStep::Lock => state.lock = Some(store),
            CryoModelStep::Read => state.stores[store].number = newest + 1,
            CryoModelStep::Record => state.last_number.0 = number,
            CryoModelStep::Number => {
                generation.times_allocated += 1;
                let is_synced =
                    !self.uses_the_number_before_its_sync && !self.number_is_the_highest_folder;
                if is_synced {
                    state.last_number.1 = state.last_number.0;
                }
                if state.lock == Some(store) {
                    state.lock = None;
                }
            }
            CryoModelStep::Begin => {
                generation.partial = Some(0);
                generation.runs_before = (state.runs.executed, state.runs.counted.0);
            }
            CryoModelStep::Write if generation.partial.is_some() => {
                generation.partial = Some(value)
            }
            CryoModelStep::Rename
                if generation.partial.is_some() && generation.complete.is_none() =>
            {
                (generation.complete, generation.partial) = (generation.partial, None);
                generation.is_synced = false;
            }
            CryoModelStep::Verify if generation.complete.is_some() => {}
            // The generation's folder was swept, or has its name already.
            CryoModelStep::Write | CryoModelStep::Rename | CryoModelStep::Verify => {
                state.end_store(store)
            }
            CryoModelStep::Sync => {
                generation.is_synced = true;
                state.runs.counted.1 = state.runs.counted.0;
            }
            CryoModelStep::Acknowledge => generation.acknowledged = Some(value),
            CryoModelStep::Prune => {
                let whole = |number: &usize| state.generations[*number].complete.is_some();
                let numbers: Vec<usize> = (0..CRYO_MODEL_NUMBERS).rev().filter(whole).collect();
                for number in numbers.into_iter().skip(CRYO_MODEL_RETAINED) {
                    state.discard_generation(number as u8, self);
                }
            }
        }
    }
}

impl Model for CryoModelOrder {
    type State = CryoModelState;
    type Action = CryoModelAction;
    type Violation = CryoModelViolation;

    fn steps(&self, state: &CryoModelState) -> Vec<(CryoModelAction, CryoModelState)> {
        let mut steps = Vec::new();
        for (store, store_state) in state.stores.into_iter().enumerate() {
            // Stores that have not started are equal.
            let is_next = store == 0 || state.stores[store - 1].step != CryoModelStep::NotStarted;
            if let Some(step) = self.next_step(state, store_state).filter(|_| is_next) {
                let mut next = *state;
                self.apply_step(&mut next, store, step);
                steps.push((CryoModelAction::Step(store, step), next));
            }
        }
        let newest = state.highest_matching(|one| one.complete.is_some());
        if newest > 0 && !state.has_removed && state.lock.is_none() {
            let mut next = *state;
            next.has_removed = true;
            next.discard_generation(newest, *self);
            steps.push((CryoModelAction::Remove, next));
        }
        if state.crashes > 0 && state.generations.iter().any(|one| one.partial.is_some()) {
            let mut next = *state;
            next.generations
                .iter_mut()
                .for_each(|one| one.partial = None);
            steps.push((CryoModelAction::Sweep, next));
        }
        if state.runs.left > 0 || state.runs.is_half {
            let mut next = *state;
            let runs = &mut next.runs;
            match runs.is_half == self.executes_before_the_count {
                true => runs.counted.0 += 1,
                false => runs.executed += 1,
            }
            runs.left -= u8::from(!runs.is_half);
            runs.is_half = !runs.is_half;
            steps.push((CryoModelAction::Run, next));
        }
        steps
    }

    fn crashes(&self, state: &CryoModelState) -> Vec<(CryoModelAction, CryoModelState)> {
        let mut crashes = Vec::new();
        if state.crashes == MAX_CRYO_MODEL_CRASHES {
            return crashes;
        }
        let mut crashed = CryoModelState {
            crashes: state.crashes + 1,
            ..*state
        };
        crashed.runs.is_half = false;
        let mut all = crashed;
        for (store, store_state) in state.stores.into_iter().enumerate() {
            let is_kernels =
                (CryoModelStep::Number..CryoModelStep::Sync).contains(&store_state.step);
            let is_over = matches!(
                store_state.step,
                CryoModelStep::NotStarted | CryoModelStep::Prune | CryoModelStep::Ended
            );
            if is_over {
                continue;
            }
            all.end_store(store);
            let mut killed = crashed;
            killed.end_store(store);
            if is_kernels {
                crashes.push((CryoModelAction::KernelCrash(store), killed));
            }
            if is_kernels && !store_state.is_orphan {
                killed = crashed;
                killed.stores[store].is_orphan = true;
            }
            crashes.push((CryoModelAction::CompanionCrash(store), killed));
        }
        crashes.push((CryoModelAction::ContainerCrash, all));
        crashes.extend(
            all.states_after_power_loss()
                .into_iter()
                .map(|state| (CryoModelAction::PowerLoss, state)),
        );
        crashes
    }

    fn violations(&self, state: &CryoModelState, _: bool) -> Vec<CryoModelViolation> {
        let mut found = Vec::new();
        for one in &state.generations {
            if one.times_allocated > 1 {
                found.push(CryoModelViolation::NumberAllocatedTwice);
            }
            let (executed, counted) = one.runs_before;
            let reported = match self.reports_no_runs {
                true => Some(0),
                // A count below the stored one is reported as unknown.
                false => state.runs.counted.0.checked_sub(counted),
            };
            if one.complete.is_some()
                && !one.is_estimate
                && !state.runs.is_half
                && reported.is_some_and(|reported| reported < state.runs.executed - executed)
            {
                found.push(CryoModelViolation::RunsUnreported);
            }
            if one.acknowledged.is_some() && one.complete != one.acknowledged {
                match one.complete {
                    Some(_) => found.push(CryoModelViolation::ContentChanged),
                    None if one.is_removed => {}
                    None => found.push(CryoModelViolation::AcknowledgedGenerationLost),
                }
            }
        }
        found
    }
}
