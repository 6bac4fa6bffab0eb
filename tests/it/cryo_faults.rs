//! Trials of stores and reloads with obstacles: the error names the obstacle, and earlier stores stay.

use crate::cryo::{end, exec, reloaded, session, stored};
use crate::harness::{Home, shared};
use crate::trials;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

trials![
    a_damaged_generation_is_refused_and_the_one_before_it_offered,
    a_full_disk_leaves_what_was_there,
    an_interrupted_store_leaves_nothing,
];

/// The folder of a generation, on the host.
pub(crate) fn place(home: &Home, name: &str, generation: u64) -> PathBuf {
    home.data().join(format!("cryo/{name}/{generation}"))
}

pub(crate) fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn a_damaged_generation_is_refused_and_the_one_before_it_offered() {
    let home = shared();
    let api = home.api();
    let of = session(&api, "cryo-damage");
    exec(
        &api,
        &of,
        "import numpy as np\nx = 'one'; a = np.arange(50_000)",
    );
    stored(&api, &json!({"session": of}));
    exec(&api, &of, "x = 'two'");
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 5] = [
        ("checksum", |folder| flip(&folder.join("objects"))),
        ("checksum", |folder| flip(&folder.join("buffers"))),
        ("manifest", |folder| flip(&folder.join("manifest.json"))),
        ("bytes instead of", |folder| {
            fs::write(folder.join("objects"), b"").unwrap()
        }),
        ("can't be read", |folder| {
            fs::remove_file(folder.join("buffers")).unwrap()
        }),
    ];
    for (number, (word, harm)) in (2..).zip(harms) {
        assert_eq!(stored(&api, &json!({"session": of}))["generation"], number);
        harm(&place(home, "cryo-damage", number));
        let response = api.post("/cryo/reload", &json!({"session": of}));
        let (status, kind, message) = response.error();
        assert_eq!((status, kind.as_str()), (422, "damaged"), "{message}");
        assert!(message.contains(word), "{message}");
        let hint = response.json()["error"]["hint"].to_string();
        assert!(
            hint.contains("osctl cryo reload cryo-damage --generation 1"),
            "{hint}"
        );
        assert_eq!(
            exec(&api, &of, "x")["result"],
            "'two'",
            "the namespace has changed"
        );
        let path = format!("/cryo/cryo-damage?generation={number}");
        assert_eq!(api.connect().send("DELETE", &path, &[], b"").status, 200);
    }
    reloaded(&api, &json!({"session": of, "generation": 1}));
    assert_eq!(
        exec(&api, &of, "x, a[-1]")["result"],
        "('one', np.int64(49999))"
    );
    end(&api, &of);
}

fn a_full_disk_leaves_what_was_there() {
    let home = shared();
    let api = home.api();
    let of = session(&api, "cryo-full");
    exec(&api, &of, "x = 1");
    stored(&api, &json!({"session": of}));
    exec(
        &api,
        &of,
        "import resource\nbig = bytes(8 << 20); resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, -1))",
    );
    let (status, kind, message) = api.post("/cryo/store", &json!({"session": of})).error();
    assert_eq!((status, kind.as_str()), (507, "disk_full"), "{message}");
    let mut left: Vec<_> = fs::read_dir(home.data().join("cryo/cryo-full"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["1", "last"]);
    exec(
        &api,
        &of,
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
    );
    assert_eq!(stored(&api, &json!({"session": of}))["generation"], 3);
    end(&api, &of);
}

fn an_interrupted_store_leaves_nothing() {
    let home = shared();
    let api = home.api();
    let of = session(&api, "cryo-stop");
    exec(
        &api,
        &of,
        "import time\nclass Slow:\n    def __getstate__(self):\n        open('/tmp/cryo-slow', 'w').close(); time.sleep(60)\nx = 1; slow = Slow()",
    );
    std::thread::scope(|scope| {
        let storing = scope.spawn(|| api.post("/cryo/store", &json!({"session": of})).error());
        api.until("the start of the store", |api| {
            (api.get("/files/tmp/cryo-slow").status == 200).then_some(())
        });
        assert_eq!(api.post("/interrupt", &json!({"session": of})).status, 200);
        let (status, kind, _) = storing.join().unwrap();
        assert_eq!((status, kind.as_str()), (422, "Interrupted"));
    });
    assert!(!home.data().join("cryo/cryo-stop").join("1").exists());
    assert!(!home.data().join("cryo/cryo-stop").join("1.part").exists());
    let reply = exec(&api, &of, "x");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("1"), &json!("kept"))
    );
    end(&api, &of);
}
