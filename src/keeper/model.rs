//! A model of swaps: containers, the keeper's journal and its history, with a crash between any two steps.
//!
//! Each [`SwapOp`] of the keeper is one call of the engine, one write or one request; the comment beside it names the
//! function. The order of stages ([`stage_transitions`]), the end of an interrupted run
//! ([`super::recovery::interrupted_run_end`]) and the image that the history names ([`recorded_image`]) are the real
//! functions. The model leaves out builds, trials, ports and clocks: a quiesced container, and a container that is not
//! verified yet, waits for the keeper, which the engine restarts in time.

mod interleaving;
mod steps;
mod tests;

use super::journal::RunJournalStep;
use super::reconcile::recorded_image;
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
    opens_by_the_container_only: bool,
    swaps_a_resumed_container: bool,
    renames_before_the_start: bool,
    up_finds_containers_by_name: bool,
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
    /// Whether a person or a former version gave it a name that no keeper uses.
    is_renamed: bool,
    phase: SwapPhase,
    /// Whether the engine restarts the container.
    restarts: bool,
    admission: SwapAdmission,
    /// Whether the container may hold acknowledged work that is not stored.
    has_work: bool,
    /// Whether the engine has restarted the container after a crash.
    has_crashed: bool,
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
    /// `RunExecutor::pause_old_container`: `Docker::pause`.
    Pause,
    /// `RunExecutor::pause_old_container`: the paused container has not accepted requests since it stored its state.
    CheckPaused,
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
    /// `RunExecutor::undo_preparation`: the same, if the image was tested.
    ResumeTested,
    /// `ContainerPlaces::put_back`: `Engine::rename`.
    RenameBack,
    /// `ContainerPlaces::put_back`: `Docker::set_restart_policy`.
    AllowRestart,
    /// `RunExecutor::restart_old_container`, `RunExecutor::recreate_missing_container`: the old container runs, or
    /// another one of its image.
    Restart,
    /// `ContainerPlaces::put_back`: `Engine::start`.
    StartAside,
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
    /// Whether the run has begun to test the image.
    has_tested: bool,
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
    /// `up`: the container with the labels of the instance gets its place, whatever its name.
    HostRepairs(usize),
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
    /// The run has ended without a crash, and its container still refuses requests.
    ClosedAfterTheEnd,
    LeftOver,
}

const RUNNING_CONTAINER: SwapContainer = SwapContainer {
    is_aside: false,
    is_renamed: false,
    phase: SwapPhase::Running,
    restarts: true,
    admission: SwapAdmission::Open,
    has_work: true,
    has_crashed: false,
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
        has_tested: false,
        has_lost_work: false,
        crashes: 0,
        has_host: false,
    }
}

/// A container is under the other name and no journal names it; a keeper is about to start.
fn left_aside() -> SwapState {
    let waiting = SwapContainer {
        is_aside: true,
        is_renamed: false,
        phase: SwapPhase::Paused,
        restarts: false,
        admission: SwapAdmission::Quiesced,
        has_work: false,
        has_crashed: false,
    };
    SwapState {
        containers: [Some(waiting), None, None],
        keeper: None,
        ..first()
    }
}

/// The container has a name that no keeper uses.
fn renamed() -> SwapState {
    let container = SwapContainer {
        is_renamed: true,
        ..RUNNING_CONTAINER
    };
    SwapState {
        containers: [Some(container), None, None],
        ..first()
    }
}

impl SwapState {
    fn present(&self) -> Option<usize> {
        let is_present =
            |one: &Option<SwapContainer>| one.is_some_and(|one| !one.is_aside && !one.is_renamed);
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

    /// Starts a container that has ended. Returns whether it had.
    fn start(&mut self, container: usize) -> bool {
        let Some(found) = &mut self.containers[container] else {
            return false;
        };
        let has_ended = !matches!(found.phase, SwapPhase::Running | SwapPhase::Paused);
        if has_ended {
            (found.phase, found.admission) = (SwapPhase::Running, SwapAdmission::Unverified);
            found.has_work = false;
        }
        has_ended
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
                let pause = [SwapOp::Pause, SwapOp::CheckPaused];
                ops.push(SwapOp::ForbidRestart);
                ops.extend(pause);
                if self.pauses_before_the_restart_policy {
                    let policy = ops.len() - 3;
                    ops[policy..].rotate_left(1);
                }
                ops.extend([SwapOp::RenameAside, SwapOp::Create, SwapOp::Start]);
                if self.starts_the_new_before_the_pause {
                    ops.retain(|op| !pause.contains(op));
                    ops.extend(pause);
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
            _ => vec![SwapOp::ResumeTested, SwapOp::Restart],
        };
        if self.opens_before_the_journal && end == EvolveStage::Succeeded {
            ops.swap(0, 1);
        }
        ops.push(SwapOp::SaveRecord(end));
        ops.push(match end {
            EvolveStage::Succeeded => SwapOp::WriteJournal(RunJournalStep::Watching),
            _ => SwapOp::CloseJournal,
        });
        ops.retain(|op| match op {
            SwapOp::Restart => !self.starts_no_ended_container,
            SwapOp::OpenAdmission | SwapOp::Resume | SwapOp::ResumeTested => {
                !self.opens_by_the_container_only
            }
            _ => true,
        });
        ops
    }
}
