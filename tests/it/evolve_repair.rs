//! Trials of `up` after a crash or `down --force`: it repairs the state, and the history names the running image.

use crate::commands::Followed;
use crate::evolve::{
    DOCKERFILE, assert_one_that_remembers, assert_remembers, containers, engine, latest, remember,
    small, write,
};
use crate::evolve_faults::{assert_history_matches, evolve_until, process};
use crate::harness::{Engine, Home};
use crate::instance::container_id;
use crate::second_engine::until;
use crate::trials;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;

trials![
    up_repairs_the_state_that_a_crash_leaves,
    up_repairs_each_state_that_a_crash_can_leave =
        "evolve_repair::up_repairs_the_state_that_a_crash_leaves",
    the_history_names_the_running_image_after_a_forced_down,
    purge_leaves_no_image_of_an_instance_that_was_only_built,
    purge_leaves_no_image_of_a_killed_build_of_the_keeper,
];

fn post(path: &str, body: &Value, status: u16) -> Value {
    let answer = Engine.send("POST", path, body);
    let answer_text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.status, status, "{path}: {answer_text}");
    serde_json::from_str(&answer_text).unwrap_or_default()
}

fn remove(name: &str) {
    let path = format!("/containers/{name}?force=true");
    assert_eq!(Engine.send("DELETE", &path, &Value::Null).status, 204);
}

/// Creates another container of the same image and labels, which sleeps.
fn create_copy(home: &Home, name: &str, part: Option<&str>) -> String {
    let path = format!("/containers/{}/json", home.container());
    let image = Engine.get(&path).json()["Image"].clone();
    let mut labels = json!({"osctl.instance": home.instance});
    if let Some(part) = part {
        labels["osctl.part"] = json!(part);
    }
    let body = json!({"Image": image, "Entrypoint": ["/bin/sleep", "600"], "Labels": labels});
    let made = post(&format!("/containers/create?name={name}"), &body, 201);
    made["Id"].as_str().unwrap().to_owned()
}

/// The keeper's first steps of a swap, before the container gets another name: paused, without restarts.
fn pause_in_place(home: &Home) {
    let container = home.container();
    post(&format!("/containers/{container}/pause"), &Value::Null, 204);
    let policy = json!({"RestartPolicy": {"Name": "no"}});
    post(&format!("/containers/{container}/update"), &policy, 200);
}

