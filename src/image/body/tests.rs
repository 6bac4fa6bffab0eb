use super::{Body, BodyFileUpdate};
use crate::archive::Folder;
use crate::error::Result;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

pub(in crate::image) fn body(files: &[(&str, &str)]) -> Body {
    let files = files
        .iter()
        .map(|(p, c)| ((*p).into(), c.as_bytes().to_vec()))
        .collect();
    Body::from_files(files)
}

pub(in crate::image) fn write(body: &Body, folder: &Path) {
    body.write_to_folder(&Folder::open(folder).unwrap(), folder)
        .unwrap();
}

fn update(body: &Body, folder: &Path) -> Result<BTreeMap<String, BodyFileUpdate>> {
    body.update_folder(&Folder::open(folder)?, folder)
}

#[test]
fn the_embedded_body_is_complete_and_compatible() {
    let body = Body::embedded();
    for file in [
        "Dockerfile",
        "entrypoint.sh",
        "body.yaml",
        "kernel/__main__.py",
    ] {
        assert!(body.files.contains_key(file), "{file} is missing");
    }
    assert!(!body.files.keys().any(|p| p.contains("__pycache__")));
    body.check_compatible("embedded".as_ref()).unwrap();
}

#[test]
fn an_update_overwrites_no_edit() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    write(
        &body(&[("same", "1"), ("ours", "1"), ("theirs", "1"), ("both", "1")]),
        folder.path(),
    );
    fs::write(folder.path().join("theirs"), "edited").unwrap();
    fs::write(folder.path().join("both"), "edited").unwrap();

    let next = body(&[
        ("same", "1"),
        ("ours", "2"),
        ("theirs", "1"),
        ("both", "2"),
        ("new", "2"),
    ]);
    let done = update(&next, folder.path()).unwrap();

    let expected = [
        ("both", BodyFileUpdate::Conflict),
        ("new", BodyFileUpdate::Added),
        ("ours", BodyFileUpdate::Updated),
        ("theirs", BodyFileUpdate::Kept),
    ];
    assert_eq!(done, expected.map(|(p, u)| (p.to_string(), u)).into());
    assert_eq!(
        (at("ours"), at("theirs"), at("both")),
        ("2".into(), "edited".into(), "edited".into())
    );
    assert_eq!((at("both.new"), at("new")), ("2".into(), "2".into()));
}

#[cfg(unix)]
#[test]
fn an_update_follows_no_link() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&body(&[("file", "1"), ("deep/file", "1")]), folder.path());
    let victim = outside.path().join("victim");
    fs::write(&victim, "theirs").unwrap();
    let next = body(&[("file", "2"), ("deep/file", "2")]);
    fs::remove_file(folder.path().join("file")).unwrap();
    std::os::unix::fs::symlink(&victim, folder.path().join("file")).unwrap();
    assert!(
        update(&next, folder.path())
            .unwrap_err()
            .to_string()
            .contains("`file` is not a regular file")
    );
    fs::remove_file(folder.path().join("file")).unwrap();
    fs::remove_dir_all(folder.path().join("deep")).unwrap();
    std::os::unix::fs::symlink(outside.path(), folder.path().join("deep")).unwrap();
    assert!(
        update(&next, folder.path())
            .unwrap_err()
            .to_string()
            .contains("is a link")
    );
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(victim).unwrap(), "theirs");
}
