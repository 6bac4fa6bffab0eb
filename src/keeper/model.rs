//! A model of swaps: containers, the keeper's journal and its history, with a crash between any two steps.
//!
//! Each [`SwapOp`] of the keeper is one call of the engine, one write or one request; the comment beside it names the
//! function. The order of stages ([`stage_transitions`]), the end of an interrupted run ([`interrupted_run_end`]) and
//! the image that the history names ([`recorded_image`]) are the real functions. The model leaves out builds, trials,
//! ports and clocks: a quiesced container, and a container that is not verified yet, waits for the keeper, which the
//! engine restarts in time.

mod interleaving;
mod tests;

use super::journal::RunJournalStep;
use super::reconcile::recorded_image;
use super::recovery::interrupted_run_end;
use super::stage_transitions::{self, StageOutcome};
use super::test_samples::sample_record;
use crate::protocol::evolve::{EvolveStage, RunTask};

/// Containers and their images: the old one, the one that the run deploys, the one that the host deploys.
const OLD_CONTAINER: usize = 0;
const NEW_CONTAINER: usize = 1;
const HOST_CONTAINER: usize = 2;
const SWAP_IMAGES: [&str; 3] = ["old", "new", "host"];

/// Variants of the swap whose order of steps differs from the current one.
#[derive(Debug, Clone, Copy, Default)]
struct SwapModel {
    writes_the_end_before_the_swap: bool,
    adds_no_record_of_the_present: bool,
    keeps_the_restart_policy: bool,
    pauses_before_the_restart_policy: bool,
    starts_no_ended_container: bool,
    opens_before_the_journal: bool,
    starts_the_new_before_the_pause: bool,
    opens_by_the_keeper_only: bool,
    swaps_a_resumed_container: bool,
    renames_before_the_start: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum SwapPhase {
    Created,
    Running,
    Paused,
    Ended,
    /// The engine could not start the container.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum SwapAdmission {
    Open,
    /// The container has stored its state, and waits for its end.
    Quiesced,
    /// The container starts, and asks the keeper whether it is verified.
    Unverified,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SwapContainer {
    is_aside: bool,
    phase: SwapPhase,
    /// Whether the engine restarts the container.
    restarts: bool,
    admission: SwapAdmission,
    /// Whether the container may hold acknowledged work that is not stored.
    has_work: bool,
}

/// A step of the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum SwapOp {
    /// `RunExecutor::enter_stage`, `RunExecutor::save_final_record`, `KeeperRunStore::mark_ended_runs`: the record of
    /// the run has that stage.
    SaveRecord(EvolveStage),
    /// `RunExecutor::write_step`: the journal has that step.
    WriteJournal(RunJournalStep),
    /// `RunExecutor::run_quiescing`: `osctl quiesce` in the old container.
    Quiesce,
    /// `RunExecutor::pause_old_container`.
    Pause,
    /// `ContainerPlaces::set_aside`: `Docker::set_restart_policy`.
    ForbidRestart,
    /// `ContainerPlaces::set_aside`: `Engine::rename`.
    RenameAside,
    /// `Docker::create_container`.
    Create,
    /// `Docker::start`.
    Start,
    /// `RunExecutor::run_verifying`.
    Verify,
    /// `RunExecutor::finalize_run`: `ContainerPlaces::resume_requests` of the new container.
    OpenAdmission,
    /// `RunExecutor::finalize_run`: `Docker::remove` of the old container.
    RemoveOld,
    /// `RunExecutor::roll_back`: removes the new container, or finds another container in its place.
    ClearPlace,
    /// `ContainerPlaces::put_back`: `Docker::unpause`.
    Unpause,
    /// `RunExecutor::resume_old_container`: `ContainerPlaces::resume_requests` of the old container.
    Resume,
    /// `ContainerPlaces::put_back`: `Engine::rename`.
    RenameBack,
    /// `ContainerPlaces::put_back`: `Docker::set_restart_policy`.
    AllowRestart,
    /// `RunExecutor::restart_old_container`, `RunExecutor::recreate_missing_container`: the old container runs, or
    /// another one of its image.
    Restart,
    /// `RunJournal::restore_previous`, `RunJournal::close`.
    CloseJournal,
    /// `recover_from_journal`: the run of the journal is ended.
    ReadJournal,
    /// `recover_from_journal`: the steps after that.
    Reconcile,
    /// `reconcile::resolve_aside_container`.
    ResolveAside,
    /// `reconcile::start_failed_container`, `recovery::resume_watch`: the container in place is started.
    StartPresent,
    /// `reconcile::record_current_image`.
    RecordImage,
}

/// The latest record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct LatestRecord {
    status: EvolveStage,
    image: usize,
    previous: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SwapState {
    containers: [Option<SwapContainer>; 3],
    journal: Option<RunJournalStep>,
    latest: LatestRecord,
    /// The keeper's remaining steps; `None` if the keeper does not run.
    keeper: Option<Vec<SwapOp>>,
    has_run: bool,
    /// Whether a container was removed that held acknowledged work that was not stored.
    has_lost_work: bool,
    crashes: u8,
    has_host: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwapAction {
    BeginRun,
    Keeper(SwapOp),
    /// The step fails, and the run ends.
    Refused(SwapOp),
    /// `RunController::new` starts with the recovery.
    KeeperStarts,
    /// `readiness_gate::wait_until_verified`, `resume_if_abandoned`: a container asks the keeper, and accepts requests.
    AdmissionOpens(usize),
    /// `WatchVerdict::Passed`.
    WatchPasses,
    /// `down --force` and `up`.
    HostReplaces,
    KeeperCrashes,
    ContainerCrashes(usize),
    /// The engine or the machine crashes. At its next start the engine may be unable to start containers.
    PowerFails {
        ports_are_free: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwapViolation {
    TwoRun,
    NoneRuns,
    HistoryNamesAnother,
    WorkIsLost,
    AdmissionIsClosed,
    LeftOver,
}

const RUNNING_CONTAINER: SwapContainer = SwapContainer {
    is_aside: false,
    phase: SwapPhase::Running,
    restarts: true,
    admission: SwapAdmission::Open,
    has_work: true,
};

fn first() -> SwapState {
    SwapState {
        containers: [Some(RUNNING_CONTAINER), None, None],
        journal: None,
        latest: LatestRecord {
            status: EvolveStage::Succeeded,
            image: OLD_CONTAINER,
            previous: OLD_CONTAINER,
        },
        keeper: Some(Vec::new()),
        has_run: false,
        has_lost_work: false,
        crashes: 0,
        has_host: false,
    }
}

/// A container is under the other name and no journal names it; a keeper is about to start.
fn left_aside() -> SwapState {
    let waiting = SwapContainer {
        is_aside: true,
        phase: SwapPhase::Paused,
        restarts: false,
        admission: SwapAdmission::Quiesced,
        has_work: false,
    };
    SwapState {
        containers: [Some(waiting), None, None],
        keeper: None,
        ..first()
    }
}

impl SwapState {
    fn present(&self) -> Option<usize> {
        let is_present = |one: &Option<SwapContainer>| one.is_some_and(|one| !one.is_aside);
        self.containers.iter().position(is_present)
    }

    fn is_named_by_history(&self, image: usize) -> bool {
        let LatestRecord {
            status,
            image: deployed,
            previous,
        } = self.latest;
        let record = sample_record(status, SWAP_IMAGES[deployed], SWAP_IMAGES[previous]);
        recorded_image(&record) == Some(SWAP_IMAGES[image])
    }

    fn change(&mut self, container: usize, change: impl Fn(&mut SwapContainer)) {
        if let Some(found) = &mut self.containers[container] {
            change(found);
        }
    }

    fn remove(&mut self, container: usize) {
        let removed = self.containers[container].take();
        self.has_lost_work |= removed.is_some_and(|one| one.has_work);
    }

    fn start(&mut self, container: usize, gate: SwapAdmission) {
        self.change(container, |one| {
            if !matches!(one.phase, SwapPhase::Running | SwapPhase::Paused) {
                (one.phase, one.admission) = (SwapPhase::Running, gate);
                one.has_work = gate == SwapAdmission::Open;
            }
        });
    }

    fn open(&mut self, container: usize) {
        self.change(container, |one| {
            if one.phase == SwapPhase::Running {
                (one.admission, one.has_work) = (SwapAdmission::Open, true);
            }
        });
    }
}

impl SwapModel {
    /// `RunExecutor::run_stages`, if every stage passes.
    fn run(self) -> Vec<SwapOp> {
        let mut ops = Vec::new();
        let mut stage = stage_transitions::first_stage(RunTask::Evolve);
        while !stage.has_ended() {
            ops.push(SwapOp::SaveRecord(stage));
            ops.extend(self.stage(stage));
            stage = stage_transitions::next_stage(stage, StageOutcome::Passed, false);
        }
        ops.extend(self.end(stage, RunJournalStep::Swapping));
        ops
    }

    fn stage(self, stage: EvolveStage) -> Vec<SwapOp> {
        match stage {
            EvolveStage::Quiescing => vec![
                SwapOp::WriteJournal(RunJournalStep::Quiescing),
                SwapOp::Quiesce,
            ],
            EvolveStage::Swapping => {
                let mut ops = vec![SwapOp::WriteJournal(RunJournalStep::Swapping)];
                if self.writes_the_end_before_the_swap {
                    ops.push(SwapOp::SaveRecord(EvolveStage::Succeeded));
                }
                ops.extend([SwapOp::ForbidRestart, SwapOp::Pause, SwapOp::RenameAside]);
                if self.pauses_before_the_restart_policy {
                    let pause = ops.len() - 2;
                    ops.swap(pause - 1, pause);
                }
                ops.extend([SwapOp::Create, SwapOp::Start]);
                if self.starts_the_new_before_the_pause {
                    ops.retain(|op| *op != SwapOp::Pause);
                    ops.push(SwapOp::Pause);
                }
                ops.retain(|op| *op != SwapOp::ForbidRestart || !self.keeps_the_restart_policy);
                ops
            }
            EvolveStage::Verifying => vec![SwapOp::Verify],
            // These stages do not affect the containers.
            _ => Vec::new(),
        }
    }

    /// `RunExecutor::end_run`.
    fn end(self, end: EvolveStage, step: RunJournalStep) -> Vec<SwapOp> {
        let mut ops = match end {
            EvolveStage::Succeeded => vec![
                SwapOp::WriteJournal(RunJournalStep::Finalizing),
                SwapOp::OpenAdmission,
                SwapOp::RemoveOld,
            ],
            EvolveStage::RolledBack => vec![
                SwapOp::ClearPlace,
                SwapOp::AllowRestart,
                SwapOp::Unpause,
                SwapOp::RenameBack,
                SwapOp::Resume,
                SwapOp::Restart,
            ],
            _ if step == RunJournalStep::Quiescing => vec![SwapOp::Resume, SwapOp::Restart],
            _ => vec![SwapOp::Restart],
        };
        if self.opens_before_the_journal && end == EvolveStage::Succeeded {
            ops.swap(0, 1);
        }
        ops.push(SwapOp::SaveRecord(end));
        ops.push(match end {
            EvolveStage::Succeeded => SwapOp::WriteJournal(RunJournalStep::Watching),
            _ => SwapOp::CloseJournal,
        });
        ops.retain(|op| *op != SwapOp::Restart || !self.starts_no_ended_container);
        ops
    }

    /// Performs a step, and puts the steps that follow from it before the remaining ones.
    fn perform_step(self, state: &mut SwapState, op: SwapOp) {
        let mut then = Vec::new();
        match op {
            SwapOp::SaveRecord(stage) => state.latest.status = stage,
            SwapOp::WriteJournal(step) => state.journal = Some(step),
            SwapOp::CloseJournal => state.journal = None,
            SwapOp::Quiesce => state.change(OLD_CONTAINER, |one| {
                if one.phase == SwapPhase::Running {
                    (one.admission, one.has_work) = (SwapAdmission::Quiesced, false);
                }
            }),
            SwapOp::Pause => state.change(OLD_CONTAINER, |one| {
                if one.phase == SwapPhase::Running {
                    one.phase = SwapPhase::Paused;
                }
            }),
            SwapOp::ForbidRestart => state.change(OLD_CONTAINER, |one| one.restarts = false),
            SwapOp::RenameAside => state.change(OLD_CONTAINER, |one| one.is_aside = true),
            SwapOp::Create => {
                state.containers[NEW_CONTAINER] = Some(SwapContainer {
                    phase: SwapPhase::Created,
                    admission: SwapAdmission::Unverified,
                    has_work: false,
                    ..RUNNING_CONTAINER
                });
            }
            SwapOp::Start => state.start(NEW_CONTAINER, SwapAdmission::Unverified),
            SwapOp::Verify => {}
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
            SwapOp::RenameBack => state.change(OLD_CONTAINER, |one| one.is_aside = false),
            SwapOp::AllowRestart => state.change(OLD_CONTAINER, |one| one.restarts = true),
            SwapOp::Restart => match (state.containers[OLD_CONTAINER], state.present()) {
                (None, None) => state.containers[OLD_CONTAINER] = Some(RUNNING_CONTAINER),
                _ => state.start(OLD_CONTAINER, SwapAdmission::Open),
            },
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
                if state.journal.is_none() {
                    then.push(SwapOp::ResolveAside);
                }
                if !self.starts_no_ended_container {
                    then.push(SwapOp::StartPresent);
                }
                if !self.adds_no_record_of_the_present {
                    then.push(SwapOp::RecordImage);
                }
            }
            SwapOp::ResolveAside => then = self.resolve_aside(state),
            SwapOp::StartPresent => {
                if let Some(present) = state.present() {
                    let is_watched = state.journal.is_some();
                    let phase = state.containers[present].map(|one| one.phase);
                    // A container that a person stopped stays stopped.
                    if phase == Some(SwapPhase::Refused) || is_watched {
                        state.start(present, SwapAdmission::Unverified);
                    }
                }
            }
            SwapOp::RecordImage => {
                if let Some(present) = state.present()
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
            SwapOp::Restart,
            SwapOp::RenameBack,
        ];
        if self.renames_before_the_start {
            ops.rotate_right(1);
        }
        ops.push(SwapOp::Resume);
        ops
    }

    fn can_pass(self, state: &SwapState, op: SwapOp) -> bool {
        let phase = |container: usize| state.containers[container].map(|one| one.phase);
        match op {
            SwapOp::Verify => phase(NEW_CONTAINER) == Some(SwapPhase::Running),
            SwapOp::Pause if phase(OLD_CONTAINER) == Some(SwapPhase::Running) => {
                let has_resumed = state.containers[OLD_CONTAINER]
                    .is_some_and(|one| one.admission != SwapAdmission::Quiesced);
                !has_resumed || self.swaps_a_resumed_container
            }
            _ => true,
        }
    }
}
