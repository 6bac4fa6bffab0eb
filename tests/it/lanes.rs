//! Lanes: which trials may run side by side.
//!
//! A lane is a resource: the shared instance, the instance with MCP servers, the desktop, the second
//! engines, the machine. A trial shares its lane with others that share it, or holds the lane alone.
//! Trials of one lane start in the order of their list. Trials of several lanes run side by side: one on each core, and
//! more while the processors have nothing to do, because many trials wait most of their time. A trial that holds the
//! machine runs while no other trial runs.

use crate::laws;
use libtest_mimic::{Arguments, Conclusion, Trial};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A named test of the list.
pub(crate) struct TestCase {
    name: String,
    /// The trial of the first tier, or the unit test, that checks the same guarantee in less time; only tests of the
    /// long tier have it.
    quick: Option<&'static str>,
    run: Box<dyn FnOnce() + Send>,
}

impl TestCase {
    pub(crate) fn new(
        name: String,
        quick: Option<&'static str>,
        run: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self {
            name,
            quick,
            run: Box::new(run),
        }
    }
}

/// How a trial uses the resource of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    Shares,
    Holds,
}

/// A resource, and the tests that use it in their order.
pub(crate) struct Lane {
    name: &'static str,
    cases: Vec<(Claim, TestCase)>,
}

/// The lane of the trials that no other trial may run beside.
pub(crate) const MACHINE: &str = "machine";

impl Lane {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            cases: Vec::new(),
        }
    }

    /// Adds tests that use the resource side by side.
    pub(crate) fn share<const N: usize>(self, lists: [Vec<TestCase>; N]) -> Self {
        self.add(Claim::Shares, lists)
    }

    /// Adds tests that need the resource alone.
    pub(crate) fn hold<const N: usize>(self, lists: [Vec<TestCase>; N]) -> Self {
        self.add(Claim::Holds, lists)
    }

    fn add<const N: usize>(mut self, claim: Claim, lists: [Vec<TestCase>; N]) -> Self {
        let cases = lists.into_iter().flatten();
        self.cases.extend(cases.map(|case| (claim, case)));
        self
    }
}

/// The place of a trial: lanes in their order, then tests.
type Rank = (usize, usize);

/// The trials that run and wait, by lane.
#[derive(Debug, Default)]
struct Plan {
    running: BTreeMap<&'static str, (Claim, usize)>,
    /// The trials that may be chosen next.
    waiting: BTreeMap<Rank, (&'static str, Claim)>,
    /// The trial that starts now.
    turn: Option<Rank>,
    slots: usize,
}

impl Plan {
    fn busy(&self) -> usize {
        self.running.values().map(|(_, count)| count).sum()
    }

    fn next(&self) -> Option<Rank> {
        let busy = self.busy();
        if busy >= self.slots || self.running.contains_key(MACHINE) {
            return None;
        }
        let mut passed = Vec::new();
        let mut free = Vec::new();
        for (rank, (lane, claim)) in &self.waiting {
            // Only the first waiting trial of a lane may start, so that a lane keeps its order.
            if passed.contains(lane) {
                continue;
            }
            passed.push(lane);
            let is_free = match (self.running.get(lane), *lane == MACHINE) {
                (_, true) => busy == 0 && self.waiting.values().all(|(lane, _)| *lane == MACHINE),
                (None, false) => true,
                (Some((Claim::Shares, _)), false) => *claim == Claim::Shares,
                (Some((Claim::Holds, _)), false) => false,
            };
            if is_free {
                let running = self.running.get(lane).map_or(0, |(_, count)| *count);
                free.push((running, *rank));
            }
        }
        // A lane does not wait until another lane has ended.
        let next = free.into_iter().min();
        next.map(|(_, rank)| rank)
    }
}

/// The idle share of the processors between two samples.
#[derive(Debug, Default)]
struct Idleness {
    all: u64,
    idle: u64,
}

impl Idleness {
    /// The share since the last sample; 0 where the system has no such counter.
    fn look(&mut self) -> f64 {
        let told = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = told.lines().next().unwrap_or_default();
        let ticks = line.split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = ticks.filter_map(|word| word.parse().ok()).collect();
        let now = Self {
            all: ticks.iter().sum(),
            idle: ticks.iter().skip(3).take(1).sum(),
        };
        let last = std::mem::replace(self, now);
        let all = self.all.saturating_sub(last.all);
        match all {
            0 => 0.0,
            _ => self.idle.saturating_sub(last.idle) as f64 / all as f64,
        }
    }
}

/// The time between two samples: as long as a trial needs to reach its usual load.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// Another trial starts while at least this share of the processors is idle.
const MIN_IDLE_SHARE: f64 = 0.2;

#[derive(Debug)]
struct Schedule {
    plan: Mutex<Plan>,
    changed: Condvar,
    times: Mutex<Vec<(Duration, String)>>,
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the trial's turn.
    fn begin(&self, rank: Rank) {
        let mut plan = self.lock();
        while plan.turn != Some(rank) {
            plan = self
                .changed
                .wait(plan)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let (lane, claim) = plan.waiting.remove(&rank).unwrap();
        plan.running.entry(lane).or_insert((claim, 0)).1 += 1;
        self.choose(plan);
    }

    fn choose(&self, mut plan: MutexGuard<'_, Plan>) {
        plan.turn = plan.next();
        if plan.turn.is_some() {
            self.changed.notify_all();
        }
    }

    /// Lets one more trial start when the processors are idle, up to `most` at a time, until none waits.
    fn widen(&self, usual: usize, most: usize) {
        let mut idleness = Idleness::default();
        idleness.look();
        loop {
            thread::sleep(SAMPLE_INTERVAL);
            let is_idle = idleness.look() >= MIN_IDLE_SHARE;
            let mut plan = self.lock();
            if plan.waiting.is_empty() {
                return;
            }
            plan.slots = match is_idle {
                true => (plan.busy() + 1).clamp(usual, most),
                false => usual,
            };
            self.choose(plan);
        }
    }

    fn end(&self, lane: &'static str) {
        let mut plan = self.lock();
        let left = plan.running.get_mut(lane).unwrap();
        left.1 -= 1;
        if left.1 == 0 {
            plan.running.remove(lane);
        }
        self.choose(plan);
    }
}

/// A running trial; its end, also by a panic, frees the lane.
struct Turn<'a> {
    schedule: &'a Schedule,
    lane: &'static str,
    name: &'a str,
    began: Instant,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let took = (self.began.elapsed(), self.name.to_owned());
        let times = self.schedule.times.lock();
        times.unwrap_or_else(PoisonError::into_inner).push(took);
        self.schedule.end(self.lane);
    }
}

