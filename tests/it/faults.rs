//! Trials of engines that stop, hang or fill up, and of an osctl that ends half-way: osctl reports what happened, and
//! the next call works without a cleanup.
//!
//! Trials that harm an engine use a second `dockerd` in its own namespaces with its own small disk. It ends with the
//! process of the trials.

use crate::commands::Followed;
use crate::harness::{Engine, Home};
use crate::ports::free_port;
use crate::second_engine::{Second, busybox, short_folder, until, write_body};
use crate::trials;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

trials![
    an_engine_that_does_not_run_is_named_with_its_address,
    every_form_of_a_local_address_is_tried,
    a_socket_without_an_engine_is_reported,
    an_engine_that_hangs_is_reported_in_seconds,
    ctrl_c_ends_a_build_on_an_engine_that_hangs,
    an_engine_killed_while_building_is_reported_and_the_next_build_works,
    an_engine_stopped_while_building_is_reported_and_the_next_build_works,
    an_engine_killed_while_up_waits_is_reported,
    an_engine_that_freezes_while_up_waits_is_reported,
    a_disk_that_fills_while_building_is_reported_and_its_space_is_freed,
    rebuilt_images_do_not_pile_up,
    a_step_that_fails_is_named_with_its_last_lines,
    a_malformed_dockerfile_is_reported_with_the_line,
    an_unavailable_image_is_named,
    a_container_that_ends_immediately_is_reported_with_its_code_and_log,
    a_killed_osctl_leaves_no_lock,
    ctrl_c_at_the_first_output_is_reported,
    ctrl_c_does_not_block_the_next_up,
    ctrl_c_at_each_stage_of_up_does_not_block_the_next_up =
        "faults::ctrl_c_does_not_block_the_next_up",
    a_terminated_up_does_not_block_the_next_up,
    a_killed_up_does_not_block_the_next_up,
];

/// The time in which osctl must report an engine that does not answer.
const REPORT_TIMEOUT: Duration = Duration::from_secs(45);
/// The time in which an osctl that receives a signal must end.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a command to its end; returns its exit code and its messages.
pub(crate) fn run_to_end<const N: usize>(home: &Home, args: [&str; N]) -> (i32, String) {
    let (code, seen) = Followed::start(home.command(args)).end();
    (code, seen.concat())
}

/// Asserts an expected failure: its exit code, each of the words, and a hint.
#[track_caller]
pub(crate) fn assert_failure(failure: &(i32, String), code: i32, words: &[&str]) {
    assert_eq!(failure.0, code, "{}", failure.1);
    for word in words.iter().chain(&["error: ", "\nhint: "]) {
        assert!(
            failure.1.contains(word),
            "`{word}` is missing in: {}",
            failure.1
        );
    }
}

/// A build step that is too slow to wait for.
const SLOW: &str = "RUN sleep 60";

/// Asserts that the next build works, with a fast step.
#[track_caller]
fn builds_again(home: &Home) {
    write_body(home, "RUN sleep 0");
    home.ok(["build"]);
}

/// Starts `up` and waits until it prints `text`.
#[track_caller]
fn up_until(home: &Home, text: &str) -> Followed {
    let mut up = Followed::start(home.command(["up", "--yes", "--auto-ports"]));
    assert!(up.wait_for(text), "`{text}` is missing in: {:?}", up.seen);
    up
}

fn an_engine_that_does_not_run_is_named_with_its_address() {
    let mut home = Home::new("it-none");
    let address = format!("unix://{}", home.folder.join("none.sock").display());
    home.env.insert("DOCKER_HOST".into(), address.clone());
    for args in [["up", "--yes"], ["build", "--yes"]] {
        let failure = run_to_end(&home, args);
        assert_failure(&failure, 4, &[&address, "does not answer", "DOCKER_HOST="]);
    }
}

fn every_form_of_a_local_address_is_tried() {
    let mut home = Home::new("it-here");
    let address = format!("tcp://127.0.0.1:{}", free_port());
    home.env.insert("DOCKER_HOST".into(), address.clone());
    let failure = run_to_end(&home, ["up", "--yes"]);
    assert_failure(&failure, 4, &[&address, "does not answer"]);
}

