//! A body with only the files that differ from those inside of osctl.
//!
//! A folder with `body.yaml` is a whole body. A folder without it extends the default body: its Dockerfile begins with
//! `FROM host`, the last stage of the default one, and is appended to it. Its MCP servers are added to the default ones.
//! Every other file is added, or replaces the default file at the same path.

use crate::error::Result;
use crate::image::body::{BODY_MANIFEST, Body, check_servers};
use crate::image::body_reader::unfit_body_error;
use crate::image::dockerfile_rules::begins_with_stage;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The last stage of the default Dockerfile.
const DEFAULT_STAGE: &str = "host";

const MCP_FILE: &str = "mcp.json";
const MCP_SERVERS_KEY: &str = "mcpServers";

/// Adds the files of an extension to the default body.
///
/// # Errors
/// When the Dockerfile does not begin with `FROM host`, or `mcp.json` is not valid.
pub(super) fn extend_default_body(
    folder: &Path,
    mut files: BTreeMap<String, Vec<u8>>,
) -> Result<Body> {
    let unfit = |why: String| unfit_body_error(folder, why);
    let fragment = files.remove("Dockerfile").unwrap_or_default();
    if !begins_with_stage(&fragment, DEFAULT_STAGE) {
        let why = format!(
            "its Dockerfile does not begin with `FROM {DEFAULT_STAGE}`, and `{BODY_MANIFEST}`, which a whole body has, is missing"
        );
        return Err(unfit(why));
    }
    let mut body = Body::embedded();
    if let Some(added) = files.remove(MCP_FILE) {
        let default = body.files.get(MCP_FILE).map_or(&[][..], Vec::as_slice);
        let merged = add_servers(default, &added);
        let merged = merged.map_err(|why| unfit(format!("`{MCP_FILE}`: {why}")))?;
        body.files.insert(MCP_FILE.into(), merged);
    }
    let dockerfile = body.files.entry("Dockerfile".into()).or_default();
    body.default_lines = dockerfile.iter().filter(|byte| **byte == b'\n').count();
    dockerfile.extend_from_slice(&fragment);
    body.files.extend(files);
    body.folder = Some(folder.to_owned());
    Ok(body)
}

/// The default servers with those of the extension; `null` removes a server.
fn add_servers(default: &[u8], added: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let read = |text: &[u8]| -> std::result::Result<Map<String, Value>, String> {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    };
    let mut document = read(default)?;
    for (key, value) in read(added)? {
        match (document.get_mut(&key), value) {
            (Some(Value::Object(servers)), Value::Object(own)) if key == MCP_SERVERS_KEY => {
                servers.extend(own);
                servers.retain(|_, server| !server.is_null());
            }
            (_, value) if key != MCP_SERVERS_KEY => {
                document.insert(key, value);
            }
            _ => return Err(format!("`{MCP_SERVERS_KEY}` is not an object")),
        }
    }
    let document = Value::Object(document);
    check_servers(&document)?;
    serde_json::to_vec_pretty(&document).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use crate::image::{Body, BodyReadLimit, DockerfileDialect, permit_dockerfile};
    use serde_json::Value;
    use std::fs;
    use std::path::Path;

    fn extended(files: &[(&str, &str)]) -> crate::error::Result<Body> {
        let project = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let place = project.path().join("body").join(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        }
        let limit = BodyReadLimit::with_max_bytes(64 << 20);
        Body::from_project_within(project.path(), Path::new("body"), limit)
    }

    #[test]
    fn an_extension_adds_steps_files_and_servers_to_the_default_body() {
        let servers = r#"{"mcpServers": {"mine": {"command": "x"}, "linux": null}}"#;
        let fragment = "# mine\nFROM host\nRUN install-debs graphviz\n";
        let body = extended(&[
            ("Dockerfile", fragment),
            ("mcp.json", servers),
            ("selftest.d/mine.sh", "#!/bin/sh\n"),
            ("entrypoint.sh", "#!/bin/sh\n"),
        ])
        .unwrap();
        let default = Body::embedded();
        let text = String::from_utf8(body.files["Dockerfile"].clone()).unwrap();
        let before = String::from_utf8(default.files["Dockerfile"].clone()).unwrap();
        assert_eq!(text, format!("{before}{fragment}"));
        assert_eq!(body.files["entrypoint.sh"], b"#!/bin/sh\n");
        assert_eq!(body.files.len(), default.files.len() + 1);
        let servers: Value = serde_json::from_slice(&body.files["mcp.json"]).unwrap();
        let servers = servers["mcpServers"].as_object().unwrap();
        assert!(servers.contains_key("mine") && servers.contains_key("filesystem"));
        assert!(!servers.contains_key("linux"));
        // The layers of the default body are shared.
        let permitted = permit_dockerfile(&body, "s", DockerfileDialect::BuildKit).unwrap();
        assert!(
            permitted
                .text
                .ends_with("FROM host\nRUN install-debs graphviz\n")
        );
        assert!(permitted.text.contains("id=uv,"), "{}", permitted.text);
    }

    #[test]
    fn the_rules_hold_for_the_appended_steps_and_name_their_lines() {
        for (fragment, line) in [
            ("FROM host\n\nRUN --mount=type=bind,target=/x true\n", 3),
            ("FROM host\nCOPY --from=docker.io/x /a /b\n", 2),
            ("FROM host\nFROM debian\n", 2),
            ("FROM host\nADD http://h/x /x\n", 2),
        ] {
            let body = extended(&[("Dockerfile", fragment)]).unwrap();
            let refused = permit_dockerfile(&body, "s", DockerfileDialect::BuildKit).unwrap_err();
            assert_eq!(refused.line, line, "{refused}");
        }
    }

    #[test]
    fn a_body_that_is_neither_whole_nor_an_extension_is_refused() {
        for (files, expected) in [
            (vec![("Dockerfile", "FROM ${BASE}\n")], "body.yaml"),
            (vec![("Dockerfile", "RUN x\nFROM host\n")], "FROM host"),
            (vec![("Dockerfile", "FROM hosts\n")], "FROM host"),
            (
                vec![("Dockerfile", "FROM host\n"), ("mcp.json", "[")],
                "mcp.json",
            ),
            (
                vec![
                    ("Dockerfile", "FROM host\n"),
                    ("mcp.json", r#"{"mcpServers": []}"#),
                ],
                "mcpServers",
            ),
            (
                vec![
                    ("Dockerfile", "FROM host\n"),
                    ("mcp.json", r#"{"mcpServers": {"a": {"comand": "x"}}}"#),
                ],
                "`mcp.json`: the server `a`: unknown key `comand`; did you mean `command`?",
            ),
            (
                vec![("Dockerfile", "FROM host\n"), (".osctl/osctl", "x")],
                "reserves",
            ),
        ] {
            let error = extended(&files).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
