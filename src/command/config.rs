//! `osctl config`: what holds, where it comes from, where to change it.

use super::Context;
use crate::error::{Error, Outcome, Result};
use crate::host::mcp;
use crate::host::secrets::write_private;
use clap::Subcommand;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::env;

const TEMPLATE: &str = include_str!("../../assets/osctl.yaml");

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Print each value with where it came from
    Show,
    /// Print where the file is
    Path,
    /// Open the file in $VISUAL or $EDITOR
    Edit,
    /// Write a file with every key, commented out
    Init,
}

pub(crate) fn run(verb: ConfigVerb, cx: &Context) -> Result<Outcome> {
    match verb {
        ConfigVerb::Show => show(cx),
        ConfigVerb::Path => {
            cx.ui.line(cx.config_file.display().to_string());
            Ok(Outcome::Done)
        }
        ConfigVerb::Edit => edit(cx),
        ConfigVerb::Init => init(cx),
    }
}

fn show(cx: &Context) -> Result<Outcome> {
    let project = cx.instance.record()?.map(|r| r.project);
    let project = project.or_else(|| env::current_dir().ok());
    let mut resolved = cx.config(project.as_deref(), Vec::new())?;
    for (key, (value, _)) in &mut resolved.values {
        mask(key, value);
    }
    if cx.ui.json {
        let all: BTreeMap<_, _> = resolved
            .values
            .iter()
            .map(|(key, (value, source))| {
                (key, json!({"value": value, "source": source.to_string()}))
            })
            .collect();
        cx.ui.document(&all)?;
        return Ok(Outcome::Done);
    }
    let mut rows = vec![["KEY", "VALUE", "SOURCE"].map(str::to_owned).to_vec()];
    for (key, (value, source)) in &resolved.values {
        rows.push(vec![key.clone(), value.to_string(), source.to_string()]);
    }
    cx.ui.table(&rows);
    Ok(Outcome::Done)
}

/// What is handed in may be secret: its names are shown, never its values.
fn mask(key: &str, value: &mut Value) {
    match (key, value) {
        ("env", value) => hide(value),
        ("servers", Value::Object(servers)) => {
            for server in servers.values_mut() {
                for part in ["args", "env", "headers"] {
                    if let Some(secrets) = server.get_mut(part) {
                        hide(secrets);
                    }
                }
                if let Some(Value::String(url)) = server.get_mut("url") {
                    *url = mcp::whose(url);
                }
            }
        }
        _ => {}
    }
}

fn hide(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(|secret| *secret = json!("…")),
        Value::Array(list) => list.iter_mut().for_each(|secret| *secret = json!("…")),
        other => *other = json!("…"),
    }
}

fn init(cx: &Context) -> Result<Outcome> {
    let path = cx.trusted_config_file()?;
    if path.exists() {
        return Err(Error::usage(
            format!("`{}` is there already", path.display()),
            "`osctl config edit` opens it",
        )
        .into());
    }
    write_private(path, TEMPLATE.as_bytes())?;
    cx.ui.line(path.display().to_string());
    Ok(Outcome::Done)
}

fn edit(cx: &Context) -> Result<Outcome> {
    let file = cx.trusted_config_file()?;
    let editor = env::var("VISUAL")
        .or_else(|_| env::var("EDITOR"))
        .ok()
        .filter(|e| !e.trim().is_empty());
    let Some(editor) = editor else {
        let hint = format!(
            "`EDITOR=nano osctl config edit`, or open `{}`",
            file.display()
        );
        return Err(Error::usage("neither `VISUAL` nor `EDITOR` is set", hint).into());
    };
    if !file.exists() {
        init(cx)?;
    }
    // Editors are configured with arguments: `code --wait`.
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or_default();
    let status = std::process::Command::new(program)
        .args(words)
        .arg(file)
        .status()
        .map_err(|e| {
            Error::usage(
                format!("`{editor}` can't be started: {e}"),
                "set `EDITOR` to one that is installed",
            )
        })?;
    // What was written is checked at once, while the person still has it in mind.
    cx.config(None, Vec::new())?;
    Ok(if status.success() {
        Outcome::Done
    } else {
        Outcome::Code(crate::error::NO)
    })
}

#[cfg(test)]
mod tests {
    use super::{TEMPLATE, mask};
    use crate::config::Resolved;
    use serde_json::json;

    #[test]
    fn what_may_be_secret_is_shown_by_its_name_alone() {
        let mut servers = json!({
            "far": {"url": "https://geheim:geheim@mcp.example:8443/geheim?key=geheim", "headers": {"Authorization": "Bearer geheim"}},
            "near": {"command": "near", "args": ["--key", "geheim"], "env": {"API_KEY": "geheim"}},
            "odd": {"command": "odd", "env": "geheim", "url": "geheim"},
        });
        mask("servers", &mut servers);
        let shown = json!({
            "far": {"url": "https://mcp.example:8443/…", "headers": {"Authorization": "…"}},
            "near": {"command": "near", "args": ["…", "…"], "env": {"API_KEY": "…"}},
            "odd": {"command": "odd", "env": "…", "url": "…"},
        });
        assert_eq!(servers, shown);
        let mut env = json!({"TOKEN": "geheim"});
        mask("env", &mut env);
        assert_eq!(env, json!({"TOKEN": "…"}));
        let mut base = json!("debian:trixie-slim");
        mask("base", &mut base);
        assert_eq!(base, json!("debian:trixie-slim"));
    }

    #[test]
    fn the_template_names_every_key_and_its_lines_hold_when_uncommented() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("osctl.yaml");
        let text: String = TEMPLATE
            .lines()
            .map(|l| l.strip_prefix("#: ").unwrap_or(l))
            .flat_map(|l| [l, "\n"])
            .collect();
        std::fs::write(&file, text).unwrap();
        let read = Resolved::load(&file, None, vec![]).unwrap();
        for (key, (_, source)) in &read.values {
            assert!(
                source.to_string().contains("osctl.yaml"),
                "{key} is not in the template"
            );
        }
    }
}
