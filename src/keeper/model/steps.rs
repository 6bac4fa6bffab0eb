//! The effects of the keeper's steps on the containers, the journal and the history.

use super::{
    HOST_CONTAINER, LatestRecord, NEW_CONTAINER, OLD_CONTAINER, RUNNING_CONTAINER, SwapAdmission,
    SwapContainer, SwapModel, SwapOp, SwapPhase, SwapState,
};
use crate::keeper::recovery::interrupted_run_end;
use crate::protocol::evolve::EvolveStage;

impl SwapModel {
    /// Performs a step, and puts the steps that follow from it before the remaining ones.
    pub(super) fn perform_step(self, state: &mut SwapState, op: SwapOp) {
        let mut then = Vec::new();
        match op {
            SwapOp::SaveRecord(stage) => {
                state.latest.status = stage;
                state.has_tested |= stage == EvolveStage::Testing;
            }
            SwapOp::WriteJournal(step) => state.journal = Some(step),
            SwapOp::CloseJournal => state.journal = None,
            SwapOp::Quiesce => state.change(OLD_CONTAINER, |one| {
                if one.phase == SwapPhase::Running {
                    (one.admission, one.has_work) = (SwapAdmission::Quiesced, false);
                    // The keeper compares the later restarts.
                    one.has_crashed = false;
                }
            }),
            SwapOp::Pause => state.change(OLD_CONTAINER, |one| {
                if one.phase == SwapPhase::Running {
                    one.phase = SwapPhase::Paused;
                }
            }),
            SwapOp::ForbidRestart => {
                state.change(OLD_CONTAINER, |one| one.restarts = false);
                // Only a container that ran before this step is paused.
                let runs = state.containers[OLD_CONTAINER]
                    .is_some_and(|one| one.phase == SwapPhase::Running);
                if !runs && let Some(todo) = &mut state.keeper {
                    todo.retain(|op| !matches!(op, SwapOp::Pause | SwapOp::CheckPaused));
                }
            }
            SwapOp::RenameAside => state.change(OLD_CONTAINER, |one| one.is_aside = true),
            SwapOp::Create => {
                state.containers[NEW_CONTAINER] = Some(SwapContainer {
                    phase: SwapPhase::Created,
                    admission: SwapAdmission::Unverified,
                    has_work: false,
                    ..RUNNING_CONTAINER
                });
            }
            SwapOp::Start => drop(state.start(NEW_CONTAINER)),
            SwapOp::CheckPaused | SwapOp::Verify => {}
            SwapOp::OpenAdmission => state.present().into_iter().for_each(|one| state.open(one)),
            SwapOp::RemoveOld => state.remove(OLD_CONTAINER),
            SwapOp::ClearPlace => match state.present() {
                Some(HOST_CONTAINER) => {
                    state.containers[OLD_CONTAINER] = None;
                    state.keeper = Some(vec![
                        SwapOp::SaveRecord(EvolveStage::Failed),
                        SwapOp::CloseJournal,
                        SwapOp::Reconcile,
                    ]);
                }
                Some(NEW_CONTAINER) => state.remove(NEW_CONTAINER),
                _ => {}
            },
            SwapOp::Unpause => state.change(OLD_CONTAINER, |one| {
                if one.phase == SwapPhase::Paused {
                    one.phase = SwapPhase::Running;
                }
            }),
            SwapOp::Resume => state.open(OLD_CONTAINER),
            SwapOp::ResumeTested if state.has_tested => state.open(OLD_CONTAINER),
            SwapOp::ResumeTested => {}
            SwapOp::RenameBack => state.change(OLD_CONTAINER, |one| one.is_aside = false),
            SwapOp::AllowRestart => state.change(OLD_CONTAINER, |one| one.restarts = true),
            SwapOp::Restart => match (state.containers[OLD_CONTAINER], state.present()) {
                (None, None) => state.containers[OLD_CONTAINER] = Some(RUNNING_CONTAINER),
                _ => {
                    if state.start(OLD_CONTAINER) {
                        then.push(SwapOp::Resume);
                    }
                }
            },
            SwapOp::StartAside => drop(state.start(OLD_CONTAINER)),
            SwapOp::ReadJournal => {
                let end = state
                    .journal
                    .and_then(|step| Some((step, interrupted_run_end(step)?)));
                if let Some((step, end)) = end {
                    let status = state.latest.status;
                    let end = if status.has_ended() { status } else { end };
                    then = self.end(end, step);
                }
                then.push(SwapOp::Reconcile);
            }
            SwapOp::Reconcile => {
                if !state.latest.status.has_ended() {
                    then.push(SwapOp::SaveRecord(EvolveStage::Failed));
                }
                let steps = match state.journal {
                    None => {
                        then.push(SwapOp::ResolveAside);
                        [SwapOp::StartPresent, SwapOp::RecordImage]
                    }
                    // Nothing is aside.
                    Some(_) => [SwapOp::RecordImage, SwapOp::StartPresent],
                };
                then.extend(steps);
                then.retain(|op| match op {
                    SwapOp::StartPresent => !self.starts_no_ended_container,
                    SwapOp::RecordImage => !self.adds_no_record_of_the_present,
                    _ => true,
                });
            }
            SwapOp::ResolveAside => then = self.resolve_aside(state),
            SwapOp::StartPresent => {
                if let Some(present) = state.present() {
                    let is_watched = state.journal.is_some();
                    let phase = state.containers[present].map(|one| one.phase);
                    // A container that a person stopped stays stopped.
                    if phase == Some(SwapPhase::Refused) || is_watched {
                        state.start(present);
                    }
                }
            }
            SwapOp::RecordImage => {
                // While a container is aside, the history decides later which of them stays.
                let has_aside = state.containers.iter().flatten().any(|one| one.is_aside);
                if let Some(present) = state.present()
                    && !has_aside
                    && !state.is_named_by_history(present)
                {
                    state.latest = LatestRecord {
                        status: EvolveStage::Succeeded,
                        image: present,
                        previous: state.latest.image,
                    };
                }
            }
        }
        if let Some(todo) = &mut state.keeper {
            drop(todo.splice(0..0, then));
        }
    }

