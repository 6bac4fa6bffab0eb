//! Trials of folders as tar archives over HTTP: which properties are preserved, and which archives are refused.

use crate::files::{TAR, folder, inside, put};
use crate::harness::{Api, shared};
use crate::trials;
use serde_json::json;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use tar::{EntryType, Header};

trials![
    an_archive_of_gnu_tar_is_unpacked_and_ours_is_read_by_it,
    an_archive_that_climbs_is_refused,
    links_are_kept_and_never_followed,
    devices_in_archives_are_refused_by_name,
    a_damaged_archive_is_refused,
];

/// The preserved properties of one file: path, mode, seconds, nanoseconds, content, whether it is sparse.
type TreeEntry = (String, u32, i64, i64, Vec<u8>, bool);

fn tree(root: &Path) -> Vec<TreeEntry> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().as_os_str();
            let content = match about.file_type() {
                t if t.is_symlink() => fs::read_link(&path)
                    .unwrap()
                    .as_os_str()
                    .as_bytes()
                    .to_vec(),
                t if t.is_dir() => Vec::new(),
                _ => fs::read(&path).unwrap(),
            };
            if about.is_dir() {
                folders.push(path.clone());
            }
            let is_sparse = about.is_file() && about.blocks() * 512 < about.len();
            let name = name.as_bytes().escape_ascii().to_string();
            let (seconds, nanos) = (about.mtime(), about.mtime_nsec());
            found.push((name, about.mode(), seconds, nanos, content, is_sparse));
        }
    }
    found.sort();
    found
}

/// Creates a tree with every kind of file that is hard to copy.
pub(crate) fn create_tree(root: &Path) {
    fs::create_dir_all(root.join("folder/empty")).unwrap();
    fs::write(root.join("plain"), "content").unwrap();
    fs::write(root.join("none"), "").unwrap();
    fs::write(root.join("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("tool"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"no \xff text\n")), "named").unwrap();
    let deep = root.join(format!("{}/{}", "d".repeat(120), "e".repeat(120)));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f".repeat(120)), "deep").unwrap();
    fs::hard_link(root.join("plain"), root.join("folder/twin")).unwrap();
    symlink("../plain", root.join("folder/relative")).unwrap();
    symlink("/etc/hostname", root.join("absolute")).unwrap();
    symlink("t".repeat(300), root.join("dangling")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    for (offset, text) in [
        (1 << 20, "first"),
        (10 << 20, "second"),
        (64 << 20, "third"),
    ] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, text.as_bytes(), offset).unwrap();
    }
    sparse.set_len(100 << 20).unwrap();
    fs::File::create(root.join("hole"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let script = "find . -depth -exec touch -h -d '2001-02-03 04:05:06.123456789 UTC' {} +";
    let touched = Command::new("sh")
        .args(["-c", script])
        .current_dir(root)
        .status();
    assert!(touched.unwrap().success());
    fs::set_permissions(root.join("folder"), fs::Permissions::from_mode(0o2750)).unwrap();
}

/// Compares two trees; the message does not print the contents.
#[track_caller]
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let names = |tree: &[TreeEntry]| {
        let about = tree
            .iter()
            .map(|(name, mode, seconds, nanos, content, sparse)| {
                format!(
                    "{name} {mode:o} {seconds}.{nanos} {} {sparse}",
                    content.len()
                )
            });
        about.collect::<Vec<_>>()
    };
    let (one, other) = (tree(one), tree(other));
    assert_eq!(names(&one), names(&other));
    assert!(one == other, "contents differ");
}

fn an_archive_of_gnu_tar_is_unpacked_and_ours_is_read_by_it() {
    let home = shared();
    let api = home.api();
    folder(&api, "files-tar");
    let original = home.folder.join("gnu-tree");
    let _ = fs::remove_dir_all(&original);
    create_tree(&original);
    for format in ["gnu", "posix"] {
        let mut tar = Command::new("tar");
        tar.args([
            "--create",
            "--sparse",
            "--format",
            format,
            "--sort=name",
            ".",
        ]);
        let archive = tar.current_dir(&original).output().unwrap();
        assert!(archive.status.success(), "{archive:?}");
        let path = format!("/files/root/host/files-tar/{format}");
        let answer = api.connect().send("PUT", &path, &[TAR], &archive.stdout);
        assert_eq!(answer.status, 200, "{:?}", answer.json());
        assert_eq!(answer.json()["files"], 7, "{format}");
        let landed = home.files().join("files-tar").join(format);
        if format == "gnu" {
            // That format stores whole seconds only.
            let script = "find . -depth -exec touch -h -d '2001-02-03 04:05:06.123456789 UTC' {} +";
            Command::new("sh")
                .args(["-c", script])
                .current_dir(&landed)
                .status()
                .unwrap();
        }
        assert_same(&original, &landed);
        let twins = [landed.join("plain"), landed.join("folder/twin")];
        let [one, other] = twins.map(|path| path.metadata().unwrap().ino());
        assert_eq!(one, other);
    }
    let ours = api.get("/files/root/host/files-tar/posix?tar");
    assert_eq!(ours.headers["content-type"], "application/x-tar");
    let read = home.folder.join("gnu-read");
    let _ = fs::remove_dir_all(&read);
    fs::create_dir(&read).unwrap();
    fs::write(home.folder.join("ours.tar"), &ours.body).unwrap();
    let mut tar = Command::new("tar");
    tar.args([
        "--extract",
        "--preserve-permissions",
        "--file",
        "../ours.tar",
    ]);
    let extracted = tar.current_dir(&read).output().unwrap();
    assert!(extracted.status.success(), "{extracted:?}");
    assert!(extracted.stderr.is_empty(), "{extracted:?}");
    assert_same(&original, &read);
    // The archive does not contain the holes.
    assert!(ours.body.len() < 1 << 20, "{}", ours.body.len());
}

/// A header with an arbitrary name, which a normal tar does not write.
pub(crate) fn header(name: &str, kind: EntryType, size: u64) -> Vec<u8> {
    linked(name, kind, size, "")
}

pub(crate) fn linked(name: &str, kind: EntryType, size: u64, target: &str) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o4755);
    header.set_mtime(1);
    header.set_cksum();
    header.as_bytes().to_vec()
}

