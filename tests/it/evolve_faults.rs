//! The keeper, `os-host` and the engine are killed at every stage: afterwards exactly one healthy
//! `os-host` runs, with its state, and the history tells the truth.

use crate::commands::Followed;
use crate::evolve::{
    assert_remembers, containers, engine, latest, on_second, read, remember, small, write,
};
use crate::harness::Home;
use crate::instance::container_id;
use crate::second_engine::{Second, until};
use crate::trials;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::PathBuf;

trials![
    a_keeper_killed_while_containers_swap_comes_to_a_good_end,
    an_os_host_killed_while_containers_swap_is_there_again,
    an_engine_killed_while_containers_swap_finds_one_os_host,
    a_keeper_that_is_stopped_leaves_a_container_that_answers,
    a_keeper_killed_at_any_stage_comes_to_a_good_end =
        "evolve_faults::a_keeper_killed_while_containers_swap_comes_to_a_good_end",
    an_os_host_killed_at_any_stage_is_there_again =
        "evolve_faults::an_os_host_killed_while_containers_swap_is_there_again",
    an_engine_killed_at_any_stage_finds_one_os_host =
        "evolve_faults::an_engine_killed_while_containers_swap_finds_one_os_host",
];

/// Which points of a run a trial tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// While the new container takes the place of the old one.
    Swap,
    All,
}

impl Extent {
    fn points(self) -> impl Iterator<Item = (usize, &'static str)> {
        let is_tried = move |number: &usize| self == Self::All || SWAP.contains(number);
        POINTS
            .into_iter()
            .enumerate()
            .filter(move |(number, _)| is_tried(number))
    }
}

/// What the run says when it is at that point.
pub(crate) const POINTS: [&str; 9] = [
    "building: reading the body",
    "building: building the image",
    "testing: waiting until the container is healthy",
    "testing: running the self-test",
    "freezing",
    "swapping: setting the old container aside",
    "swapping: starting the new container",
    "verifying: checking variables, ports and services",
    "finalizing: removing the old container",
];

/// The same where what works beside does not work in place.
const BACK: [&str; 2] = [
    "rolling back: removing the new container",
    "rolling back: resuming the old container",
];

/// The points where two containers exist.
pub(crate) const SWAP: std::ops::Range<usize> = 5..7;

/// From this point on the new container is the one that is to live.
const NEW: usize = 6;

/// The process of a container, as this machine sees it.
pub(crate) fn process(home: &Home, container: &str) -> Option<Pid> {
    let found = engine(home).get(&format!("/containers/{container}/json"));
    let pid = found.json()["State"]["Pid"].as_i64()?;
    (pid > 0).then(|| Pid::from_raw(pid.try_into().unwrap()))
}

/// Begins a run with a body that is new, and waits until it is at that point.
pub(crate) fn evolve_until(home: &Home, number: usize, point: &str) -> Followed {
    let text = format!("\"\"\"Version {number}.\"\"\"\n");
    write(home, "kernel/more.py", &text);
    let mut evolve = Followed::start(home.command(["evolve"]));
    assert!(evolve.wait_for(point), "`{point}`: {:?}", evolve.seen);
    evolve
}

