//! Generation numbers, which are never reused, and the reports of restores: what was restored and what is missing.

use crate::cryo::{end, exec, reloaded, session, stored};
use crate::cryo_faults::{flip, place};
use crate::harness::{Api, Engine, Home, shared};
use crate::soak::{Random, env_number, print_line};
use crate::trials;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

trials![
    a_generation_number_is_never_reused,
    a_store_refuses_another_kernel_generation,
    a_reload_with_losses_exits_with_1_and_is_listed,
    a_restore_names_its_generation_and_the_runs_after_it,
    a_reload_that_kills_the_kernel_is_tried_once_more,
    a_restart_reports_restored_variables,
    a_restart_that_loses_a_saved_variable_exits_with_1,
    a_store_that_is_killed_keeps_its_number,
];

/// Removes what is stored under a name, or one generation of it.
fn remove(api: &Api, path: &str) {
    let path = format!("/cryo/{path}");
    assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
}

fn a_generation_number_is_never_reused() {
    let home = shared();
    let api = home.api();
    let of = session(&api, "kept-numbers");
    exec(&api, &of, "x = 1; g = (i for i in 'ab')");
    let next = || {
        stored(&api, &json!({"session": of}))["generation"]
            .as_u64()
            .unwrap()
    };
    let first = next();
    remove(&api, &format!("kept-numbers?generation={first}"));
    let second = next();
    assert!(second > first);
    // All of the name.
    remove(&api, "kept-numbers");
    assert_eq!(api.get("/cryo/kept-numbers").status, 404);
    let third = next();
    assert!(third > second);
    // A trial takes no number, and a store that was refused gives none to two.
    for request in [json!({"dry_run": true}), json!({"strict": true})] {
        let mut request = request;
        request["session"] = of.clone();
        api.post("/cryo/store", &request);
    }
    let fourth = next();
    assert!(fourth > third);
    // What a store left that died at that step; the folder is there or it is not.
    let folder = home.data().join("cryo/kept-numbers");
    fs::write(folder.join("last"), (fourth + 3).to_string()).unwrap();
    assert_eq!(next(), fourth + 4);
    let numbers: Vec<u64> = std::thread::scope(|scope| {
        let stores: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let request = json!({"session": of});
                    let taken = || {
                        let response = api.post("/cryo/store", &request);
                        (response.status == 200).then(|| response.json()["generation"].as_u64())
                    };
                    api.until("a store", |_| taken()).unwrap()
                })
            })
            .collect();
        stores.into_iter().map(|s| s.join().unwrap()).collect()
    });
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 4, "{numbers:?}");
    assert!(distinct[0] > fourth + 4);
    end(&api, &of);
}

fn a_store_refuses_another_kernel_generation() {
    let api = shared().api();
    let of = session(&api, "kept-kernel");
    let seen = exec(&api, &of, "x = 1")["kernel"]["generation"].clone();
    let first = stored(&api, &json!({"session": of, "seen": seen}));
    assert_eq!(first["kernel"]["state"], "kept", "{first}");
    assert!(first["created"].as_f64().unwrap() > 1e9, "{first}");
    let died = api.exec_with(json!({"code": "import os; os.kill(os.getpid(), 9)", "session": of}));
    assert_eq!(died["error"]["type"], "KernelDied", "{died}");
    // The next kernel is empty: a store for the former kernel stores nothing.
    let request = json!({"session": of, "seen": seen});
    let refusal = api.until("the next kernel", |api| {
        let (status, kind, _) = api.post("/cryo/store", &request).error();
        (status != 429).then_some((status, kind))
    });
    assert_eq!(refusal, (409, "other_generation".into()));
    assert_eq!(
        api.get("/cryo/kept-kernel").json()["generation"],
        first["generation"]
    );
    // A store without `seen` reports the state of the kernel.
    let empty = stored(&api, &json!({"session": of}));
    assert_eq!(empty["kernel"]["state"], "lost", "{empty}");
    assert_eq!(empty["receipt"], json!([]));
    end(&api, &of);
}

