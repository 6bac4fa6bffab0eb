//! Trials of rollbacks to earlier bodies, of the report of each run, and of the images that are kept.

use crate::completions::complete;
use crate::evolve::{DOCKERFILE, assert_one_that_remembers, latest, remember, small, write};
use crate::harness::{Engine, Home};
use crate::second_engine::until;
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;

trials![
    rollback_returns_to_the_previous_image_or_to_that_of_a_run,
    show_reports_what_a_run_changed_kept_and_lost,
    images_are_kept_as_long_as_a_rollback_may_need_them =
        "evolve_rollback::rollback_returns_to_the_previous_image_or_to_that_of_a_run",
];

/// The ports of the host that the container publishes.
fn published(home: &Home) -> Value {
    let path = format!("/containers/{}/json", home.container());
    Engine.get(&path).json()["HostConfig"]["PortBindings"].clone()
}

/// The ID of the instance's image with that tag.
fn image_with_tag(home: &Home, tag: &str) -> Option<String> {
    let path = format!("/images/os-{}:{tag}/json", home.instance);
    let found = Engine.get(&path);
    (found.status == 200).then(|| found.json()["Id"].as_str().unwrap().to_owned())
}

fn running(home: &Home) -> String {
    let path = format!("/containers/{}/json", home.container());
    Engine.get(&path).json()["Image"].as_str().unwrap().into()
}

/// Evolves to a body with that mark; returns the run and its image.
#[track_caller]
fn evolve(home: &Home, mark: &str) -> (String, String) {
    let text = format!("{DOCKERFILE}RUN echo {mark} > /mark\n");
    write(home, "Dockerfile", &text);
    home.ok(["evolve"]);
    assert_marked(home, mark);
    let run = latest(home)["id"].as_str().unwrap().to_owned();
    (run, running(home))
}

#[track_caller]
fn assert_marked(home: &Home, mark: &str) {
    let ran = home.ok(["exec", "print(open('/mark').read().strip())"]);
    assert!(ran.stdout.contains(mark), "{ran:?}");
}

