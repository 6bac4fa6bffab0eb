//! The engine is killed while a container replaces another: alone, with its ports still held, or with everything that
//! it runs. Within a minute after its restart, one healthy `os-host` runs, with the image that the history names and
//! with its variables.

use crate::evolve::{assert_remembers, containers, engine, on_second, remember, write};
use crate::evolve_faults::{POINTS, assert_history_matches, evolve_until};
use crate::harness::Home;
use crate::second_engine::{HeldPorts, Second, until};
use crate::trials;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

trials![
    an_engine_that_dies_in_a_swap_is_back_with_one_os_host,
    an_engine_that_dies_at_any_stage_is_back_with_one_os_host =
        "evolve_engine_crashes::an_engine_that_dies_in_a_swap_is_back_with_one_os_host",
];

/// How the engine dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// The daemon alone.
    Killed,
    /// The daemon alone, and what published its containers' ports holds them.
    PortsHeld,
    /// Everything at once, and the processes of a paused container can't end.
    Everything,
    /// Everything at once, and nothing is left of it.
    Power,
}

/// When it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// At that point of a run.
    Point(usize),
    /// When the run is reported as ended.
    Ended,
    /// When nothing has been on for a while.
    Idle,
    /// While the kernel writes a generation.
    Store,
    /// When the manifest of a generation is written, before the generation has its place.
    Manifest,
    /// When a generation has its place, and is not acknowledged yet.
    Placed,
}

/// How soon it has to be well after the engine is back.
const BACK: Duration = Duration::from_secs(60);
/// How soon requests are admitted when the run has ended and the ports are free.
const OPEN: Duration = Duration::from_secs(30);

fn an_engine_that_dies_in_a_swap_is_back_with_one_os_host() {
    die(&[
        (Death::Killed, Moment::Point(5)),
        (Death::Power, Moment::Point(6)),
        (Death::PortsHeld, Moment::Point(7)),
        (Death::Everything, Moment::Point(6)),
        (Death::Power, Moment::Store),
    ]);
}

fn an_engine_that_dies_at_any_stage_is_back_with_one_os_host() {
    let moments = (0..POINTS.len()).map(Moment::Point);
    let moments: Vec<Moment> = moments
        .chain([Moment::Ended, Moment::Idle])
        .chain([Moment::Store, Moment::Manifest, Moment::Placed])
        .collect();
    let mut deaths = Vec::new();
    let all = [
        Death::Killed,
        Death::PortsHeld,
        Death::Everything,
        Death::Power,
    ];
    for death in all {
        deaths.extend(moments.iter().map(|moment| (death, *moment)));
    }
    die(&deaths);
}

/// Has one engine die so often, each time in the midst of a run of its own.
fn die(deaths: &[(Death, Moment)]) {
    let mut second = Second::with_disk(8000 << 20);
    let home = on_second(&second, "it-death");
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    for (number, (death, moment)) in deaths.iter().enumerate() {
        let what = format!("{death:?} at {moment:?}");
        let mut storing = None;
        let followed = match moment {
            Moment::Point(point) => Some(evolve_until(&home, number, POINTS[*point])),
            Moment::Ended => {
                write(&home, "kernel/more.py", &format!("\"\"\"{what}.\"\"\"\n"));
                home.ok(["evolve"]);
                None
            }
            Moment::Idle => None,
            Moment::Store | Moment::Manifest | Moment::Placed => {
                storing = Some(Storing::start(&home, number, *moment));
                None
            }
        };
        let held = kill(&mut second, *death);
        second.start_daemon();
        let back = Instant::now();
        assert_well(&home, &what, back);
        let is_swapped = moment != &Moment::Point(6);
        if let Some(held) = held {
            // Where two containers change places, no port is published at times.
            assert!(held.count() > 0 || !is_swapped, "{what}: no port was held");
            drop(held);
        }
        if let Some(followed) = followed {
            followed.end();
        }
        // It is reached again, and lets requests in.
        let ended = Instant::now();
        assert_remembers(&home);
        let took = ended.elapsed();
        assert!(took < OPEN, "{what}: let in after {took:?}");
        if let Some(storing) = storing {
            storing.assert_kept(&home, &what);
        }
        if !home.json(["evolve", "history"])["runs"][0].is_null() {
            assert_history_matches(&home, &what);
        }
    }
    home.down();
}