/// One container, healthy, that remembers; and the record of the run is what happened.
#[track_caller]
pub(crate) fn assert_good_end(home: &Home, point: &str) {
    until(&format!("the end of the run after `{point}`"), || {
        let status = home.run(["--json", "evolve", "status"]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
        status["evolve_in_progress"] == false
    });
    assert_remembers(home);
    assert_told(home, point);
}

/// One container, of the image that the history names.
#[track_caller]
pub(crate) fn assert_told(home: &Home, point: &str) {
    assert_eq!(containers(home), [home.container()], "{point}");
    let record = latest(home);
    let image = home.json(["status"])["image"].clone();
    match record["status"].as_str().unwrap() {
        "succeeded" => assert_eq!(record["image"], image, "{point}: {record:#}"),
        "rolled_back" | "failed" => {
            assert_eq!(record["previous"], image, "{point}: {record:#}");
            assert!(record["why"].is_string(), "{point}: {record:#}");
        }
        other => panic!("{point}: {other}"),
    }
}

fn a_keeper_killed_while_containers_swap_comes_to_a_good_end() {
    kill_the_keeper(Extent::Swap);
}

fn a_keeper_killed_at_any_stage_comes_to_a_good_end() {
    kill_the_keeper(Extent::All);
}

fn kill_the_keeper(extent: Extent) {
    let home = small("it-fault-keeper");
    home.up();
    remember(&home);
    let keeper = format!("os-keeper-{}", home.instance);
    for (number, point) in extent.points() {
        let evolve = evolve_until(&home, number, point);
        kill(process(&home, &keeper).unwrap(), Signal::SIGKILL).unwrap();
        let (code, seen) = evolve.end();
        assert!([0, 1].contains(&code), "{point}: {seen:?}");
        assert_good_end(&home, point);
        restart(&home, &keeper);
    }
    if extent == Extent::Swap {
        return home.down();
    }
    // On probation, and with nothing to do.
    for number in 20..22 {
        write(
            &home,
            "kernel/more.py",
            &format!("\"\"\"Version {number}.\"\"\"\n"),
        );
        home.ok(["evolve"]);
        kill(process(&home, &keeper).unwrap(), Signal::SIGKILL).unwrap();
        assert_good_end(&home, "probation");
        restart(&home, &keeper);
    }
    // On the way back.
    let entrypoint = read(&home, "entrypoint.sh");
    write(&home, "entrypoint.sh", &not_in_place(&entrypoint));
    for (number, point) in (30..).zip(BACK) {
        let evolve = evolve_until(&home, number, point);
        kill(process(&home, &keeper).unwrap(), Signal::SIGKILL).unwrap();
        assert_eq!(evolve.end().0, 1, "{point}");
        assert_good_end(&home, point);
        let record = latest(&home);
        assert_eq!(record["status"], "rolled_back", "{point}: {record:#}");
    }
    home.down();
}

/// The engine waits twice as long with each death soon after a start, up to a minute, and begins
/// anew where somebody starts it.
fn restart(home: &Home, keeper: &str) {
    let path = format!("/containers/{keeper}/restart");
    assert_eq!(engine(home).send("POST", &path, &Value::Null).status, 204);
    until("the keeper", || home.run(["evolve", "status"]).code == 0);
}

/// Dies where it is not tried.
fn not_in_place(entrypoint: &str) -> String {
    let dies = "if test -S /run/os/keeper.sock; then exit 4; fi\nexec /opt";
    entrypoint.replace("exec /opt", dies)
}

fn a_keeper_that_is_stopped_leaves_a_container_that_answers() {
    let mut home = small("it-fault-stop");
    let start = ("OSCTL_EVOLVE_START".into(), "120".into());
    home.env.extend([start]);
    home.up();
    remember(&home);
    let keeper = format!("os-keeper-{}", home.instance);
    // It does not answer at first, so that the run is still on when the keeper ends.
    let entrypoint = read(&home, "entrypoint.sh");
    let late = "if test -S /run/os/keeper.sock; then sleep 60; fi\nexec /opt";
    write(
        &home,
        "entrypoint.sh",
        &entrypoint.replace("exec /opt", late),
    );
    let before = container_id(&home);
    let evolve = evolve_until(
        &home,
        0,
        "verifying: waiting until the container is healthy",
    );
    let send = |verb: &str| {
        let path = format!("/containers/{keeper}/{verb}");
        engine(&home).send("POST", &path, &Value::Null).status
    };
    assert_eq!(send("stop"), 204);
    // Without anybody who could look after it.
    assert_eq!(container_id(&home), before);
    assert_remembers(&home);
    assert_eq!(send("start"), 204);
    assert_eq!(evolve.end().0, 1);
    assert_good_end(&home, "stop");
    let record = latest(&home);
    assert_eq!(
        (&record["status"], &record["why"]),
        (&"rolled_back".into(), &"the keeper was stopped".into())
    );
    home.down();
}

/// Kills the process of a container that must have one, and waits until it is gone.
#[track_caller]
fn kill_process(home: &Home, container: &str, point: &str) {
    let found = process(home, container);
    let pid = found.unwrap_or_else(|| panic!("{point}: nothing runs in `{container}`"));
    kill(pid, Signal::SIGKILL).unwrap();
    // One that is paused may not end before it goes on, or is removed.
    let place = PathBuf::from(format!("/proc/{pid}"));
    until(&format!("the end of what ran at `{point}`"), || {
        !place.exists()
    });
}

/// The container that has taken the place of another, once it runs.
fn successor(home: &Home, old: &str) -> String {
    let mut id = String::new();
    until("the new container", || {
        let path = format!("/containers/{}/json", home.container());
        let found = engine(home).get(&path).json();
        id = found["Id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty() && id != old && found["State"]["Pid"] != 0
    });
    id
}

fn an_os_host_killed_while_containers_swap_is_there_again() {
    kill_the_host(Extent::Swap);
}

fn an_os_host_killed_at_any_stage_is_there_again() {
    kill_the_host(Extent::All);
}

fn kill_the_host(extent: Extent) {
    let home = small("it-fault-host");
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    for (number, point) in extent.points() {
        let old = container_id(&home);
        let evolve = evolve_until(&home, number, point);
        let victim = match number < NEW {
            true => old,
            false => successor(&home, &old),
        };
        kill_process(&home, &victim, point);
        let (code, seen) = evolve.end();
        assert!([0, 1].contains(&code), "{point}: {seen:?}");
        assert_good_end(&home, point);
    }
    if extent == Extent::Swap {
        return home.down();
    }
    write(&home, "kernel/more.py", "\"\"\"On probation.\"\"\"\n");
    home.ok(["evolve"]);
    let new = container_id(&home);
    kill_process(&home, &new, "probation");
    assert_good_end(&home, "probation");
    assert_eq!(container_id(&home), new);
    // On the way back, which is the way to the one that was set aside.
    let entrypoint = read(&home, "entrypoint.sh");
    write(&home, "entrypoint.sh", &not_in_place(&entrypoint));
    for (number, point) in (30..).zip(BACK) {
        let old = container_id(&home);
        let evolve = evolve_until(&home, number, point);
        kill_process(&home, &old, point);
        assert_eq!(evolve.end().0, 1, "{point}");
        assert_good_end(&home, point);
        assert_eq!(container_id(&home), old, "{point}");
        let record = latest(&home);
        assert_eq!(record["status"], "rolled_back", "{point}: {record:#}");
    }
    home.down();
}

fn an_engine_killed_while_containers_swap_finds_one_os_host() {
    kill_the_engine(Extent::Swap);
}

fn an_engine_killed_at_any_stage_finds_one_os_host() {
    kill_the_engine(Extent::All);
}

fn kill_the_engine(extent: Extent) {
    let mut second = Second::with_room(8000 << 20);
    let home = on_second(&second, "it-fault-engine");
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    for (number, point) in extent.points() {
        let evolve = evolve_until(&home, number, point);
        restart_engine(&mut second, number);
        let (_, seen) = evolve.end();
        assert!(!seen.is_empty());
        until("the keeper", || home.run(["evolve", "status"]).code == 0);
        assert_good_end(&home, point);
    }
    if extent == Extent::Swap {
        return home.down();
    }
    write(&home, "kernel/more.py", "\"\"\"On probation.\"\"\"\n");
    home.ok(["evolve"]);
    restart_engine(&mut second, 0);
    until("the keeper", || home.run(["evolve", "status"]).code == 0);
    assert_good_end(&home, "probation");
    assert_eq!(latest(&home)["status"], "succeeded");
    // On the way back.
    let entrypoint = read(&home, "entrypoint.sh");
    write(&home, "entrypoint.sh", &not_in_place(&entrypoint));
    for (number, point) in (30..).zip(BACK) {
        let old = container_id(&home);
        let evolve = evolve_until(&home, number, point);
        restart_engine(&mut second, number);
        evolve.end();
        until("the keeper", || home.run(["evolve", "status"]).code == 0);
        assert_good_end(&home, point);
        assert_eq!(container_id(&home), old, "{point}");
        let record = latest(&home);
        assert_eq!(record["status"], "rolled_back", "{point}: {record:#}");
    }
    home.down();
}

/// Kills it, or asks it to end, in turn.
fn restart_engine(second: &mut Second, number: usize) {
    let signal = match number % 2 {
        0 => Signal::SIGKILL,
        _ => Signal::SIGTERM,
    };
    second.stop(signal);
    second.start_daemon();
}
