//! Model of stores under one name: numbers, folders and answers, through crashes between any two steps and with two
//! stores at the same time.
//!
//! A requested store and a store at the stop, or a store of the next companion, run in parallel in any order: the model
//! has no lock (`Cryo::name_lock`), because two companions may share the folder for a moment. Each step represents a
//! function of the code:
//!
//! | step | function |
//! |---|---|
//! | `Lock`, `Read` | `generation_number::allocate_number`: `lock_folder`, `newest_number` |
//! | `Record`, `Number` | `generation_number::write_last`: `last` is replaced, then synced; `CryoStorage::next_generation` returns the number |
//! | `Begin` | the kernel's `Beside.__enter__`: it makes `NUMBER.part` and removes an earlier one |
//! | `Write` | the kernel's `writer`: objects, buffers and manifest, synced |
//! | `Rename`, `Sync` | the kernel's `Beside.commit`: the folder gets its name, then the name is synced |
//! | `Look` | `CryoStorage::verify_stored`: the companion reads the manifest in its place |
//! | `Acknowledge` | `Cryo::store_now` answers |
//! | `Prune` | `CryoStorage::prune` and `CryoStorage::discard_generation`: all but the newest are removed |
//! | `Remove` | `CryoStorage::remove_generations` and `generation_number::reserve_up_to`: the newest is removed |
//! | `Sweep` | `CryoStorage::sweep_unfinished` of a companion that starts |
//!
//! [`replay`] drives the real folders through the traces.

mod replay;

use crate::model::{Model, assert_finds, assert_holds};

const STORES: usize = 2;
const NUMBERS: usize = 5;
const CRYO_MODEL_DEATHS: u8 = 2;
const CRYO_MODEL_KEPT: usize = 1;

/// Orders of steps that the code does not have.
#[derive(Debug, Clone, Copy, Default)]
struct CryoModelOrder {
    number_is_the_highest_folder: bool,
    uses_the_number_before_its_sync: bool,
    takes_no_lock: bool,
    acknowledges_before_the_sync: bool,
    removes_without_hold: bool,
    holds_by_what_is_not_synced: bool,
}

/// The last completed step of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum CryoModelStep {
    Nothing,
    Lock,
    Read,
    Record,
    Number,
    Begin,
    Write,
    Rename,
    Sync,
    Look,
    Acknowledge,
    Prune,
    /// The store was refused, or its companion has ended.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Doing {
    step: CryoModelStep,
    number: u8,
    /// Whether its companion is dead: the kernel may continue, and nothing is acknowledged.
    is_orphan: bool,
}

