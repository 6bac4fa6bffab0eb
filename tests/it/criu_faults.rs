//! Trials of checkpoints and restores with obstacles: the error names the obstacle, and nothing is lost.

use crate::completions::assert_completes;
use crate::criu::{NOTHING_LEFT, checkpoint, criu_instance, leftovers, restart_kernel, restore};
use crate::harness::Api;
use crate::trials;
use serde_json::{Value, json};
use std::fs;
use std::sync::mpsc;

trials![
    obstacles_are_named_and_the_kernel_keeps_running,
    changed_preconditions_are_named_and_the_running_kernel_stays,
    with_changed_files_the_objects_are_reloaded,
    a_missing_checkpoint_is_replaced_by_its_objects,
    a_kernel_ended_for_a_failed_restore_is_back_with_its_objects,
    a_full_disk_leaves_the_kernel_and_nothing_else,
    a_killed_criu_leaves_a_kernel_and_nothing_else,
    a_dump_reports_bytes_and_blocks_no_request,
];

fn obstacles_are_named_and_the_kernel_keeps_running() {
    let api = restart_kernel();
    api.exec("import socket\nx = 7\ns = socket.create_connection(('127.0.0.1', 8080))");
    let (code, kind, message) = api.post("/criu/checkpoint", &json!({})).error();
    assert_eq!(
        (code, kind.as_str()),
        (409, "not_checkpointed"),
        "{message}"
    );
    assert!(message.contains("network socket") && message.contains("keeps running"));
    let reply =
        api.exec("s.send(b'GET /ping HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n'); s.recv(12), x");
    assert_eq!(reply["result"], "(b'HTTP/1.1 200', 7)", "{reply}");
    assert_eq!(reply["kernel"]["state"], "kept");
    assert_eq!(leftovers(&api), NOTHING_LEFT);
    // A live object with a recipe does not prevent a checkpoint.
    api.exec("s.close()\nmake = lambda: socket.create_connection(('127.0.0.1', 8080))\nr = runtime.resource(make).teardown(lambda s: s.close())\n_ = r.get()");
    checkpoint(&api, json!({"leave_running": true}));
    assert_eq!(api.exec("x, r.get().fileno() > 0")["result"], "(7, True)");
}