fn assert_doctor_and_status_name_the_command_that_continues(home: &Home) {
    let status = home.run(["status"]);
    let up = format!(
        "`osctl --instance {} up` unpauses the container",
        home.instance
    );
    assert_eq!(status.code, 1, "{status:?}");
    assert!(status.stderr.contains(&up), "{status:?}");
    let ran = home.run(["doctor"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let hint = format!(
        "hint: `osctl --instance {} up` unpauses the container, which keeps its memory",
        home.instance
    );
    for expected in ["broken   container      paused", hint.as_str()] {
        assert!(ran.stdout.contains(expected), "{expected}: {ran:?}");
    }
    assert!(!ran.stdout.contains("companion "), "{ran:?}");
    let error = home.run(["exec", "1"]).stderr;
    assert!(error.contains("is paused"), "{error}");
}

fn restart_policy(home: &Home) -> Value {
    let path = format!("/containers/{}/json", home.container());
    Engine.get(&path).json()["HostConfig"]["RestartPolicy"].clone()
}

/// Sets the container aside as the keeper does: paused, disconnected from its network, without restarts.
fn set_aside(home: &Home, name: &str) {
    let container = home.container();
    pause_in_place(home);
    let rename = format!("/containers/{container}/rename?name={name}");
    post(&rename, &Value::Null, 204);
    let network = format!("/networks/osctl-{}/disconnect", home.instance);
    post(&network, &json!({"Container": name}), 200);
}

/// The name of a state that a crash can leave, and the function that creates it.
type State = (&'static str, fn(&Home));

const STATES: [State; 10] = [
    ("paused in its place, without a keeper", |home| {
        remove(&format!("os-keeper-{}", home.instance));
        pause_in_place(home);
        assert_doctor_and_status_name_the_command_that_continues(home);
    }),
    ("without restarts, stopped, without a keeper", |home| {
        remove(&format!("os-keeper-{}", home.instance));
        let container = home.container();
        pause_in_place(home);
        post(
            &format!("/containers/{container}/unpause"),
            &Value::Null,
            204,
        );
        post(&format!("/containers/{container}/stop"), &Value::Null, 204);
    }),
    ("set aside and paused, without a keeper", |home| {
        remove(&format!("os-keeper-{}", home.instance));
        set_aside(home, &format!("{}.old", home.container()));
    }),
    (
        "set aside and stopped, with a new container that never ran",
        |home| {
            let aside = format!("{}.old", home.container());
            set_aside(home, &aside);
            post(&format!("/containers/{aside}/unpause"), &Value::Null, 204);
            post(&format!("/containers/{aside}/stop"), &Value::Null, 204);
            create_copy_of_aside(home, &aside);
        },
    ),
    ("renamed to a name that no version uses", |home| {
        let (container, other) = (home.container(), format!("{}.new", home.container()));
        let rename = format!("/containers/{container}/rename?name={other}");
        post(&rename, &Value::Null, 204);
    }),
    ("with a second running container", |home| {
        let name = format!("{}.old", home.container());
        create_copy(home, &name, None);
        post(&format!("/containers/{name}/start"), &Value::Null, 204);
    }),
    (
        "with two other containers, one of which never ran",
        |home| {
            let name = |end: &str| format!("{}.{end}", home.container());
            create_copy(home, &name("new"), None);
            create_copy(home, &name("old"), None);
            post(
                &format!("/containers/{}/start", name("old")),
                &Value::Null,
                204,
            );
        },
    ),
    ("with a container of a self-test", |home| {
        let name = format!("{}.trial", home.container());
        create_copy(home, &name, Some("trial"));
        post(&format!("/containers/{name}/start"), &Value::Null, 204);
    }),
    ("without a keeper, with its state", |home| {
        remove(&format!("os-keeper-{}", home.instance));
    }),
    ("with a keeper that never ran", |home| {
        let name = format!("os-keeper-{}", home.instance);
        remove(&name);
        create_copy(home, &name, Some("keeper"));
    }),
];

fn create_copy_of_aside(home: &Home, aside: &str) {
    let path = format!("/containers/{aside}/json");
    let image = Engine.get(&path).json()["Image"].clone();
    let labels = json!({"osctl.instance": home.instance});
    let body = json!({"Image": image, "Labels": labels});
    let path = format!("/containers/create?name={}", home.container());
    post(&path, &body, 201);
}

/// A container that is paused in its place, one that is set aside, and a keeper that never ran.
fn up_repairs_the_state_that_a_crash_leaves() {
    repair("it-repair", [STATES[0], STATES[3], STATES[9]]);
}

fn up_repairs_each_state_that_a_crash_can_leave() {
    repair("it-repair-each", STATES);
}

fn repair<const N: usize>(name: &str, states: [State; N]) {
    let home = small(name);
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    let policy = restart_policy(&home);
    for (state, make) in states {
        let before = container_id(&home);
        make(&home);
        let ran = home.run(["up", "--yes"]);
        assert_eq!(ran.code, 0, "{state}: {ran:?}");
        let continued = ran.stdout.contains("was paused, continues with its memory");
        assert_eq!(continued, state.starts_with("paused"), "{state}: {ran:?}");
        assert_one_that_remembers(&home);
        assert_eq!(container_id(&home), before, "{state}: {ran:?}");
        assert_eq!(restart_policy(&home), policy, "{state}");
        let status = home.run(["evolve", "status"]);
        assert_eq!(status.code, 0, "{state}: {status:?}");
    }
    // `restart` continues a paused container, so that its sessions are stored.
    pause_in_place(&home);
    let container = format!("/containers/{}/json", home.container());
    let lock = fs::File::open(home.state().join("lock")).unwrap();
    lock.lock().unwrap();
    for verb in ["restart", "down"] {
        let ran = home.run([verb]);
        let is_refused = ran.code == 4 && ran.stderr.contains("another osctl is working");
        assert!(is_refused, "{ran:?}");
        let state = Engine.get(&container).json()["State"].clone();
        assert_eq!(state["Paused"], true, "{verb}: {state}");
    }
    drop(lock);
    let ran = home.ok(["restart"]);
    let continued = ran.stderr.contains("continuing the paused");
    assert!(continued && !ran.stderr.contains("not stored"), "{ran:?}");
    assert_one_that_remembers(&home);
    home.down();
}

fn the_history_names_the_running_image_after_a_forced_down() {
    let home = small("it-repair-down");
    home.up();
    remember(&home);
    home.ok(["cryo", "store"]);
    // Runs that the keeper cancels, and a run whose keeper is paused.
    for (number, point, is_keeper_running) in [
        (0, "building: building the image", true),
        (1, "verifying: waiting until the container is healthy", true),
        (2, "swapping: starting the new container", false),
    ] {
        let followed = evolve_until(&home, number, point);
        if !is_keeper_running {
            let keeper = format!("/containers/os-keeper-{}/pause", home.instance);
            post(&keeper, &Value::Null, 204);
        }
        home.ok(["down", "--force"]);
        assert_eq!(containers(&home), [""; 0], "{point}");
        drop(followed);
        // The body has changed, so `up` starts another image.
        home.up();
        assert_remembers(&home);
        until("the keeper's report that no run is in progress", || {
            let status = home.run(["--json", "evolve", "status"]);
            let status: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
            status["evolve_in_progress"] == json!(false)
        });
        assert_remembers(&home);
        assert_history_matches(&home, point);
        let record = latest(&home);
        assert_eq!(record["status"], "succeeded", "{point}: {record:#}");
    }
    home.down();
}

/// The images with a label of the instance, including intermediate ones.
pub(crate) fn images(home: &Home) -> Vec<Value> {
    let labels = [
        format!("osctl.image-of={}", home.instance),
        format!("osctl.build=osctl-{}", home.instance),
    ];
    let found = labels.iter().flat_map(|label| {
        let filter = json!({"label": [label]});
        let path = format!("/images/json?all=true&filters={filter}");
        let listed = engine(home).get(&path).json();
        listed.as_array().unwrap().clone()
    });
    found.collect()
}

fn purge(home: &Home) {
    let ran = home.run(["down", "--purge", "--yes"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(images(home), [Value::Null; 0]);
    // A second purge finds nothing.
    let ran = home.run(["down", "--purge", "--yes"]);
    assert_eq!(ran.code, 3, "{ran:?}");
}

fn purge_leaves_no_image_of_an_instance_that_was_only_built() {
    let mut home = small("it-repair-purge");
    home.ok(["build"]);
    // Images of another instance stay.
    let neighbour = small("it-repair-purge-2");
    neighbour.ok(["build"]);
    let ran = home.run(["down"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    purge(&home);
    assert_eq!(images(&neighbour).len(), 1);
    purge(&neighbour);
    // A purge also removes images of an unfinished build of the classic builder.
    home.env.insert("DOCKER_BUILDKIT".into(), "0".into());
    write_endless_build(&home);
    let mut build = home.command(["build"]);
    build.stdout(Stdio::null()).stderr(Stdio::null());
    let mut build = build.spawn().unwrap();
    let first = wait_for_step(&home);
    kill(
        Pid::from_raw(build.id().try_into().unwrap()),
        Signal::SIGKILL,
    )
    .unwrap();
    build.wait().unwrap();
    wait_for_build_end(&home);
    assert!(has_image(&first));
    purge(&home);
    assert!(!has_image(&first));
    // The base belongs to another instance and stays.
    let path = format!("/images/{}/json", crate::evolve::base());
    assert_eq!(Engine.get(&path).status, 200);
}

fn purge_leaves_no_image_of_a_killed_build_of_the_keeper() {
    let mut home = small("it-repair-purge-keeper");
    home.env.insert("DOCKER_BUILDKIT".into(), "0".into());
    home.up();
    write_endless_build(&home);
    let evolve = Followed::start(home.command(["evolve"]));
    let first = wait_for_step(&home);
    let keeper = process(&home, &format!("os-keeper-{}", home.instance));
    kill(keeper.unwrap(), Signal::SIGKILL).unwrap();
    assert!(has_image(&first));
    wait_for_build_end(&home);
    drop(evolve);
    let ran = home.run(["down", "--purge", "--force", "--yes"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(images(&home), [Value::Null; 0]);
    assert!(!has_image(&first));
}

fn has_image(id: &str) -> bool {
    Engine.get(&format!("/images/{id}/json")).status == 200
}

/// A body whose build has one step that ends, and one that does not.
fn write_endless_build(home: &Home) {
    let steps = "RUN echo one > /one\nRUN sleep 600\n";
    write(home, "Dockerfile", &format!("{DOCKERFILE}{steps}"));
}

/// The containers of the step that does not end. The container of an instance has the labels of its build, too.
fn endless_steps(home: &Home, all: bool) -> Vec<Value> {
    let label = format!("osctl.build=osctl-{}", home.instance);
    let filter = json!({"label": [label]});
    let path = format!("/containers/json?all={all}&filters={filter}");
    let steps = Engine.get(&path).json();
    let steps = steps.as_array().unwrap().iter();
    let is_endless = |step: &&Value| step["Command"].to_string().contains("sleep 600");
    steps.filter(is_endless).cloned().collect()
}

/// Waits for the second step, which does not end. Returns the ID of the image of the first step.
fn wait_for_step(home: &Home) -> String {
    let mut first = None;
    until("the endless step of the build", || {
        let steps = endless_steps(home, false);
        first = steps
            .first()
            .map(|step| step["ImageID"].as_str().unwrap().to_owned());
        first.is_some()
    });
    first.unwrap()
}

fn wait_for_build_end(home: &Home) {
    until("the end of the build", || {
        endless_steps(home, true).is_empty()
    });
}
