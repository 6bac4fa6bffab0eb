//! Stores that run while the container stops, and receipts compared with the state after a restart.

use crate::cryo::{reloaded, stored};
use crate::durable_runs::ask;
use crate::harness::{Engine, shared};
use crate::trials;
use serde_json::{Value, json};
use std::fs;

trials![
    an_acknowledged_store_survives_a_concurrent_stop,
    a_restart_restores_what_the_receipt_promised,
];

/// The container stops while a store by hand is on its way: it ends in time, or is cut.
fn an_acknowledged_store_survives_a_concurrent_stop() {
    let home = shared();
    assert_eq!(home.api().post("/reset", &json!({})).status, 200);
    let mark = home.files().join("storing");
    for (round, seconds) in [(1, 10), (2, 1)] {
        let api = home.api();
        let _ = fs::remove_file(&mark);
        let code = format!(
            "x = 'before {round}'\nclass Slow:\n    def __getstate__(self):\n        import time\n        \
             open('/root/host/storing', 'w').close(); time.sleep(3)\n"
        );
        api.exec(&code);
        let before = stored(&api, &json!({}))["generation"].as_u64().unwrap();
        api.exec(&format!("x = 'after {round}'; slow = Slow()"));
        let by_hand = std::thread::scope(|scope| {
            let storing = scope.spawn(|| ask(&api, "POST", "/cryo/store", &json!({})));
            api.until("the store", |_| mark.exists().then_some(()));
            let path = format!("/containers/{}/stop?t={seconds}", home.container());
            assert_eq!(Engine.send("POST", &path, &Value::Null).status, 204);
            storing.join().unwrap()
        });
        home.run(["up"]);
        let api = home.api();
        let by_hand = by_hand.filter(|(status, _)| *status == 200);
        let by_hand = by_hand.and_then(|(_, reply)| reply["generation"].as_u64());
        let from = &api.get("/status").json()["restored_from"];
        let restored = from["generation"].as_u64().unwrap();
        assert!(
            restored >= by_hand.unwrap_or(before),
            "{by_hand:?} was acknowledged after {before}: {from}"
        );
        let word = match restored == before {
            true => "before",
            false => "after",
        };
        assert_eq!(
            api.exec("x")["result"],
            format!("'{word} {round}'"),
            "{from}"
        );
        if let Some(generation) = by_hand {
            reloaded(&api, &json!({"generation": generation}));
            assert_eq!(api.exec("x")["result"], format!("'after {round}'"));
        }
        assert_eq!(api.post("/reset", &json!({})).status, 200);
    }
}

/// Each variable that a receipt calls saved is back, beside one that can't be stored as it is.
fn a_restart_restores_what_the_receipt_promised() {
    let home = shared();
    let api = home.api();
    assert_eq!(api.post("/reset", &json!({})).status, 200);
    let code = "import numpy as np, pandas as pd\ndef load(): raise ValueError('no template')\n\
                class Page:\n    def __reduce__(self): return load, ()\npage = Page()\na = np.arange(3)\n\
                frame = pd.DataFrame({'k': [1, 2]})\nrows = [1, 2]\ncfg = {'k': 1}\n\
                class Halved:\n    def __init__(self, v): self.v = v\n    def __reduce__(self): return Halved, (self.v // 2,)\n\
                half = Halved(8)";
    assert_eq!(api.exec(code)["status"], "completed");
    let reply = stored(&api, &json!({}));
    let verdict = |name: &str| {
        let rows = reply["receipt"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("{name}: {reply}"))["verdict"].clone()
    };
    assert_eq!(verdict("half"), "altered");
    let values = [
        ("a", "a.tolist()", "[0, 1, 2]"),
        ("frame", "frame['k'].tolist()", "[1, 2]"),
        ("rows", "rows", "[1, 2]"),
        ("cfg", "cfg", "{'k': 1}"),
    ];
    assert_eq!(verdict("page"), "lost");
    for (name, ..) in &values {
        assert_eq!(verdict(name), "saved", "{name}: {reply}");
    }
    let ran = home.ok(["restart"]);
    for words in ["1 lost or different: `page` (", "; `half` is altered: "] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let api = home.api();
    for (name, expression, value) in values {
        assert_eq!(api.exec(expression)["result"], value, "{name}");
    }
    // What the list says is what the receipt says.
    let rows = reply["receipt"].as_array().unwrap();
    let count = |word: &str| rows.iter().filter(|row| row["verdict"] == word).count();
    let listed = home.json(["cryo", "list"])["states"].to_string();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let lines = listed.as_array().unwrap();
    let line = lines.iter().find(|line| line["name"] == "default").unwrap();
    let mut generations = line["generations"].as_array().unwrap().iter();
    let found = generations.find(|found| found["generation"] == reply["generation"]);
    let found = found.unwrap_or_else(|| panic!("{listed}"));
    for word in ["altered", "unverified", "lost"] {
        assert_eq!(
            found[format!("{word}_count")],
            count(word),
            "{word}: {found}"
        );
    }
    let table = home.ok(["cryo", "list"]).stdout;
    for head in ["ALTERED", "UNVERIFIED", "LOST"] {
        assert!(table.lines().next().unwrap().contains(head), "{table}");
    }
    // The copy that loads them back dies: what it had not compared is unverified, and comes back all the same.
    let code = "import os; home_pid = os.getpid()\ndef load():\n    import os\n    if os.getppid() == home_pid: os.abort()\n    return 7\n\
                class Dying:\n    def __reduce__(self): return load, ()\n\
                deadly = Dying()";
    assert_eq!(api.exec(code)["status"], "completed");
    let reply = stored(&api, &json!({}));
    let row = reply["receipt"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "deadly");
    assert_eq!(row.unwrap()["verdict"], "unverified", "{reply}");
    let shown = home.ok(["cryo", "list"]).stdout;
    let line = shown
        .lines()
        .find(|line| line.starts_with("default "))
        .unwrap();
    let unverified = line.split_whitespace().rev().nth(1).unwrap();
    assert_ne!(unverified, "0", "{shown}");
    assert_eq!(home.api().post("/reset", &json!({})).status, 200);
}