fn changed_preconditions_are_named_and_the_running_kernel_stays() {
    let api = restart_kernel();
    api.exec("f = open('/root/host/gone.txt', 'w'); f.write('12345'); f.flush()\nx = 1");
    checkpoint(&api, json!({"name": "gone"}));
    let api = restart_kernel();
    api.exec("x = 2");
    let path = criu_instance().files().join("gone.txt");
    fs::remove_file(&path).unwrap();
    let refuse = |what: &str| {
        let (code, kind, message) = api.post("/criu/restore", &json!({"name": "gone"})).error();
        assert_eq!((code, kind.as_str()), (409, "not_restored"), "{message}");
        let is_reported = message.contains("/root/host/gone.txt") && message.contains(what);
        assert!(
            is_reported && message.contains("current kernel keeps running"),
            "{message}"
        );
        let reply = api.exec("x");
        assert_eq!(
            (&reply["result"], &reply["kernel"]["state"]),
            (&json!("2"), &json!("kept"))
        );
        assert_eq!(leftovers(&api), NOTHING_LEFT);
    };
    refuse("is missing");
    fs::write(&path, "123").unwrap();
    refuse("3 bytes");
    // A process that uses a required PID is named. The trial repeats until its own process gets the PID.
    fs::write(&path, "12345").unwrap();
    let manifest = fs::read(criu_instance().data().join("criu/gone/1/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let id = manifest["ids"][0].as_i64().unwrap();
    let take = format!(
        "unshare -m sh -c 'mount -t proc proc /proc; while echo {} > /proc/sys/kernel/ns_last_pid; do sleep 1000 & \
         [ $! = {id} ] && break; kill $!; sleep 0.1; done; wait' >/dev/null 2>&1 &",
        id - 1
    );
    api.post("/shell", &json!({"command": take}));
    api.until("the use of the PID", |api| {
        let reply = api.exec(&format!("open('/proc/{id}/comm').read()"));
        (reply["result"] == r"'sleep\n'").then_some(())
    });
    let (code, kind, message) = api.post("/criu/restore", &json!({"name": "gone"})).error();
    assert_eq!(
        (code, kind.as_str()),
        (409, "process_ids_in_use"),
        "{message}"
    );
    assert!(message.contains(&format!("{id} by `sleep`")), "{message}");
    assert_eq!(api.exec("x")["kernel"]["state"], "kept");
    for job in api.get("/jobs").json()["jobs"].as_array().unwrap() {
        let path = format!("/jobs/{}", job["pid"]);
        api.connect().send("DELETE", &path, &[], b"");
    }
}

fn with_changed_files_the_objects_are_reloaded() {
    let api = restart_kernel();
    api.exec("import mmap\nopen('/root/host/lib.bin', 'wb').write(b'x' * 8192)\nf = open('/root/host/lib.bin', 'rb')\nm = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)\nf.close()\nnumbers = [1, 2]; same = numbers");
    api.exec("import sys; open('/tmp/criu_module.py', 'w').write('class A: pass\\n')\nsys.path.insert(0, '/tmp')\nimport criu_module\nthing = criu_module.A()");
    checkpoint(&api, json!({"name": "mapped"}));
    let api = restart_kernel();
    fs::write(criu_instance().files().join("lib.bin"), "y".repeat(8192)).unwrap();
    let back = restore(&api, json!({"name": "mapped"}));
    assert_eq!(back["kernel"]["state"], "restored", "{back}");
    let note = back["notes"][0].as_str().unwrap();
    assert!(note.contains("the objects were reloaded"), "{note}");
    assert!(
        note.contains("`/root/host/lib.bin` has different contents"),
        "{note}"
    );
    let reply = api.exec("numbers is same, numbers, 'm' in globals()");
    assert_eq!(reply["result"], "(True, [1, 2], False)", "{reply}");
    // A loss that the store did not name is the exit code.
    let command = ["criu", "restore", "mapped"];
    criu_instance().ok(command);
    api.exec("import os; os.remove('/tmp/criu_module.py')");
    restart_kernel();
    let ran = criu_instance().run(command);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("`thing` ("), "{ran:?}");
    // The process is restored when the file has its old content again.
    fs::write(criu_instance().files().join("lib.bin"), "x".repeat(8192)).unwrap();
    let back = restore(&api, json!({"name": "mapped"}));
    assert_eq!(back["notes"], json!([]));
    assert_eq!(api.exec("m[:1]")["result"], "b'x'");
}

/// Creates a session, runs code in it and checkpoints it under the same name.
fn checkpoint_session(api: &Api, session: &str, code: &str) {
    api.post("/sessions", &json!({"name": session}));
    let reply = api.exec_with(json!({"code": code, "session": session}));
    assert_eq!(reply["status"], "completed", "{reply}");
    checkpoint(api, json!({"session": session}));
}

fn a_missing_checkpoint_is_replaced_by_its_objects() {
    let (home, api) = (criu_instance(), restart_kernel());
    checkpoint_session(&api, "gone", "y = 5");
    checkpoint_session(&api, "reset", "y = 6");
    let map = "import mmap\nopen('/root/host/map.bin', 'wb').write(b'x' * 8192)\nf = open('/root/host/map.bin', 'rb')\nm = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)\nf.close(); y = 7";
    checkpoint_session(&api, "laid", map);
    fs::remove_dir_all(home.data().join("criu/gone")).unwrap();
    home.ok(["restart"]);
    let api = home.api();
    let look = |session: &str| {
        let request = json!({"code": "y", "session": session, "queue": true});
        api.post("/exec", &request).json()
    };
    let reply = look("gone");
    assert_eq!(reply["result"], "5", "{reply}");
    assert_eq!(reply["kernel"]["state"], "restored", "{reply}");
    let status = api.get("/criu/status").json();
    let warned = status["warnings"].to_string();
    assert!(
        warned.contains("session `gone`") && warned.contains("it is missing"),
        "{warned}"
    );
    assert_eq!(status["checkpointed"], json!(["laid", "reset"]));
    // `reset` discards the checkpoint permanently.
    assert_eq!(look("reset")["is_checkpointed"], true);
    home.ok(["reset", "--session", "reset"]);
    assert_eq!(look("reset")["error"]["type"], "NameError");
    assert!(!home.data().join("criu/.markers/reset.json").exists());
    // When the process cannot be restored, its objects are reloaded; without the objects the session stays
    // checkpointed.
    fs::write(home.files().join("map.bin"), "y".repeat(8192)).unwrap();
    let objects = home.data().join("cryo/criu-laid/1");
    let aside = home.data().join("aside");
    fs::rename(&objects, &aside).unwrap();
    let request = json!({"session": "laid"});
    let (code, kind, _) = api.post("/criu/restore", &request).error();
    assert_eq!((code, kind.as_str()), (409, "files_changed"));
    assert_eq!(look("laid")["is_checkpointed"], true);
    assert!(home.data().join("criu/.markers/laid.json").exists());
    fs::rename(&aside, &objects).unwrap();
    let back = restore(&api, request);
    assert_eq!(back["kernel"]["state"], "restored", "{back}");
    assert_eq!(look("laid")["result"], "7");
    for session in ["gone", "reset", "laid"] {
        api.connect()
            .send("DELETE", &format!("/sessions/{session}"), &[], b"");
    }
}

fn a_kernel_ended_for_a_failed_restore_is_back_with_its_objects() {
    let api = restart_kernel();
    api.exec("import os\nx = 1\nlog = open('/root/host/grows.txt', 'w')");
    checkpoint(&api, json!({"name": "room", "leave_running": true}));
    // An obstacle that is found before the restore ends no kernel.
    api.exec("x = 2; g = (n for n in 'ab'); log.write('more'); log.flush()");
    let request = json!({"name": "room"});
    let (_, kind, message) = api.post("/criu/restore", &request).error();
    assert_eq!(kind, "not_restored");
    assert!(
        message.contains("4 bytes and had 0") && message.contains("keeps running"),
        "{message}"
    );
    assert_eq!(api.exec("x, next(g)")["result"], "(2, 'a')");
    let replace_criu = "log.truncate(0)\nos.rename('/usr/sbin/criu', '/usr/sbin/criu-itself')\n\
        with open('/usr/sbin/criu', 'w') as f: _ = f.write('#!/bin/bash\\nif [ $1 = restore ]; then exit 1; fi; exec /usr/sbin/criu-itself \"$@\"')\n\
        os.chmod('/usr/sbin/criu', 0o755)";
    let reply = api.exec(replace_criu);
    assert_eq!(reply["status"], "completed", "{reply}");
    let seen = reply["kernel"]["generation"].clone();
    let (_, kind, message) = api.post("/criu/restore", &request).error();
    assert_eq!(kind, "not_restored");
    let is_reported =
        message.contains("its objects were reloaded, except") && message.contains("`g`");
    assert!(is_reported, "{message}");
    let wanted = "x, 'g' in globals()";
    let reply = api.exec_with(json!({"code": wanted, "seen": seen}));
    assert_eq!(reply["result"], "(2, False)", "{reply}");
    assert_eq!(reply["kernel"]["state"], "restored", "{reply}");
    api.exec("os.rename('/usr/sbin/criu-itself', '/usr/sbin/criu')");
    restore(&api, request);
    assert_eq!(api.exec("x")["result"], "1");
    assert_eq!(leftovers(&api), NOTHING_LEFT);
}

fn a_full_disk_leaves_the_kernel_and_nothing_else() {
    let api = restart_kernel();
    api.exec("x = 'kept'\nimport subprocess, os");
    api.exec("os.makedirs('/data/criu/full', exist_ok=True); subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', '/data/criu/full'], check=True)");
    let (code, kind, message) = api
        .post("/criu/checkpoint", &json!({"name": "full"}))
        .error();
    assert_eq!((code, kind.as_str()), (507, "disk_full"), "{message}");
    let reply = api.exec("x");
    assert_eq!(
        (&reply["result"], &reply["kernel"]["state"]),
        (&json!("'kept'"), &json!("kept"))
    );
    assert_eq!(leftovers(&api), NOTHING_LEFT);
    api.exec("subprocess.run(['umount', '/data/criu/full'], check=True)");
}

fn a_killed_criu_leaves_a_kernel_and_nothing_else() {
    let api = restart_kernel();
    let started = api.exec("import os, numpy as np\nx = np.ones(1_000_000)");
    let seen = started["kernel"]["generation"].clone();
    // A limit on the file size kills CRIU while it writes memory pages.
    let replace_criu = "os.rename('/usr/sbin/criu', '/usr/sbin/criu-itself')\n\
        with open('/usr/sbin/criu', 'w') as f: _ = f.write('#!/bin/bash\\nif [ $1 = dump ]; then exec prlimit --fsize=1000000 /usr/sbin/criu-itself \"$@\"; fi; exec /usr/sbin/criu-itself \"$@\"')\n\
        os.chmod('/usr/sbin/criu', 0o755)";
    assert_eq!(api.exec(replace_criu)["status"], "completed");
    let (code, kind, message) = api
        .post("/criu/checkpoint", &json!({"name": "killed"}))
        .error();
    assert_eq!(
        (code, kind.as_str()),
        (409, "not_checkpointed"),
        "{message}"
    );
    assert!(message.contains("killed by signal 25"), "{message}");
    // The moment of the kill decides whether the kernel survives; the reply reports the result.
    let reply = api.exec_with(json!({"code": "'x' in globals()", "seen": seen}));
    let state = reply["kernel"]["state"].as_str().unwrap();
    let expected = if state == "kept" { "True" } else { "False" };
    assert_eq!(reply["result"], expected, "{reply}");
    assert_eq!(leftovers(&api), NOTHING_LEFT);
    api.exec("import os; os.rename('/usr/sbin/criu-itself', '/usr/sbin/criu')");
    checkpoint(&api, json!({"name": "killed"}));
    restore(&api, json!({"name": "killed"}));
}

fn a_dump_reports_bytes_and_blocks_no_request() {
    let api = restart_kernel();
    // A replacement of CRIU starts to write and then waits for a file to be removed.
    let slow = "import os, numpy as np\nx = np.ones(1000)\n\
        os.rename('/usr/sbin/criu', '/usr/sbin/criu-itself')\n\
        text = '''#!/bin/bash\nif [ $1 = dump ]; then\n  for at; do [ \"$last\" = --images-dir ] && dir=$at; last=$at; done\n  touch /tmp/dumping; head -c 5000000 /dev/zero > $dir/first; while [ -e /tmp/dumping ]; do sleep 0.05; done; rm $dir/first\nfi\nexec /usr/sbin/criu-itself \"$@\"\n'''\n\
        with open('/usr/sbin/criu', 'w') as f: _ = f.write(text)\n\
        os.chmod('/usr/sbin/criu', 0o755)";
    let reply = api.exec(slow);
    assert_eq!(reply["status"], "completed", "{reply}");
    let headers = [("Accept", "application/x-ndjson")];
    let request = json!({"name": "told", "leave_running": true});
    std::thread::scope(|scope| {
        let (started, begins) = mpsc::channel();
        let api = &api;
        let asking = scope.spawn(move || {
            // Other requests are answered during the dump.
            let () = begins.recv().unwrap();
            let status = api.get("/criu/status").json();
            let put = api.connect().send("DELETE", "/files/tmp/dumping", &[], b"");
            assert!([200, 204].contains(&put.status), "{}", put.status);
            status
        });
        let mut events = Vec::new();
        for event in api
            .connect()
            .events("POST", "/criu/checkpoint", &headers, &request)
        {
            let bytes = event["bytes"].as_u64().unwrap_or_default();
            if bytes >= 5_000_000 && !events.iter().any(is_large) {
                started.send(()).unwrap();
            }
            events.push(event);
        }
        drop(started);
        let status = asking.join().unwrap();
        assert_eq!(status["available"], true, "{status}");
        assert!(status.to_string().contains("right now"), "{status}");
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["type"], "done", "{events:?}");
        let sizes: Vec<_> = before.iter().map(|e| e["bytes"].as_u64()).collect();
        assert!(sizes.is_sorted(), "{sizes:?}");
        let size = last["reply"]["checkpoint_size_bytes"].as_u64().unwrap();
        assert!(size > 5_000_000, "{last}");
    });
    api.exec("os.rename('/usr/sbin/criu-itself', '/usr/sbin/criu')");
    // The restore first reads and verifies all bytes and reports the progress.
    let request = json!({"name": "told"});
    let events: Vec<Value> = api
        .connect()
        .events("POST", "/criu/restore", &headers, &request)
        .collect();
    let last = events.last().unwrap();
    assert_eq!(last["reply"]["kernel"]["state"], "restored", "{events:?}");
    let images = criu_instance().data().join("criu/told/1/images");
    let image = fs::read_dir(images).unwrap().flatten().map(|e| e.path());
    let image = image
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let mut bytes = fs::read(&image).unwrap();
    bytes[100] ^= 1;
    fs::write(&image, bytes).unwrap();
    let ran = criu_instance().run(["criu", "restore", "told"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("its checksum differs"), "{ran:?}");
    let refused = api.post("/criu/restore", &json!({"name": "told"})).error();
    assert_eq!((refused.0, refused.1.as_str()), (422, "damaged_checkpoint"));
    let words = [
        "--instance",
        &criu_instance().instance,
        "criu",
        "restore",
        "tol",
    ];
    assert_completes(criu_instance(), &words, &["told"]);
    criu_instance().ok(["criu", "rm", "told"]);
    assert_eq!(leftovers(&api), NOTHING_LEFT);
}

fn is_large(event: &Value) -> bool {
    event["bytes"]
        .as_u64()
        .is_some_and(|bytes| bytes >= 5_000_000)
}
