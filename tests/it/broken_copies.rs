//! Trials of `osctl cp` over connections that break, with interrupts, and from an untrusted companion.

use crate::archives::{assert_same, create_tree, finished, linked, padded};
use crate::commands::Followed;
use crate::cp::{copy, digest, fill, folders, refused};
use crate::fake_companion::{FakeCompanion, respond};
use crate::harness::Home;
use crate::proxies::{Break, BreakingProxy, by_port};
use crate::trials;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tar::EntryType;

trials![
    a_copy_resumes_after_a_cut_connection_both_ways,
    folder_copies_resume_in_the_middle_of_a_file,
    a_sparse_file_resumes_both_ways,
    a_folder_copy_that_keeps_breaking_fails,
    an_interrupted_copy_leaves_the_old_file_and_nothing_else,
    a_hostile_companion_writes_nowhere_else,
    unreadable_files_inside_are_named,
];

fn a_copy_resumes_after_a_cut_connection_both_ways() {
    let (home, here, inside) = folders("cp-cut");
    fill(&here.join("large"), 24);
    let expected = digest(&here.join("large"));
    for (from, to, landed) in [
        (
            here.join("large"),
            PathBuf::from("os:/root/host/cp-cut/up"),
            inside.join("up"),
        ),
        (
            "os:/root/host/cp-cut/up".into(),
            here.join("down"),
            here.join("down"),
        ),
    ] {
        let middle = BreakingProxy::start(&home.api().address, 8 << 20, 2, Break::Cut);
        let cut = by_port(home, "cp-cut", middle.port);
        let reply = copy(&cut, from, to);
        assert_eq!(
            (&reply["copied_bytes"], middle.left()),
            (&json!(24 << 20), 0)
        );
        assert_eq!(digest(&landed), expected);
    }
    let names = |folder: &Path| {
        let names = fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&inside), ["up".into()].into());
    assert_eq!(names(&here), ["down".into(), "large".into()].into());
    // A copy whose connection keeps breaking fails and leaves the old file.
    fs::write(here.join("down"), "old").unwrap();
    let middle = BreakingProxy::start(&home.api().address, 1000, u64::MAX, Break::Cut);
    let broken = by_port(home, "cp-broken", middle.port);
    let down = here.join("down");
    let ran = broken.run([Path::new("cp"), Path::new("os:/root/host/cp-cut/up"), &down]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("does not answer at"), "{ran:?}");
    assert_eq!(fs::read_to_string(&down).unwrap(), "old");
    assert_eq!(names(&here), ["down".into(), "large".into()].into());
}

/// A home whose connections all break after 6 MiB; a copy that does not resume never ends.
fn home_with_breaking_connections(home: &Home, name: &str) -> Home {
    let middle = BreakingProxy::start(&home.api().address, 6 << 20, u64::MAX, Break::Cut);
    by_port(home, name, middle.port)
}

fn folder_copies_resume_in_the_middle_of_a_file() {
    let (home, here, inside) = folders("cp-cut-tree");
    let tree = here.join("tree");
    create_tree(&tree);
    for (name, megabytes) in [("a large", 9), ("folder/large", 1), ("z large", 11)] {
        fill(&tree.join(name), megabytes);
    }
    for number in 0..300 {
        fs::write(tree.join(format!("small {number}")), number.to_string()).unwrap();
    }
    let cut = home_with_breaking_connections(home, "cp-cut-tree");
    let reply = copy(&cut, &tree, "os:/root/host/cp-cut-tree/up");
    assert_same(&tree, &inside.join("up"));
    let back = home.folder.join("cp-cut-tree-back");
    let _ = fs::remove_dir_all(&back);
    let again = copy(&cut, "os:/root/host/cp-cut-tree/up", &back);
    // Without `--setuid`.
    fs::set_permissions(tree.join("folder"), fs::Permissions::from_mode(0o750)).unwrap();
    assert_same(&tree, &back);
    for one in ["files", "folders", "links", "copied_bytes"] {
        assert_eq!(reply[one], again[one], "{one}");
    }
    assert_eq!(reply["files"], 310);
}

