//! Trials that kill the keeper, `os-host` and the engine at every stage: afterwards exactly one healthy `os-host` runs
//! with its state, and the history is correct.

use crate::commands::Followed;
use crate::evolve::{
    assert_remembers, containers, engine, latest, on_second, read, remember, small, write,
};
use crate::evolve_keeper_socket::assert_logged;
use crate::harness::Home;
use crate::instance::container_id;
use crate::second_engine::{Second, until};
use crate::trials;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::PathBuf;

trials![
    a_keeper_killed_while_containers_swap_finishes_the_run,
    an_os_host_killed_while_containers_swap_runs_again,
    a_keeper_that_is_stopped_leaves_a_container_that_answers,
    a_keeper_killed_at_any_stage_finishes_the_run =
        "evolve_faults::a_keeper_killed_while_containers_swap_finishes_the_run",
    an_os_host_killed_at_any_stage_runs_again =
        "evolve_faults::an_os_host_killed_while_containers_swap_runs_again",
    an_engine_killed_at_any_stage_leaves_one_os_host =
        "evolve_engine_crashes::an_engine_that_dies_in_a_swap_is_back_with_one_os_host",
];

/// The points of a run at which a trial kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// While the new container replaces the old one.
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

/// The messages of a run at its points.
pub(crate) const POINTS: [&str; 9] = [
    "building: reading the body",
    "building: building the image",
    "testing: waiting until the container is healthy",
    "testing: running the self-test",
    "quiescing",
    "swapping: setting the old container aside",
    "swapping: starting the new container",
    "verifying: checking variables, ports and services",
    "finalizing: removing the old container",
];

/// The messages of a rollback after the new container has failed.
const ROLLBACK_POINTS: [&str; 2] = [
    "rolling back: removing the new container",
    "rolling back: resuming the old container",
];

/// The points where two containers exist.
pub(crate) const SWAP: std::ops::Range<usize> = 5..7;

/// The first point at which the trial kills the new container.
const FIRST_NEW_POINT: usize = 6;

/// The first process of a container, as a PID of the host.
pub(crate) fn process(home: &Home, container: &str) -> Option<Pid> {
    let found = engine(home).get(&format!("/containers/{container}/json"));
    let pid = found.json()["State"]["Pid"].as_i64()?;
    (pid > 0).then(|| Pid::from_raw(pid.try_into().unwrap()))
}

/// Starts a run with a new body and waits until the run reaches that point.
pub(crate) fn evolve_until(home: &Home, number: usize, point: &str) -> Followed {
    let text = format!("\"\"\"Version {number}.\"\"\"\n");
    write(home, "kernel/more.py", &text);
    let mut evolve = Followed::start(home.command(["evolve"]));
    assert!(evolve.wait_for(point), "`{point}`: {:?}", evolve.seen);
    evolve
}

/// Waits for the end of the run; asserts one healthy container with its variables, and a correct record.
#[track_caller]
pub(crate) fn assert_finished(home: &Home, point: &str) {
    until(&format!("the end of the run after `{point}`"), || {
        let status = home.run(["--json", "evolve", "status"]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
        status["evolve_in_progress"] == false
    });
    assert_remembers(home);
    assert_history_matches(home, point);
}

/// Asserts that one container exists and runs the image that the history names.
#[track_caller]
pub(crate) fn assert_history_matches(home: &Home, point: &str) {
    assert_eq!(containers(home), [home.container()], "{point}");
    let record = latest(home);
    let image = home.json(["status"])["image"].clone();
    match record["status"].as_str().unwrap() {
        "succeeded" => assert_eq!(record["image"], image, "{point}: {record:#}"),
        "rolled_back" | "failed" => {
            assert_eq!(record["previous_image"], image, "{point}: {record:#}");
            assert!(record["why"].is_string(), "{point}: {record:#}");
        }
        other => panic!("{point}: {other}"),
    }
}

fn a_keeper_killed_while_containers_swap_finishes_the_run() {
    kill_the_keeper(Extent::Swap);
}

fn a_keeper_killed_at_any_stage_finishes_the_run() {
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
        assert_finished(&home, point);
        restart(&home, &keeper);
    }
    if extent == Extent::Swap {
        return home.down();
    }
    // During the watch period, without a run.
    for number in 20..22 {
        write(
            &home,
            "kernel/more.py",
            &format!("\"\"\"Version {number}.\"\"\"\n"),
        );
        home.ok(["evolve"]);
        kill(process(&home, &keeper).unwrap(), Signal::SIGKILL).unwrap();
        assert_finished(&home, "watch period");
        restart(&home, &keeper);
    }
    // During a rollback.
    let entrypoint = read(&home, "entrypoint.sh");
    write(&home, "entrypoint.sh", &fails_after_swap(&entrypoint));
    for (number, point) in (30..).zip(ROLLBACK_POINTS) {
        let evolve = evolve_until(&home, number, point);
        kill(process(&home, &keeper).unwrap(), Signal::SIGKILL).unwrap();
        assert_eq!(evolve.end().0, 1, "{point}");
        assert_finished(&home, point);
        let record = latest(&home);
        assert_eq!(record["status"], "rolled_back", "{point}: {record:#}");
    }
    home.down();
}

