//! `osctl cp`: both ways, as people know it from Docker, over connections that break, and from a
//! companion that can't be trusted.

use crate::archives::{assert_same, finished, grow, linked, padded};
use crate::commands::{Followed, Ran, on_terminal};
use crate::harness::{Home, shared};
use crate::middle::{Break, Middle, by_port, companion};
use crate::trials;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tar::EntryType;

trials![
    a_tree_survives_both_ways,
    a_hundred_megabytes_arrive_whole,
    single_files_keep_rights_times_and_holes,
    it_lands_as_with_docker_cp,
    stdin_and_stdout_carry_files_and_archives,
    refusals_have_a_sentence_a_hint_and_a_code,
    a_cut_connection_is_taken_up_both_ways,
    an_interrupted_copy_leaves_the_old_file_and_nothing_else,
    a_hostile_companion_writes_nowhere_else,
    what_can_not_be_read_inside_is_named,
    a_terminal_shows_how_far_it_is,
];

/// Empty folders here and, of the same name, inside.
fn folders(name: &str) -> (&'static Home, PathBuf, PathBuf) {
    let home = shared();
    let (here, inside) = (home.project.join(name), home.files().join(name));
    for folder in [&here, &inside] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).unwrap();
    }
    (home, here, inside)
}

fn copy(home: &Home, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Value {
    let [from, to] = [from.as_ref(), to.as_ref()];
    let copied = home.json([Path::new("cp"), from, to]);
    assert!(copied["seconds"].as_f64().is_some(), "{copied}");
    copied
}

#[track_caller]
fn refused(ran: &Ran, code: i32, sentence: &str) {
    let said = ran.stderr.split("\n\nhint: ").next().unwrap();
    assert_eq!(
        (ran.code, said),
        (code, &*format!("error: {sentence}")),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("\nhint: "), "{ran:?}");
}

fn a_tree_survives_both_ways() {
    let (home, here, inside) = folders("cp-tree");
    grow(&here.join("tree"));
    let told = copy(home, "cp-tree/tree", "os:/root/host/cp-tree/landed");
    assert_eq!(
        (&told["files"], &told["folders"], &told["links"]),
        (&json!(7), &json!(4), &json!(4))
    );
    assert_same(&here.join("tree"), &inside.join("landed"));
    // What comes out may not be written to the folder that is mounted.
    let back = home.folder.join("cp-tree-back");
    let _ = fs::remove_dir_all(&back);
    copy(home, "os:/root/host/cp-tree/landed", &back);
    fs::set_permissions(here.join("tree/folder"), fs::Permissions::from_mode(0o750)).unwrap();
    assert_same(&here.join("tree"), &back);
    let twins = [back.join("plain"), back.join("folder/twin")];
    let [one, other] = twins.map(|path| path.metadata().unwrap().ino());
    assert_eq!(one, other);
    // The second time everything is there already.
    let again = copy(home, "os:/root/host/cp-tree/landed/.", &back);
    assert_eq!(again["files"], 7);
    assert_same(&here.join("tree"), &back);
}

fn digest(path: &Path) -> Vec<u8> {
    Sha256::digest(fs::read(path).unwrap()).to_vec()
}

/// A file whose every block is another one.
fn fill(path: &Path, megabytes: u32) {
    let mut file = File::create(path).unwrap();
    for megabyte in 0..megabytes {
        let words = (0..1 << 18).map(|word| (megabyte << 18 | word).wrapping_mul(2_654_435_761));
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        file.write_all(&bytes).unwrap();
    }
}

fn a_hundred_megabytes_arrive_whole() {
    let (home, here, inside) = folders("cp-large");
    fill(&here.join("large"), 100);
    let expected = digest(&here.join("large"));
    let told = copy(home, "cp-large/large", "os:/root/host/cp-large/");
    assert_eq!(told["bytes"], 100 << 20);
    assert_eq!(digest(&inside.join("large")), expected);
    copy(home, "os:/root/host/cp-large/large", "cp-large/back");
    assert_eq!(digest(&here.join("back")), expected);
}

fn single_files_keep_rights_times_and_holes() {
    let (home, here, inside) = folders("cp-single");
    let about = |path: &Path| {
        let found = path.metadata().unwrap();
        let is_sparse = found.blocks() * 512 < found.len();
        (
            found.mode() & 0o7777,
            found.mtime(),
            found.mtime_nsec(),
            is_sparse,
        )
    };
    let sparse = here.join("sparse");
    let file = File::create(&sparse).unwrap();
    file.set_len(50 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 20 << 20).unwrap();
    fs::write(here.join("tool"), "#!").unwrap();
    fs::write(here.join("empty"), "").unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(987_654_321, 123_456_789);
    for (name, mode) in [("sparse", 0o600), ("tool", 0o4711), ("empty", 0o444)] {
        let file = File::open(here.join(name)).unwrap();
        file.set_modified(time).unwrap();
        file.set_permissions(fs::Permissions::from_mode(mode))
            .unwrap();
        let expected = (mode, 987_654_321, 123_456_789, name == "sparse");
        copy(
            home,
            here.join(name),
            format!("os:/root/host/cp-single/as-{name}"),
        );
        let landed = inside.join(format!("as-{name}"));
        assert_eq!(about(&landed), expected, "{name}");
        copy(
            home,
            format!("os:/root/host/cp-single/as-{name}"),
            here.join("back"),
        );
        // The right to run as somebody else stays behind.
        assert_eq!(
            about(&here.join("back")),
            (mode & 0o777, expected.1, expected.2, expected.3)
        );
        assert_eq!(
            digest(&here.join("back")),
            digest(&here.join(name)),
            "{name}"
        );
    }
    home.ok([
        "cp",
        "--setuid",
        "os:/root/host/cp-single/as-tool",
        "cp-single/back",
    ]);
    assert_eq!(about(&here.join("back")).0, 0o4711);
}

fn it_lands_as_with_docker_cp() {
    let (home, here, inside) = folders("cp-lands");
    fs::create_dir_all(here.join("dir/sub")).unwrap();
    fs::write(here.join("dir/sub/f"), "f").unwrap();
    fs::write(here.join("file"), "file").unwrap();
    let os = |path: &str| format!("os:root/host/cp-lands/{path}");
    let is = |path: &str| inside.join(path).is_file();
    copy(home, "cp-lands/file", os(""));
    copy(home, "cp-lands/file", os("named"));
    assert!(is("file") && is("named"));
    copy(home, "cp-lands/dir", os("made"));
    assert!(is("made/sub/f"));
    copy(home, "cp-lands/dir", os("made"));
    assert!(is("made/dir/sub/f"));
    copy(home, "cp-lands/dir/.", os("contents"));
    copy(home, "cp-lands/dir/.", os("contents"));
    assert!(is("contents/sub/f") && !inside.join("contents/dir").exists());
    // And the other way.
    copy(home, os("made"), "cp-lands/back");
    copy(home, os("made"), "cp-lands/back");
    copy(home, os("made/."), "cp-lands/back");
    let back = |path: &str| here.join("back").join(path).is_file();
    assert!(back("sub/f") && back("made/sub/f") && back("dir/sub/f"));
    copy(home, os("file"), "cp-lands/back/");
    assert!(back("file"));
    // A link that is named is what it leads to, on both sides.
    symlink("file", here.join("link")).unwrap();
    copy(home, "cp-lands/link", os("from-link"));
    assert_eq!(
        fs::read_to_string(inside.join("from-link")).unwrap(),
        "file"
    );
    symlink("dir", here.join("dir-link")).unwrap();
    copy(home, os("file"), "cp-lands/dir-link");
    assert!(here.join("dir/file").is_file());

    let ran = home.run(["cp", "cp-lands/file", &os("missing/")]);
    refused(
        &ran,
        2,
        "there is no folder `os:root/host/cp-lands/missing/`",
    );
    let ran = home.run(["cp", "cp-lands/file", &os("file/")]);
    refused(
        &ran,
        2,
        "`os:root/host/cp-lands/file/` is a file, not a folder",
    );
    let ran = home.run(["cp", "cp-lands/dir", &os("file")]);
    refused(
        &ran,
        2,
        "`os:root/host/cp-lands/file` is a file, and a folder is to go there",
    );
    let ran = home.run(["cp", "cp-lands/file", &os("missing/file")]);
    refused(&ran, 2, "there is no `/root/host/cp-lands/missing`");
    let ran = home.run(["cp", &os("file"), "cp-lands/missing/file"]);
    refused(
        &ran,
        2,
        "`cp-lands/missing` can't be written: No such file or directory (os error 2)",
    );
    let ran = home.run(["cp", &os("made"), "cp-lands/file"]);
    refused(
        &ran,
        2,
        "`cp-lands/file` is a file, and a folder is to go there",
    );
}

/// Runs `osctl cp` with something on stdin; what came on stdout.
#[track_caller]
fn piped(home: &Home, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = home.command([&["cp"], args].concat());
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // Both pipes are small.
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn stdin_and_stdout_carry_files_and_archives() {
    let (home, _, inside) = folders("cp-pipes");
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 249) as u8).collect();
    piped(home, &["-", "os:/root/host/cp-pipes/f"], &content);
    assert!(fs::read(inside.join("f")).unwrap() == content);
    assert!(piped(home, &["os:/root/host/cp-pipes/f", "-"], b"") == content);
    // A folder is an archive, both ways.
    let archive = piped(home, &["os:/root/host/cp-pipes", "-"], b"");
    let mut names = Vec::new();
    for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        names.push((
            entry.path().unwrap().display().to_string(),
            bytes == content,
        ));
    }
    assert_eq!(
        names,
        [(String::from("./"), false), (String::from("f"), true)]
    );
    fs::create_dir(inside.join("again")).unwrap();
    piped(home, &["-", "os:/root/host/cp-pipes/again"], &archive);
    piped(home, &["-", "os:/root/host/cp-pipes/new/"], &archive);
    for folder in ["again", "new"] {
        assert!(fs::read(inside.join(folder).join("f")).unwrap() == content);
    }
    // A reader that has enough is no failure.
    let mut command = home.command(["cp", "os:/root/host/cp-pipes/f", "-"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn refusals_have_a_sentence_a_hint_and_a_code() {
    let (home, here, _) = folders("cp-refused");
    fs::write(here.join("f"), "f").unwrap();
    for (from, to, code, sentence) in [
        ("cp-refused/f", "elsewhere", 2, "neither side is inside"),
        ("os:/etc/hosts", "os:/tmp/x", 2, "both sides are inside"),
        (
            "missing",
            "os:/tmp/x",
            2,
            "`missing` can't be read: No such file or directory (os error 2)",
        ),
        (
            "os:/missing",
            "cp-refused/x",
            2,
            "there is no `os:/missing`",
        ),
        (
            "os:/dev/null",
            "cp-refused/x",
            2,
            "`/dev/null` is a device, not a file",
        ),
        (
            "os:/etc/../etc/hosts",
            "cp-refused/x",
            2,
            "`os:/etc/../etc/hosts` climbs with `..`",
        ),
        (
            "/dev/null",
            "os:/tmp/x",
            2,
            "`/dev/null` is a device, not a file",
        ),
    ] {
        let ran = home.run(["cp", from, to]);
        refused(&ran, code, sentence);
    }
    assert_eq!(fs::read_dir(&here).unwrap().count(), 1);
    let never = Home::new("cp-never");
    let ran = never.run(["cp", "os:/etc/hosts", "x"]);
    refused(&ran, 3, "`os-host-cp-never` is not running");
    let gone = by_port(home, "cp-gone", 1);
    let ran = gone.run(["cp", "os:/etc/hosts", "x"]);
    refused(&ran, 3, "`os-host-it` is not running");
}

fn a_cut_connection_is_taken_up_both_ways() {
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
        let middle = Middle::start(&home.api().address, 8 << 20, 2, Break::Cut);
        let cut = by_port(home, "cp-cut", middle.port);
        let told = copy(&cut, from, to);
        assert_eq!((&told["bytes"], middle.left()), (&json!(24 << 20), 0));
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
    // What breaks again and again is given up, and leaves the old file.
    fs::write(here.join("down"), "old").unwrap();
    let middle = Middle::start(&home.api().address, 1000, u64::MAX, Break::Cut);
    let broken = by_port(home, "cp-broken", middle.port);
    let down = here.join("down");
    let ran = broken.run([Path::new("cp"), Path::new("os:/root/host/cp-cut/up"), &down]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("does not answer at"), "{ran:?}");
    assert_eq!(fs::read_to_string(&down).unwrap(), "old");
    assert_eq!(names(&here), ["down".into(), "large".into()].into());
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
        let middle = Middle::start(&home.api().address, 4 << 20, 1, Break::Stall);
        let stalled = by_port(home, "cp-stalled", middle.port);
        let from = format!("os:/root/host/cp-interrupted/{name}");
        let args = [Path::new("cp"), Path::new(&from), &here.join(name)];
        let running = Followed::start(stalled.command(args));
        home.api()
            .until("the stall", |_| (middle.left() == 0).then_some(()));
        running.signal("INT");
        let (code, said) = running.end();
        assert_eq!(code, 5, "{said:?}");
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
            "`../evil` leaves the folder".to_owned(),
        ),
        (
            vec![file("/etc/osctl-evil")],
            "`/etc/osctl-evil` leaves the folder".into(),
        ),
        (
            vec![planted.clone(), file("link/evil")],
            "`link` leads through the link `link`, which is not followed".into(),
        ),
        (
            vec![file("before/evil")],
            "`before` leads through the link `before`, which is not followed".into(),
        ),
        (
            vec![linked("twin", EntryType::Link, 0, up), file("twin")],
            format!("`{up}` leaves the folder"),
        ),
        (
            vec![linked("twin", EntryType::Link, 0, "before/secret")],
            "`twin` leads through the link `before`, which is not followed".into(),
        ),
        (
            vec![linked("null", EntryType::Char, 0, "")],
            "`null` is a device of characters, which is not unpacked".into(),
        ),
    ];
    for (members, sentence) in cases {
        let archive = finished(&members);
        let port = companion(move |first| match first.contains("?stat") {
            true => ("application/json", entry("folder", 0)),
            false => ("application/x-tar", archive.clone()),
        });
        let hostile = by_port(home, "cp-hostile", port);
        let args = [Path::new("cp"), Path::new("os:/x/."), &here];
        refused(&hostile.run(args), 2, &sentence);
        let kept = fs::read_dir(&outside)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        assert_eq!(kept.collect::<Vec<_>>(), ["secret"], "{sentence}");
        assert_eq!(
            fs::read_to_string(outside.join("secret")).unwrap(),
            "secret"
        );
    }
    // One file is one file, whatever its archive says it is called.
    let members = [file("../evil"), file("second")].concat();
    let archive = finished(&[members]);
    let port = companion(move |first| match first.contains("?stat") {
        true => ("application/json", entry("file", 1 << 20)),
        false => ("application/x-tar", archive.clone()),
    });
    let hostile = by_port(home, "cp-hostile", port);
    let ran = hostile.run([Path::new("cp"), Path::new("os:/x"), &here.join("one")]);
    refused(
        &ran,
        4,
        "the archive is damaged: it holds more than one file",
    );
    let landed = here.join("one").metadata().unwrap();
    assert_eq!((landed.len(), landed.mode() & 0o7777), (4, 0o755));
    assert!(!here.join("second").exists() && !home.project.join("evil").exists());
}

