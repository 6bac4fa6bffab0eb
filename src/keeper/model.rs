//! A model of swaps: containers, the keeper's journal and its history, with a crash between any two steps.
//!
//! Each [`Op`] of the keeper is one call of the engine, one write or one request; the comment beside it names the
//! function. The order of stages ([`stage_transitions`]), the end of an interrupted run ([`end_of`]) and the image
//! that the history names ([`recorded_image`]) are the real functions. The model leaves out builds, trials, ports and
//! clocks: a quiesced container, and a container that is not verified yet, waits for the keeper, which the engine
//! restarts in time.

mod interleaving;
mod tests;

use super::journal::RunJournalStep;
use super::reconcile::recorded_image;
use super::recovery::end_of;
use super::samples::sample_record;
use super::stage_transitions::{self, StageOutcome};
use crate::protocol::evolve::{EvolveStage, Task};

/// Containers and their images: the old one, the one that the run deploys, the one that the host deploys.
const OLD: usize = 0;
const NEW_CONTAINER: usize = 1;
const HOST: usize = 2;
const SWAP_IMAGES: [&str; 3] = ["old", "new", "host"];

/// Variants of the swap whose order of steps differs from the current one.
#[derive(Debug, Clone, Copy, Default)]
struct SwapModel {
    writes_the_end_before_the_swap: bool,
    adds_no_record_of_what_is_there: bool,
    keeps_the_restart_policy: bool,
    pauses_before_the_restart_policy: bool,
    starts_nothing_that_has_ended: bool,
    lets_in_before_the_journal: bool,
    starts_the_new_before_the_pause: bool,
    opens_by_the_keeper_alone: bool,
    swaps_what_has_gone_on: bool,
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
    AtRest,
    /// The container starts, and asks the keeper whether it is verified.
    Doubted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SwapContainer {
    is_aside: bool,
    phase: SwapPhase,
    /// Whether the engine restarts the container.
    restarts: bool,
    gate: SwapAdmission,
    /// Whether the container may hold acknowledged work that is not stored.
    has_work: bool,
}

/// A step of the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    /// `RunExecutor::enter_stage`, `RunExecutor::save_final_record`, `KeeperRunStore::mark_ended_runs`: the record of
    /// the run has that stage.
    Save(EvolveStage),
    /// `RunExecutor::write_step`: the journal has that step.
    Note(RunJournalStep),
    /// `RunExecutor::run_freezing`: `osctl quiesce` in the old container.
    Quiesce,
    /// `RunExecutor::pause_old_container`.
    Pause,
    /// `RunExecutor::set_aside`: `Docker::let_restart`.
    ForbidRestart,
    /// `RunExecutor::set_aside`: `Docker::rename`.
    RenameAside,
    /// `Docker::create_container`.
    Make,
    /// `Docker::start`.
    Start,
    /// `RunExecutor::run_verifying`.
    Verify,
    /// `RunExecutor::finalize_run`: `DeployTarget::resume_requests` of the new container.
    LetIn,
    /// `RunExecutor::finalize_run`: `Docker::remove` of the old container.
    RemoveOld,
    /// `RunExecutor::roll_back`: removes the new container, or finds another container in its place.
    ClearPlace,
    /// `RunExecutor::restore_old_container`, `reconcile::settle_aside_container`: `Docker::unpause`.
    Unpause,
    /// `RunExecutor::go_on`: `DeployTarget::resume_requests` of the old container.
    GoOn,
    /// `RunExecutor::restore_old_container`, `reconcile::settle_aside_container`: `Docker::rename`.
    RenameBack,
    /// `RunExecutor::restore_old_container`, `reconcile::settle_aside_container`: `Docker::let_restart`.
    AllowRestart,
    /// `RunExecutor::restart_old_container`, `RunExecutor::make_anew`: the old container runs, or another one of its
    /// image.
    Revive,
    /// `RunJournal::restore_previous`, `RunJournal::close`.
    Close,
    /// `recover_from_journal`: the run of the journal is ended.
    ReadJournal,
    /// `recover_from_journal`: the steps after that.
    LookAround,
    /// `reconcile::settle_aside_container`.
    Settle,
    /// `reconcile::start_failed_container`, `recovery::on_probation`: the container in place is started.
    StartPresent,
    /// `reconcile::note_image`.
    NoteImage,
}

