//! Each rule, tested by the Dockerfiles that it refuses.

mod ground;

use super::{
    DockerfileDialect, DockerfileRefusal, DockerfileSources, permit_dockerfile, permit_with_trusted,
};
use crate::image::Body;

fn body(dockerfile: &str) -> Body {
    let files = [("Dockerfile".to_owned(), dockerfile.as_bytes().to_vec())];
    Body::from_files(files.into())
}

fn permitted(dockerfile: &str) -> Result<String, DockerfileRefusal> {
    permitted_for(DockerfileDialect::BuildKit, dockerfile)
}

fn permitted_for(
    dialect: DockerfileDialect,
    dockerfile: &str,
) -> Result<String, DockerfileRefusal> {
    let trusted = body("FROM ${BASE}\nRUN ours");
    permit_with_trusted(&body(dockerfile), &trusted, "osctl-x", dialect)
        .map(|permitted| permitted.text)
}

#[track_caller]
fn refused(dockerfile: &str, line: usize, words: &str) {
    match permitted(dockerfile) {
        Ok(text) => panic!("allowed: {text}"),
        Err(refusal) => {
            assert!(refusal.why.contains(words), "{refusal}");
            assert_eq!(refusal.line, line, "{refusal}");
        }
    }
}

#[test]
fn the_embedded_body_is_permitted_and_keeps_its_layers() {
    let text = permit_dockerfile(&Body::embedded(), "osctl-x", DockerfileDialect::BuildKit)
        .unwrap()
        .text;
    assert!(!text.contains("osctl-x"), "{text}");
    assert!(text.contains("--mount=type=cache,id=apt-archives,target=/var/cache/apt"));
}

#[test]
fn instructions_after_a_change_have_their_own_caches() {
    let mut changed = Body::embedded();
    let text = |body: &Body| String::from_utf8(body.files["Dockerfile"].clone()).unwrap();
    let more = text(&changed) + "RUN --mount=type=cache,target=/c make\n";
    changed.files.insert("Dockerfile".into(), more.into_bytes());
    let permitted = permit_dockerfile(&changed, "osctl-x", DockerfileDialect::BuildKit)
        .unwrap()
        .text;
    assert_eq!(permitted.matches("osctl-x/").count(), 1, "{permitted}");
    assert!(permitted.contains("RUN --mount=type=cache,target=/c,id=osctl-x//c make"));
    // A file that an early instruction copies.
    let mut changed = Body::embedded();
    changed
        .files
        .get_mut("requirements/uv.txt")
        .unwrap()
        .push(b'\n');
    let permitted = permit_dockerfile(&changed, "osctl-x", DockerfileDialect::BuildKit)
        .unwrap()
        .text;
    assert!(permitted.contains("id=apt-archives"), "the stage before");
    assert!(permitted.contains("id=osctl-x/pip"), "{permitted}");
    assert!(!permitted.contains("id=uv,"), "{permitted}");
    // A file that no early instruction copies, and a file that changes which files they copy.
    let mut changed = Body::embedded();
    changed.files.insert("notes".into(), b"x".to_vec());
    assert!(
        !permit_dockerfile(&changed, "osctl-x", DockerfileDialect::BuildKit)
            .unwrap()
            .text
            .contains("osctl-x")
    );
    changed.files.insert(".dockerignore".into(), b"x".to_vec());
    assert!(
        permit_dockerfile(&changed, "osctl-x", DockerfileDialect::BuildKit)
            .unwrap()
            .text
            .contains("id=osctl-x/apt-archives")
    );
}

#[test]
fn a_stage_starts_from_the_base_or_an_earlier_stage() {
    permitted("ARG BASE\nFROM ${BASE} AS a\nFROM $BASE\nFROM A as b\nCOPY --from=a /x /x\nCOPY --from=0 /x /x\n")
        .unwrap();
    refused("FROM debian", 1, "`FROM debian` is not allowed");
    refused("\n# x\nfrom debian:12 as x", 3, "only `FROM ${BASE}`");
    refused("FROM scratch", 1, "`FROM scratch`");
    refused("FROM ${BASE:-debian}", 1, "FROM ${BASE:-debian}");
    refused("ARG X=debian\nFROM ${X}", 2, "FROM ${X}");
    refused("FROM ${BASE}/x", 1, "FROM ${BASE}/x");
    refused("FROM --platform=x ${BASE}", 1, "`FROM --platform`");
    refused("FR\\\nOM debian", 1, "`FROM debian`");
    refused("FROM ${BASE} AS a:b", 1, "name of a stage");
    refused("FROM ${BASE} AS a b", 1, "`FROM` takes");
    refused("FROM", 1, "`FROM` takes");
    refused(
        "ARG BASE=x\nARG TAG=y\nFROM ${BASE}:${TAG}",
        3,
        "FROM ${BASE}:${TAG}",
    );
    refused("FROM ${BASE}@sha256:0", 1, "FROM ${BASE}@sha256:0");
    refused("FROM 0", 1, "`FROM 0`");
    refused("FROM later\nFROM ${BASE} AS later", 1, "`FROM later`");
    refused("RUN x", 1, "no `FROM ${BASE}`");
    refused("", 1, "no `FROM ${BASE}`");
}