fn a_sparse_file_resumes_both_ways() {
    let (home, here, inside) = folders("cp-cut-holes");
    fill(&here.join("large"), 14);
    let data = fs::read(here.join("large")).unwrap();
    let sparse = fs::File::create(here.join("sparse")).unwrap();
    for (number, piece) in data.chunks(1 << 20).enumerate() {
        sparse.write_all_at(piece, (number as u64) << 23).unwrap();
    }
    sparse.set_len(130 << 20).unwrap();
    let expected = digest(&here.join("sparse"));
    let cut = home_with_breaking_connections(home, "cp-cut-holes");
    copy(&cut, here.join("sparse"), "os:/root/host/cp-cut-holes/up");
    copy(&cut, "os:/root/host/cp-cut-holes/up", here.join("down"));
    for landed in [inside.join("up"), here.join("down")] {
        assert_eq!(digest(&landed), expected);
        let landed = landed.metadata().unwrap();
        assert!(landed.blocks() * 512 < 20 << 20, "{landed:?}");
    }
    let left = [&here, &inside].map(|folder| fs::read_dir(folder).unwrap().count());
    assert_eq!(left, [3, 1]);
}

fn a_folder_copy_that_keeps_breaking_fails() {
    let (home, here, inside) = folders("cp-cut-end");
    for folder in [&here, &inside] {
        fs::create_dir(folder.join("tree")).unwrap();
        fill(&folder.join("tree/large"), 2);
    }
    let middle = BreakingProxy::start(&home.api().address, 1500, u64::MAX, Break::Cut);
    let broken = by_port(home, "cp-cut-end", middle.port);
    let there = PathBuf::from("os:/root/host/cp-cut-end");
    for (from, to, landed) in [
        (here.join("tree"), there.join("up"), inside.join("up")),
        (there.join("tree"), here.join("down"), here.join("down")),
    ] {
        let ran = broken.run([Path::new("cp"), &from, &to]);
        assert_eq!(ran.code, 3, "{ran:?}");
        assert!(ran.stderr.contains("does not answer at"), "{ran:?}");
        home.api().until("the removal of partial uploads", |_| {
            let left = fs::read_dir(&landed).map_or(0, Iterator::count);
            (left == 0).then_some(())
        });
    }
}

fn an_interrupted_copy_leaves_the_old_file_and_nothing_else() {
    let (home, here, inside) = folders("cp-interrupted");
    fill(&inside.join("large"), 16);
    fs::create_dir(inside.join("tree")).unwrap();
    fill(&inside.join("tree/large"), 16);
    fs::create_dir(here.join("tree")).unwrap();
    for name in ["large", "tree/large"] {
        fs::write(here.join(name), "old").unwrap();
    }
    for name in ["large", "tree/."] {
        let middle = BreakingProxy::start(&home.api().address, 4 << 20, 1, Break::Stall);
        let stalled = by_port(home, "cp-stalled", middle.port);
        let from = format!("os:/root/host/cp-interrupted/{name}");
        let args = [Path::new("cp"), Path::new(&from), &here.join(name)];
        let running = Followed::start(stalled.command(args));
        home.api()
            .until("the stall", |_| (middle.left() == 0).then_some(()));
        running.signal("INT");
        let (code, lines) = running.end();
        assert_eq!(code, 5, "{lines:?}");
        assert_eq!(
            fs::read_to_string(here.join(name.replace("/.", "/large"))).unwrap(),
            "old"
        );
        let left = fs::read_dir(&here).unwrap().count();
        let beneath = fs::read_dir(here.join("tree")).unwrap().count();
        assert_eq!((left, beneath), (2, 1), "{name}");
    }
}