fn a_socket_without_an_engine_is_reported() {
    let folder = short_folder();
    let answers: [&[u8]; 4] = [
        b"",
        b"220 ready for mail\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ];
    let mut home = Home::new("it-other");
    for (number, answer) in answers.into_iter().enumerate() {
        // Each answer has its own socket, so that no earlier request interferes.
        let socket = folder.path().join(format!("{number}.sock"));
        let listener = UnixListener::bind(&socket).unwrap();
        let address = format!("unix://{}", socket.display());
        home.env.insert("DOCKER_HOST".into(), address.clone());
        let up = Followed::start(home.command(["up", "--yes"]));
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).unwrap() > 0);
        stream.write_all(answer).unwrap();
        drop(stream);
        let (code, seen) = up.end();
        assert_failure(&(code, seen.concat()), 4, &[&address]);
    }
}

fn an_engine_that_hangs_is_reported_in_seconds() {
    let second = Second::start();
    let home = second.home("it-hang", "");
    let _frozen = second.freeze();
    let begin = Instant::now();
    let failure = run_to_end(&home, ["up", "--yes"]);
    assert!(begin.elapsed() < REPORT_TIMEOUT, "{:?}", begin.elapsed());
    assert_failure(&failure, 4, &[&second.address(), "no answer within"]);
}

fn ctrl_c_ends_a_build_on_an_engine_that_hangs() {
    let second = Second::start();
    let home = second.home("it-froze", SLOW);
    let up = up_until(&home, SLOW);
    let frozen = second.freeze();
    let begin = Instant::now();
    up.signal("INT");
    let (code, seen) = up.end();
    assert!(begin.elapsed() < INTERRUPT_TIMEOUT, "{:?}", begin.elapsed());
    assert_failure(&(code, seen.concat()), 5, &["interrupted"]);
    drop(frozen);
    builds_again(&home);
}

fn engine_ends_while_building(name: &str, signal: Signal) {
    let mut second = Second::start();
    let home = second.home(name, SLOW);
    let up = up_until(&home, SLOW);
    second.stop(signal);
    let begin = Instant::now();
    let (code, seen) = up.end();
    assert!(begin.elapsed() < INTERRUPT_TIMEOUT, "{:?}", begin.elapsed());
    let failure = (code, seen.concat());
    assert_failure(
        &failure,
        4,
        &["the connection to the engine was lost", "start the engine"],
    );
    second.start_daemon();
    builds_again(&home);
}

fn an_engine_killed_while_building_is_reported_and_the_next_build_works() {
    engine_ends_while_building("it-gone", Signal::SIGKILL);
}

fn an_engine_stopped_while_building_is_reported_and_the_next_build_works() {
    engine_ends_while_building("it-stop", Signal::SIGTERM);
}

/// The entry point of a container that runs and is never healthy.
const IDLE: &str = r#"ENTRYPOINT ["/bin/sleep", "60"]"#;

fn an_engine_killed_while_up_waits_is_reported() {
    let mut second = Second::start();
    let home = second.home("it-wait", IDLE);
    let up = up_until(&home, WAITING);
    second.stop(Signal::SIGKILL);
    let begin = Instant::now();
    let (code, seen) = up.end();
    assert!(begin.elapsed() < INTERRUPT_TIMEOUT, "{:?}", begin.elapsed());
    assert_failure(
        &(code, seen.concat()),
        4,
        &["the connection to the engine was lost"],
    );
}

fn an_engine_that_freezes_while_up_waits_is_reported() {
    let second = Second::start();
    let home = second.home("it-freeze", IDLE);
    let up = up_until(&home, WAITING);
    let _frozen = second.freeze();
    let begin = Instant::now();
    let (code, seen) = up.end();
    assert!(begin.elapsed() < REPORT_TIMEOUT, "{:?}", begin.elapsed());
    assert_failure(
        &(code, seen.concat()),
        4,
        &["the engine", "no answer within"],
    );
}

fn a_disk_that_fills_while_building_is_reported_and_its_space_is_freed() {
    let second = Second::start();
    let room = second.free_disk();
    let home = second.home("it-full", "RUN dd if=/dev/zero of=/big bs=1M count=700");
    let failure = run_to_end(&home, ["up", "--yes"]);
    assert_failure(&failure, 4, &["the disk is full", "free disk space"]);
    write_body(&home, "RUN dd if=/dev/zero of=/small bs=1M count=10");
    home.ok(["build"]);
    // The small layer and its copy in the build cache remain; the big layer is removed.
    until("the release of the disk space", || {
        second.free_disk() + (40 << 20) > room
    });
}

