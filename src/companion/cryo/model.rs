//! A model of stores under one name: numbers, folders and answers, through deaths between any two steps and with
//! two stores at once.
//!
//! A store by hand and one at the stop, or one of the next companion, run beside each other in any order: the model has
//! no turn ([`super::Cryo::turn`]), because two companions may share the folder for a moment. Each step stands for a
//! function of the code:
//!
//! | step | function |
//! |---|---|
//! | `Lock`, `Read` | `number::take`: `lock`, `newest` |
//! | `Record`, `Number` | `number::record`: `last` is replaced, then synced; the number leaves `Store::next` |
//! | `Begin` | the kernel's `Beside.__enter__`: it makes `NUMBER.part`, and removes one that is there |
//! | `Write` | the kernel's `writer`: objects, buffers and manifest, synced |
//! | `Rename`, `Sync` | the kernel's `Beside.commit`: the folder gets its name, then the name is synced |
//! | `Look` | `Store::stored`: the companion reads the manifest in its place |
//! | `Acknowledge` | `Cryo::store_now` answers |
//! | `Prune` | `Store::prune` and `Store::discard`: all but the newest go |
//! | `Remove` | `Store::remove` and `number::hold`: the newest goes |
//! | `Sweep` | `Store::sweep` of a companion that begins |
//!
//! [`replay`] drives the real folders through the traces.

mod replay;

use crate::model::{Model, assert_finds, assert_holds};

const STORES: usize = 2;
const NUMBERS: usize = 5;
const DEATHS: u8 = 2;
const KEPT: usize = 1;

/// Orders of steps that are not today's.
#[derive(Debug, Clone, Copy, Default)]
struct Order {
    number_is_the_highest_folder: bool,
    uses_the_number_before_its_sync: bool,
    takes_no_lock: bool,
    acknowledges_before_the_sync: bool,
    removes_without_hold: bool,
    holds_by_what_is_not_synced: bool,
}

/// The last step that a store has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Step {
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
    /// It was refused, or who did it is dead.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Doing {
    step: Step,
    number: u8,
    /// Whether its companion is dead: the kernel may continue, and nothing is acknowledged.
    is_orphan: bool,
}