fn a_hostile_companion_writes_nowhere_else() {
    let (home, here, _) = folders("cp-hostile");
    let outside = home.folder.join("cp-hostile-outside");
    let _ = fs::remove_dir_all(&outside);
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    let target = outside.to_str().unwrap().to_owned();
    let file = |name: &str| [linked(name, EntryType::Regular, 4, ""), padded(b"evil")].concat();
    let planted = linked("link", EntryType::Symlink, 0, &target);
    let up = "../../../cp-hostile-outside/secret";
    symlink(&outside, here.join("before")).unwrap();
    let cases = [
        (
            vec![file("../evil")],
            "`../evil` is outside the folder".to_owned(),
        ),
        (
            vec![file("/etc/osctl-evil")],
            "`/etc/osctl-evil` is outside the folder".into(),
        ),
        (
            vec![planted.clone(), file("link/evil")],
            "`link` passes through the link `link`, which osctl does not follow".into(),
        ),
        (
            vec![file("before/evil")],
            "`before` passes through the link `before`, which osctl does not follow".into(),
        ),
        (
            vec![linked("twin", EntryType::Link, 0, up), file("twin")],
            format!("`{up}` is outside the folder"),
        ),
        (
            vec![linked("twin", EntryType::Link, 0, "before/secret")],
            "`twin` passes through the link `before`, which osctl does not follow".into(),
        ),
        (
            vec![linked("null", EntryType::Char, 0, "")],
            "`null` is a character device, which osctl does not unpack".into(),
        ),
    ];
    for (members, sentence) in cases {
        let archive = finished(&members);
        let companion = FakeCompanion::start(move |request, stream| {
            let (kind, body) = match request.path.contains("?stat") {
                true => ("application/json", &entry("folder", 0)),
                false => ("application/x-tar", &archive),
            };
            respond(stream, "200 OK", &[("Content-Type", kind)], body);
        });
        let hostile = companion.home("cp-hostile");
        let args = [Path::new("cp"), Path::new("os:/x/."), &here];
        refused(&hostile.run(args), 2, &sentence);
        let entries = fs::read_dir(&outside)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        assert_eq!(entries.collect::<Vec<_>>(), ["secret"], "{sentence}");
        assert_eq!(
            fs::read_to_string(outside.join("secret")).unwrap(),
            "secret"
        );
    }
    // A single file is written under the requested name, not under the name in the archive.
    let members = [file("../evil"), file("second")].concat();
    let archive = finished(&[members]);
    let companion = FakeCompanion::start(move |request, stream| {
        let (kind, body) = match request.path.contains("?stat") {
            true => ("application/json", &entry("file", 1 << 20)),
            false => ("application/x-tar", &archive),
        };
        respond(stream, "200 OK", &[("Content-Type", kind)], body);
    });
    let hostile = companion.home("cp-hostile");
    let ran = hostile.run([Path::new("cp"), Path::new("os:/x"), &here.join("one")]);
    refused(
        &ran,
        4,
        "the archive is damaged: it contains more than one file",
    );
    let landed = here.join("one").metadata().unwrap();
    assert_eq!((landed.len(), landed.mode() & 0o7777), (4, 0o755));
    assert!(!here.join("second").exists() && !home.project.join("evil").exists());
}

fn entry(kind: &str, size: u64) -> Vec<u8> {
    let entry = json!({"name": "x", "path": "/x", "kind": kind, "size": size, "allocated": 0, "mode": "0644", "mtime": "1.0"});
    entry.to_string().into_bytes()
}

fn unreadable_files_inside_are_named() {
    let (home, here, _) = folders("cp-unreadable");
    let deep = "import os\nfor _ in range(600):\n    os.mkdir('d')\n    os.chdir('d')";
    let begin = "import os\nos.makedirs('/root/deep')\nos.chdir('/root/deep')";
    home.ok(["exec", &format!("{begin}\n{deep}\nos.chdir('/')")]);
    let ran = home.run(["cp", "os:/root/deep", "cp-unreadable/deep"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr
            .contains("/d/d`: the folders are nested too deeply\n\nhint: "),
        "{ran:?}"
    );
    // GNU tar also reports that the archive is incomplete.
    let archive = home.api().get("/files/root/deep?tar").body;
    fs::write(here.join("deep.tar"), archive).unwrap();
    let mut tar = std::process::Command::new("tar");
    let listed = tar.arg("-tf").arg(here.join("deep.tar")).output().unwrap();
    assert_eq!(listed.status.code(), Some(2), "{listed:?}");
    home.ok(["exec", "import shutil; shutil.rmtree('/root/deep')"]);
    let pipe = "import os\nos.makedirs('/root/host/cp-unreadable/tree', exist_ok=True)\nos.mkfifo('/root/host/cp-unreadable/tree/pipe')";
    home.ok(["exec", pipe]);
    let ran = home.run([
        "cp",
        "os:/root/host/cp-unreadable/tree",
        "cp-unreadable/tree",
    ]);
    refused(
        &ran,
        2,
        "`pipe` is a named pipe, which osctl does not unpack",
    );
}