/// A store on its way, and the one before it, which is acknowledged.
struct Storing {
    number: usize,
    acknowledged: u64,
    on_its_way: Child,
}

impl Storing {
    fn start(home: &Home, number: usize, moment: Moment) -> Self {
        home.ok(["exec", &format!("n = {number}, 'acknowledged'")]);
        let acknowledged = store(home);
        let code =
            format!("import os; n = {number}, 'on its way'; big = os.urandom(128 << 20); None");
        home.ok(["exec", &code]);
        let mut command = home.command(["--json", "cryo", "store"]);
        let on_its_way = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let place = home.data().join("cryo/default");
        let placed = place.join((acknowledged + 1).to_string());
        let part = place.join(format!("{}.part", acknowledged + 1));
        // The kernel may be faster than the test, and then has passed the moment.
        until("the store", || match moment {
            Moment::Placed => placed.exists(),
            Moment::Manifest => part.join("manifest.json").exists() || placed.exists(),
            _ => part.exists(),
        });
        Self {
            number,
            acknowledged,
            on_its_way,
        }
    }

    /// The variables are of the newest generation that is there, which is not older than what was acknowledged.
    fn assert_kept(self, home: &Home, what: &str) {
        let Self {
            number,
            acknowledged,
            on_its_way,
        } = self;
        let output = on_its_way.wait_with_output().unwrap();
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let told = reply["generation"].as_u64();
        let from = &home.json(["status"])["sessions"][0]["restored_from"];
        let generation = from["generation"].as_u64().unwrap();
        assert!(
            generation >= acknowledged && Some(generation) >= told,
            "{what}: {told:?} was acknowledged, {from}"
        );
        let word = match generation == acknowledged {
            true => "acknowledged",
            false => "on its way",
        };
        let ran = home.ok(["exec", "n"]);
        assert_eq!(
            ran.stdout,
            format!("({number}, '{word}')\n"),
            "{what}: {from}"
        );
        home.ok(["exec", "big = None"]);
        let next = store(home);
        assert!(next > generation, "{what}: {next} after {from}");
    }
}

/// The number of the generation.
fn store(home: &Home) -> u64 {
    home.json(["cryo", "store"])["generation"].as_u64().unwrap()
}

fn kill(second: &mut Second, death: Death) -> Option<HeldPorts> {
    let held = (death == Death::PortsHeld).then(|| second.hold_ports());
    match death {
        Death::Killed | Death::PortsHeld => second.stop(Signal::SIGKILL),
        Death::Everything => second.kill_everything(),
        Death::Power => second.lose_power(),
    }
    held
}

/// One container that runs, and whose companion is healthy, as the engine sees it from inside: also without its ports.
#[track_caller]
fn assert_well(home: &Home, what: &str, back: Instant) {
    until(&format!("one healthy container after {what}"), || {
        containers(home) == [home.container()] && is_healthy(home) && !is_on(home)
    });
    let took = back.elapsed();
    assert!(took < BACK, "{what}: back after {took:?}");
}

fn is_on(home: &Home) -> bool {
    let status = home.run(["--json", "evolve", "status"]);
    let status: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
    status["evolve_in_progress"] != json!(false)
}

/// Whether the companion says so at its private socket.
fn is_healthy(home: &Home) -> bool {
    let engine = engine(home);
    let command = json!({"Cmd": ["/opt/osctl/bin/osctl", "health"]});
    let path = format!("/containers/{}/exec", home.container());
    let made = engine.send("POST", &path, &command);
    if made.status != 201 {
        return false;
    }
    let id = made.json()["Id"].as_str().unwrap().to_owned();
    let begun = engine.send(
        "POST",
        &format!("/exec/{id}/start"),
        &json!({"Detach": true}),
    );
    let mut state = Value::Null;
    until("the answer", || {
        state = engine.get(&format!("/exec/{id}/json")).json();
        state["Running"] != json!(true)
    });
    begun.status == 200 && state["ExitCode"] == json!(0)
}