/// The content of the disk for one number. A value belongs to the store that wrote it; 0 is not written yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct CryoModelGeneration {
    part: Option<u8>,
    whole: Option<u8>,
    is_synced: bool,
    /// Removed on request.
    is_removed: bool,
    /// The value that a client received for this number.
    acknowledged: Option<u8>,
    times_given: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CryoModelState {
    /// The content of `last`: written, and synced.
    last: (u8, u8),
    lock: Option<usize>,
    generations: [CryoModelGeneration; NUMBERS],
    stores: [Doing; STORES],
    deaths: u8,
    has_removed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum CryoModelAction {
    Do(usize, CryoModelStep),
    Remove,
    Sweep,
    KernelDies(usize),
    /// One of the companions that share the folder.
    CompanionDies(usize),
    ContainerDies,
    PowerFails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CryoModelViolation {
    NumberGivenTwice,
    AcknowledgedIsGone,
    HoldsOtherValues,
}

const IDLE_MODEL_STORE: Doing = Doing {
    step: CryoModelStep::Nothing,
    number: 0,
    is_orphan: false,
};

/// An empty folder.
const EMPTY: CryoModelState = CryoModelState {
    last: (0, 0),
    lock: None,
    generations: [CryoModelGeneration {
        part: None,
        whole: None,
        is_synced: true,
        is_removed: false,
        acknowledged: None,
        times_given: 0,
    }; NUMBERS],
    stores: [IDLE_MODEL_STORE; STORES],
    deaths: 0,
    has_removed: false,
};

/// The state that a version without `last` has left, with an acknowledged generation 1.
fn of_an_earlier_version() -> CryoModelState {
    let mut state = EMPTY;
    state.generations[1] = CryoModelGeneration {
        whole: Some(9),
        acknowledged: Some(9),
        times_given: 1,
        ..state.generations[1]
    };
    state
}

fn value_of(store: usize) -> u8 {
    store as u8 + 1
}

impl CryoModelState {
    /// `generation_number::newest_number`: the maximum of `last`, folders and unfinished folders.
    fn newest(&self) -> u8 {
        let there = |one: &CryoModelGeneration| one.part.is_some() || one.whole.is_some();
        self.last.0.max(self.highest(there))
    }

    fn highest(&self, is_meant: impl Fn(&CryoModelGeneration) -> bool) -> u8 {
        let found = self.generations.iter().rposition(is_meant);
        found.unwrap_or_default() as u8
    }

    fn discard(&mut self, number: u8, order: CryoModelOrder) {
        if !order.removes_without_hold {
            let last = self.last.0.max(number);
            let is_synced = self.last.0 < number || !order.holds_by_what_is_not_synced;
            self.last = (last, if is_synced { last } else { self.last.1 });
        }
        let generation = &mut self.generations[usize::from(number)];
        (generation.whole, generation.is_removed) = (None, true);
    }

    fn end(&mut self, store: usize) {
        self.stores[store].step = CryoModelStep::Ended;
        if self.lock == Some(store) {
            self.lock = None;
        }
    }

    /// All states after a loss of unsynced changes.
    fn cut(&self) -> Vec<Self> {
        let mut all = vec![*self];
        if self.last.0 != self.last.1 {
            all.push(Self {
                last: (self.last.1, self.last.1),
                ..*self
            });
        }
        for number in 0..NUMBERS {
            let generation = &self.generations[number];
            if generation.whole.is_some() && !generation.is_synced {
                for mut state in all.clone() {
                    // The files are synced, and the folder's name is not.
                    let generation = &mut state.generations[number];
                    generation.part = generation.whole.take();
                    all.push(state);
                }
            }
        }
        for state in &mut all {
            state.last.1 = state.last.0;
            let generations = &mut state.generations;
            generations.iter_mut().for_each(|one| one.is_synced = true);
        }
        all
    }
}

impl CryoModelOrder {
    fn next_step(self, state: &CryoModelState, doing: Doing) -> Option<CryoModelStep> {
        let is_locked = state.lock.is_some() && !self.takes_no_lock;
        Some(match doing.step {
            CryoModelStep::Nothing if is_locked => return None,
            CryoModelStep::Nothing => CryoModelStep::Lock,
            CryoModelStep::Lock => CryoModelStep::Read,
            CryoModelStep::Read if self.number_is_the_highest_folder => CryoModelStep::Number,
            CryoModelStep::Read => CryoModelStep::Record,
            CryoModelStep::Record => CryoModelStep::Number,
            CryoModelStep::Number => CryoModelStep::Begin,
            CryoModelStep::Begin => CryoModelStep::Write,
            CryoModelStep::Write => CryoModelStep::Rename,
            CryoModelStep::Rename if self.acknowledges_before_the_sync && !doing.is_orphan => {
                CryoModelStep::Look
            }
            CryoModelStep::Rename => CryoModelStep::Sync,
            CryoModelStep::Sync if doing.is_orphan => return None,
            CryoModelStep::Sync => CryoModelStep::Look,
            CryoModelStep::Look => CryoModelStep::Acknowledge,
            CryoModelStep::Acknowledge => CryoModelStep::Prune,
            CryoModelStep::Prune | CryoModelStep::Ended => return None,
        })
    }

    fn act(self, state: &mut CryoModelState, store: usize, step: CryoModelStep) {
        let (number, value) = (state.stores[store].number, value_of(store));
        state.stores[store].step = step;
        let newest = match self.number_is_the_highest_folder {
            true => state.highest(|one| one.whole.is_some()),
            false => state.newest(),
        };
        let generation = &mut state.generations[usize::from(number)];
        match step {
            CryoModelStep::Nothing | CryoModelStep::Ended => {}
            CryoModelStep::Lock => state.lock = Some(store),
            CryoModelStep::Read => state.stores[store].number = newest + 1,
            CryoModelStep::Record => state.last.0 = number,
            CryoModelStep::Number => {
                generation.times_given += 1;
                let is_synced =
                    !self.uses_the_number_before_its_sync && !self.number_is_the_highest_folder;
                if is_synced {
                    state.last.1 = state.last.0;
                }
                if state.lock == Some(store) {
                    state.lock = None;
                }
            }
            CryoModelStep::Begin => generation.part = Some(0),
            CryoModelStep::Write if generation.part.is_some() => generation.part = Some(value),
            CryoModelStep::Rename if generation.part.is_some() && generation.whole.is_none() => {
                (generation.whole, generation.part) = (generation.part, None);
                generation.is_synced = false;
            }
            CryoModelStep::Look if generation.whole.is_some() => {}
            // The generation's folder was swept, or has its name already.
            CryoModelStep::Write | CryoModelStep::Rename | CryoModelStep::Look => state.end(store),
            CryoModelStep::Sync => generation.is_synced = true,
            CryoModelStep::Acknowledge => generation.acknowledged = Some(value),
            CryoModelStep::Prune => {
                let whole = |number: &usize| state.generations[*number].whole.is_some();
                let numbers: Vec<usize> = (0..NUMBERS).rev().filter(whole).collect();
                for number in numbers.into_iter().skip(CRYO_MODEL_KEPT) {
                    state.discard(number as u8, self);
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
        for (store, doing) in state.stores.into_iter().enumerate() {
            // Stores that have not started are equal.
            let is_next = store == 0 || state.stores[store - 1].step != CryoModelStep::Nothing;
            if let Some(step) = self.next_step(state, doing).filter(|_| is_next) {
                let mut next = *state;
                self.act(&mut next, store, step);
                steps.push((CryoModelAction::Do(store, step), next));
            }
        }
        let newest = state.highest(|one| one.whole.is_some());
        if newest > 0 && !state.has_removed && state.lock.is_none() {
            let mut next = *state;
            next.has_removed = true;
            next.discard(newest, *self);
            steps.push((CryoModelAction::Remove, next));
        }
        if state.deaths > 0 && state.generations.iter().any(|one| one.part.is_some()) {
            let mut next = *state;
            next.generations.iter_mut().for_each(|one| one.part = None);
            steps.push((CryoModelAction::Sweep, next));
        }
        steps
    }

    fn deaths(&self, state: &CryoModelState) -> Vec<(CryoModelAction, CryoModelState)> {
        let mut deaths = Vec::new();
        if state.deaths == CRYO_MODEL_DEATHS {
            return deaths;
        }
        let begun = CryoModelState {
            deaths: state.deaths + 1,
            ..*state
        };
        let mut all = begun;
        for (store, doing) in state.stores.into_iter().enumerate() {
            let is_kernels = (CryoModelStep::Number..CryoModelStep::Sync).contains(&doing.step);
            let is_over = matches!(
                doing.step,
                CryoModelStep::Nothing | CryoModelStep::Prune | CryoModelStep::Ended
            );
            if is_over {
                continue;
            }
            all.end(store);
            let mut killed = begun;
            killed.end(store);
            if is_kernels {
                deaths.push((CryoModelAction::KernelDies(store), killed));
            }
            if is_kernels && !doing.is_orphan {
                killed = begun;
                killed.stores[store].is_orphan = true;
            }
            deaths.push((CryoModelAction::CompanionDies(store), killed));
        }
        deaths.push((CryoModelAction::ContainerDies, all));
        deaths.extend(
            all.cut()
                .into_iter()
                .map(|state| (CryoModelAction::PowerFails, state)),
        );
        deaths
    }

    fn violations(&self, state: &CryoModelState, _: bool) -> Vec<CryoModelViolation> {
        let mut found = Vec::new();
        for one in &state.generations {
            if one.times_given > 1 {
                found.push(CryoModelViolation::NumberGivenTwice);
            }
            if one.acknowledged.is_some() && one.whole != one.acknowledged {
                match one.whole {
                    Some(_) => found.push(CryoModelViolation::HoldsOtherValues),
                    None if one.is_removed => {}
                    None => found.push(CryoModelViolation::AcknowledgedIsGone),
                }
            }
        }
        found
    }
}

#[test]
fn generations_keep_their_promises_through_every_death() {
    let search = assert_holds(&CryoModelOrder::default(), EMPTY);
    assert!(search.len() > 1000, "{} states", search.len());
    assert_holds(&CryoModelOrder::default(), of_an_earlier_version());
}

#[test]
fn every_other_order_of_a_store_breaks_a_promise() {
    let today = CryoModelOrder::default();
    let highest = CryoModelOrder {
        number_is_the_highest_folder: true,
        ..today
    };
    for (name, order, first, violation) in [
        (
            "the number is the highest folder plus one",
            highest,
            EMPTY,
            CryoModelViolation::NumberGivenTwice,
        ),
        (
            "the same, with an acknowledged generation",
            highest,
            EMPTY,
            CryoModelViolation::HoldsOtherValues,
        ),
        (
            "use the number before its sync",
            CryoModelOrder {
                uses_the_number_before_its_sync: true,
                ..today
            },
            EMPTY,
            CryoModelViolation::NumberGivenTwice,
        ),
        (
            "take no lock",
            CryoModelOrder {
                takes_no_lock: true,
                ..today
            },
            EMPTY,
            CryoModelViolation::NumberGivenTwice,
        ),
        (
            "acknowledge before the sync",
            CryoModelOrder {
                acknowledges_before_the_sync: true,
                ..today
            },
            EMPTY,
            CryoModelViolation::AcknowledgedIsGone,
        ),
        (
            "remove without holding the number",
            CryoModelOrder {
                removes_without_hold: true,
                ..today
            },
            of_an_earlier_version(),
            CryoModelViolation::NumberGivenTwice,
        ),
        (
            "hold the number by a record that is not synced",
            CryoModelOrder {
                holds_by_what_is_not_synced: true,
                ..today
            },
            of_an_earlier_version(),
            CryoModelViolation::NumberGivenTwice,
        ),
    ] {
        assert_finds(name, &order, first, violation);
    }
}