#[test]
fn files_are_copied_only_from_the_body_and_earlier_stages() {
    refused(
        "FROM ${BASE}\nCOPY --from=debian / /",
        2,
        "`COPY --from=debian`",
    );
    refused(
        "FROM ${BASE} AS a\nCOPY --from=a / /",
        2,
        "only earlier stages",
    );
    refused(
        "FROM ${BASE}\nCOPY --from=b / /\nFROM ${BASE} AS b",
        2,
        "only earlier stages",
    );
    refused("FROM ${BASE}\nCOPY --from=0 / /", 2, "only earlier stages");
    refused(
        "FROM ${BASE} AS a\nFROM ${BASE}\nCOPY --from=${X} / /",
        3,
        "--from=${X}",
    );
    refused(
        "FROM ${BASE}\nCOPY --fr\\om=debian / /",
        2,
        "backslashes in a flag",
    );
    refused(
        "FROM ${BASE}\nCOPY --link --\"from\"=debian / /",
        2,
        "quotes",
    );
    refused("FROM ${BASE}\nCOPY --FROM=debian / /", 2, "not allowed");
    refused("FROM ${BASE}\nADD --link http://x /", 2, "of an address");
    refused(
        "FROM ${BASE}\nADD git@github.com:a/b.git /",
        2,
        "of an address",
    );
    refused(
        "FROM ${BASE}\nARG X=http://x\nADD $X /",
        3,
        "of an address or a variable",
    );
    for escaped in ["http\\u003a//127.0.0.1/x", "\\u0024X"] {
        let text = format!("FROM ${{BASE}}\nADD [\"{escaped}\", \"/x\"]");
        refused(&text, 2, "of an address");
    }
    refused("FROM ${BASE}\nADD --checksum=x y /", 2, "`ADD --checksum`");
    permitted("FROM ${BASE}\nADD x.tar /\nCOPY --chown=1:1 a b /c/\n").unwrap();
}

#[test]
fn a_step_with_extra_rights_or_mounts_is_refused() {
    refused("FROM ${BASE}\nRUN --network=host x", 2, "`RUN --network`");
    refused(
        "FROM ${BASE}\nRUN --security=insecure x",
        2,
        "`RUN --security`",
    );
    refused("FROM ${BASE}\nRUN \\\n  --device=x y", 2, "`RUN --device`");
    for flag in ["privileged", "cap-add=ALL", "user=0", "secret=x", "ssh"] {
        let name = flag.split('=').next().unwrap();
        let text = format!("FROM ${{BASE}}\nRUN --{flag} x");
        refused(&text, 2, &format!("`RUN --{name}` is not allowed"));
    }
    refused(
        "FROM ${BASE}\nPRIVILEGED true",
        2,
        "`PRIVILEGED` is not an instruction",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=tmpfs,target=/x y",
        2,
        "`--mount=type=tmpfs`",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=cache y",
        2,
        "without a target",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=cache,target=/x,source=/ y",
        2,
        "`source` of a mount",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=\"type=bind\",target=/x y",
        2,
        "quotes",
    );
    refused("FROM ${BASE}\nRUN --mount y", 2, "`` of a mount");
    refused("FROM ${BASE}\nONBUILD RUN x", 2, "`ONBUILD`");
    refused(
        "FROM ${BASE}\nrUn --mount=type=bind,from=x y",
        2,
        "`--mount=type=bind`",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=secret,id=x y",
        2,
        "`--mount=type=secret`",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=ssh y",
        2,
        "`--mount=type=ssh`",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=target=/x y",
        2,
        "without `type=cache`",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=cache,target=/x,from=y z",
        2,
        "`from` of a mount",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=cache,type=bind,target=/x z",
        2,
        "type=bind",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=cache,id=a,id=b,target=/x z",
        2,
        "twice",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=cache,id=$X,target=/x z",
        2,
        "variable in a mount",
    );
    refused(
        "FROM ${BASE}\nRUN --mount=type=cache,target=/x --network=host z",
        2,
        "--network",
    );
    let text = permitted(
        "FROM ${BASE}\nRUN --mount=type=cache,ID=a,target=/x,sharing=locked y --network=host",
    );
    let expected =
        "RUN --mount=type=cache,target=/x,sharing=locked,id=osctl-x/a y --network=host\n";
    assert!(text.unwrap().ends_with(expected));
}