pub(crate) fn padded(content: &[u8]) -> Vec<u8> {
    let mut padded = content.to_vec();
    padded.resize(content.len().next_multiple_of(512), 0);
    padded
}

pub(crate) fn finished(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 1024]].concat()
}

/// Sends members that must be refused; returns the message.
#[track_caller]
fn refused(api: &Api, folder: &str, members: &[Vec<u8>]) -> String {
    let archive = finished(members);
    let answer = api
        .connect()
        .send("PUT", &format!("/files{folder}"), &[TAR], &archive);
    let (status, kind, message) = answer.error();
    assert_eq!((status, kind.as_str()), (422, "archive"), "{message}");
    message
}

fn an_archive_that_climbs_is_refused() {
    let api = shared().api();
    let base = folder(&api, "files-climbing");
    let folder = format!("{base}/in");
    let evil = || padded(b"evil");
    for name in [
        "../evil",
        "a/../../evil",
        "/root/host/files-climbing/evil",
        "..",
        "/",
    ] {
        let members = [header(name, EntryType::Regular, 4), evil()];
        let shown = name.trim_end_matches('/');
        let message = refused(&api, &folder, &members);
        assert!(
            message == format!("`{name}` is outside the folder") || shown.is_empty(),
            "{message}"
        );
    }
    let hard = linked("twin", EntryType::Link, 0, "../secret");
    put(&api, &format!("/files{base}/secret"), b"secret");
    assert_eq!(
        refused(&api, &folder, &[hard]),
        "`../secret` is outside the folder"
    );
    let hard = linked("twin", EntryType::Link, 0, "missing");
    let message = "the hard link's target `missing` is not an earlier entry of the archive";
    assert_eq!(refused(&api, &folder, &[hard]), message);
    assert_eq!(
        inside(
            &api,
            &format!("[sorted(os.listdir('{base}')), os.listdir('{folder}')]")
        ),
        json!([["in", "secret"], []])
    );
}

