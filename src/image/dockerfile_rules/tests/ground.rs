//! `FROM ${GROUND}`: where it is allowed, and when it may be a published image.

use super::{permitted, refused};
use crate::image::Body;
use crate::image::dockerfile_rules::{DockerfileDialect, permit_dockerfile};

#[test]
fn the_ground_needs_a_stage_as_its_default() {
    let stage = "ARG BASE\nARG GROUND=ground\nFROM ${BASE} AS ground\n";
    permitted(&format!("{stage}FROM ${{GROUND}} AS host\nFROM $GROUND\n")).unwrap();
    refused("FROM ${GROUND}", 1, "after a stage `ground`");
    refused(
        "FROM ${GROUND}\nFROM ${BASE} AS ground",
        1,
        "`FROM ${GROUND}`",
    );
    refused("FROM ${GROUND} AS ground", 1, "`FROM ${GROUND}`");
    for image in ["${GROUND:-debian}", "${GROUND}x", "$GROUND:x", "$GROUNDX"] {
        refused(
            &format!("{stage}FROM {image}"),
            4,
            &format!("`FROM {image}`"),
        );
    }
    refused(
        &format!("{stage}FROM --platform=x ${{GROUND}}"),
        4,
        "`FROM --platform`",
    );
    refused(
        &format!("{stage}FROM ${{GROUND}}\nCOPY --from=${{GROUND}} / /"),
        5,
        "only earlier stages",
    );
}

#[test]
fn a_published_image_serves_a_body_with_an_unchanged_ground() {
    let reference = "x@sha256:0";
    let served = |change: &dyn Fn(&mut Body), dialect| {
        let mut changed = Body::embedded();
        change(&mut changed);
        let permitted = permit_dockerfile(&changed, "osctl-x", dialect).unwrap();
        let published = |ground: &str| {
            let args = [("GROUND".to_owned(), ground.to_owned())].into();
            permitted.published_image(&args).map(str::to_owned)
        };
        assert_eq!(published("ground"), None);
        published(reference) == Some(reference.into())
    };
    let dockerfile = |from: &'static str, to: &'static str| {
        move |body: &mut Body| {
            let text = String::from_utf8(body.files["Dockerfile"].clone()).unwrap();
            assert_ne!(text.replacen(from, to, 1), text);
            let text = text.replacen(from, to, 1).into_bytes();
            body.files.insert("Dockerfile".into(), text);
        }
    };
    let file = |path: &'static str| {
        move |body: &mut Body| drop(body.files.insert(path.into(), b"x".to_vec()))
    };
    assert!(
        !served(&|_| (), DockerfileDialect::Classic),
        "it builds every stage"
    );
    let same: [&dyn Fn(&mut Body); 5] = [
        &|_| (),
        &file("kernel/more.py"),
        &file("mcp.json"),
        &dockerfile("WORKDIR /root\n", "WORKDIR /root\nRUN install-debs tree\n"),
        &dockerfile("# Everything but", "# All but"),
    ];
    for change in same {
        assert!(served(change, DockerfileDialect::BuildKit));
    }
    let other: [&dyn Fn(&mut Body); 9] = [
        &file("requirements/kernel.txt"),
        &file("requirements/filesystem/package.json"),
        &file("requirements/novnc/more"),
        &|body| drop(body.files.remove("requirements/uv.txt")),
        &file(".dockerignore"),
        &dockerfile("ffmpeg git", "ffmpeg git tree"),
        &dockerfile("ARG BUILD_TOOLS=1", "ARG BUILD_TOOLS=0"),
        &dockerfile("FROM ${GROUND} AS host", "RUN true\nFROM ${GROUND} AS host"),
        &dockerfile("FROM ${GROUND} AS host", "FROM ground AS host"),
    ];
    for (number, change) in other.into_iter().enumerate() {
        assert!(!served(change, DockerfileDialect::BuildKit), "{number}");
    }
}
