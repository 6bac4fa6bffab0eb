//! Trials of cryo: variables are stored, reloaded, listed, refused, and restored automatically.

use crate::completions::assert_completes;
use crate::cryo_faults::{flip, place};
use crate::harness::{Api, Engine, Home, shared};
use crate::trials;
use serde_json::{Value, json};

trials![
    stored_variables_reload_into_the_running_kernel,
    a_receipt_names_what_is_lost_and_what_is_a_recipe,
    strict_and_dry_run_store_nothing,
    a_store_changes_nothing_in_the_namespace,
    a_busy_kernel_is_not_stored,
    requests_for_missing_stores_are_refused,
    progress_is_reported_in_bytes,
    the_command_line_stores_lists_shows_and_removes,
    a_session_is_restored_unless_it_was_reset,
];

#[track_caller]
pub(crate) fn stored(api: &Api, request: &Value) -> Value {
    api.done("/cryo/store", request)
}

#[track_caller]
pub(crate) fn reloaded(api: &Api, request: &Value) -> Value {
    api.done("/cryo/reload", request)
}

/// Creates an empty session.
pub(crate) fn session(api: &Api, name: &str) -> Value {
    assert_eq!(api.post("/sessions", &json!({"name": name})).status, 200);
    json!(name)
}

#[track_caller]
pub(crate) fn exec(api: &Api, session: &Value, code: &str) -> Value {
    let reply = api.exec_with(json!({"code": code, "session": session}));
    assert_eq!(reply["status"], "completed", "{reply}");
    reply
}

/// The receipt's row of a variable.
fn row<'a>(reply: &'a Value, name: &str) -> &'a Value {
    let rows = reply["receipt"].as_array().unwrap();
    let found = rows.iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {reply}"))
}

pub(crate) fn end(api: &Api, session: &Value) {
    let path = format!("/sessions/{}", session.as_str().unwrap());
    assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
}