fn rebuilt_images_do_not_pile_up() {
    let second = Second::start();
    let home = second.home("it-pile", "RUN echo 0 > /file");
    for n in 1..4 {
        home.ok(["build"]);
        write_body(&home, &format!("RUN echo {n} > /file"));
    }
    let nameless = r#"/images/json?filters={"dangling":["true"]}"#;
    assert_eq!(second.api().get(nameless).json(), json!([]));
}

fn a_step_that_fails_is_named_with_its_last_lines() {
    let second = Second::start();
    let line = "RUN echo a-clue; echo another >&2; exit 7";
    let home = second.home("it-step", line);
    let failure = run_to_end(&home, ["up", "--yes"]);
    let words = [line, "a-clue\n", "another\n", "exit code 7", "-v build`"];
    assert_failure(&failure, 4, &words);
}

fn a_malformed_dockerfile_is_reported_with_the_line() {
    let second = Second::start();
    let home = second.home("it-syntax", "RUM true");
    let failure = run_to_end(&home, ["up", "--yes"]);
    assert_failure(&failure, 4, &["could not be built", "RUM", "line 3"]);
}

fn an_unavailable_image_is_named() {
    let second = Second::start();
    let home = second.home("it-from", "FROM nowhere.invalid/nothing:1");
    let failure = run_to_end(&home, ["up", "--yes"]);
    assert_failure(
        &failure,
        4,
        &["could not be built", "nowhere.invalid/nothing:1"],
    );
    let home = second.home("it-base", "");
    let config = format!(
        "base: nowhere.invalid/base:1\ncompanion: {}\n",
        busybox().display()
    );
    home.write_config(&config);
    let failure = run_to_end(&home, ["up", "--yes"]);
    assert_failure(&failure, 4, &["nowhere.invalid/base:1", "`base:`"]);
}

fn a_container_that_ends_immediately_is_reported_with_its_code_and_log() {
    let second = Second::start();
    let entry = r#"ENTRYPOINT ["/bin/sh", "-c", "echo a-clue; echo another >&2; exit 3"]"#;
    let home = second.home("it-exit", entry);
    let failure = run_to_end(&home, ["up", "--yes", "--auto-ports"]);
    let words = [
        "did not become healthy",
        "the container ended with exit code 3",
        "a-clue\n",
        "another\n",
        "logs",
    ];
    assert_failure(&failure, 4, &words);
    let path = format!("/containers/{}/json", home.container());
    let state = || second.api().get(&path).json();
    assert_eq!(state()["State"]["Status"], "exited");
    // Wait longer than the engine's delay before a restart.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let query = format!(
        r#"/events?since={}&until={}&filters={{"event":["start"]}}"#,
        now.as_secs_f64(),
        now.as_secs() + 3
    );
    assert_eq!(
        second.api().get(&query).body,
        b"",
        "the engine restarted the container"
    );
}

fn a_killed_osctl_leaves_no_lock() {
    let second = Second::start();
    let home = second.home("it-lock", SLOW);
    let up = up_until(&home, SLOW);
    let failure = run_to_end(&home, ["build"]);
    assert_failure(&failure, 4, &["another osctl is working on", "wait until"]);
    up.signal("KILL");
    up.end();
    builds_again(&home);
}

/// An instance on the first engine with the real body; it is removed even when the trial fails.
#[derive(Debug)]
struct Instance(Home);

impl Deref for Instance {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.0
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.0.run(["down", "--purge", "--yes"]);
    }
}

impl Instance {
    fn new(name: &str) -> Self {
        let instance = Self(Home::new(name));
        instance.ok(["init", "--full"]);
        instance
    }

    /// Adds a slow build step that is not in the cache.
    fn add_slow_step(&self) {
        let change = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let path = self.project.join("body/Dockerfile");
        let text = fs::read_to_string(&path).unwrap();
        let (before, after) = text.split_once("# The binary does not change").unwrap();
        let before = before.split("RUN sleep").next().unwrap();
        let step = format!("{SLOW} # since {change:?}\n\n");
        fs::write(
            path,
            format!("{before}{step}# The binary does not change{after}"),
        )
        .unwrap();
    }

