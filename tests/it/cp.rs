//! Trials of `osctl cp` in both directions, with the rules of `docker cp`.

use crate::archives::{assert_same, create_tree};
use crate::commands::{Ran, on_terminal};
use crate::harness::{Home, shared};
use crate::proxies::by_port;
use crate::trials;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

trials![
    a_tree_survives_both_ways,
    a_hundred_megabytes_arrive_whole,
    single_files_keep_rights_times_and_holes,
    targets_are_chosen_as_by_docker_cp,
    stdin_and_stdout_carry_files_and_archives,
    refusals_have_a_sentence_a_hint_and_a_code,
    a_terminal_shows_the_progress,
];

/// Empty folders of the same name on the host and in the container.
pub(crate) fn folders(name: &str) -> (&'static Home, PathBuf, PathBuf) {
    let home = shared();
    let (here, inside) = (home.project.join(name), home.files().join(name));
    for folder in [&here, &inside] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).unwrap();
    }
    (home, here, inside)
}

pub(crate) fn copy(home: &Home, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Value {
    let [from, to] = [from.as_ref(), to.as_ref()];
    let copied = home.json([Path::new("cp"), from, to]);
    assert!(copied["duration_seconds"].as_f64().is_some(), "{copied}");
    copied
}

#[track_caller]
pub(crate) fn refused(ran: &Ran, code: i32, sentence: &str) {
    let message = ran.stderr.split("\n\nhint: ").next().unwrap();
    assert_eq!(
        (ran.code, message),
        (code, &*format!("error: {sentence}")),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("\nhint: "), "{ran:?}");
}

fn a_tree_survives_both_ways() {
    let (home, here, inside) = folders("cp-tree");
    create_tree(&here.join("tree"));
    let reply = copy(home, "cp-tree/tree", "os:/root/host/cp-tree/landed");
    assert_eq!(
        (&reply["files"], &reply["folders"], &reply["links"]),
        (&json!(7), &json!(4), &json!(4))
    );
    assert_same(&here.join("tree"), &inside.join("landed"));
    // A copy to the host may not be written to the mounted folder.
    let back = home.folder.join("cp-tree-back");
    let _ = fs::remove_dir_all(&back);
    copy(home, "os:/root/host/cp-tree/landed", &back);
    fs::set_permissions(here.join("tree/folder"), fs::Permissions::from_mode(0o750)).unwrap();
    assert_same(&here.join("tree"), &back);
    let twins = [back.join("plain"), back.join("folder/twin")];
    let [one, other] = twins.map(|path| path.metadata().unwrap().ino());
    assert_eq!(one, other);
    // The second copy overwrites existing files.
    let again = copy(home, "os:/root/host/cp-tree/landed/.", &back);
    assert_eq!(again["files"], 7);
    assert_same(&here.join("tree"), &back);
}

pub(crate) fn digest(path: &Path) -> Vec<u8> {
    Sha256::digest(fs::read(path).unwrap()).to_vec()
}

/// Writes a file in which all blocks differ.
pub(crate) fn fill(path: &Path, megabytes: u32) {
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
    let reply = copy(home, "cp-large/large", "os:/root/host/cp-large/");
    assert_eq!(reply["copied_bytes"], 100 << 20);
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
        // The setuid bit is not copied.
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
    // The copy replaces the target of a link, not the link.
    symlink("as-tool", inside.join("link")).unwrap();
    copy(home, &sparse, "os:/root/host/cp-single/link");
    assert!(inside.join("link").is_symlink() && about(&inside.join("as-tool")).3);
    assert_eq!(digest(&inside.join("as-tool")), digest(&sparse));
    // The file has length 0 and a content.
    copy(home, "/proc/version", "os:/root/host/cp-single/version");
    let version = fs::read("/proc/version").unwrap();
    assert_eq!(fs::read(inside.join("version")).unwrap(), version);
}

fn targets_are_chosen_as_by_docker_cp() {
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
    // The same from the container to the host.
    copy(home, os("made"), "cp-lands/back");
    copy(home, os("made"), "cp-lands/back");
    copy(home, os("made/."), "cp-lands/back");
    let back = |path: &str| here.join("back").join(path).is_file();
    assert!(back("sub/f") && back("made/sub/f") && back("dir/sub/f"));
    copy(home, os("file"), "cp-lands/back/");
    assert!(back("file"));
    // A link that is named in the command stands for its target, on both sides.
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
        "the folder `os:root/host/cp-lands/missing/` does not exist",
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
        "`os:root/host/cp-lands/file` is a file, but the source is a folder",
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
        "`cp-lands/file` is a file, but the source is a folder",
    );
}

/// Runs `osctl cp` with `input` on stdin; returns stdout.
#[track_caller]
fn piped(home: &Home, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = home.command([&["cp"], args].concat());
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A thread writes the input, because both pipes are small.
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
    let ran = home.ok(["cp", "os:/root/host/cp-pipes/f", "-"]);
    assert!(ran.stderr.contains("copied 1 file, "), "{}", ran.stderr);
    // A folder is sent as an archive, in both directions.
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
    // A reader that closes stdout early is not a failure.
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
        (
            "cp-refused/f",
            "elsewhere",
            2,
            "neither path is in the container",
        ),
        (
            "os:/etc/hosts",
            "os:/tmp/x",
            2,
            "both paths are in the container",
        ),
        (
            "missing",
            "os:/tmp/x",
            2,
            "cannot read `missing`: No such file or directory (os error 2)",
        ),
        (
            "os:/missing",
            "cp-refused/x",
            2,
            "`os:/missing` does not exist",
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
    refused(&ran, 3, &format!("`{}` is not running", never.container()));
    let gone = by_port(home, "cp-gone", 1);
    let ran = gone.run(["cp", "os:/etc/hosts", "x"]);
    refused(&ran, 3, &format!("`{}` is not running", home.container()));
}

fn a_terminal_shows_the_progress() {
    let (home, here, _) = folders("cp-shown");
    fill(&here.join("large"), 48);
    let mut command = home.command(["cp", "cp-shown/large", "os:/root/host/cp-shown/"]);
    command.env("TERM", "xterm");
    let ran = on_terminal(&command, "");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("of 48.00 MiB"), "{ran:?}");
    let plain = home.ok(["cp", "cp-shown/large", "os:/root/host/cp-shown/"]);
    let is_summary = plain.stderr.starts_with("copied 1 file, 48.00 MiB in ");
    assert!(plain.stdout.is_empty() && is_summary, "{plain:?}");
    assert_eq!(plain.stderr.lines().count(), 1, "{plain:?}");
    let quiet = home.ok(["-q", "cp", "cp-shown/large", "os:/root/host/cp-shown/"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}