fn entry(kind: &str, size: u64) -> Vec<u8> {
    let entry = json!({"name": "x", "path": "/x", "kind": kind, "size": size, "allocated": 0, "mode": "0644", "mtime": "1.0"});
    entry.to_string().into_bytes()
}

fn what_can_not_be_read_inside_is_named() {
    let (home, here, _) = folders("cp-unreadable");
    let deep = "import os\nfor _ in range(600):\n    os.mkdir('d')\n    os.chdir('d')";
    let begin = "import os\nos.makedirs('/root/deep')\nos.chdir('/root/deep')";
    home.ok(["exec", &format!("{begin}\n{deep}\nos.chdir('/')")]);
    let ran = home.run(["cp", "os:/root/deep", "cp-unreadable/deep"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(
        ran.stderr
            .contains("/d/d`: folders nest too deep\n\nhint: "),
        "{ran:?}"
    );
    // Another tar does not take it for whole either.
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
    refused(&ran, 2, "`pipe` is a named pipe, which is not unpacked");
}

fn a_terminal_shows_how_far_it_is() {
    let (home, here, _) = folders("cp-shown");
    fill(&here.join("large"), 48);
    let mut command = home.command(["cp", "cp-shown/large", "os:/root/host/cp-shown/"]);
    command.env("TERM", "xterm");
    let ran = on_terminal(&command, "");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("of 48.00 MiB"), "{ran:?}");
    let quiet = home.ok(["cp", "cp-shown/large", "os:/root/host/cp-shown/"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}