fn links_are_kept_and_never_followed() {
    let api = shared().api();
    let base = folder(&api, "files-links");
    let code = format!(
        "os.makedirs('{base}/out/deep'); os.makedirs('{base}/in'); os.symlink('{base}/out', '{base}/in/before')"
    );
    api.exec(&code);
    let folder = format!("{base}/in");
    let planted = linked("planted", EntryType::Symlink, 0, &format!("{base}/out"));
    let through = |name: &str| [header(name, EntryType::Regular, 4), padded(b"evil")].concat();
    for (name, link) in [
        ("planted/evil", "planted"),
        ("before/evil", "before"),
        ("before/deep/evil", "before"),
    ] {
        let message = refused(&api, &folder, &[planted.clone(), through(name)]);
        let at = name.rsplit_once('/').unwrap().0;
        assert_eq!(
            message,
            format!("`{at}` passes through the link `{link}`, which osctl does not follow")
        );
    }
    // Neither a member of a folder nor the target of a hard link follows a link.
    let inner = header("before/", EntryType::Directory, 0);
    let message = "`before` passes through the link `before`, which osctl does not follow";
    assert_eq!(refused(&api, &folder, &[inner]), message);
    put(&api, &format!("/files{base}/out/secret"), b"secret");
    let hard = linked("twin", EntryType::Link, 0, "before/secret");
    let message = "`twin` passes through the link `before`, which osctl does not follow";
    assert_eq!(refused(&api, &folder, &[hard]), message);
    // A file with the name of the link replaces the link, not the target of the link.
    let archive = finished(&[through("before")]);
    let answer = api
        .connect()
        .send("PUT", &format!("/files{folder}"), &[TAR], &archive);
    assert_eq!(answer.status, 200, "{:?}", answer.json());
    let state = format!(
        "[os.readlink('{folder}/planted'), open('{folder}/before').read(), os.path.islink('{folder}/before'), \
         sorted(os.listdir('{base}/out')), sorted(os.listdir('{folder}'))]"
    );
    assert_eq!(
        inside(&api, &state),
        json!([
            format!("{base}/out"),
            "evil",
            false,
            ["deep", "secret"],
            ["before", "planted"]
        ])
    );
    let over = refused(&api, &base, &[through("out")]);
    assert_eq!(over, "`out` can't replace a folder");
    let beneath = refused(&api, &folder, &[through("before/x")]);
    assert_eq!(beneath, "`before` can't replace a file");
}

fn devices_in_archives_are_refused_by_name() {
    let api = shared().api();
    let folder = folder(&api, "files-devices");
    for (kind, what) in [
        (EntryType::Char, "a character device"),
        (EntryType::Block, "a block device"),
        (EntryType::Fifo, "a named pipe"),
    ] {
        let members = [header("sub/thing", kind, 0)];
        let message = refused(&api, &folder, &members);
        assert_eq!(
            message,
            format!("`sub/thing` is {what}, which osctl does not unpack")
        );
    }
    assert_eq!(inside(&api, &format!("os.listdir('{folder}')")), json!([]));
}

fn a_damaged_archive_is_refused() {
    let api = shared().api();
    let folder = folder(&api, "files-damaged");
    let good = header("f", EntryType::Regular, 4);
    let mut flipped = good.clone();
    flipped[3] ^= 1;
    let message = "the archive is damaged: a checksum does not match";
    assert_eq!(refused(&api, &folder, &[flipped]), message);
    let long = header("x", EntryType::GNULongName, 1 << 40);
    let message = "the archive is damaged: a name or a record is too long";
    assert_eq!(refused(&api, &folder, &[long]), message);
    let short = [good, b"ab".to_vec()].concat();
    let answer = api
        .connect()
        .send("PUT", &format!("/files{folder}"), &[TAR], &short);
    assert_eq!(
        answer.error(),
        (400, "cut".into(), "the body ended early".into())
    );
    assert_eq!(inside(&api, &format!("os.listdir('{folder}')")), json!([]));
    assert_eq!(api.get("/status").status, 200);
}
