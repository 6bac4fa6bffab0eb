use super::check_reserved_paths;
use crate::image::Body;
use crate::image::body::tests::{body, write};
use std::fs;
use std::path::Path;

#[test]
fn a_written_body_is_read_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    write(&Body::embedded(), folder.path());
    assert_eq!(
        Body::from_project(folder.path(), Path::new(""))
            .unwrap()
            .files,
        Body::embedded().files
    );
}

#[cfg(unix)]
#[test]
fn a_link_in_a_body_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write(&Body::embedded(), folder.path());
    std::os::unix::fs::symlink("/etc/shadow", folder.path().join("kernel/x")).unwrap();
    let error = Body::from_project(folder.path(), Path::new(""))
        .unwrap_err()
        .to_string();
    assert!(error.contains("`kernel/x`"), "{error}");
}

#[test]
fn a_body_that_is_incomplete_or_uses_reserved_paths_is_refused() {
    let refused = |files: &[(&str, &str)]| {
        let (body, folder) = (body(files), Path::new("here"));
        let checked = check_reserved_paths(&body.files, folder);
        let checked = checked.and_then(|()| body.check_compatible(folder));
        checked.unwrap_err().to_string()
    };
    let manifest = ("body.yaml", "protocol: 1\n");
    for path in [".osctl", ".osctl/osctl", ".osctl/ca/mine"] {
        let why = refused(&[manifest, (path, "x")]);
        assert!(
            why.contains(&format!("`{path}` is a path that osctl reserves")),
            "{why}"
        );
    }
    let why = refused(&[("Dockerfile", "x")]);
    assert!(why.contains("`body.yaml` is missing"), "{why}");
    let why = refused(&[("body.yaml", "protocol: many")]);
    assert!(why.contains("`body.yaml` can't be read"), "{why}");
    let servers = r#"{"mcpServers": {"a": {"command": "x", "argz": []}}}"#;
    let why = refused(&[manifest, ("mcp.json", servers)]);
    let expected = "`mcp.json`: the server `a`: unknown key `argz`; did you mean `args`?";
    assert!(why.contains(expected), "{why}");
}

#[test]
fn a_body_of_another_protocol_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(&Body::embedded(), folder.path());
    fs::write(
        folder.path().join("body.yaml"),
        "version: 9.0.0\nprotocol: 99\n",
    )
    .unwrap();
    let error = Body::from_project(folder.path(), Path::new(""))
        .unwrap_err()
        .to_string();
    assert!(error.contains("protocol 99"), "{error}");
}

#[test]
fn an_archive_holds_the_files_of_the_project_and_its_packages() {
    let project = tempfile::tempdir().unwrap();
    fs::create_dir(project.path().join("body")).unwrap();
    fs::write(project.path().join("body/Dockerfile"), "FROM host\n").unwrap();
    fs::write(project.path().join("osctl.yaml"), "packages: {apt: [jq]}\n").unwrap();
    let body = Body::from_project(project.path(), Path::new("body")).unwrap();
    let stored = Body::from_archive(&body.to_archive().unwrap()).unwrap();
    let stored: Vec<_> = stored.files.into_iter().collect();
    let expected = [
        (".osctl/packages/apt/packages.txt", "jq\n"),
        ("Dockerfile", "FROM host\n"),
    ];
    let expected = expected.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()));
    assert_eq!(stored, expected);
}