    /// `ContainerPlaces::choose_over_aside`: the container under the other name takes its place, or is removed.
    fn resolve_aside(self, state: &mut SwapState) -> Vec<SwapOp> {
        if !state.containers[OLD_CONTAINER].is_some_and(|one| one.is_aside) {
            return Vec::new();
        }
        if let Some(present) = state.present() {
            let stays =
                state.is_named_by_history(present) || !state.is_named_by_history(OLD_CONTAINER);
            let phase = state.containers[present].map(|one| one.phase);
            if stays && phase != Some(SwapPhase::Created) {
                state.remove(OLD_CONTAINER);
                return Vec::new();
            }
            state.remove(present);
        }
        let mut ops = vec![
            SwapOp::AllowRestart,
            SwapOp::Unpause,
            SwapOp::StartAside,
            SwapOp::RenameBack,
        ];
        if self.renames_before_the_start {
            ops.rotate_right(1);
        }
        ops.push(SwapOp::Resume);
        ops
    }

    pub(super) fn can_pass(self, state: &SwapState, op: SwapOp) -> bool {
        let runs = |container: usize| {
            state.containers[container].is_some_and(|one| one.phase == SwapPhase::Running)
        };
        match op {
            SwapOp::Verify => {
                let has_crashed =
                    state.containers[NEW_CONTAINER].is_some_and(|one| one.has_crashed);
                runs(NEW_CONTAINER) && !has_crashed
            }
            SwapOp::Pause => runs(OLD_CONTAINER),
            SwapOp::CheckPaused => {
                let has_resumed = state.containers[OLD_CONTAINER].is_some_and(|one| {
                    let is_paused = one.phase == SwapPhase::Paused;
                    one.has_crashed || (is_paused && one.admission != SwapAdmission::Quiesced)
                });
                !has_resumed || self.swaps_a_resumed_container
            }
            _ => true,
        }
    }
}