fn rollback_returns_to_the_previous_image_or_to_that_of_a_run() {
    let home = small("it-evolve-back");
    // The trial or another program uses the usual port, so that `up` chooses another.
    let taken = TcpListener::bind("127.0.0.1:8080");
    home.up();
    drop(taken);
    let ports = published(&home);
    assert_ne!(ports["8080/tcp"][0]["HostPort"], "8080", "{ports}");
    remember(&home);
    let host = running(&home);
    let (first_run, first) = evolve(&home, "first");
    assert_eq!(published(&home), ports);
    assert_eq!(image_with_tag(&home, "previous"), Some(host.clone()));
    let (second_run, second) = evolve(&home, "second");
    evolve(&home, "third");
    assert_eq!(image_with_tag(&home, "previous"), Some(second.clone()));
    let ran = home.ok(["evolve", "rollback", "--reason", "worse"]);
    let target = format!("the image of evolve {second_run} (");
    assert!(
        ran.stdout.contains(&target) && ran.stderr.contains(&target),
        "{ran:?}"
    );
    assert_marked(&home, "second");
    assert_eq!(running(&home), second);
    // The next rollback does not return to the image that was just rolled back.
    // The tag changes after the record of the run has its end.
    let is_previous = |image: &Option<String>| image_with_tag(&home, "previous") == *image;
    until("the tag `previous` for the first image", || {
        is_previous(&Some(first.clone()))
    });
    assert_eq!(published(&home), ports);
    assert_one_that_remembers(&home);
    home.ok(["evolve", "rollback", &first_run]);
    assert_marked(&home, "first");
    until("the tag `previous` for the image of the host", || {
        is_previous(&Some(host.clone()))
    });
    assert_one_that_remembers(&home);
    assert_eq!(latest(&home)["task"], "rollback");
    assert_eq!(published(&home), ports);
    let ran = home.run(["evolve", "rollback", "20200101-000000"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert_up_keeps_the_rolled_back_image(&home, &first);
    home.down();
}

/// Asserts that `up` prints `stdout`, keeps the image, and names the command that applies the changed body.
#[track_caller]
fn assert_up_keeps(home: &Home, image: &str, args: &[&str], stdout: &str) {
    let ran = home.ok(["up"].iter().chain(args));
    assert_eq!(running(home), image, "{ran:?}");
    assert!(
        ran.stderr
            .contains("body/ or packages differ from the running image")
            && ran.stderr.contains("evolve` applies them")
            && ran.stdout.contains(stdout),
        "{ran:?}"
    );
}

/// Asserts that a rollback lasts until the next `evolve`.
#[track_caller]
fn assert_up_keeps_the_rolled_back_image(home: &Home, image: &str) {
    assert_up_keeps(home, image, &[], "is up to date");
    // The image also stays when the container is replaced for another reason or was removed.
    let config = home.folder.join(".config/osctl/osctl.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}limits: {{pids: 600}}\n")).unwrap();
    let refused = home.run(["up"]);
    assert!(
        refused.code == 4 && refused.stderr.contains("limits.pids: 4096 -> 600"),
        "{refused:?}"
    );
    assert_up_keeps(home, image, &["--yes"], "was replaced");
    assert_one_that_remembers(home);
    home.ok(["down"]);
    assert_up_keeps(home, image, &[], "is healthy");
    home.ok(["evolve"]);
    assert_marked(home, "third");
    let ran = home.ok(["up"]);
    assert!(
        ran.stdout.contains("is up to date") && !ran.stderr.contains("differs"),
        "{ran:?}"
    );
}

fn show_reports_what_a_run_changed_kept_and_lost() {
    let home = small("it-evolve-told");
    home.up();
    remember(&home);
    home.ok(["shell", "cd /data && export MINE=1"]);
    home.ok(["exec", "import socket\nlost = socket.socket()"]);
    let evolve = |word: &str| {
        write(&home, "kernel/more.py", &format!("\"\"\"{word}.\"\"\"\n"));
        home.ok(["evolve"]);
        latest(&home)["id"].as_str().unwrap().to_owned()
    };
    let changes = |run: &str| home.json(["evolve", "diff", run])["changes"].clone();
    let only = |run: &str, lines: &str| {
        let changes = changes(run);
        assert_eq!(changes.as_array().unwrap().len(), 1, "{changes:#}");
        assert_eq!(changes[0]["path"], "kernel/more.py");
        assert!(
            changes[0]["diff"].as_str().unwrap().contains(lines),
            "{changes:#}"
        );
    };
    let first = evolve("First");
    // The first run is compared with the body that `up` built.
    only(&first, "+\"\"\"First.\"\"\"");
    let shown = home.ok(["evolve", "show", &first]).stdout;
    for line in [
        &*format!("id        {first}"),
        "status    succeeded",
        "  building   after",
        "  verifying  after",
        "kept and lost",
        "  session `default`: ",
        "    lost: `lost` (",
        "  shell:default: in `/data`, with environment",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let words = ["--instance", &home.instance, "evolve", "show", "20"];
    // The keeper answers while the container is paused. A completion that takes too long is empty.
    let pause = |verb: &str| {
        let path = format!("/containers/{}/{verb}", home.container());
        assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    };
    pause("pause");
    until("the completion of the run's ID", || {
        complete(&home, &words) == [first.as_str()]
    });
    pause("unpause");
    let record = home.json(["evolve", "show", &first]);
    assert_eq!(record["receipt"][0]["session"], "default", "{record:#}");
    let asked = home.api().get(&format!("/evolve/runs/{first}")).json();
    let (shell, entry) = (&asked["other_state"][0], &record["other_state"][0]);
    assert_eq!(
        (&shell["name"], &shell["detail"]),
        (&entry["name"], &entry["detail"])
    );
    assert_eq!(
        (&shell["kept"], &entry["verdict"]),
        (&json!(true), &json!("kept"))
    );
    // The stream contains the whole log and ends with the record.
    let accept = ("Accept", "application/x-ndjson");
    let path = format!("/evolve/runs/{first}");
    let streamed = home.api().connect().send("GET", &path, &[accept], b"");
    let lines = String::from_utf8(streamed.body).unwrap();
    let events: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let log: String = events.iter().filter_map(|e| e["text"].as_str()).collect();
    assert_eq!(log, home.ok(["evolve", "logs", &first]).stdout);
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["run"]),
        (&json!("record"), &json!(first))
    );
    assert_eq!(last["status"], "succeeded", "{last:#}");
    let second = evolve("Second");
    only(&second, "-\"\"\"First.\"\"\"\n+\"\"\"Second.\"\"\"");
    home.ok(["evolve", "rollback"]);
    let back = latest(&home)["id"].as_str().unwrap().to_owned();
    only(&back, "-\"\"\"Second.\"\"\"\n+\"\"\"First.\"\"\"");
    write(&home, "Dockerfile", "FROM debian\n");
    let failed = home.json(["evolve"]);
    assert_eq!(failed["status"], "failed", "{failed:#}");
    write(&home, "Dockerfile", DOCKERFILE);
    let third = evolve("Third");
    only(&third, "-\"\"\"First.\"\"\"\n+\"\"\"Third.\"\"\"");
    let failed = failed["id"].as_str().unwrap();
    let paths: Vec<Value> = changes(failed)
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["path"].clone())
        .collect();
    assert_eq!(paths, [json!("Dockerfile"), json!("kernel/more.py")]);
    let shown = home.ok(["evolve", "show", failed]).stdout;
    assert!(
        shown.contains("status    failed: nothing was changed")
            && shown.contains("failed stage: building")
            && shown.contains("`FROM debian` is not allowed"),
        "{shown}"
    );
    let ran = home.run(["evolve", "show", "20200101-000000"]);
    assert!(
        ran.code == 2 && ran.stderr.contains("does not exist"),
        "{ran:?}"
    );
    home.down();
}