/// The latest record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Latest {
    status: EvolveStage,
    image: usize,
    previous: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SwapState {
    containers: [Option<SwapContainer>; 3],
    journal: Option<RunJournalStep>,
    latest: Latest,
    /// The keeper's remaining steps; `None` if the keeper does not run.
    keeper: Option<Vec<Op>>,
    has_run: bool,
    /// Whether a container was removed that held acknowledged work that was not stored.
    has_lost_work: bool,
    deaths: u8,
    has_host: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwapAction {
    BeginRun,
    Keeper(Op),
    /// The step fails, and the run ends.
    Refused(Op),
    /// `RunController::new` starts with the recovery.
    KeeperBoots,
    /// `readiness_gate::wait_until_proved`, `resume_if_abandoned`: a container asks the keeper, and accepts requests.
    Opens(usize),
    /// `WatchVerdict::Lasted`.
    Lasts,
    /// `down --force` and `up`.
    HostReplaces,
    KeeperDies,
    ContainerDies(usize),
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

const RUNNING: SwapContainer = SwapContainer {
    is_aside: false,
    phase: SwapPhase::Running,
    restarts: true,
    gate: SwapAdmission::Open,
    has_work: true,
};

fn first() -> SwapState {
    SwapState {
        containers: [Some(RUNNING), None, None],
        journal: None,
        latest: Latest {
            status: EvolveStage::Succeeded,
            image: OLD,
            previous: OLD,
        },
        keeper: Some(Vec::new()),
        has_run: false,
        has_lost_work: false,
        deaths: 0,
        has_host: false,
    }
}

/// A container is under the other name and no journal names it; a keeper is about to start.
fn left_aside() -> SwapState {
    let waiting = SwapContainer {
        is_aside: true,
        phase: SwapPhase::Paused,
        restarts: false,
        gate: SwapAdmission::AtRest,
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

    fn names(&self, image: usize) -> bool {
        let Latest {
            status,
            image: brought,
            previous,
        } = self.latest;
        let record = sample_record(status, SWAP_IMAGES[brought], SWAP_IMAGES[previous]);
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
                (one.phase, one.gate) = (SwapPhase::Running, gate);
                one.has_work = gate == SwapAdmission::Open;
            }
        });
    }

    fn open(&mut self, container: usize) {
        self.change(container, |one| {
            if one.phase == SwapPhase::Running {
                (one.gate, one.has_work) = (SwapAdmission::Open, true);
            }
        });
    }
}