    /// Sends the signal when `up` prints `text`; returns the exit code and the messages.
    fn signal_at(&self, text: &str, signal: &str) -> (i32, String) {
        let up = up_until(self, text);
        up.signal(signal);
        let begin = Instant::now();
        let (code, seen) = up.end();
        assert!(
            begin.elapsed() < INTERRUPT_TIMEOUT,
            "{text}: {:?}",
            begin.elapsed()
        );
        let containers = Engine.get("/containers/json?all=true").json();
        let ours = |c: &&Value| c["Names"][0].as_str().unwrap().ends_with(&self.container());
        for container in containers.as_array().unwrap().iter().filter(ours) {
            assert_eq!(
                container["Labels"]["osctl.instance"],
                self.instance.as_str()
            );
        }
        (code, seen.concat())
    }

    /// Asserts that the next `up` works, with a fast build step.
    fn assert_next_up_works(&self) {
        let path = self.project.join("body/Dockerfile");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace(SLOW, "RUN sleep 0")).unwrap();
        self.up();
        assert_eq!(self.ok(["exec", "print(6*7)"]).stdout, "42\n");
    }
}

/// The messages of `up` at its stages; only the last two stages need no build.
const LOOKING: &str = "looking for the container engine";
const BEFORE_THE_BUILD: &str = "building the image";
const BUILDING: &str = SLOW;
const CREATING: &str = "creating";
const WAITING: &str = "to become healthy";

fn signal_up_at(name: &str, stages: &[&str], signal: &str, check: impl Fn(&str, &(i32, String))) {
    let instance = Instance::new(name);
    for stage in stages {
        if [CREATING, WAITING].contains(stage) {
            instance.run(["down"]);
        } else {
            instance.add_slow_step();
        }
        check(stage, &instance.signal_at(stage, signal));
        instance.assert_next_up_works();
    }
    // The name includes the suffix of the checkout.
    let name = instance.instance.clone();
    drop(instance);
    let filter = format!(r#"{{"label":["osctl.instance={name}"]}}"#);
    for path in ["/containers/json?all=true&", "/networks?"] {
        let left = Engine.get(&format!("{path}filters={filter}")).json();
        assert_eq!(left, json!([]), "{path}");
    }
    let image = Engine.get(&format!("/images/os-{name}:latest/json"));
    assert_eq!(image.status, 404);
}

fn ctrl_c_at_the_first_output_is_reported() {
    let folder = short_folder();
    let socket = folder.path().join("silent.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let mut home = Home::new("it-first");
    let address = format!("unix://{}", socket.display());
    home.env.insert("DOCKER_HOST".into(), address);
    for _ in 0..20 {
        let up = up_until(&home, LOOKING);
        up.signal("INT");
        let (code, seen) = up.end();
        assert_failure(
            &(code, seen.concat()),
            5,
            &["interrupted", "run the command again"],
        );
    }
}

fn ctrl_c_does_not_block_the_next_up() {
    interrupt_up_at("it-int", &[BUILDING, WAITING]);
}

fn ctrl_c_at_each_stage_of_up_does_not_block_the_next_up() {
    let stages = [LOOKING, BEFORE_THE_BUILD, BUILDING, CREATING, WAITING];
    interrupt_up_at("it-int-each", &stages);
}

fn interrupt_up_at(name: &str, stages: &[&str]) {
    signal_up_at(name, stages, "INT", |_, failure| {
        assert_failure(failure, 5, &["interrupted", "run the command again"]);
    });
}

fn a_terminated_up_does_not_block_the_next_up() {
    signal_up_at("it-term", &[CREATING], "TERM", |_, failure| {
        assert_failure(failure, 5, &["interrupted", "run the command again"]);
    });
}

fn a_killed_up_does_not_block_the_next_up() {
    signal_up_at(
        "it-kill",
        &[BUILDING, CREATING],
        "KILL",
        |stage, failure| {
            assert!(failure.1.contains(stage), "{}", failure.1);
        },
    );
}
