//! Trials of the embedded engine, which runs plain processes and says so.

use crate::harness::Home;
use crate::trials;
use std::path::{Path, PathBuf};

use std::fs;

trials![
    the_embedded_engine_runs_and_says_that_it_does_not_isolate,
    a_new_process_that_does_not_work_is_replaced_by_the_old_one,
];

fn a_new_process_that_does_not_work_is_replaced_by_the_old_one() {
    let home = Home::new("it-embedded-back");
    home.ok(["init", "--full"]);
    home.ok(["up", "--yes", "--auto-ports", "--engine", "embedded"]);
    let image = home.json(["status"])["image"].clone();
    let kernel = home.project.join("body/kernel/main.py");
    let works = fs::read(&kernel).unwrap();
    fs::write(&kernel, "raise SystemExit(3)\n").unwrap();
    let ran = home.run(["up", "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    home.api().until("the kernel of the old process", |_| {
        let status = home.json(["status"]);
        assert_eq!(status["image"], image, "{status}");
        status["healthy"].as_bool()?.then_some(())
    });
    assert_eq!(home.ok(["exec", "6 * 7"]).stdout, "42\n");
    // The next process works, and nothing else is left.
    fs::write(&kernel, [&works[..], b"\n# another body\n"].concat()).unwrap();
    assert!(home.ok(["up", "--yes"]).stdout.contains("was replaced"));
    assert_eq!(home.ok(["exec", "6 * 7"]).stdout, "42\n");
    home.down();
}

fn the_embedded_engine_runs_and_says_that_it_does_not_isolate() {
    let home = Home::new("it-embedded");
    home.write_config("terminals:\n  idle: 1\nlog_format: json\n");
    let ran = home.ok(["up", "--yes", "--auto-ports", "--engine", "embedded"]);
    assert!(ran.stderr.contains("no isolation"), "{ran:?}");
    home.ok(["exec", "x = 41"]);
    assert_eq!(home.ok(["exec", "x + 1"]).stdout, "42\n");
    let status = home.json(["status"]);
    assert_eq!(
        (status["engine"].as_str(), status["healthy"].as_bool()),
        (Some("embedded"), Some(true))
    );
    assert!(
        status["warnings"][0]
            .as_str()
            .unwrap()
            .contains("no isolation"),
        "{status}"
    );
    assert_eq!(
        home.api().exec("import os; os._exit(3)")["error"]["type"],
        "KernelDied"
    );
    assert_eq!(home.api().exec("1")["kernel"]["state"], "lost");
    // The embedded engine has no container to replace and no keeper.
    for (path, body) in [
        ("/evolve", serde_json::json!({"reason": "more"})),
        ("/evolve/rollback", serde_json::json!({})),
    ] {
        let refused = home.api().post(path, &body).error();
        assert_eq!((refused.0, &*refused.1), (503, "no_keeper"), "{path}");
    }
    for field in ["image", "mounts", "command", "env"] {
        let refused = home
            .api()
            .post("/evolve", &serde_json::json!({ field: "x" }));
        assert_eq!(refused.error().1, "invalid_field", "{field}");
    }
    let raised = home.api().exec("runtime.evolve('more')")["error"].clone();
    assert_eq!(raised["type"], "RuntimeError", "{raised}");
    assert!(
        raised["message"].to_string().contains("no keeper"),
        "{raised}"
    );
    // Idle terminals of the host end after their timeout.
    let peer = crate::pty::Peer::open(&home.api(), "").ok().unwrap();
    let id = peer.id.clone();
    drop(peer);
    home.api().until("the end of an idle terminal", |api| {
        let list = api.get("/pty").json();
        let all = list["terminals"].as_array().unwrap();
        let found = all.iter().find(|t| t["id"] == id.as_str()).unwrap();
        found["exit"].as_u64()
    });
    home.ok(["restart"]);
    assert_eq!(home.api().exec("'x' in globals()")["result"], "False");
    let log = home.ok(["logs", "kernel"]).stdout;
    let ready = || {
        log.lines()
            .filter(|line| line.contains("the kernel is ready"))
    };
    assert!(ready().count() > 0, "{log}");
    assert!(
        ready().all(|line| line.contains("session=default")),
        "{log}"
    );
    let state = home.folder.join(".local/state/osctl");
    let file = walk(&state).find(|path| path.ends_with("companion.log"));
    let text = std::fs::read_to_string(file.unwrap()).unwrap();
    let lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
    let mut spans = lines.flatten().map(|line| line["spans"][0].clone());
    assert!(spans.any(|span| span["session"] == "default"), "{text}");
    let unknown = home.run(["logs", "nobody"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (2, ""));
    let expected = "the service `nobody` does not exist; the services are kernel";
    assert!(unknown.stderr.contains(expected), "{unknown:?}");
    let unknown = home.json(["logs", "-f", "kernle"]);
    let hint = unknown["error"]["hint"].as_str().unwrap();
    assert!(hint.ends_with("logs kernel`?"), "{unknown}");
    assert!(home.ok(["up"]).stdout.contains("is up to date"));
    home.down();
    assert!(!home.state().exists());
}

/// All files beneath the folder.
fn walk(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.into_iter()
}
