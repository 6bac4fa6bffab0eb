//! What may follow a state of a swap, and what must never be.

use super::{
    Action, Container, Gate, IMAGES, Latest, NEW, OLD, Op, Order, Phase, RUNNING, State, Violation,
};
use crate::keeper::journal::Step;
use crate::keeper::policy::{self, Event};
use crate::model::Model;
use crate::protocol::evolve::{Stage, Task};

const DEATHS: u8 = 2;

impl Model for Order {
    type State = State;
    type Action = Action;
    type Violation = Violation;

    fn steps(&self, state: &State) -> Vec<(Action, State)> {
        let mut steps = Vec::new();
        let Some(todo) = &state.keeper else {
            let mut next = state.clone();
            next.keeper = Some(vec![Op::ReadJournal]);
            return vec![(Action::KeeperBoots, next)];
        };
        if let Some((op, rest)) = todo.split_first() {
            let mut next = state.clone();
            next.keeper = Some(rest.to_vec());
            if self.can_pass(state, *op) {
                let mut next = next.clone();
                self.act(&mut next, *op);
                steps.push((Action::Keeper(*op), next));
            }
            let is_of_a_run = [Op::Quiesce, Op::Pause, Op::Make, Op::Start, Op::Verify];
            if is_of_a_run.contains(op)
                && let Some(step) = state.journal
            {
                let end = policy::after(state.latest.status, Event::Failed, false);
                next.keeper = Some(self.end(end, step));
                steps.push((Action::Refused(*op), next));
            }
        } else if state.journal == Some(Step::Probation) {
            let next = State {
                journal: None,
                ..state.clone()
            };
            steps.push((Action::Lasts, next));
        } else if !state.has_run && state.containers[OLD] == Some(RUNNING) {
            let next = State {
                has_run: true,
                journal: Some(Step::Preparing),
                // Without a record it is `recovery::unknown`.
                latest: Latest {
                    status: policy::first(Task::Evolve),
                    image: NEW,
                    ..state.latest
                },
                keeper: Some(self.run()),
                ..state.clone()
            };
            steps.push((Action::BeginRun, next));
        }
        let status = state.latest.status;
        let is_placing = matches!(status, Stage::Swapping | Stage::Verifying);
        for (container, found) in state.containers.iter().enumerate() {
            let is_heard = match found.filter(|one| one.phase == Phase::Running) {
                Some(found) if found.gate == Gate::Doubted => !is_placing,
                // `rest::lease`: it may go on at any time.
                Some(found) => found.gate == Gate::AtRest,
                _ => false,
            };
            if is_heard && !self.opens_by_the_keeper_alone {
                let mut next = state.clone();
                next.open(container);
                steps.push((Action::Opens(container), next));
            }
        }
        steps
    }

    fn deaths(&self, state: &State) -> Vec<(Action, State)> {
        let mut deaths = Vec::new();
        if !state.has_host && state.has_run {
            let next = State {
                containers: [None, None, Some(RUNNING)],
                keeper: None,
                has_host: true,
                ..state.clone()
            };
            deaths.push((Action::HostReplaces, next));
        }
        if state.deaths == DEATHS {
            return deaths;
        }
        let died = State {
            deaths: state.deaths + 1,
            ..state.clone()
        };
        if state.keeper.is_some() {
            let next = State {
                keeper: None,
                ..died.clone()
            };
            deaths.push((Action::KeeperDies, next));
        }
        let die = |one: &mut Container, is_started: bool| {
            let runs = matches!(one.phase, Phase::Running | Phase::Paused);
            (one.gate, one.has_work) = (Gate::Doubted, false);
            one.phase = match (runs, one.restarts) {
                (true, true) if is_started => Phase::Running,
                (true, true) => Phase::Refused,
                (true, false) => Phase::Ended,
                (false, _) => one.phase,
            };
        };
        for container in 0..IMAGES.len() {
            let mut next = died.clone();
            next.change(container, |one| die(one, true));
            if next.containers != state.containers {
                deaths.push((Action::ContainerDies(container), next));
            }
        }
        for ports_are_free in [true, false] {
            let mut next = died.clone();
            next.keeper = None;
            (0..IMAGES.len()).for_each(|one| next.change(one, |one| die(one, ports_are_free)));
            deaths.push((Action::PowerFails { ports_are_free }, next));
        }
        deaths
    }

    fn violations(&self, state: &State, is_at_rest: bool) -> Vec<Violation> {
        let mut found = Vec::new();
        let all = || state.containers.iter().flatten();
        if all().filter(|one| one.phase == Phase::Running).count() > 1 {
            found.push(Violation::TwoRun);
        }
        if state.has_lost_work {
            found.push(Violation::WorkIsLost);
        }
        if !is_at_rest {
            return found;
        }
        match state
            .present()
            .and_then(|at| Some((at, state.containers[at]?)))
        {
            Some((image, present)) if present.phase == Phase::Running => {
                if !state.names(image) {
                    found.push(Violation::HistoryNamesAnother);
                }
                if present.gate != Gate::Open {
                    found.push(Violation::AdmissionIsClosed);
                }
            }
            _ => found.push(Violation::NoneRuns),
        }
        let is_ended = state.latest.status.has_ended();
        if all().count() > 1 || state.journal.is_some() || !is_ended {
            found.push(Violation::LeftOver);
        }
        found
    }
}