fn images_are_kept_as_long_as_a_rollback_may_need_them() {
    let home = small("it-evolve-images");
    home.up();
    let host = running(&home);
    remember(&home);
    let all: Vec<_> = (0..7)
        .map(|n| evolve(&home, &format!("mark-{n}")))
        .collect();
    write(&home, "selftest.d/10-no", "#!/bin/sh\nexit 1\n");
    let failed = home.json(["evolve"]);
    assert_eq!(failed["failed_stage"], "testing", "{failed:#}");
    let image = failed["image"].as_str().unwrap();
    // The image is removed after the record of the run has its end.
    until("the removal of the failed image", || {
        Engine.get(&format!("/images/{image}/json")).status == 404
    });
    let is_kept: Vec<bool> = all
        .iter()
        .map(|(run, _)| image_with_tag(&home, &format!("run-{run}")).is_some())
        .collect();
    assert_eq!(is_kept[2..], [true; 5]);
    // One older image may be kept as the last image that passed its watch period.
    assert!(!is_kept[0] || !is_kept[1], "{is_kept:?}");
    assert_eq!(image_with_tag(&home, "latest"), Some(all[6].1.clone()));
    assert_eq!(image_with_tag(&home, "previous"), Some(all[5].1.clone()));
    // An image without a tag is removed.
    for ((_, image), is_kept) in all.iter().zip(&is_kept) {
        let found = Engine.get(&format!("/images/{image}/json")).status == 200;
        assert_eq!(found, *is_kept, "{image}");
    }
    let label = format!("osctl.image-of={}", home.instance);
    let filters = json!({"dangling": ["true"], "label": [label]});
    let nameless = Engine
        .get(&format!("/images/json?filters={filters}"))
        .json();
    // Only the image of the host may be kept without a tag, as the last image that passed its watch period.
    for image in nameless.as_array().unwrap() {
        assert_eq!(image["Id"], host.as_str(), "{nameless:#}");
    }
    home.ok(["evolve", "rollback", &all[2].0]);
    assert_marked(&home, "mark-2");
    home.down();
}
