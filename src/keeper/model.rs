//! A model of swaps: containers, the keeper's journal and its history, through deaths between any two steps.
//!
//! Each [`Op`] of the keeper is one call of the engine, one write or one question; the comment beside it names the
//! function. Which stage follows which ([`policy`]), where an interrupted run ends ([`end_of`]) and which image the
//! history names ([`named`]) are the real functions. Left out are builds and trials, ports, and clocks: a container
//! at rest, and one that is not proved, waits for the keeper, which the engine starts again in time.

mod interleaving;
mod tests;

use super::journal::Step;
use super::policy::{self, Event};
use super::present::named;
use super::recovery::end_of;
use super::samples::record;
use crate::protocol::evolve::{Stage, Task};

/// Containers and their images: what ran before, what the run brings, what the host brings.
const OLD: usize = 0;
const NEW: usize = 1;
const HOST: usize = 2;
const IMAGES: [&str; 3] = ["old", "new", "host"];

/// Orders of steps that are not today's.
#[derive(Debug, Clone, Copy, Default)]
struct Order {
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
enum Phase {
    Created,
    Running,
    Paused,
    Ended,
    /// The engine could not start it.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Gate {
    Open,
    /// Its state is stored, and it waits for its end.
    AtRest,
    /// It begins, and asks the keeper whether it is proved.
    Doubted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Container {
    is_aside: bool,
    phase: Phase,
    /// Whether the engine starts it again.
    restarts: bool,
    gate: Gate,
    /// Whether it may hold what was acknowledged and is not stored.
    has_work: bool,
}

/// What the keeper does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    /// `Work::enter`, `Work::keep`, `Shelf::mend`: the record of the run has that stage.
    Save(Stage),
    /// `Work::note`: the journal has that step.
    Note(Step),
    /// `Work::freeze`: `osctl quiesce` in the old container.
    Quiesce,
    /// `Work::pause`.
    Pause,
    /// `Work::set_aside`: `Docker::let_restart`.
    ForbidRestart,
    /// `Work::set_aside`: `Docker::rename`.
    RenameAside,
    /// `Docker::make`.
    Make,
    /// `Docker::start_container`.
    Start,
    /// `Work::verify`.
    Verify,
    /// `Work::conclude`: `Site::resume` of the new container.
    LetIn,
    /// `Work::conclude`: `Docker::remove` of the old container.
    RemoveOld,
    /// `Work::back`: removes the new container, or sees that another one is there.
    ClearPlace,
    /// `Work::restore`, `present::settle`: `Docker::unpause`.
    Unpause,
    /// `Work::go_on`: `Site::resume` of the old container.
    GoOn,
    /// `Work::restore`, `present::settle`: `Docker::rename`.
    RenameBack,
    /// `Work::restore`, `present::settle`: `Docker::let_restart`.
    AllowRestart,
    /// `Work::revive`, `Work::make_anew`: the old container runs, or one of its image.
    Revive,
    /// `Journal::restore`, `Journal::close`.
    Close,
    /// `recover`: what the journal tells of is ended.
    ReadJournal,
    /// `recover`: what comes behind that.
    LookAround,
    /// `present::settle`.
    Settle,
    /// `present::start`, `on_probation`: the container in place is started.
    StartPresent,
    /// `present::note_image`.
    NoteImage,
}

/// The latest record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Latest {
    status: Stage,
    image: usize,
    previous: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    containers: [Option<Container>; 3],
    journal: Option<Step>,
    latest: Latest,
    /// What the keeper is about to do; nothing, when it is dead.
    keeper: Option<Vec<Op>>,
    has_run: bool,
    /// Whether a container was removed with what was acknowledged in it.
    has_lost_work: bool,
    deaths: u8,
    has_host: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    BeginRun,
    Keeper(Op),
    /// It fails, and the run ends.
    Refused(Op),
    /// `Owner::new` begins with the recovery.
    KeeperBoots,
    /// `newborn::until_trusted`, `Evolve::go_on_if_left`: a container asks the keeper, and lets others in.
    Opens(usize),
    /// `Verdict::Lasted`.
    Lasts,
    /// `down --force` and `up`.
    HostReplaces,
    KeeperDies,
    ContainerDies(usize),
    /// The engine or the machine; the engine may be unable to start what it should start then.
    PowerFails {
        ports_are_free: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Violation {
    TwoRun,
    NoneRuns,
    HistoryNamesAnother,
    WorkIsLost,
    AdmissionIsClosed,
    LeftOver,
}

const RUNNING: Container = Container {
    is_aside: false,
    phase: Phase::Running,
    restarts: true,
    gate: Gate::Open,
    has_work: true,
};

fn first() -> State {
    State {
        containers: [Some(RUNNING), None, None],
        journal: None,
        latest: Latest {
            status: Stage::Succeeded,
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

/// A container waits under the other name, and no journal tells of it; a keeper is about to begin.
fn left_aside() -> State {
    let waiting = Container {
        is_aside: true,
        phase: Phase::Paused,
        restarts: false,
        gate: Gate::AtRest,
        has_work: false,
    };
    State {
        containers: [Some(waiting), None, None],
        keeper: None,
        ..first()
    }
}

impl State {
    fn present(&self) -> Option<usize> {
        let is_present = |one: &Option<Container>| one.is_some_and(|one| !one.is_aside);
        self.containers.iter().position(is_present)
    }

    fn names(&self, image: usize) -> bool {
        let Latest {
            status,
            image: brought,
            previous,
        } = self.latest;
        let record = record(status, IMAGES[brought], IMAGES[previous]);
        named(&record) == Some(IMAGES[image])
    }

    fn change(&mut self, container: usize, change: impl Fn(&mut Container)) {
        if let Some(found) = &mut self.containers[container] {
            change(found);
        }
    }

    fn remove(&mut self, container: usize) {
        let removed = self.containers[container].take();
        self.has_lost_work |= removed.is_some_and(|one| one.has_work);
    }

    fn start(&mut self, container: usize, gate: Gate) {
        self.change(container, |one| {
            if !matches!(one.phase, Phase::Running | Phase::Paused) {
                (one.phase, one.gate) = (Phase::Running, gate);
                one.has_work = gate == Gate::Open;
            }
        });
    }

    fn open(&mut self, container: usize) {
        self.change(container, |one| {
            if one.phase == Phase::Running {
                (one.gate, one.has_work) = (Gate::Open, true);
            }
        });
    }
}

impl Order {
    /// `Work::drive`, as far as all passes.
    fn run(self) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut stage = policy::first(Task::Evolve);
        while !stage.has_ended() {
            ops.push(Op::Save(stage));
            ops.extend(self.stage(stage));
            stage = policy::after(stage, Event::Passed, false);
        }
        ops.extend(self.end(stage, Step::Swapping));
        ops
    }

    fn stage(self, stage: Stage) -> Vec<Op> {
        match stage {
            Stage::Freezing => vec![Op::Note(Step::Freezing), Op::Quiesce],
            Stage::Swapping => {
                let mut ops = vec![Op::Note(Step::Swapping)];
                if self.writes_the_end_before_the_swap {
                    ops.push(Op::Save(Stage::Succeeded));
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
            Stage::Verifying => vec![Op::Verify],
            // What runs does not know of them.
            _ => Vec::new(),
        }
    }

    /// `Work::end`.
    fn end(self, end: Stage, step: Step) -> Vec<Op> {
        let mut ops = match end {
            Stage::Succeeded => vec![Op::Note(Step::Concluding), Op::LetIn, Op::RemoveOld],
            Stage::RolledBack => vec![
                Op::ClearPlace,
                Op::Unpause,
                Op::GoOn,
                Op::RenameBack,
                Op::AllowRestart,
                Op::Revive,
            ],
            _ if step == Step::Freezing => vec![Op::GoOn, Op::Revive],
            _ => vec![Op::Revive],
        };
        if self.lets_in_before_the_journal && end == Stage::Succeeded {
            ops.swap(0, 1);
        }
        ops.push(Op::Save(end));
        ops.push(match end {
            Stage::Succeeded => Op::Note(Step::Probation),
            _ => Op::Close,
        });
        ops.retain(|op| *op != Op::Revive || !self.starts_nothing_that_has_ended);
        ops
    }

    /// Does it, and puts what follows from it before what is to do.
    fn act(self, state: &mut State, op: Op) {
        let mut then = Vec::new();
        match op {
            Op::Save(stage) => state.latest.status = stage,
            Op::Note(step) => state.journal = Some(step),
            Op::Close => state.journal = None,
            Op::Quiesce => state.change(OLD, |one| {
                if one.phase == Phase::Running {
                    (one.gate, one.has_work) = (Gate::AtRest, false);
                }
            }),
            Op::Pause => state.change(OLD, |one| {
                if one.phase == Phase::Running {
                    one.phase = Phase::Paused;
                }
            }),
            Op::ForbidRestart => state.change(OLD, |one| one.restarts = false),
            Op::RenameAside => state.change(OLD, |one| one.is_aside = true),
            Op::Make => {
                state.containers[NEW] = Some(Container {
                    phase: Phase::Created,
                    gate: Gate::Doubted,
                    has_work: false,
                    ..RUNNING
                });
            }
            Op::Start => state.start(NEW, Gate::Doubted),
            Op::Verify => {}
            Op::LetIn => state.present().into_iter().for_each(|one| state.open(one)),
            Op::RemoveOld => state.remove(OLD),
            Op::ClearPlace => match state.present() {
                Some(HOST) => {
                    state.containers[OLD] = None;
                    state.keeper = Some(vec![Op::Save(Stage::Failed), Op::Close, Op::LookAround]);
                }
                Some(NEW) => state.remove(NEW),
                _ => {}
            },
            Op::Unpause => state.change(OLD, |one| {
                if one.phase == Phase::Paused {
                    one.phase = Phase::Running;
                }
            }),
            Op::GoOn => state.open(OLD),
            Op::RenameBack => state.change(OLD, |one| one.is_aside = false),
            Op::AllowRestart => state.change(OLD, |one| one.restarts = true),
            Op::Revive => match (state.containers[OLD], state.present()) {
                (None, None) => state.containers[OLD] = Some(RUNNING),
                _ => state.start(OLD, Gate::Open),
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
                    then.push(Op::Save(Stage::Failed));
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
                    // One that a person has stopped stays as it is.
                    if phase == Some(Phase::Refused) || is_watched {
                        state.start(present, Gate::Doubted);
                    }
                }
            }
            Op::NoteImage => {
                if let Some(present) = state.present()
                    && !state.names(present)
                {
                    state.latest = Latest {
                        status: Stage::Succeeded,
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

    /// What is aside takes its place, or goes.
    fn settle(self, state: &mut State) -> Vec<Op> {
        if !state.containers[OLD].is_some_and(|one| one.is_aside) {
            return Vec::new();
        }
        if let Some(present) = state.present() {
            let stays = state.names(present) || !state.names(OLD);
            let phase = state.containers[present].map(|one| one.phase);
            if stays && phase != Some(Phase::Created) {
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

    fn can_pass(self, state: &State, op: Op) -> bool {
        let phase = |container: usize| state.containers[container].map(|one| one.phase);
        match op {
            Op::Verify => phase(NEW) == Some(Phase::Running),
            Op::Pause if phase(OLD) == Some(Phase::Running) => {
                let has_gone_on = state.containers[OLD].is_some_and(|one| one.gate != Gate::AtRest);
                !has_gone_on || self.swaps_what_has_gone_on
            }
            _ => true,
        }
    }
}