impl SwapModel {
    /// `RunExecutor::run_stages`, if every stage passes.
    fn run(self) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut stage = stage_transitions::first_stage(Task::Evolve);
        while !stage.has_ended() {
            ops.push(Op::Save(stage));
            ops.extend(self.stage(stage));
            stage = stage_transitions::next_stage(stage, StageOutcome::Passed, false);
        }
        ops.extend(self.end(stage, RunJournalStep::Swapping));
        ops
    }

    fn stage(self, stage: EvolveStage) -> Vec<Op> {
        match stage {
            EvolveStage::Freezing => vec![Op::Note(RunJournalStep::Freezing), Op::Quiesce],
            EvolveStage::Swapping => {
                let mut ops = vec![Op::Note(RunJournalStep::Swapping)];
                if self.writes_the_end_before_the_swap {
                    ops.push(Op::Save(EvolveStage::Succeeded));
                }
                ops.extend([Op::ForbidRestart, Op::Pause, Op::RenameAside]);
                if self.pauses_before_the_restart_policy {
                    let pause = ops.len() - 2;
                    ops.swap(pause - 1, pause);
                }
                ops.extend([Op::Make, Op::Start]);
                if self.starts_the_new_before_the_pause {
                    ops.retain(|op| *op != Op::Pause);
                    ops.push(Op::Pause);
                }
                ops.retain(|op| *op != Op::ForbidRestart || !self.keeps_the_restart_policy);
                ops
            }
            EvolveStage::Verifying => vec![Op::Verify],
            // These stages do not affect the containers.
            _ => Vec::new(),
        }
    }

    /// `RunExecutor::end_run`.
    fn end(self, end: EvolveStage, step: RunJournalStep) -> Vec<Op> {
        let mut ops = match end {
            EvolveStage::Succeeded => vec![
                Op::Note(RunJournalStep::Concluding),
                Op::LetIn,
                Op::RemoveOld,
            ],
            EvolveStage::RolledBack => vec![
                Op::ClearPlace,
                Op::Unpause,
                Op::GoOn,
                Op::RenameBack,
                Op::AllowRestart,
                Op::Revive,
            ],
            _ if step == RunJournalStep::Freezing => vec![Op::GoOn, Op::Revive],
            _ => vec![Op::Revive],
        };
        if self.lets_in_before_the_journal && end == EvolveStage::Succeeded {
            ops.swap(0, 1);
        }
        ops.push(Op::Save(end));
        ops.push(match end {
            EvolveStage::Succeeded => Op::Note(RunJournalStep::Probation),
            _ => Op::Close,
        });
        ops.retain(|op| *op != Op::Revive || !self.starts_nothing_that_has_ended);
        ops
    }

    /// Performs a step, and puts the steps that follow from it before the remaining ones.
    fn act(self, state: &mut SwapState, op: Op) {
        let mut then = Vec::new();
        match op {
            Op::Save(stage) => state.latest.status = stage,
            Op::Note(step) => state.journal = Some(step),
            Op::Close => state.journal = None,
            Op::Quiesce => state.change(OLD, |one| {
                if one.phase == SwapPhase::Running {
                    (one.gate, one.has_work) = (SwapAdmission::AtRest, false);
                }
            }),
            Op::Pause => state.change(OLD, |one| {
                if one.phase == SwapPhase::Running {
                    one.phase = SwapPhase::Paused;
                }
            }),
            Op::ForbidRestart => state.change(OLD, |one| one.restarts = false),
            Op::RenameAside => state.change(OLD, |one| one.is_aside = true),
            Op::Make => {
                state.containers[NEW_CONTAINER] = Some(SwapContainer {
                    phase: SwapPhase::Created,
                    gate: SwapAdmission::Doubted,
                    has_work: false,
                    ..RUNNING
                });
            }
            Op::Start => state.start(NEW_CONTAINER, SwapAdmission::Doubted),
            Op::Verify => {}
            Op::LetIn => state.present().into_iter().for_each(|one| state.open(one)),
            Op::RemoveOld => state.remove(OLD),
            Op::ClearPlace => match state.present() {
                Some(HOST) => {
                    state.containers[OLD] = None;
                    state.keeper = Some(vec![
                        Op::Save(EvolveStage::Failed),
                        Op::Close,
                        Op::LookAround,
                    ]);
                }
                Some(NEW_CONTAINER) => state.remove(NEW_CONTAINER),
                _ => {}
            },
            Op::Unpause => state.change(OLD, |one| {
                if one.phase == SwapPhase::Paused {
                    one.phase = SwapPhase::Running;
                }
            }),
            Op::GoOn => state.open(OLD),
            Op::RenameBack => state.change(OLD, |one| one.is_aside = false),
            Op::AllowRestart => state.change(OLD, |one| one.restarts = true),
            Op::Revive => match (state.containers[OLD], state.present()) {
                (None, None) => state.containers[OLD] = Some(RUNNING),
                _ => state.start(OLD, SwapAdmission::Open),
            },
            Op::ReadJournal => {
                let end = state.journal.and_then(|step| Some((step, end_of(step)?)));
                if let Some((step, end)) = end {
                    let status = state.latest.status;
                    let end = if status.has_ended() { status } else { end };
                    then = self.end(end, step);
                }
                then.push(Op::LookAround);
            }
            Op::LookAround => {
                if !state.latest.status.has_ended() {
                    then.push(Op::Save(EvolveStage::Failed));
                }
                if state.journal.is_none() {
                    then.push(Op::Settle);
                }
                if !self.starts_nothing_that_has_ended {
                    then.push(Op::StartPresent);
                }
                if !self.adds_no_record_of_what_is_there {
                    then.push(Op::NoteImage);
                }
            }
            Op::Settle => then = self.settle(state),
            Op::StartPresent => {
                if let Some(present) = state.present() {
                    let is_watched = state.journal.is_some();
                    let phase = state.containers[present].map(|one| one.phase);
                    // A container that a person stopped stays stopped.
                    if phase == Some(SwapPhase::Refused) || is_watched {
                        state.start(present, SwapAdmission::Doubted);
                    }
                }
            }
            Op::NoteImage => {
                if let Some(present) = state.present()
                    && !state.names(present)
                {
                    state.latest = Latest {
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

    /// `reconcile::settle_aside_container`: the container under the other name takes its place, or is removed.
    fn settle(self, state: &mut SwapState) -> Vec<Op> {
        if !state.containers[OLD].is_some_and(|one| one.is_aside) {
            return Vec::new();
        }
        if let Some(present) = state.present() {
            let stays = state.names(present) || !state.names(OLD);
            let phase = state.containers[present].map(|one| one.phase);
            if stays && phase != Some(SwapPhase::Created) {
                state.remove(OLD);
                return Vec::new();
            }
            state.remove(present);
        }
        let mut ops = vec![Op::AllowRestart, Op::Unpause, Op::Revive, Op::RenameBack];
        if self.renames_before_the_start {
            ops.rotate_right(1);
        }
        ops.push(Op::GoOn);
        ops
    }

    fn can_pass(self, state: &SwapState, op: Op) -> bool {
        let phase = |container: usize| state.containers[container].map(|one| one.phase);
        match op {
            Op::Verify => phase(NEW_CONTAINER) == Some(SwapPhase::Running),
            Op::Pause if phase(OLD) == Some(SwapPhase::Running) => {
                let has_gone_on =
                    state.containers[OLD].is_some_and(|one| one.gate != SwapAdmission::AtRest);
                !has_gone_on || self.swaps_what_has_gone_on
            }
            _ => true,
        }
    }
}
