//! The possible successors of a state of a swap, and the violations that must never occur.

use super::{
    Latest, NEW_CONTAINER, OLD, Op, RUNNING, SWAP_IMAGES, SwapAction, SwapAdmission, SwapContainer,
    SwapModel, SwapPhase, SwapState, SwapViolation,
};
use crate::keeper::journal::RunJournalStep;
use crate::keeper::stage_transitions::{self, StageOutcome};
use crate::model::Model;
use crate::protocol::evolve::{EvolveStage, Task};

const MAX_SWAP_CRASHES: u8 = 2;

impl Model for SwapModel {
    type State = SwapState;
    type Action = SwapAction;
    type Violation = SwapViolation;

    fn steps(&self, state: &SwapState) -> Vec<(SwapAction, SwapState)> {
        let mut steps = Vec::new();
        let Some(todo) = &state.keeper else {
            let mut next = state.clone();
            next.keeper = Some(vec![Op::ReadJournal]);
            return vec![(SwapAction::KeeperBoots, next)];
        };
        if let Some((op, rest)) = todo.split_first() {
            let mut next = state.clone();
            next.keeper = Some(rest.to_vec());
            if self.can_pass(state, *op) {
                let mut next = next.clone();
                self.act(&mut next, *op);
                steps.push((SwapAction::Keeper(*op), next));
            }
            let is_of_a_run = [Op::Quiesce, Op::Pause, Op::Make, Op::Start, Op::Verify];
            if is_of_a_run.contains(op)
                && let Some(step) = state.journal
            {
                let end =
                    stage_transitions::next_stage(state.latest.status, StageOutcome::Failed, false);
                next.keeper = Some(self.end(end, step));
                steps.push((SwapAction::Refused(*op), next));
            }
        } else if state.journal == Some(RunJournalStep::Probation) {
            let next = SwapState {
                journal: None,
                ..state.clone()
            };
            steps.push((SwapAction::Lasts, next));
        } else if !state.has_run && state.containers[OLD] == Some(RUNNING) {
            let next = SwapState {
                has_run: true,
                journal: Some(RunJournalStep::Preparing),
                // If the record is missing, this is the record of `recovery::placeholder_record`.
                latest: Latest {
                    status: stage_transitions::first_stage(Task::Evolve),
                    image: NEW_CONTAINER,
                    ..state.latest
                },
                keeper: Some(self.run()),
                ..state.clone()
            };
            steps.push((SwapAction::BeginRun, next));
        }
        let status = state.latest.status;
        let is_placing = matches!(status, EvolveStage::Swapping | EvolveStage::Verifying);
        for (container, found) in state.containers.iter().enumerate() {
            let is_heard = match found.filter(|one| one.phase == SwapPhase::Running) {
                Some(found) if found.gate == SwapAdmission::Doubted => !is_placing,
                // `quiesce::wait_lease`: the container may resume at any time.
                Some(found) => found.gate == SwapAdmission::AtRest,
                _ => false,
            };
            if is_heard && !self.opens_by_the_keeper_alone {
                let mut next = state.clone();
                next.open(container);
                steps.push((SwapAction::Opens(container), next));
            }
        }
        steps
    }

    fn deaths(&self, state: &SwapState) -> Vec<(SwapAction, SwapState)> {
        let mut deaths = Vec::new();
        if !state.has_host && state.has_run {
            let next = SwapState {
                containers: [None, None, Some(RUNNING)],
                keeper: None,
                has_host: true,
                ..state.clone()
            };
            deaths.push((SwapAction::HostReplaces, next));
        }
        if state.deaths == MAX_SWAP_CRASHES {
            return deaths;
        }
        let died = SwapState {
            deaths: state.deaths + 1,
            ..state.clone()
        };
        if state.keeper.is_some() {
            let next = SwapState {
                keeper: None,
                ..died.clone()
            };
            deaths.push((SwapAction::KeeperDies, next));
        }
        let die = |one: &mut SwapContainer, is_started: bool| {
            let runs = matches!(one.phase, SwapPhase::Running | SwapPhase::Paused);
            (one.gate, one.has_work) = (SwapAdmission::Doubted, false);
            one.phase = match (runs, one.restarts) {
                (true, true) if is_started => SwapPhase::Running,
                (true, true) => SwapPhase::Refused,
                (true, false) => SwapPhase::Ended,
                (false, _) => one.phase,
            };
        };
        for container in 0..SWAP_IMAGES.len() {
            let mut next = died.clone();
            next.change(container, |one| die(one, true));
            if next.containers != state.containers {
                deaths.push((SwapAction::ContainerDies(container), next));
            }
        }
        for ports_are_free in [true, false] {
            let mut next = died.clone();
            next.keeper = None;
            (0..SWAP_IMAGES.len()).for_each(|one| next.change(one, |one| die(one, ports_are_free)));
            deaths.push((SwapAction::PowerFails { ports_are_free }, next));
        }
        deaths
    }

    fn violations(&self, state: &SwapState, is_at_rest: bool) -> Vec<SwapViolation> {
        let mut found = Vec::new();
        let all = || state.containers.iter().flatten();
        if all().filter(|one| one.phase == SwapPhase::Running).count() > 1 {
            found.push(SwapViolation::TwoRun);
        }
        if state.has_lost_work {
            found.push(SwapViolation::WorkIsLost);
        }
        if !is_at_rest {
            return found;
        }
        match state
            .present()
            .and_then(|at| Some((at, state.containers[at]?)))
        {
            Some((image, present)) if present.phase == SwapPhase::Running => {
                if !state.names(image) {
                    found.push(SwapViolation::HistoryNamesAnother);
                }
                if present.gate != SwapAdmission::Open {
                    found.push(SwapViolation::AdmissionIsClosed);
                }
            }
            _ => found.push(SwapViolation::NoneRuns),
        }
        let is_ended = state.latest.status.has_ended();
        if all().count() > 1 || state.journal.is_some() || !is_ended {
            found.push(SwapViolation::LeftOver);
        }
        found
    }
}