/// What is on the disk of one number. A value is that of the store that wrote it; 0 is not written yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Generation {
    part: Option<u8>,
    whole: Option<u8>,
    is_synced: bool,
    /// Removed on purpose.
    is_removed: bool,
    /// What a client was told that it holds.
    acknowledged: Option<u8>,
    times_given: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    /// What `last` says: written, and synced.
    last: (u8, u8),
    lock: Option<usize>,
    generations: [Generation; NUMBERS],
    stores: [Doing; STORES],
    deaths: u8,
    has_removed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Action {
    Do(usize, Step),
    Remove,
    Sweep,
    KernelDies(usize),
    /// Of one of the companions that share the folder.
    CompanionDies(usize),
    ContainerDies,
    PowerFails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Violation {
    NumberGivenTwice,
    AcknowledgedIsGone,
    HoldsOtherValues,
}

const IDLE: Doing = Doing {
    step: Step::Nothing,
    number: 0,
    is_orphan: false,
};

/// An empty folder.
const EMPTY: State = State {
    last: (0, 0),
    lock: None,
    generations: [Generation {
        part: None,
        whole: None,
        is_synced: true,
        is_removed: false,
        acknowledged: None,
        times_given: 0,
    }; NUMBERS],
    stores: [IDLE; STORES],
    deaths: 0,
    has_removed: false,
};

/// One that a version before `last` has left, with an acknowledged generation 1.
fn of_an_earlier_version() -> State {
    let mut state = EMPTY;
    state.generations[1] = Generation {
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

impl State {
    /// `number::newest`: of `last`, of folders and of what is half-way.
    fn newest(&self) -> u8 {
        let there = |one: &Generation| one.part.is_some() || one.whole.is_some();
        self.last.0.max(self.highest(there))
    }

    fn highest(&self, is_meant: impl Fn(&Generation) -> bool) -> u8 {
        let found = self.generations.iter().rposition(is_meant);
        found.unwrap_or_default() as u8
    }

    fn discard(&mut self, number: u8, order: Order) {
        if !order.removes_without_hold {
            let last = self.last.0.max(number);
            let is_synced = self.last.0 < number || !order.holds_by_what_is_not_synced;
            self.last = (last, if is_synced { last } else { self.last.1 });
        }
        let generation = &mut self.generations[usize::from(number)];
        (generation.whole, generation.is_removed) = (None, true);
    }

    fn end(&mut self, store: usize) {
        self.stores[store].step = Step::Ended;
        if self.lock == Some(store) {
            self.lock = None;
        }
    }

    /// Which of the things that were not synced stay is open.
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
                    // Its files are synced, and its name is not.
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

impl Order {
    fn next_step(self, state: &State, doing: Doing) -> Option<Step> {
        let is_locked = state.lock.is_some() && !self.takes_no_lock;
        Some(match doing.step {
            Step::Nothing if is_locked => return None,
            Step::Nothing => Step::Lock,
            Step::Lock => Step::Read,
            Step::Read if self.number_is_the_highest_folder => Step::Number,
            Step::Read => Step::Record,
            Step::Record => Step::Number,
            Step::Number => Step::Begin,
            Step::Begin => Step::Write,
            Step::Write => Step::Rename,
            Step::Rename if self.acknowledges_before_the_sync && !doing.is_orphan => Step::Look,
            Step::Rename => Step::Sync,
            Step::Sync if doing.is_orphan => return None,
            Step::Sync => Step::Look,
            Step::Look => Step::Acknowledge,
            Step::Acknowledge => Step::Prune,
            Step::Prune | Step::Ended => return None,
        })
    }

    fn act(self, state: &mut State, store: usize, step: Step) {
        let (number, value) = (state.stores[store].number, value_of(store));
        state.stores[store].step = step;
        let newest = match self.number_is_the_highest_folder {
            true => state.highest(|one| one.whole.is_some()),
            false => state.newest(),
        };
        let generation = &mut state.generations[usize::from(number)];
        match step {
            Step::Nothing | Step::Ended => {}
            Step::Lock => state.lock = Some(store),
            Step::Read => state.stores[store].number = newest + 1,
            Step::Record => state.last.0 = number,
            Step::Number => {
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
            Step::Begin => generation.part = Some(0),
            Step::Write if generation.part.is_some() => generation.part = Some(value),
            Step::Rename if generation.part.is_some() && generation.whole.is_none() => {
                (generation.whole, generation.part) = (generation.part, None);
                generation.is_synced = false;
            }
            Step::Look if generation.whole.is_some() => {}
            // What it is about was swept away or has a name already.
            Step::Write | Step::Rename | Step::Look => state.end(store),
            Step::Sync => generation.is_synced = true,
            Step::Acknowledge => generation.acknowledged = Some(value),
            Step::Prune => {
                let whole = |number: &usize| state.generations[*number].whole.is_some();
                let numbers: Vec<usize> = (0..NUMBERS).rev().filter(whole).collect();
                for number in numbers.into_iter().skip(KEPT) {
                    state.discard(number as u8, self);
                }
            }
        }
    }
}

impl Model for Order {
    type State = State;
    type Action = Action;
    type Violation = Violation;

    fn steps(&self, state: &State) -> Vec<(Action, State)> {
        let mut steps = Vec::new();
        for (store, doing) in state.stores.into_iter().enumerate() {
            // Stores that have not begun are alike.
            let is_next = store == 0 || state.stores[store - 1].step != Step::Nothing;
            if let Some(step) = self.next_step(state, doing).filter(|_| is_next) {
                let mut next = *state;
                self.act(&mut next, store, step);
                steps.push((Action::Do(store, step), next));
            }
        }
        let newest = state.highest(|one| one.whole.is_some());
        if newest > 0 && !state.has_removed && state.lock.is_none() {
            let mut next = *state;
            next.has_removed = true;
            next.discard(newest, *self);
            steps.push((Action::Remove, next));
        }
        if state.deaths > 0 && state.generations.iter().any(|one| one.part.is_some()) {
            let mut next = *state;
            next.generations.iter_mut().for_each(|one| one.part = None);
            steps.push((Action::Sweep, next));
        }
        steps
    }

    fn deaths(&self, state: &State) -> Vec<(Action, State)> {
        let mut deaths = Vec::new();
        if state.deaths == DEATHS {
            return deaths;
        }
        let begun = State {
            deaths: state.deaths + 1,
            ..*state
        };
        let mut all = begun;
        for (store, doing) in state.stores.into_iter().enumerate() {
            let is_kernels = (Step::Number..Step::Sync).contains(&doing.step);
            let is_over = matches!(doing.step, Step::Nothing | Step::Prune | Step::Ended);
            if is_over {
                continue;
            }
            all.end(store);
            let mut killed = begun;
            killed.end(store);
            if is_kernels {
                deaths.push((Action::KernelDies(store), killed));
            }
            if is_kernels && !doing.is_orphan {
                killed = begun;
                killed.stores[store].is_orphan = true;
            }
            deaths.push((Action::CompanionDies(store), killed));
        }
        deaths.push((Action::ContainerDies, all));
        deaths.extend(
            all.cut()
                .into_iter()
                .map(|state| (Action::PowerFails, state)),
        );
        deaths
    }

    fn violations(&self, state: &State, _: bool) -> Vec<Violation> {
        let mut found = Vec::new();
        for one in &state.generations {
            if one.times_given > 1 {
                found.push(Violation::NumberGivenTwice);
            }
            if one.acknowledged.is_some() && one.whole != one.acknowledged {
                match one.whole {
                    Some(_) => found.push(Violation::HoldsOtherValues),
                    None if one.is_removed => {}
                    None => found.push(Violation::AcknowledgedIsGone),
                }
            }
        }
        found
    }
}

#[test]
fn generations_keep_their_promises_through_every_death() {
    let search = assert_holds(&Order::default(), EMPTY);
    assert!(search.len() > 1000, "{} states", search.len());
    assert_holds(&Order::default(), of_an_earlier_version());
}

#[test]
fn every_other_order_of_a_store_breaks_a_promise() {
    let today = Order::default();
    let highest = Order {
        number_is_the_highest_folder: true,
        ..today
    };
    for (name, order, first, violation) in [
        (
            "the number is the highest folder's and one",
            highest,
            EMPTY,
            Violation::NumberGivenTwice,
        ),
        (
            "the same, and what was acknowledged",
            highest,
            EMPTY,
            Violation::HoldsOtherValues,
        ),
        (
            "use the number before its sync",
            Order {
                uses_the_number_before_its_sync: true,
                ..today
            },
            EMPTY,
            Violation::NumberGivenTwice,
        ),
        (
            "take no lock",
            Order {
                takes_no_lock: true,
                ..today
            },
            EMPTY,
            Violation::NumberGivenTwice,
        ),
        (
            "acknowledge before the sync",
            Order {
                acknowledges_before_the_sync: true,
                ..today
            },
            EMPTY,
            Violation::AcknowledgedIsGone,
        ),
        (
            "remove without holding the number",
            Order {
                removes_without_hold: true,
                ..today
            },
            of_an_earlier_version(),
            Violation::NumberGivenTwice,
        ),
        (
            "hold the number by a record that is not synced",
            Order {
                holds_by_what_is_not_synced: true,
                ..today
            },
            of_an_earlier_version(),
            Violation::NumberGivenTwice,
        ),
    ] {
        assert_finds(name, &order, first, violation);
    }
}