/// Runs the lanes side by side, and prints the time of each trial, the slowest first.
///
/// `--test-threads` gives the number of trials that run at a time, also while the processors are idle.
pub(crate) fn run(arguments: &Arguments, lanes: Vec<Lane>) -> Conclusion {
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let schedule = Arc::new(Schedule {
        plan: Mutex::default(),
        changed: Condvar::new(),
        times: Mutex::default(),
    });
    check_quick_trials(&lanes);
    let mut trials = Vec::new();
    for (place, lane) in lanes.into_iter().enumerate() {
        for (number, (claim, case)) in lane.cases.into_iter().enumerate() {
            let TestCase { name, quick, run } = case;
            let rank = (place, number);
            let (name_of_turn, schedule_of_trial) = (name.clone(), Arc::clone(&schedule));
            let trial = Trial::test(name, move || {
                schedule_of_trial.begin(rank);
                let _turn = Turn {
                    schedule: &schedule_of_trial,
                    lane: lane.name,
                    name: &name_of_turn,
                    began: Instant::now(),
                };
                run();
                Ok(())
            })
            .with_ignored_flag(quick.is_some());
            // A lane does not wait for trials that are filtered out.
            if !arguments.is_filtered_out(&trial) && !arguments.is_ignored(&trial) {
                schedule.lock().waiting.insert(rank, (lane.name, claim));
            }
            trials.push(trial);
        }
    }
    let mut plan = schedule.lock();
    plan.slots = arguments.test_threads.unwrap_or(cores);
    schedule.choose(plan);
    if arguments.test_threads.is_none() {
        let schedule = Arc::clone(&schedule);
        thread::spawn(move || schedule.widen(cores, 4 * cores));
    }
    // A thread for each trial: a trial that waits for its lane blocks no other trial.
    let arguments = Arguments {
        test_threads: Some(trials.len().max(2)),
        ..arguments.clone()
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut times = schedule.times.lock().unwrap();
    times.sort_by(|a, b| b.cmp(a));
    let lines = times
        .iter()
        .map(|(took, name)| format!("{:>8.1} s  {name}\n", took.as_secs_f64()));
    // The result counts, also when its reader has gone.
    let _ = std::io::stdout().write_all(lines.collect::<String>().as_bytes());
    conclusion
}

/// Whether a unit test has this name: the name of its function, and `tests` before it.
fn is_unit_test(name: &str) -> bool {
    let Some((module, function)) = name.rsplit_once("::") else {
        return false;
    };
    let declared = format!("fn {function}()");
    module.split("::").any(|part| part == "tests")
        && laws::sources().iter().any(|source| {
            fs::read_to_string(&source.file).is_ok_and(|text| text.contains(&declared))
        })
}

/// Each test of the long tier names a test of the first tier.
fn check_quick_trials(lanes: &[Lane]) {
    let cases = || {
        lanes
            .iter()
            .flat_map(|lane| &lane.cases)
            .map(|(_, case)| case)
    };
    let page = fs::read_to_string("docs/testing.md").unwrap();
    for case in cases() {
        let Some(quick) = case.quick else { continue };
        let is_there = cases().any(|other| other.name == quick && other.quick.is_none());
        assert!(
            is_there || is_unit_test(quick),
            "`{}` names `{quick}`, which is not a test of the first tier",
            case.name
        );
        let row = format!("| `{}` | `{quick}` |", case.name);
        assert!(page.contains(&row), "docs/testing.md has no row {row}");
    }
}