/// Restarts the keeper by request, which resets the engine's growing restart delay.
fn restart(home: &Home, keeper: &str) {
    let path = format!("/containers/{keeper}/restart");
    assert_eq!(engine(home).send("POST", &path, &Value::Null).status, 204);
    until("an answer of the keeper", || {
        home.run(["evolve", "status"]).code == 0
    });
}

/// An entry point that ends with an error after the swap, but not in the self-test.
fn fails_after_swap(entrypoint: &str) -> String {
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
    // The new container answers late, so that the run is in progress when the keeper ends.
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
    // The old container answers without the keeper.
    assert_eq!(container_id(&home), before);
    assert_remembers(&home);
    assert_eq!(send("start"), 204);
    assert_eq!(evolve.end().0, 1);
    assert_finished(&home, "stop");
    let record = latest(&home);
    assert_eq!(
        (&record["status"], &record["why"]),
        (&"rolled_back".into(), &"the keeper was stopped".into())
    );
    home.down();
}

/// Kills the first process of a running container and waits for its end.
#[track_caller]
fn kill_process(home: &Home, container: &str, point: &str) {
    let found = process(home, container);
    let pid = found.unwrap_or_else(|| panic!("{point}: nothing runs in `{container}`"));
    kill(pid, Signal::SIGKILL).unwrap();
    // A process in a paused container ends after the container is resumed or removed.
    let place = PathBuf::from(format!("/proc/{pid}"));
    until(&format!("the end of the process at `{point}`"), || {
        !place.exists()
    });
}

/// Waits until a new container runs; returns its ID.
fn wait_for_new_container(home: &Home, old: &str) -> String {
    let mut id = String::new();
    until("the new container", || {
        let path = format!("/containers/{}/json", home.container());
        let found = engine(home).get(&path).json();
        id = found["Id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty() && id != old && found["State"]["Pid"] != 0
    });
    id
}

fn an_os_host_killed_while_containers_swap_runs_again() {
    kill_the_host(Extent::Swap);
}

fn an_os_host_killed_at_any_stage_runs_again() {
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
        let victim = match number < FIRST_NEW_POINT {
            true => old,
            false => wait_for_new_container(&home, &old),
        };
        kill_process(&home, &victim, point);
        let (code, seen) = evolve.end();
        assert!([0, 1].contains(&code), "{point}: {seen:?}");
        assert_finished(&home, point);
    }
    if extent == Extent::Swap {
        return home.down();
    }
    write(
        &home,
        "kernel/more.py",
        "\"\"\"In the watch period.\"\"\"\n",
    );
    home.ok(["evolve"]);
    let new = container_id(&home);
    kill_process(&home, &new, "watch period");
    assert_finished(&home, "watch period");
    assert_eq!(container_id(&home), new);
    // A second kill in the watch period would bring the former image back.
    let run = latest(&home)["id"].as_str().unwrap().to_owned();
    assert_logged(&home, "the watch period ended", &run);
    // During a rollback to the container that was set aside.
    let entrypoint = read(&home, "entrypoint.sh");
    write(&home, "entrypoint.sh", &fails_after_swap(&entrypoint));
    for (number, point) in (30..).zip(ROLLBACK_POINTS) {
        let old = container_id(&home);
        let evolve = evolve_until(&home, number, point);
        kill_process(&home, &old, point);
        assert_eq!(evolve.end().0, 1, "{point}");
        assert_finished(&home, point);
        assert_eq!(container_id(&home), old, "{point}");
        let record = latest(&home);
        assert_eq!(record["status"], "rolled_back", "{point}: {record:#}");
    }
    home.down();
}

fn an_engine_killed_at_any_stage_leaves_one_os_host() {
    let mut second = Second::with_disk(8000 << 20);
    let home = on_second(&second, "it-fault-engine");
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    for (number, point) in Extent::All.points() {
        let evolve = evolve_until(&home, number, point);
        restart_engine(&mut second, number);
        let (_, seen) = evolve.end();
        assert!(!seen.is_empty());
        until("an answer of the keeper", || {
            home.run(["evolve", "status"]).code == 0
        });
        assert_finished(&home, point);
    }
    write(
        &home,
        "kernel/more.py",
        "\"\"\"In the watch period.\"\"\"\n",
    );
    home.ok(["evolve"]);
    restart_engine(&mut second, 0);
    until("an answer of the keeper", || {
        home.run(["evolve", "status"]).code == 0
    });
    assert_finished(&home, "watch period");
    assert_eq!(latest(&home)["status"], "succeeded");
    // During a rollback.
    let entrypoint = read(&home, "entrypoint.sh");
    write(&home, "entrypoint.sh", &fails_after_swap(&entrypoint));
    for (number, point) in (30..).zip(ROLLBACK_POINTS) {
        let old = container_id(&home);
        let evolve = evolve_until(&home, number, point);
        restart_engine(&mut second, number);
        evolve.end();
        until("an answer of the keeper", || {
            home.run(["evolve", "status"]).code == 0
        });
        assert_finished(&home, point);
        assert_eq!(container_id(&home), old, "{point}");
        let record = latest(&home);
        assert_eq!(record["status"], "rolled_back", "{point}: {record:#}");
    }
    home.down();
}

/// Restarts the engine, with SIGKILL for even numbers and SIGTERM for odd ones.
fn restart_engine(second: &mut Second, number: usize) {
    let signal = match number % 2 {
        0 => Signal::SIGKILL,
        _ => Signal::SIGTERM,
    };
    second.stop(signal);
    second.start_daemon();
}
