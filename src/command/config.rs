//! `osctl config`: shows the resolved configuration with its sources, and edits the file.

use super::CommandContext;
use super::answers::{ConfigAnswer, ConfigEntry, PathAnswer};
use crate::error::{Error, Result, VerbOutcome};
use crate::host::folders::write_private;
use crate::host::mcp;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::env;
use std::path::Path;

const CONFIG_TEMPLATE: &str = include_str!("../../assets/osctl.yaml");

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    verb: Option<ConfigVerb>,
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Print each value with its source (default)
    #[command(aliases = ["ls", "list"])]
    Show,
    /// Print the path of your configuration file
    Path,
    /// Open your configuration file in $VISUAL or $EDITOR
    Edit,
    /// Write a configuration file with every key, commented out
    Init,
}

impl ConfigArgs {
    /// Whether the file may be missing: these verbs create the file, or print its path only.
    pub(crate) fn may_lack_file(&self) -> bool {
        matches!(
            self.verb,
            Some(ConfigVerb::Path | ConfigVerb::Edit | ConfigVerb::Init)
        )
    }
}

pub(crate) fn run(args: ConfigArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    match args.verb.unwrap_or(ConfigVerb::Show) {
        ConfigVerb::Show => show_values(cx),
        ConfigVerb::Path => print_path(&cx.config_file, cx),
        ConfigVerb::Edit => edit_file(cx),
        ConfigVerb::Init => {
            let path = init_file(cx)?;
            print_path(path, cx)
        }
    }
}

fn print_path(path: &Path, cx: &CommandContext) -> Result<VerbOutcome> {
    match cx.ui.json {
        true => cx.ui.print_json(&PathAnswer { path: path.into() })?,
        false => cx.ui.print_line(path.display().to_string()),
    }
    Ok(VerbOutcome::Done)
}

fn show_values(cx: &CommandContext) -> Result<VerbOutcome> {
    let project = cx.instance.read_record()?.map(|r| r.project);
    let project = project.or_else(|| env::current_dir().ok());
    let mut resolved = cx.lenient_config(project.as_deref(), Vec::new())?;
    for (key, (value, _)) in &mut resolved.values {
        mask_secrets(key, value);
    }
    if cx.ui.json {
        let values = resolved.values.into_iter();
        let values = values.map(|(key, (value, source))| ConfigEntry {
            key,
            value,
            source: source.to_string(),
        });
        cx.ui.print_json(&ConfigAnswer {
            values: values.collect(),
        })?;
        return Ok(VerbOutcome::Done);
    }
    let mut rows = vec![["KEY", "VALUE", "SOURCE"].map(str::to_owned).to_vec()];
    for (key, (value, source)) in &resolved.values {
        rows.push(vec![key.clone(), value.to_string(), source.to_string()]);
    }
    cx.ui.print_table(&rows);
    Ok(VerbOutcome::Done)
}

/// Masks values of environment variables, which may be secret; their names are shown.
fn mask_secrets(key: &str, value: &mut Value) {
    match (key, value) {
        ("env", value) => hide_values(value),
        ("servers", Value::Object(servers)) => {
            for server in servers.values_mut() {
                for part in ["args", "env", "headers"] {
                    if let Some(secrets) = server.get_mut(part) {
                        hide_values(secrets);
                    }
                }
                if let Some(Value::String(url)) = server.get_mut("url") {
                    *url = mcp::redact_url(url);
                }
            }
        }
        _ => {}
    }
}

fn hide_values(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(|secret| *secret = json!("…")),
        Value::Array(list) => list.iter_mut().for_each(|secret| *secret = json!("…")),
        other => *other = json!("…"),
    }
}

fn init_file(cx: &CommandContext) -> Result<&Path> {
    let path = cx.trusted_config_file()?;
    if path.exists() {
        return Err(Error::usage(
            format!("`{}` already exists", path.display()),
            "`osctl config edit` opens it",
        )
        .into());
    }
    write_private(path, CONFIG_TEMPLATE.as_bytes())?;
    Ok(path)
}

fn edit_file(cx: &CommandContext) -> Result<VerbOutcome> {
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
        let path = init_file(cx)?;
        cx.ui.print_line(path.display().to_string());
    }
    // `$EDITOR` may have arguments: `code --wait`.
    let mut command = editor.split_whitespace();
    let program = command.next().unwrap_or_default();
    let status = std::process::Command::new(program)
        .args(command)
        .arg(file)
        .status()
        .map_err(|e| {
            Error::usage(
                format!("cannot start `{editor}`: {e}"),
                "set `EDITOR` to an installed editor",
            )
        })?;
    // Check the edited file immediately and report errors while the user still remembers the change.
    cx.lenient_config(None, Vec::new())?;
    Ok(if status.success() {
        VerbOutcome::Done
    } else {
        VerbOutcome::Code(crate::error::EXIT_NEGATIVE)
    })
}

#[cfg(test)]
mod tests {
    use super::{CONFIG_TEMPLATE, mask_secrets};
    use crate::config::ResolvedConfig;
    use serde_json::json;

    #[test]
    fn values_that_may_be_secret_are_masked() {
        let mut servers = json!({
            "far": {"url": "https://geheim:geheim@mcp.example:8443/geheim?key=geheim", "headers": {"Authorization": "Bearer geheim"}},
            "near": {"command": "near", "args": ["--key", "geheim"], "env": {"API_KEY": "geheim"}},
            "odd": {"command": "odd", "env": "geheim", "url": "geheim"},
        });
        mask_secrets("servers", &mut servers);
        let shown = json!({
            "far": {"url": "https://mcp.example:8443/…", "headers": {"Authorization": "…"}},
            "near": {"command": "near", "args": ["…", "…"], "env": {"API_KEY": "…"}},
            "odd": {"command": "odd", "env": "…", "url": "…"},
        });
        assert_eq!(servers, shown);
        let mut env = json!({"TOKEN": "geheim"});
        mask_secrets("env", &mut env);
        assert_eq!(env, json!({"TOKEN": "…"}));
        let mut base = json!("debian:trixie-slim");
        mask_secrets("base", &mut base);
        assert_eq!(base, json!("debian:trixie-slim"));
    }

    #[test]
    fn the_uncommented_template_sets_every_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("osctl.yaml");
        let text: String = CONFIG_TEMPLATE
            .lines()
            .map(|l| l.strip_prefix("#: ").unwrap_or(l))
            .flat_map(|l| [l, "\n"])
            .collect();
        std::fs::write(&file, text).unwrap();
        let read = ResolvedConfig::load(&file, None, "default", vec![]).unwrap();
        for (key, (_, source)) in &read.values {
            // Only a project has packages.
            if key.starts_with("packages.") {
                continue;
            }
            assert!(
                source.to_string().contains("osctl.yaml"),
                "{key} is not in the template"
            );
        }
    }
}
