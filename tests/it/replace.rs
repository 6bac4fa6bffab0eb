//! The replacement of a container without a keeper: the new container must be healthy, whatever is interrupted.
//!
//! The engine is at a TCP port here, so that the keeper has no socket to mount.

use crate::commands::Followed;
use crate::evolve::containers;
use crate::harness::{Engine, Home};
use crate::instance::container_id;
use crate::ports::free_port;
use crate::proxies::engine_at_port;
use crate::trials;
use serde_json::{Value, json};
use std::fs;

trials![
    an_interrupted_replacement_that_does_not_work_restores_the_old_container,
    an_interrupted_replacement_that_works_stays,
    a_replaced_container_waits_under_an_unused_name,
];

/// Runs, is never healthy, and ends when a file exists.
const BROKEN: &str = "#!/bin/bash\nwhile ! test -e /root/host/end; do sleep 0.1; done\necho no companion today >&2\nexit 3\n";

/// A home whose engine is at a port.
fn without_keeper(name: &str) -> Home {
    let mut home = Home::new(name);
    home.env.insert("DOCKER_HOST".into(), engine_at_port());
    home
}

/// Runs `up`, which gets the signal when it prints `text`.
fn end_up_at(home: &Home, text: &str, signal: &str) {
    let mut up = Followed::start(home.command(["up", "--yes"]));
    assert!(up.wait_for(text), "`{text}` is missing in: {:?}", up.seen);
    up.signal(signal);
    up.end();
}

/// The instance's only container has this id, and its kernel answers.
#[track_caller]
fn assert_answers(home: &Home, id: &str) {
    assert_eq!(container_id(home), id);
    let api = home.api();
    api.until("the container's kernel", |api| {
        let answer = std::panic::catch_unwind(|| api.get("/health").status);
        (answer.ok() == Some(200)).then_some(())
    });
    assert_eq!(api.exec("1+1")["result"], "2");
    assert_eq!(containers(home), [home.container()]);
}

fn an_interrupted_replacement_that_does_not_work_restores_the_old_container() {
    let mut home = without_keeper("it-cut");
    home.ok(["init", "--full"]);
    home.up();
    let old = container_id(&home);
    fs::write(home.project.join("body/entrypoint.sh"), BROKEN).unwrap();
    let end = home.files().join("end");
    let mut broken_up = |port: Option<u16>, stage: &str, signal: &str| {
        if let Some(port) = port {
            home.env
                .insert("OSCTL_PORTS_KERNEL".into(), port.to_string());
        }
        end_up_at(&home, stage, signal);
        home.env.remove("OSCTL_PORTS_KERNEL");
    };
    broken_up(None, "replacing", "INT");
    broken_up(None, "replacing", "KILL");
    // The next container uses another port, and its osctl ends without a record.
    broken_up(Some(free_port()), "to become healthy", "INT");
    fs::write(&end, "").unwrap();
    broken_up(None, "restoring the old", "INT");
    broken_up(None, "restoring the old", "KILL");
    let ran = home.run(["up"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("no companion today"), "{ran:?}");
    assert_answers(&home, &old);
    // The old container also returns when no new image can be built.
    fs::remove_file(&end).unwrap();
    end_up_at(&home, "to become healthy", "KILL");
    assert_ne!(container_id(&home), old);
    fs::write(&end, "").unwrap();
    let dockerfile = home.project.join("body/Dockerfile");
    fs::write(dockerfile, "FROM ${BASE}\nRUN false\n").unwrap();
    let ran = home.run(["up"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("could not be built"), "{ran:?}");
    assert_answers(&home, &old);
    home.down();
}

fn an_interrupted_replacement_that_works_stays() {
    let home = without_keeper("it-cut-well");
    home.up();
    let old = container_id(&home);
    home.write_config("limits:\n  pids: 600\n");
    end_up_at(&home, "to become healthy", "KILL");
    let new = container_id(&home);
    assert_ne!(new, old);
    let ran = home.ok(["up"]);
    assert!(ran.stdout.contains("is up to date"), "{ran:?}");
    assert_answers(&home, &new);
    home.down();
}

fn post(path: &str, body: &Value, status: u16) {
    let answer = Engine.send("POST", path, body);
    assert_eq!(answer.status, status, "{path}: {:?}", answer.body);
}

/// A container that sleeps, removed when dropped.
#[derive(Debug)]
struct SleepingContainer(String);

impl SleepingContainer {
    fn start(name: &str, image: &str, owner: &str) -> Self {
        let labels = json!({"osctl.instance": owner});
        let body = json!({"Image": image, "Entrypoint": ["/bin/sleep", "600"], "Labels": labels});
        post(&format!("/containers/create?name={name}"), &body, 201);
        let sleeper = Self(name.into());
        post(&format!("/containers/{name}/start"), &Value::Null, 204);
        sleeper
    }
}

impl Drop for SleepingContainer {
    fn drop(&mut self) {
        let path = format!("/containers/{}?force=true", self.0);
        Engine.send("DELETE", &path, &Value::Null);
    }
}

fn a_replaced_container_waits_under_an_unused_name() {
    let home = without_keeper("it-aside");
    home.up();
    let image = home.json(["status"])["image"].clone();
    let replaced = |pids: u16| {
        home.write_config(&format!("limits:\n  pids: {pids}\n"));
        home.run(["up", "--yes"])
    };
    // `{container}-old` may be the container of another instance called `old`.
    let (dashed, dotted) = (
        format!("{}-old", home.container()),
        format!("{}.old", home.container()),
    );
    let neighbour = format!("{}-old", home.instance);
    let other = SleepingContainer::start(&dashed, image.as_str().unwrap(), &neighbour);
    let ran = replaced(600);
    assert!(ran.stdout.contains("was replaced"), "{ran:?}");
    let found = Engine.get(&format!("/containers/{dashed}/json")).json();
    assert_eq!(found["State"]["Running"], true, "{found}");
    drop(other);
    // Another program has the name: osctl does not touch the kernel.
    let before = container_id(&home);
    home.api().exec("x = 1");
    let foreign = SleepingContainer::start(&dotted, image.as_str().unwrap(), "");
    let ran = replaced(601);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr.contains(&dotted) && ran.stderr.contains("it was not changed"),
        "{ran:?}"
    );
    assert_eq!(container_id(&home), before);
    assert_eq!(home.api().exec("x")["result"], "1");
    drop(foreign);
    // A container that an earlier version left under the former name.
    let rename = format!("/containers/{}/rename?name={dashed}", home.container());
    post(&rename, &Value::Null, 204);
    post(&format!("/containers/{dashed}/stop"), &Value::Null, 204);
    home.write_config("limits:\n  pids: 600\n");
    home.ok(["up", "--yes"]);
    assert_answers(&home, &before);
    home.down();
}