#[test]
fn text_that_parsers_read_differently_is_refused() {
    refused(
        "# syntax=docker/dockerfile:1\nFROM ${BASE}",
        1,
        "`# syntax=`",
    );
    refused("# a comment\n#SYNTAX = x\nFROM ${BASE}", 2, "`# syntax=`");
    refused("# escape=`\nFROM ${BASE}", 1, "`# escape=`");
    refused("//syntax=x\nFROM ${BASE}", 1, "is not an instruction");
    refused("{\"syntax\":\"x\"}", 1, "is not an instruction");
    refused("\u{feff}FROM ${BASE}", 1, "U+FEFF");
    refused("FROM ${BASE}\nRUN\u{a0}--network=host x", 2, "U+00A0");
    refused("FROM ${BASE}\nRUN x\rFROM debian", 2, "U+000D");
    refused("FROM ${BASE}\nRUN x\u{b}y", 2, "U+000B");
    refused(
        "FROM ${BASE}\nRUN x \\\\\nFROM debian",
        2,
        "two backslashes",
    );
    refused("FROM ${BASE}\nRUN <<EOF\nFROM debian\nEOF", 2, "a heredoc");
    refused("FROM ${BASE}\nRUN cat <<-'E' >x\nE", 2, "a heredoc");
    refused("FROM ${BASE}\nRUN 3<<E x\nE", 2, "a heredoc");
    refused("FROM ${BASE}\nCOPY <<E /x\nE", 2, "a heredoc");
    refused("FROM ${BASE}\nRUN <${X:-<}E\nE", 2, "a heredoc");
    refused("FROM ${BASE}\nRUN ${X:-<<E}\nE", 2, "a heredoc");
    let why = permit_with_trusted(
        &Body::from_files([("Dockerfile".to_owned(), b"FROM ${BASE}\nRUN \xff".to_vec())].into()),
        &body(""),
        "x",
        DockerfileDialect::BuildKit,
    );
    assert_eq!(
        why.unwrap_err(),
        DockerfileRefusal::new(2, "the line is not UTF-8")
    );
    let long = format!("FROM ${{BASE}}\nRUN {}", "x".repeat(70_000));
    refused(&long, 2, "longer than");
    let many = format!("FROM ${{BASE}}\n{}", "USER root\n".repeat(500));
    refused(&many, 501, "more than 500 instructions");
    permitted(many.trim_end_matches("USER root\n")).unwrap();
    let huge = format!("FROM ${{BASE}}\n#{}", "x\n#".repeat(400_000));
    refused(&huge, 1, "longer than 1048576 bytes");
    permitted("FROM ${BASE}\nRUN cat <<< x && a < b\n").unwrap();
}

#[test]
fn a_label_that_host_tools_may_read_is_removed_and_named() {
    let label = |text: &str| format!("FROM ${{BASE}}\nLABEL {text}\nUSER root\n");
    let left_out = |text: &str| {
        let permitted =
            permit_dockerfile(&body(&label(text)), "osctl-x", DockerfileDialect::BuildKit).unwrap();
        (
            permitted.text.clone(),
            permitted.removed_labels_warning().unwrap_or_default(),
        )
    };
    let title = "org.opencontainers.image.title=\"a b\"";
    for key in [
        "osctl.instance",
        "traefik.enable",
        "com.centurylinklabs.watchtower.enable",
        "ofelia.enabled",
        "maintainer",
        "org.opencontainers",
        "\"osctl\".instance",
        "\"osctl.instance\"",
        "OSCTL.digest",
    ] {
        let (text, note) = left_out(&format!("{key}='x y'"));
        assert_eq!(text, "FROM ${BASE}\nUSER root\n");
        let named = format!("labels `{}`:", key.escape_debug());
        assert!(note.contains(&named), "{note}");
        let (text, note) = left_out(&format!("{title} {key}=x \\\n {key}=\"y\""));
        assert_eq!(text, format!("FROM ${{BASE}}\nLABEL {title}\nUSER root\n"));
        let named = format!("`{}`", key.escape_debug());
        assert_eq!(note.matches(&named).count(), 1, "{note}");
    }
    let many: String = (100..1000)
        .map(|n| format!(" k{n}{}=x", "y".repeat(50)))
        .collect();
    let (_, note) = left_out(&many);
    assert!(
        note.contains("`k109yy") && !note.contains("`k110"),
        "{note}"
    );
    assert!(
        note.contains("` and 890 more:") && note.len() < 2000,
        "{note}"
    );
    for text in ["OSCTL.digest x", "org.opencontainers.image.title x"] {
        refused(&label(text), 2, "takes the form `KEY=VALUE`");
    }
    let hidden = label("org.opencontainers.a=\\\" osctl.b=c");
    refused(&hidden, 2, "backslash");
    refused(
        &label("org.opencontainers.a=\"x osctl.b=c"),
        2,
        "not closed",
    );
    refused(&label("org.opencontainers.${X}=x"), 2, "a variable");
    // The instructions after a removed label keep their line numbers.
    refused(&(label("a=b") + "ONBUILD RUN x"), 4, "`ONBUILD`");
    let fine = label("org.opencontainers.image.title=\"a = b\" org.opencontainers.image.url='x'");
    assert_eq!(permitted(&fine).unwrap(), fine);
}