fn stored_variables_reload_into_the_running_kernel() {
    let api = shared().api();
    let of = session(&api, "cryo-back");
    let code = "x = [1]; y = x; n = 5\ndef get(): return n";
    let seen = exec(&api, &of, code)["kernel"]["generation"]
        .as_u64()
        .unwrap();
    let reply = stored(&api, &json!({"session": of}));
    assert_eq!(reply["status"], "completed");
    assert_eq!((&reply["name"], &reply["generation"]), (&of, &json!(1)));
    assert_eq!(reply["path"], "/data/cryo/cryo-back/1");
    assert!(reply["timing_ms"].as_f64().unwrap() > 0.0);
    let shown = api.get("/cryo/cryo-back").json();
    assert_eq!(shown["size_bytes"], reply["size_bytes"]);
    assert!(shown["size_bytes"].as_u64().unwrap() > 0);
    exec(&api, &of, "x.append(2); del y; n = 6; later = 1");
    let reply = reloaded(&api, &json!({"session": of}));
    assert_eq!(row(&reply, "x")["verdict"], "saved");
    let kernel = reply["kernel"].clone();
    assert_eq!(
        (&kernel["generation"], &kernel["state"]),
        (&json!(seen + 1), &json!("restored"))
    );
    let from = &kernel["restored_from"];
    assert_eq!((&from["name"], &from["generation"]), (&of, &json!(1)));
    assert_eq!(
        (&from["runs_after"], &from["lost_count"]),
        (&json!(1), &json!(0))
    );
    let code = "a = x, y is x, get(), later\nn = 9\n(*a, get())";
    let reply = api.exec_with(json!({"code": code, "session": of, "seen": seen}));
    assert_eq!(reply["result"], "([1], True, 5, 1, 9)", "{reply}");
    assert_eq!(reply["kernel"], kernel);
    // Store and reload ten times.
    for round in 0..10 {
        stored(&api, &json!({"session": of}));
        assert_eq!(api.post("/restart", &json!({"session": of})).status, 200);
        reloaded(&api, &json!({"session": of}));
        let code = format!("x.append({round}); n = {round}; (y is x, len(x), get())");
        let reply = exec(&api, &of, &code);
        assert_eq!(reply["result"], format!("(True, {}, {round})", round + 2));
    }
    // Only the newest five generations are kept.
    let list = api.get("/cryo").json();
    let line = list["cryo"]
        .as_array()
        .unwrap()
        .iter()
        .find(|l| l["name"] == of)
        .unwrap();
    let numbers: Vec<u64> = line["generations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["generation"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [11, 10, 9, 8, 7]);
    end(&api, &of);
}

fn a_receipt_names_what_is_lost_and_what_is_a_recipe() {
    let api = shared().api();
    let of = session(&api, "cryo-receipt");
    exec(
        &api,
        &of,
        "import numpy as np, socket\na = np.ones(100_000); s = socket.socket(); g = (i for i in 'ab'); d = {'k': [g]}\nclass A:\n    v = 1\nme = A()",
    );
    let reply = stored(&api, &json!({"session": of}));
    assert_eq!(row(&reply, "np")["verdict"], "recipe");
    assert_eq!(row(&reply, "a")["type"], "numpy.ndarray");
    assert!(row(&reply, "a")["bytes"].as_u64().unwrap() >= 800_000);
    for (name, word) in [
        ("s", "socket"),
        ("g", "generator"),
        ("d", "`d['k'][0]` is a generator"),
    ] {
        assert_eq!(row(&reply, name)["verdict"], "lost");
        assert!(
            row(&reply, name)["why"].as_str().unwrap().contains(word),
            "{reply}"
        );
    }
    for name in ["A", "me", "a"] {
        assert_eq!(row(&reply, name)["verdict"], "saved", "{reply}");
    }
    assert_eq!(api.post("/restart", &json!({"session": of})).status, 200);
    let reply = reloaded(&api, &json!({"session": of}));
    assert_eq!(row(&reply, "g")["verdict"], "lost");
    assert_eq!(
        exec(&api, &of, "me.v, a.sum(), 'g' in globals()")["result"],
        "(1, np.float64(100000.0), False)"
    );
    end(&api, &of);
}

fn strict_and_dry_run_store_nothing() {
    let api = shared().api();
    let of = session(&api, "cryo-strict");
    exec(&api, &of, "x = 1; g = (i for i in 'ab')");
    let (status, kind, message) = api
        .post("/cryo/store", &json!({"session": of, "strict": true}))
        .error();
    assert_eq!((status, kind.as_str()), (409, "losses"));
    assert!(message.contains("`g` (a generator"), "{message}");
    let reply = stored(
        &api,
        &json!({"session": of, "dry_run": true, "strict": true}),
    );
    assert_eq!(
        (&reply["generation"], &reply["path"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(row(&reply, "g")["verdict"], "lost");
    assert_eq!(api.get("/cryo/cryo-strict").status, 404);
    exec(&api, &of, "del g");
    // A refused store uses up its number.
    assert_eq!(
        stored(&api, &json!({"session": of, "strict": true}))["generation"],
        2
    );
    end(&api, &of);
}

fn a_store_changes_nothing_in_the_namespace() {
    let api = shared().api();
    let of = session(&api, "cryo-apart");
    let before = exec(
        &api,
        &of,
        "k = 1; v = 2; f = 3; state = 4; dill = 5; _ = 6; names = None; names = sorted(globals())",
    );
    stored(&api, &json!({"session": of}));
    let after = exec(
        &api,
        &of,
        "(k, v, f, state, dill, _), set(globals()) == set(names), [1 for m in __import__('sys').modules if m == 'dill']",
    );
    assert_eq!(after["result"], "((1, 2, 3, 4, 5, 6), True, [])", "{after}");
    assert_eq!(
        after["execution_count"].as_u64(),
        before["execution_count"].as_u64().map(|n| n + 1)
    );
    end(&api, &of);
}

fn a_busy_kernel_is_not_stored() {
    let api = shared().api();
    let of = session(&api, "cryo-busy");
    let run = api.exec_with(
        json!({"code": "import time\nwhile True: time.sleep(0.01)", "session": of, "wait": 0}),
    );
    let response = api.post("/cryo/store", &json!({"session": of}));
    assert_eq!(response.error().0, 429);
    assert_eq!(
        api.post("/cryo/reload", &json!({"session": of})).error().0,
        404
    );
    let path = format!("/exec/{}", run["id"].as_str().unwrap());
    api.connect().send("DELETE", &path, &[], b"");
    end(&api, &of);
}

fn requests_for_missing_stores_are_refused() {
    let api = shared().api();
    let error = |path: &str, request: Value| {
        let (status, kind, _) = api.post(path, &request).error();
        (status, kind)
    };
    assert_eq!(
        error("/cryo/reload", json!({"name": "nothing"})),
        (404, "nothing_stored".into())
    );
    assert_eq!(
        error("/cryo/store", json!({"name": "../up"})),
        (400, "invalid_field".into())
    );
    assert_eq!(
        error("/cryo/store", json!({"name": "a.part"})),
        (400, "invalid_field".into())
    );
    assert_eq!(error("/cryo/store", json!({"session": "none"})).0, 404);
    assert_eq!(error("/cryo/store", json!({"nmae": "x"})).0, 400);
    assert_eq!(api.get("/cryo/nothing").error().0, 404);
    assert_eq!(
        api.connect()
            .send("DELETE", "/cryo/nothing", &[], b"")
            .error()
            .0,
        404
    );
    let home = shared();
    let ran = home.run(["cryo", "reload", "nothing"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.stderr.contains("nothing is stored as `nothing`") && ran.stderr.contains("cryo ls`"),
        "{ran:?}"
    );
}

fn progress_is_reported_in_bytes() {
    let api = shared().api();
    let of = session(&api, "cryo-progress");
    exec(
        &api,
        &of,
        "import time\nclass Slow:\n    def __reduce__(self): time.sleep(0.5); return int, (1,)\nraw = bytes(30 << 20); a = Slow(); more = bytes(30 << 20)[1:]; b = Slow()",
    );
    let headers = [("Accept", "application/x-ndjson")];
    let events: Vec<Value> = api
        .connect()
        .events("POST", "/cryo/store", &headers, &json!({"session": of}))
        .collect();
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["type"], "done");
    assert_eq!(last["reply"]["generation"], 1);
    let moved: Vec<u64> = before
        .iter()
        .map(|e| e["bytes"].as_u64().unwrap())
        .collect();
    assert!(
        !moved.is_empty() && moved.is_sorted() && *moved.last().unwrap() >= 30 << 20,
        "{moved:?}"
    );
    end(&api, &of);
}

fn the_command_line_stores_lists_shows_and_removes() {
    let home = shared();
    let of = session(&home.api(), "cryo-cli");
    exec(
        &home.api(),
        &of,
        "x = [1]; g = (i for i in 'a'); import math",
    );
    let ran = home.ok(["cryo", "store", "my.state", "--session", "cryo-cli"]);
    for word in [
        "NAME",
        "VERDICT",
        "x ",
        "saved",
        "recipe",
        "imported again: `math`",
        "lost",
        "a generator",
    ] {
        assert!(ran.stdout.contains(word), "{word}: {ran:?}");
    }
    assert!(
        ran.stderr
            .contains("1 saved, 1 by recipe, 1 lost; `my.state` generation 1"),
        "{ran:?}"
    );
    let ran = home.run([
        "cryo",
        "store",
        "my.state",
        "--session",
        "cryo-cli",
        "--strict",
    ]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("hint: omit `--strict`"), "{ran:?}");
    let list = home.ok(["cryo", "list"]).stdout;
    assert!(
        list.contains("my.state") && list.contains("cryo-cli"),
        "{list}"
    );
    let words = ["--instance", &home.instance, "cryo", "show", "my."];
    assert_completes(home, &words, &["my.state"]);
    let shown = home.json(["cryo", "show", "my.state"]);
    assert_eq!(
        (
            &shown["generation"],
            &shown["session"],
            &shown["lost_count"]
        ),
        (&json!(1), &of, &json!(1))
    );
    assert!(
        home.ok(["cryo", "show", "my.state"])
            .stdout
            .contains("a generator")
    );
    exec(&home.api(), &of, "x.append(2)");
    let ran = home.ok(["cryo", "reload", "my.state", "--session", "cryo-cli"]);
    assert!(
        ran.stderr.contains("from `my.state` generation 1"),
        "{ran:?}"
    );
    assert_eq!(exec(&home.api(), &of, "x")["result"], "[1]");
    let reply = home.json([
        "cryo",
        "store",
        "my.state",
        "--session",
        "cryo-cli",
        "--dry-run",
    ]);
    assert_eq!(reply["generation"], Value::Null);
    home.ok(["cryo", "rm", "my.state"]);
    assert!(!home.ok(["cryo", "list"]).stdout.contains("my.state"));
    end(&home.api(), &of);
}

/// Kills the container and starts it again.
fn crash(home: &Home) {
    let path = format!("/containers/{}/kill?signal=KILL", home.container());
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    // The engine does not restart a container that was killed by request.
    home.ok(["up"]);
}

fn a_session_is_restored_unless_it_was_reset() {
    let home = Home::new("it-cryo");
    home.write_config("limits:\n  memory: 1g\ncryo:\n  every: 1\n  keep: 3\n  compression: zstd\n");
    home.up();
    let run = |code: &str| home.api().exec(code);
    // The schedule stores new state.
    let seen = run("import numpy as np\nx = 1; a = np.zeros(500_000)\ndef get(): return x")["kernel"]["generation"].as_u64().unwrap();
    let count = |home: &Home| {
        let list = home.api().get("/cryo").json();
        list["cryo"][0]["generations"]
            .as_array()
            .map_or(0, Vec::len)
    };
    home.api()
        .until("a snapshot", |_| (count(&home) > 0).then_some(()));
    let list = home.api().get("/cryo").json();
    let newest = &list["cryo"][0]["generations"][0];
    assert_eq!(
        (&list["cryo"][0]["name"], &newest["reason"]),
        (&json!("default"), &json!("schedule"))
    );
    assert!(
        newest["size_bytes"].as_u64().unwrap() < 400_000,
        "not compressed: {newest}"
    );
    crash(&home);
    let reply = run("x = 2; get(), a.shape");
    assert_eq!(reply["result"], "(2, (500000,))");
    assert_eq!(
        (&reply["kernel"]["generation"], &reply["kernel"]["state"]),
        (&json!(seen + 1), &json!("restored"))
    );
    let from = &reply["kernel"]["restored_from"];
    assert_eq!(from["generation"], newest["generation"], "{reply}");
    // `restart`, `down` and a stop by the engine store the state first.
    run("x = 3");
    let ran = home.ok(["restart"]);
    // The schedule may have stored the state before.
    let is_reported = ["is stored: ", "has no changes to store"]
        .map(|word| ran.stderr.contains(&format!("session `default` {word}")));
    assert!(is_reported[0] != is_reported[1], "{ran:?}");
    let reply = run("get()");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("3"), &json!("restored"))
    );
    run("x = 4");
    home.ok(["down"]);
    home.up();
    assert_eq!(run("get()")["result"], "4");
    // Running code is interrupted after a grace time; then the state is stored.
    let code = "x = 5; import time; time.sleep(600)";
    let started = home.api().exec_with(json!({"code": code, "wait": 0}));
    assert_eq!(started["status"], "running", "{started}");
    let path = format!("/containers/{}/restart?t=20", home.container());
    assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
    home.ok(["up"]);
    let reply = run("get()");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("5"), &json!("restored"))
    );
    let list = home.api().get("/cryo").json();
    assert!(list.to_string().contains("\"reason\":\"stop\""), "{list}");
    // Another session is restored when it is created again.
    let api = home.api();
    let of = session(&api, "other");
    exec(&api, &of, "y = 7");
    home.ok(["restart"]);
    let api = home.api();
    let of = session(&api, "other");
    let reply = exec(&api, &of, "y");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("7"), &json!("restored"))
    );
    // A damaged generation is replaced by the previous one. Without a schedule, no later generation exists.
    home.ok(["down"]);
    home.write_config("limits:\n  memory: 1g\ncryo:\n  keep: 3\n  compression: zstd\n");
    home.up();
    run("x = 6");
    home.ok(["cryo", "store"]);
    run("x = 7");
    let stored = home.json(["cryo", "store"]);
    flip(&place(&home, "default", stored["generation"].as_u64().unwrap()).join("objects"));
    crash(&home);
    let reply = run("get()");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("6"), &json!("restored"))
    );
    // A session that was reset or restarted by request is not restored, and its empty state replaces no store.
    let newest = || home.json(["cryo", "show", "default"])["generation"].clone();
    home.ok(["restart"]);
    let before = newest();
    home.ok(["reset"]);
    home.ok(["restart"]);
    assert_eq!(newest(), before);
    let reply = run("'get' in globals()");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("False"), &json!("lost"))
    );
    home.ok(["cryo", "reload"]);
    assert_eq!(run("get()")["result"], "6");
    home.ok(["reset", "--restart"]);
    crash(&home);
    let reply = run("'get' in globals()");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("False"), &json!("lost"))
    );
    home.down();
}
