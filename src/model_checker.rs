//! Exhaustive search through the states of a model, for tests.
//!
//! A [`Model`] defines the possible steps and process deaths in each state, and the violations. The search is
//! breadth-first, so the trace to a violation is a shortest one. The model of each protocol is beside its code: runs in
//! `companion/runs/store/model.rs`, stores in `companion/cryo/model.rs`, container replacements in `keeper/model.rs`.

use std::collections::HashSet;
use std::fmt::{self, Debug, Display};
use std::hash::Hash;

pub(crate) trait Model {
    type State: Clone + Eq + Hash + Debug;
    type Action: Copy + Eq + Debug;
    type Violation: Copy + Eq + Debug;

    /// The possible next steps of the processes.
    fn steps(&self, state: &Self::State) -> Vec<(Self::Action, Self::State)>;

    /// The possible deaths of processes.
    fn crashes(&self, state: &Self::State) -> Vec<(Self::Action, Self::State)>;

    /// The violated invariants. `is_at_rest` says that no step is possible.
    fn violations(&self, state: &Self::State, is_at_rest: bool) -> Vec<Self::Violation>;
}

/// All reached states, each with the action that led to it from an earlier state.
#[derive(Debug)]
pub(crate) struct StateSearch<M: Model> {
    reached: Vec<ReachedState<M>>,
}

#[derive(Debug)]
struct ReachedState<M: Model> {
    state: M::State,
    from: Option<(usize, M::Action)>,
}

/// A violation with a shortest trace to it.
#[derive(Debug)]
pub(crate) struct FoundViolation<M: Model> {
    pub(crate) violation: M::Violation,
    pub(crate) trace: Vec<M::Action>,
    pub(crate) state: M::State,
}

impl<M: Model> Display for FoundViolation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?} after {} actions:",
            self.violation,
            self.trace.len()
        )?;
        for action in &self.trace {
            writeln!(f, "  {action:?}")?;
        }
        write!(f, "  {:?}", self.state)
    }
}

impl<M: Model> StateSearch<M> {
    pub(crate) fn len(&self) -> usize {
        self.reached.len()
    }

    /// A shortest trace to each state, with that state.
    pub(crate) fn traces(&self) -> impl Iterator<Item = (Vec<M::Action>, &M::State)> {
        (0..self.len()).map(|at| (self.trace(at), &self.reached[at].state))
    }

    fn trace(&self, mut at: usize) -> Vec<M::Action> {
        let mut actions = Vec::new();
        while let Some((before, action)) = self.reached[at].from {
            actions.push(action);
            at = before;
        }
        actions.reverse();
        actions
    }
}

/// Visits every state that is reachable from `first`, until a state has a violation that `is_looked_for` selects.
///
/// # Errors
/// The violation with the shortest trace.
pub(crate) fn explore<M: Model>(
    model: &M,
    first: M::State,
    is_looked_for: impl Fn(M::Violation) -> bool,
) -> Result<StateSearch<M>, Box<FoundViolation<M>>> {
    let mut known = HashSet::from([first.clone()]);
    let mut search = StateSearch {
        reached: vec![ReachedState {
            state: first,
            from: None,
        }],
    };
    let mut at = 0;
    while at < search.reached.len() {
        let state = &search.reached[at].state;
        let mut next = model.steps(state);
        let violations = model.violations(state, next.is_empty());
        if let Some(violation) = violations.into_iter().find(|one| is_looked_for(*one)) {
            return Err(Box::new(FoundViolation {
                violation,
                trace: search.trace(at),
                state: state.clone(),
            }));
        }
        next.extend(model.crashes(state));
        for (action, state) in next {
            if known.insert(state.clone()) {
                let from = Some((at, action));
                search.reached.push(ReachedState { state, from });
            }
        }
        at += 1;
    }
    Ok(search)
}

/// Asserts that the actual protocol has no violation.
///
/// # Panics
/// With the shortest trace to a violation.
pub(crate) fn assert_holds<M: Model>(model: &M, first: M::State) -> StateSearch<M> {
    match explore(model, first, |_| true) {
        Ok(search) => search,
        Err(broken) => panic!("{broken}"),
    }
}

/// Asserts that a changed order of steps leads to that violation, and prints the shortest trace.
///
/// # Panics
/// When no trace leads to it.
#[expect(clippy::print_stderr, reason = "a test shows the trace")]
pub(crate) fn assert_finds<M: Model>(
    name: &str,
    model: &M,
    first: M::State,
    violation: M::Violation,
) {
    match explore(model, first, |found| found == violation) {
        Err(broken) => eprintln!("{name}: {broken}"),
        Ok(search) => {
            let count = search.len();
            panic!("{name}: none of {count} states has {violation:?}")
        }
    }
}