#[test]
fn the_classic_builder_gets_only_text_that_the_rules_checked() {
    let classic = |text: &str| {
        permitted_for(
            DockerfileDialect::Classic,
            &format!("FROM ${{BASE}}\n{text}"),
        )
    };
    // Only the flags at the start of an instruction are left out.
    for (text, line) in [
        (
            "RUN --mount=type=cache,target=/a \\\n    --mount=type=cache,target=/b \\\n    make",
            "RUN make",
        ),
        (
            "RUN true <--mount=type=cache <\"USER root\"",
            "RUN true <--mount=type=cache <\"USER root\"",
        ),
        (
            "RUN echo --mount=type=cache,target=/a x",
            "RUN echo --mount=type=cache,target=/a x",
        ),
        (
            "LABEL osc--mount=type=cache,target=/x tl.instance=x\nUSER root",
            "USER root",
        ),
    ] {
        let text = classic(text).unwrap();
        let marked = "FROM ${BASE}\nLABEL osctl.build=osctl-x";
        assert_eq!(text, format!("{marked}\n{line}\n"));
    }
    for (text, why) in [
        ("RUN --mount=type=cache,target=/a <<E\nE", "a heredoc"),
        (
            "RUN --mount=type=cache,target=/a --network=host x",
            "--network",
        ),
        ("RUN --mount=type=cache,target=/a x \\ \\", "differently"),
    ] {
        let refusal = classic(text).unwrap_err();
        assert!(refusal.why.contains(why), "{text}: {refusal}");
    }
    let text = permit_dockerfile(&Body::embedded(), "osctl-x", DockerfileDialect::Classic)
        .unwrap()
        .text;
    assert!(!text.contains("--mount="), "{text}");
}

#[test]
fn no_step_and_no_container_begins_in_a_folder_of_the_kernel() {
    let workdir = |text: &str| format!("FROM ${{BASE}}\nWORKDIR {text}");
    for folder in [
        "/proc/self/fd/8",
        "//proc",
        "/./proc/1/cwd",
        "proc/self",
        "/sys/kernel",
        "/dev/fd/8",
    ] {
        refused(&workdir(folder), 2, "a folder of the kernel");
    }
    refused(&workdir("/x/../proc"), 2, "`..`");
    for hidden in ["$X", "\"/proc\"", "'/proc'", "/pr\\oc"] {
        refused(&workdir(hidden), 2, "a variable, quote or backslash");
    }
    for folder in ["/root", "/processes", "app/dev", "/"] {
        permitted(&workdir(folder)).unwrap();
    }
}

#[test]
fn lines_are_joined_as_builders_join_them() {
    let text = permitted(
        "ARG BASE\r\nFROM ${BASE}\r\nrun a \\\r\n  # not a step\n\n   b \\  \n && c\n# end",
    )
    .unwrap();
    assert_eq!(text, "ARG BASE\nFROM ${BASE}\nRUN a    b  && c\n");
}

#[test]
fn a_line_is_named_by_the_file_that_the_user_sees() {
    let sources = DockerfileSources {
        is_default: false,
        default_lines: 300,
        packages_line: Some(312),
    };
    for (line, name) in [
        (7, "line 7 of the default Dockerfile"),
        (311, "line 11 of the Dockerfile"),
        (312, "packages of `osctl.yaml`"),
    ] {
        assert_eq!(sources.describe_line(line), name);
    }
    let whole = DockerfileSources::default();
    assert_eq!(whole.describe_line(7), "line 7 of the Dockerfile");
    let default = DockerfileSources {
        is_default: true,
        ..whole
    };
    assert_eq!(default.describe_line(7), "line 7 of the default Dockerfile");
}