fn a_reload_with_losses_exits_with_1_and_is_listed() {
    let home = shared();
    let api = home.api();
    let of = session(&api, "kept-losses");
    let code = "import sys; open('/tmp/kept_module.py', 'w').write('class A: pass\\n')\nsys.path.insert(0, '/tmp')\nimport kept_module\na = kept_module.A(); x = 1; g = (i for i in 'ab')";
    exec(&api, &of, code);
    let reply = stored(&api, &json!({"session": of}));
    let lost: Vec<&Value> = reply["receipt"].as_array().unwrap().iter().collect();
    let count = |rows: &[&Value]| rows.iter().filter(|r| r["verdict"] == "lost").count();
    let at_store = count(&lost);
    // What the store lost is no difference.
    let ran = home.run(["cryo", "reload", "--session", "kept-losses"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.stderr
            .contains("no runs between the store and the restore"),
        "{ran:?}"
    );
    exec(&api, &of, "import os; os.remove('/tmp/kept_module.py')");
    assert_eq!(api.post("/restart", &json!({"session": of})).status, 200);
    let ran = home.run(["cryo", "reload", "--session", "kept-losses"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    for words in [
        "variables are lost or differ from the store",
        "`a` (",
        "kept_module",
        "1 run between the store and the restore",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let line = |list: &Value| {
        let lines = list["states"].as_array().unwrap().clone();
        let found = lines.into_iter().find(|line| line["name"] == of).unwrap();
        found["generations"][0].clone()
    };
    let listed = line(&home.json(["cryo", "list"]));
    let differs = listed["reload"]["lost_count"].as_u64().unwrap();
    assert!(differs > 0, "{listed}");
    assert_eq!(
        listed["lost_count"].as_u64().unwrap(),
        at_store as u64 + differs
    );
    assert_eq!(listed["reload"]["session"], of);
    let shown = home.ok(["cryo", "show", "kept-losses"]);
    assert!(shown.stderr.contains("more lost"), "{shown:?}");
    // Over HTTP, and in the next reply of who saw the kernel before.
    let reply = reloaded(&api, &json!({"session": of}));
    let from = &reply["kernel"]["restored_from"];
    assert_eq!(from["lost_unexpectedly"], differs, "{reply}");
    assert_eq!(from["lost"][0]["was_saved"], true);
    let next = api.exec_with(json!({"code": "x", "session": of, "seen": 0}));
    assert_eq!(next["kernel"]["state"], "restored", "{next}");
    assert_eq!(next["kernel"]["restored_from"], *from);
    end(&api, &of);
}

/// Ends the companion as a crash does, and waits until its container is back.
fn crash(home: &Home) {
    let path = format!("/containers/{}/kill?signal=KILL", home.container());
    let answer = Engine.send("POST", &path, &Value::Null);
    assert_eq!(answer.status, 204);
    // Killed by a person, it is not started again by the engine.
    let ran = home.run(["up"]);
    // It exits with 1 when a saved variable is lost.
    assert!(ran.code <= 1, "{ran:?}");
}

fn a_reload_that_kills_the_kernel_is_tried_once_more() {
    let home = shared();
    let api = home.api();
    assert_eq!(api.post("/reset", &json!({})).status, 200);
    api.exec("x = 1");
    let first = stored(&api, &json!({}));
    // Its reload ends the kernel once for each letter in a file.
    let code = "def reload():\n    import os\n    path = '/root/host/deaths'\n    left = open(path).read() if os.path.exists(path) else ''\n\
                \x20   if left:\n        open(path, 'w').write(left[1:])\n        os.kill(os.getpid(), 9)\n    return 2\n\
                class Deadly:\n    def __reduce__(self): return reload, ()\n\
                x = Deadly()";
    assert_eq!(api.exec(code)["status"], "completed");
    let second = stored(&api, &json!({}));
    let deaths = home.files().join("deaths");
    for (letters, value, of) in [("a", "2", &second), ("aa", "1", &first)] {
        fs::write(&deaths, letters).unwrap();
        crash(home);
        let api = home.api();
        let reply = api.exec_with(json!({"code": "x", "queue": true}));
        assert_eq!(reply["result"], value, "{reply}");
        assert_eq!(fs::read_to_string(&deaths).unwrap(), "");
        let from = &api.get("/status").json()["restored_from"];
        assert_eq!(from["generation"], of["generation"], "{from}");
        let skipped = &from["skipped"][0];
        let why = skipped["why"].as_str().unwrap_or_default();
        assert_eq!(why.contains("ended twice"), of == &first, "{from}");
        if of == &first {
            assert_eq!(skipped["generation"], second["generation"]);
        }
    }
    assert_eq!(home.api().post("/reset", &json!({})).status, 200);
}

fn a_restore_names_its_generation_and_the_runs_after_it() {
    let home = shared();
    let api = home.api();
    assert_eq!(api.post("/reset", &json!({})).status, 200);
    let seen = api.exec("x = 1")["kernel"]["generation"].clone();
    let first = stored(&api, &json!({}));
    api.exec("x = 2");
    let second = stored(&api, &json!({}));
    for x in 3..6 {
        api.exec(&format!("x = {x}"));
    }
    flip(&place(home, "default", second["generation"].as_u64().unwrap()).join("manifest.json"));
    crash(home);
    let ran = home.ok(["exec", "x"]);
    assert_eq!(ran.stdout, "1\n");
    let number = first["generation"].as_u64().unwrap();
    let words = format!("variables were restored from `default` generation {number}, stored ");
    for words in [
        &*words,
        "; 4 runs between the store and the restore",
        "could not be reloaded",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let api = home.api();
    let reply = api.exec_with(json!({"code": "x", "seen": seen}));
    let from = reply["kernel"]["restored_from"].clone();
    assert_eq!(from["generation"], first["generation"], "{reply}");
    assert_eq!(from["created"], first["created"]);
    assert_eq!(
        (&from["runs_after"], &from["runs_after_is_estimate"]),
        (&json!(4), &json!(false))
    );
    assert_eq!(from["skipped"][0]["generation"], second["generation"]);
    // One reply reports the restore; `/status` reports it as long as the kernel lives.
    assert_eq!(api.exec("x")["kernel"].get("restored_from"), None);
    let status = api.get("/status").json();
    assert_eq!(status["restored_from"], from);
    assert_eq!(status["sessions"][0]["restored_from"], from);
    let status_text = home.ok(["status"]).stdout;
    let line = status_text
        .lines()
        .find(|line| line.starts_with("variables"))
        .unwrap();
    assert!(line.contains("1 variable is back from"), "{status_text}");
    let status = home.json(["status"]);
    let shown = &status["sessions"][0]["restored_from"];
    assert_eq!(shown["generation"], from["generation"]);
    assert_eq!(shown["lost"], from["lost"]);
    // A store after the restore contains the restored variables, and counts the later runs.
    let third = stored(&api, &json!({}));
    assert!(third["generation"].as_u64() > second["generation"].as_u64());
    crash(home);
    let api = home.api();
    let fourth = stored(&api, &json!({}));
    assert_eq!(fourth["kernel"]["state"], "restored", "{fourth}");
    let from = &fourth["kernel"]["restored_from"];
    assert_eq!(
        (&from["generation"], &from["runs_after"]),
        (&third["generation"], &json!(0))
    );
    // `status` reports that no generation can be reloaded.
    for found in fs::read_dir(home.data().join("cryo/default")).unwrap() {
        let manifest = found.unwrap().path().join("manifest.json");
        if manifest.exists() {
            fs::write(&manifest, "{}").unwrap();
        }
    }
    crash(home);
    let status_text = home.ok(["status"]).stdout;
    assert!(
        status_text.contains("without its variables, which can't be reloaded: its manifest"),
        "{status_text}"
    );
    assert_eq!(home.api().exec("1")["kernel"]["state"], "lost");
    home.ok(["reset"]);
    let status_text = home.ok(["status"]).stdout;
    assert!(!status_text.contains("can't be reloaded"), "{status_text}");
    remove(&home.api(), "default");
}

fn a_restart_reports_restored_variables() {
    let home = shared();
    let api = home.api();
    assert_eq!(api.post("/reset", &json!({})).status, 200);
    api.exec("a = 1; b = [a]; g = (i for i in 'ab')");
    let ran = home.ok(["restart"]);
    let words = "session `default`: 2 variables are back from `default` generation ";
    assert!(ran.stderr.contains(words), "{ran:?}");
    assert!(
        ran.stderr.contains(
            "; no runs between the store and the restore; 1 lost or different: `g` (a generator"
        ),
        "{ran:?}"
    );
    assert!(
        ran.stdout
            .contains("was restarted and is healthy; its files were kept"),
        "{ran:?}"
    );
    assert!(
        !format!("{ran:?}").contains("variables are gone"),
        "{ran:?}"
    );
    assert_eq!(home.api().exec("b")["result"], "[1]");
    // What was asked away does not come back, and is not said to.
    home.ok(["reset"]);
    let ran = home.ok(["restart"]);
    assert!(
        ran.stderr
            .contains("session `default`: no variables were restored"),
        "{ran:?}"
    );
    // Another container has them, too.
    home.api().exec("a = 2");
    home.ok(["down"]);
    let ran = home.ok(["up"]);
    assert!(
        ran.stderr
            .contains("session `default`: 1 variable is back from"),
        "{ran:?}"
    );
    assert_eq!(home.api().exec("a")["result"], "2");
}

fn a_restart_that_loses_a_saved_variable_exits_with_1() {
    let home = shared();
    let api = home.api();
    assert_eq!(api.post("/reset", &json!({})).status, 200);
    let module = home.files().join("keptlib.py");
    fs::write(&module, "class C:\n    def f(self): return 1\n").unwrap();
    let code =
        "import sys; sys.path.append('/root/host'); import keptlib; c = keptlib.C(); d = [1]";
    assert_eq!(api.exec(code)["status"], "completed");
    // A module with another version is reported, and is no loss.
    fs::write(&module, "class C:\n    def f(self): return 22\n").unwrap();
    let ran = home.ok(["restart"]);
    let words = "`/root/host/keptlib.py` has changed since it was imported";
    assert!(ran.stderr.contains(words), "{ran:?}");
    let status = home.api().get("/status").json();
    assert!(
        status["restored_from"]["warnings"][0]
            .as_str()
            .is_some_and(|why| why == words),
        "{status}"
    );
    // It can be made in this process alone, where the store has loaded it back.
    let code = "sys.made = True\n\
                def make():\n    import sys\n    if not hasattr(sys, 'made'): raise ValueError('it is of another process')\n    return Elsewhere()\n\
                class Elsewhere:\n    def __reduce__(self): return make, ()\n\
                e = Elsewhere()";
    assert_eq!(home.api().exec(code)["status"], "completed");
    let ran = home.run(["restart"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    for words in [
        "1 lost or different: `e` (",
        "it is of another process",
        "is healthy",
    ] {
        assert!(format!("{ran:?}").contains(words), "{words}: {ran:?}");
    }
    let reply = home.api().exec("d");
    assert_eq!(reply["result"], "[1]");
    let listed = home.json(["cryo", "list"]).to_string();
    assert!(listed.contains(r#""lost_count":1"#), "{listed}");
    assert_eq!(home.api().post("/reset", &json!({})).status, 200);
}

/// The kernel at any moment of a store, and at last the container: what was acknowledged is what is found.
fn a_store_that_is_killed_keeps_its_number() {
    let home = shared();
    let api = home.api();
    let of = session(&api, "kept-kills");
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = env_number("OSCTL_KILL_SEED", u64::from(since.subsec_nanos()) | 1);
    print_line(&format!("OSCTL_KILL_SEED={seed}"));
    let mut random = Random(seed);
    let mut acknowledged: BTreeMap<u64, (usize, Value)> = BTreeMap::new();
    let mut cut = 0;
    for round in 0..18 {
        let is_container = round % 9 == 8;
        let api = home.api();
        session(&api, "kept-kills");
        let code = format!("import os; x = {round}; big = os.urandom(2 << 20); os.getpid()");
        let begun = exec(&api, &of, &code);
        let request = json!({"session": of, "seen": begun["kernel"]["generation"]});
        let kill = match is_container {
            true => String::new(),
            false => format!("kill -9 {}", begun["result"].as_str().unwrap()),
        };
        let pause = Duration::from_micros(random.below(200_000) as u64);
        let stored = std::thread::scope(|scope| {
            let storing = scope.spawn(|| {
                let body = request.to_string();
                api.connect()
                    .send("POST", "/cryo/store", &[], body.as_bytes())
            });
            std::thread::sleep(pause);
            match is_container {
                true => crash(home),
                false => drop(api.post("/shell", &json!({"command": kill}))),
            }
            // Without an answer nothing is acknowledged.
            storing.join().ok()
        });
        let stored = stored.filter(|response| response.status == 200);
        let Some(stored) = stored.map(|response| response.json()) else {
            cut += 1;
            continue;
        };
        let generation = stored["generation"].as_u64().unwrap();
        let value = (round, stored["created"].clone());
        let before = acknowledged.insert(generation, value);
        assert_eq!(before, None, "seed {seed}: {generation} was given twice");
    }
    assert!(
        !acknowledged.is_empty() && cut > 0,
        "{cut} of 18 were cut off"
    );
    let api = home.api();
    session(&api, "kept-kills");
    let list = api.get("/cryo").json();
    let line = list["cryo"].as_array().unwrap().iter();
    let kept = line.clone().find(|line| line["name"] == of).unwrap();
    for found in kept["generations"].as_array().unwrap() {
        let generation = found["generation"].as_u64().unwrap();
        // One that was cut off behind its last step is there, and was promised to no client.
        let Some((round, created)) = acknowledged.get(&generation) else {
            continue;
        };
        assert_eq!(
            found["created"], *created,
            "seed {seed}: generation {generation}"
        );
        reloaded(&api, &json!({"session": of, "generation": generation}));
        let x = exec(&api, &of, "x")["result"].clone();
        assert_eq!(x, round.to_string(), "seed {seed}: generation {generation}");
    }
    end(&api, &of);
}
