//! The faults of a campaign: what is ended, at which moment of the load, and which sessions that hits.

use crate::campaign_load::{Load, Moment};
use crate::campaign_record::{Verdict, agree};
use crate::container_processes::{Part, Process, Processes};
use crate::evolve::write;
use crate::evolve_faults::assert_history_matches;
use crate::harness::{Engine, TEST_TIMEOUT};
use crate::soak::Random;
use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Kernel,
    AllKernels,
    Guard,
    Template,
    Companion,
    Init,
    EngineKill,
    EngineRestart,
    /// Another container takes the place of the one that runs.
    Evolve,
}

impl Kind {
    const OF_PROCESSES: [Self; 4] = [Self::Kernel, Self::AllKernels, Self::Guard, Self::Template];
    const OF_CONTAINER: [Self; 5] = [
        Self::Companion,
        Self::Init,
        Self::EngineKill,
        Self::EngineRestart,
        Self::Evolve,
    ];

    pub(crate) fn ends_container(self) -> bool {
        Self::OF_CONTAINER.contains(&self)
    }
}

/// The moments of faults that end no container.
const MOMENTS: [Moment; 7] = [
    Moment::Any,
    Moment::Store,
    Moment::Run,
    Moment::Wait,
    Moment::Part,
    Moment::Manifest,
    Moment::Placed,
];
/// The moments of faults that end the container, each of which takes seconds.
const MOMENTS_OF_CONTAINER: [Moment; 5] = [
    Moment::Run,
    Moment::Wait,
    Moment::Part,
    Moment::Manifest,
    Moment::Placed,
];

impl Moment {
    /// Up to how many milliseconds after its begin the fault comes.
    fn latest(self) -> usize {
        match self {
            Self::Any | Self::Run => 40,
            Self::Store => 150,
            Self::Wait => 100,
            Self::Part | Self::Manifest | Self::Placed => 1,
        }
    }
}

/// Faults of which each kind of each moment is one, and the others end no container, which takes seconds.
const BLOCK: usize = 200;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) moment: Moment,
    /// So long after the moment's begin.
    pub(crate) later: Duration,
    /// Chooses where there are several victims.
    draw: usize,
}

/// The faults of one block, in an order of their own.
pub(crate) fn block(random: &mut Random) -> Vec<Fault> {
    let of_processes = Kind::OF_PROCESSES
        .into_iter()
        .flat_map(|kind| MOMENTS.map(|moment| (kind, moment)));
    let of_container = Kind::OF_CONTAINER
        .into_iter()
        .flat_map(|kind| MOMENTS_OF_CONTAINER.map(|moment| (kind, moment)));
    let mut faults: Vec<_> = of_processes.chain(of_container).collect();
    while faults.len() < BLOCK {
        let kind = Kind::OF_PROCESSES[random.below(Kind::OF_PROCESSES.len())];
        faults.push((kind, MOMENTS[random.below(MOMENTS.len())]));
    }
    for last in (1..faults.len()).rev() {
        faults.swap(last, random.below(last + 1));
    }
    let fault = |(kind, moment): (Kind, Moment)| Fault {
        kind,
        moment,
        later: Duration::from_millis(random.below(moment.latest()) as u64),
        draw: random.below(1 << 20),
    };
    faults.into_iter().map(fault).collect()
}

/// A session, and its process as the container counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub(crate) name: &'static str,
    pub(crate) pid: i32,
}

/// Does it, and says which sessions lose their process.
pub(crate) fn harm(
    load: &Load<'_>,
    fault: Fault,
    sessions: [Session; 2],
) -> Verdict<Vec<&'static str>> {
    let Fault { kind, draw, .. } = fault;
    let home = load.home;
    let all = sessions.map(|session| session.name).to_vec();
    let engine = |verb: &str| {
        let path = format!("/containers/{}/{verb}", home.container());
        let status = Engine.send("POST", &path, &Value::Null).status;
        agree(status == 204, || format!("{verb}: {status}"))
    };
    match kind {
        Kind::EngineKill => {
            engine("kill?signal=KILL")?;
            // Killed by a person, it is not started again by the engine.
            home.ok(["up"]);
            return Ok(all);
        }
        Kind::EngineRestart => return engine("restart").map(|()| all),
        Kind::Evolve => {
            write(
                home,
                "kernel/campaign.py",
                &format!("\"\"\"Body {draw}.\"\"\"\n"),
            );
            let ran = home.run(["evolve"]);
            assert_history_matches(home, "evolve");
            // A busy engine may fail to pause the container, which then keeps its memory.
            let is_back = ran.code == 1 && ran.stderr.contains("the old image runs again");
            let hit = if is_back { Vec::new() } else { all };
            return agree(is_back || ran.code == 0, || format!("evolve: {ran:?}")).map(|()| hit);
        }
        _ => {}
    }
    let begin = Instant::now();
    loop {
        load.look()?;
        if let Some(processes) = Processes::of(home) {
            let victims = victims(kind, &processes, sessions, draw);
            if !victims.is_empty() {
                let is_hit = |session: &Session| {
                    kind.ends_container() || is_hit(&processes, *session, &victims)
                };
                let hit = sessions.into_iter().filter(is_hit);
                let hit = hit.map(|session| session.name).collect();
                victims.iter().for_each(|victim| victim.kill());
                return Ok(hit);
            }
        }
        agree(begin.elapsed() < TEST_TIMEOUT, || {
            format!("there is no {kind:?}")
        })?;
        thread::sleep(Duration::from_millis(10));
    }
}

fn victims(kind: Kind, processes: &Processes, sessions: [Session; 2], draw: usize) -> Vec<Process> {
    match kind {
        Kind::Kernel => {
            let found = processes.known_inside_as(sessions[draw % 2].pid);
            found.into_iter().collect()
        }
        Kind::AllKernels => processes.of_part(Part::Kernel),
        Kind::Guard => {
            let guards = processes.of_part(Part::Guard);
            let drawn = guards.get(draw % guards.len().max(1));
            drawn.copied().into_iter().collect()
        }
        // With the kernels, so that the next one needs another template.
        Kind::Template => [Part::Template, Part::Kernel]
            .into_iter()
            .flat_map(|part| processes.of_part(part))
            .collect(),
        Kind::Companion => processes.of_part(Part::Companion),
        _ => processes.of_part(Part::Init),
    }
}

fn is_hit(processes: &Processes, session: Session, victims: &[Process]) -> bool {
    let is_beneath = |process| {
        let mut above = victims.iter();
        above.any(|victim| processes.is_beneath(process, *victim))
    };
    processes
        .known_inside_as(session.pid)
        .is_some_and(is_beneath)
}
