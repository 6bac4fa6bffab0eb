//! The possible successors of a state of a swap, and the violations that must never occur.

use super::{
    LatestRecord, NEW_CONTAINER, OLD_CONTAINER, RUNNING_CONTAINER, SWAP_IMAGES, SwapAction,
    SwapAdmission, SwapContainer, SwapModel, SwapOp, SwapPhase, SwapState, SwapViolation,
};
use crate::keeper::journal::RunJournalStep;
use crate::keeper::stage_transitions::{self, StageOutcome};
use crate::model_checker::Model;
use crate::protocol::evolve::{EvolveStage, RunTask};

const MAX_SWAP_CRASHES: u8 = 2;

impl Model for SwapModel {
    type State = SwapState;
    type Action = SwapAction;
    type Violation = SwapViolation;

    fn steps(&self, state: &SwapState) -> Vec<(SwapAction, SwapState)> {
        let is_in_service = |one: SwapContainer| {
            let has_crashed = one.has_crashed;
            one == SwapContainer {
                has_crashed,
                ..RUNNING_CONTAINER
            }
        };
        let mut steps = Vec::new();
        let Some(todo) = &state.keeper else {
            let mut next = state.clone();
            next.keeper = Some(vec![SwapOp::ReadJournal]);
            return vec![(SwapAction::KeeperStarts, next)];
        };
        if let Some((op, rest)) = todo.split_first() {
            let mut next = state.clone();
            next.keeper = Some(rest.to_vec());
            if self.can_pass(state, *op) {
                let mut next = next.clone();
                self.perform_step(&mut next, *op);
                steps.push((SwapAction::Keeper(*op), next));
            }
            let is_of_a_run = [
                SwapOp::Quiesce,
                SwapOp::Pause,
                SwapOp::CheckPaused,
                SwapOp::Create,
                SwapOp::Start,
                SwapOp::Verify,
            ];
            if is_of_a_run.contains(op)
                && let Some(step) = state.journal
            {
                let end =
                    stage_transitions::next_stage(state.latest.status, StageOutcome::Failed, false);
                next.keeper = Some(self.end(end, step));
                steps.push((SwapAction::Refused(*op), next));
            }
        } else if state.journal == Some(RunJournalStep::Watching) {
            let next = SwapState {
                journal: None,
                ..state.clone()
            };
            steps.push((SwapAction::WatchPasses, next));
        } else if !state.has_run && state.containers[OLD_CONTAINER].is_some_and(is_in_service) {
            let next = SwapState {
                has_run: true,
                journal: Some(RunJournalStep::Preparing),
                // If the record is missing, this is the record of `recovery::placeholder_record`.
                latest: LatestRecord {
                    status: stage_transitions::first_stage(RunTask::Evolve),
                    image: NEW_CONTAINER,
                    ..state.latest
                },
                keeper: Some(self.run()),
                ..state.clone()
            };
            steps.push((SwapAction::BeginRun, next));
        }
        let is_renamed = |one: &Option<SwapContainer>| one.is_some_and(|one| one.is_renamed);
        if let Some(found) = state.containers.iter().position(is_renamed)
            && !self.up_finds_containers_by_name
        {
            let mut next = state.clone();
            next.change(found, |one| (one.is_renamed, one.restarts) = (false, true));
            next.start(found);
            steps.push((SwapAction::HostRepairs(found), next));
        }
        let status = state.latest.status;
        let is_placing = matches!(status, EvolveStage::Swapping | EvolveStage::Verifying);
        for (container, found) in state.containers.iter().enumerate() {
            let answers = match found.filter(|one| one.phase == SwapPhase::Running) {
                Some(found) if found.admission == SwapAdmission::Unverified => !is_placing,
                // `quiesce::wait_quiesce_lease`: the container may resume at any time.
                Some(found) => found.admission == SwapAdmission::Quiesced,
                _ => false,
            };
            if answers && !self.opens_by_the_keeper_only {
                let mut next = state.clone();
                next.open(container);
                steps.push((SwapAction::AdmissionOpens(container), next));
            }
        }
        steps
    }

    fn crashes(&self, state: &SwapState) -> Vec<(SwapAction, SwapState)> {
        let mut faults = Vec::new();
        if !state.has_host && state.has_run {
            let next = SwapState {
                containers: [None, None, Some(RUNNING_CONTAINER)],
                keeper: None,
                has_host: true,
                ..state.clone()
            };
            faults.push((SwapAction::HostReplaces, next));
        }
        if state.crashes == MAX_SWAP_CRASHES {
            return faults;
        }
        let died = SwapState {
            crashes: state.crashes + 1,
            ..state.clone()
        };
        if state.keeper.is_some() {
            let next = SwapState {
                keeper: None,
                ..died.clone()
            };
            faults.push((SwapAction::KeeperCrashes, next));
        }
        let die = |one: &mut SwapContainer, is_started: bool| {
            let runs = matches!(one.phase, SwapPhase::Running | SwapPhase::Paused);
            (one.admission, one.has_work) = (SwapAdmission::Unverified, false);
            one.phase = match (runs, one.restarts) {
                (_, true) if is_started => SwapPhase::Running,
                (_, true) => SwapPhase::Refused,
                (true, false) => SwapPhase::Ended,
                (false, false) => one.phase,
            };
        };
        let has_process =
            |one: SwapContainer| matches!(one.phase, SwapPhase::Running | SwapPhase::Paused);
        for container in 0..SWAP_IMAGES.len() {
            let mut next = died.clone();
            next.change(container, |one| {
                if has_process(*one) {
                    die(one, true);
                    one.has_crashed |= one.phase == SwapPhase::Running;
                }
            });
            if next.containers != state.containers {
                faults.push((SwapAction::ContainerCrashes(container), next));
            }
        }
        for ports_are_free in [true, false] {
            let mut next = died.clone();
            next.keeper = None;
            // An engine that starts also starts containers that had ended, or were never started.
            (0..SWAP_IMAGES.len()).for_each(|container| {
                next.change(container, |one| die(one, ports_are_free));
            });
            faults.push((SwapAction::PowerFails { ports_are_free }, next));
        }
        faults
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
        let is_open = |one: SwapContainer| {
            one.phase != SwapPhase::Running || one.admission == SwapAdmission::Open
        };
        let present = state.present().and_then(|at| state.containers[at]);
        let is_idle = state.keeper.as_ref().is_some_and(Vec::is_empty);
        if is_idle && state.crashes == 0 && !present.is_none_or(is_open) {
            found.push(SwapViolation::ClosedAfterTheEnd);
        }
        if !is_at_rest {
            return found;
        }
        match state
            .present()
            .and_then(|at| Some((at, state.containers[at]?)))
        {
            Some((image, present)) if present.phase == SwapPhase::Running => {
                if !state.is_named_by_history(image) {
                    found.push(SwapViolation::HistoryNamesAnother);
                }
                if present.admission != SwapAdmission::Open {
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
