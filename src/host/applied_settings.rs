//! The settings with which `up` last created an instance's container, as the instance's record stores them, and the
//! changes that another `up` would make.
//!
//! Values of environment variables may be secret: the record holds their digests.

use crate::config::{ConfigSource, PortsConfig, ResolvedConfig};
use crate::protocol::proof::sha256_fingerprint;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Keys that do not affect the container. The record holds the ports, and passed variables are reported by name. The
/// published image differs between releases, and has the same contents as a local build.
const NON_CONTAINER_KEYS: &[&str] = &[
    "auto_ports",
    "companion",
    "engine",
    "evolve",
    "image",
    "mcp",
    "pass_env",
    "ports",
    "remote_socket",
    "servers",
];

/// Keys whose entries are reported individually.
const LIST_SETTING_KEYS: &[&str] = &["env", "hosts", "mounts", "packages", "pass_env"];

/// An empty value in a record of an earlier version means that the value is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AppliedSettings {
    /// The configuration file, if it is not the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) config_file: Option<PathBuf>,
    /// The address that the ports are published on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bind: Option<IpAddr>,
    /// The names that `up --env` has added.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) env_names: BTreeSet<String>,
    /// The settings by key. The key of a list's entry is `KEY ENTRY`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    settings: BTreeMap<String, String>,
}

/// The differences between the container and the one that `up` would create.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SettingChanges {
    /// Lines such as `limits.memory: 4g -> 8g`.
    pub(crate) lines: Vec<String>,
    /// Whether a setting was changed or removed by anything other than this command line.
    pub(crate) needs_consent: bool,
}

impl AppliedSettings {
    /// The settings in effect now. `passed` are the names of all passed variables.
    pub(crate) fn new(
        resolved: &ResolvedConfig,
        config_file: Option<PathBuf>,
        env_names: BTreeSet<String>,
        passed: &BTreeSet<String>,
    ) -> Self {
        let mut settings = BTreeMap::new();
        for (key, (value, _)) in &resolved.values {
            let top = key.split('.').next().unwrap_or(key);
            if NON_CONTAINER_KEYS.contains(&top) {
                continue;
            }
            match value {
                Value::Object(map) if LIST_SETTING_KEYS.contains(&top) => {
                    settings.extend(map.iter().map(|(name, value)| {
                        (
                            format!("{key} {name}"),
                            sha256_fingerprint(&value_to_text(value)),
                        )
                    }))
                }
                Value::Array(list) if LIST_SETTING_KEYS.contains(&top) => settings.extend(
                    list.iter()
                        .map(|entry| (format!("{key} {}", value_to_text(entry)), String::new())),
                ),
                value => drop(settings.insert(key.clone(), value_to_text(value))),
            }
        }
        settings.extend(
            passed
                .iter()
                .map(|name| (format!("env {name}"), "passed".into())),
        );
        Self {
            config_file,
            bind: Some(resolved.config.bind),
            env_names,
            settings,
        }
    }

    /// Whether an earlier version has recorded no settings to compare.
    pub(crate) fn is_unknown(&self) -> bool {
        self.settings.is_empty()
    }

    /// The differences between `self`, the container's settings, and `next`. `explicit` are the names of variables that
    /// the command line sets or removes.
    pub(crate) fn diff_settings(
        &self,
        next: &Self,
        ports: (PortsConfig, PortsConfig),
        resolved: &ResolvedConfig,
        explicit: &BTreeSet<String>,
    ) -> SettingChanges {
        let mut changes = SettingChanges::default();
        if self.is_unknown() {
            return changes;
        }
        let is_flag = |key: &str| {
            let value = resolved.values.get(key);
            value.is_some_and(|(_, source)| *source == ConfigSource::Flag)
        };
        let keys: BTreeSet<&String> = self.settings.keys().chain(next.settings.keys()).collect();
        for key in keys {
            let (before, after) = (self.settings.get(key), next.settings.get(key));
            // Earlier versions recorded the list of an installer as one value.
            let is_former = key.starts_with("packages.") && !key.contains(' ');
            if before == after || is_former {
                continue;
            }
            let (line, is_said) = match key.split_once(' ') {
                Some((list, entry)) => {
                    let line = match (before, after) {
                        (None, _) => format!("{list}: +{entry}"),
                        (_, None) => format!("{list}: -{entry}"),
                        _ => format!("{list}: {entry} changed"),
                    };
                    let is_said = match list.split('.').next() {
                        // `osctl add` and `osctl remove` changed the list, which is part of the image.
                        Some("packages") => true,
                        Some("env") => before.is_none() || explicit.contains(entry),
                        _ => before.is_none(),
                    };
                    (line, is_said)
                }
                None => {
                    let shown = |value: Option<&String>| {
                        let value = value.map_or("none", String::as_str);
                        value.to_owned()
                    };
                    let line = format!("{key}: {} -> {}", shown(before), shown(after));
                    // A key of a newer version removes nothing.
                    (line, before.is_none() || is_flag(key))
                }
            };
            changes.add_line(line, !is_said);
        }
        changes.add_ports(ports, resolved);
        changes
    }
}

impl SettingChanges {
    fn add_line(&mut self, line: String, needs_consent: bool) {
        self.lines.push(line);
        self.needs_consent |= needs_consent;
    }

    /// A port that was chosen because another port is in use is not a change of the configuration.
    fn add_ports(
        &mut self,
        (before, after): (PortsConfig, PortsConfig),
        resolved: &ResolvedConfig,
    ) {
        for (name, before, after) in [
            ("kernel", before.kernel, after.kernel),
            ("mcp", before.mcp, after.mcp),
            ("vnc", before.vnc, after.vnc),
        ] {
            let key = format!("ports.{name}");
            let is_configured = resolved.values.get(&key).is_some_and(|(value, source)| {
                !matches!(source, ConfigSource::Default | ConfigSource::Flag) && *value == after
            });
            if before != after {
                self.add_line(format!("{key}: {before} -> {after}"), is_configured);
            }
        }
    }

    /// Adds variables that the next container lacks. `explicit` are the variables that the command line removes.
    pub(crate) fn add_lost_variables(
        &mut self,
        names: &BTreeSet<String>,
        explicit: &BTreeSet<String>,
    ) {
        for name in names {
            self.add_line(format!("env: -{name}"), !explicit.contains(name));
        }
    }

    /// Adds another project, which only `--move` chooses.
    pub(crate) fn add_move(&mut self, before: &Path, after: &Path) {
        let line = format!("project: {} -> {}", before.display(), after.display());
        self.add_line(line, false);
    }

    /// Adds the image, unless changed packages explain it; a changed body alone needs no consent.
    pub(crate) fn add_image(&mut self) {
        if !self.lines.iter().any(|line| line.starts_with("packages.")) {
            self.lines.push("image: body/ or osctl changed".into());
        }
    }
}

fn value_to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{AppliedSettings, SettingChanges};
    use crate::config::{Config, ResolvedConfig};
    use serde_json::{Value, json};
    use std::collections::BTreeSet;
    use std::fs;

    fn resolved(text: &str, flags: Vec<(&str, Value)>) -> ResolvedConfig {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.yaml");
        fs::write(&file, text).unwrap();
        ResolvedConfig::load(&file, None, "default", flags).unwrap()
    }

    fn changes(before: &str, after: &str, flags: Vec<(&str, Value)>) -> SettingChanges {
        let none = BTreeSet::new();
        let applied =
            |resolved: &ResolvedConfig| AppliedSettings::new(resolved, None, none.clone(), &none);
        let next = resolved(after, flags);
        let ports = Config::default().ports;
        let before = applied(&resolved(before, Vec::new()));
        before.diff_settings(&applied(&next), (ports, ports), &next, &none)
    }

    #[test]
    fn changed_settings_are_listed_without_secrets() {
        let before =
            "env: {STRIPE_KEY: sk-secret, B: x, C: y}\nmounts: ['/a:/b']\nlimits: {memory: 4g}";
        let after = "env: {B: z, C: y, D: w}\nmounts: ['/a:/c']\nlimits: {memory: 8g, cpus: 2}";
        let changes = changes(before, after, Vec::new());
        let lines = [
            "env: B changed",
            "env: +D",
            "env: -STRIPE_KEY",
            "limits.cpus: none -> 2",
            "limits.memory: 4g -> 8g",
            "mounts: -/a:/b",
            "mounts: +/a:/c",
        ];
        let mut sorted = changes.lines.clone();
        sorted.sort_by_key(|line| line.replace(['-', '+'], ""));
        let mut expected = lines.map(str::to_owned).to_vec();
        expected.sort_by_key(|line| line.replace(['-', '+'], ""));
        assert_eq!(sorted, expected);
        assert!(changes.needs_consent);
        let config = resolved(before, Vec::new());
        let none = BTreeSet::new();
        let recorded =
            serde_json::to_string(&AppliedSettings::new(&config, None, none.clone(), &none));
        assert!(!recorded.unwrap().contains("sk-secret"));
    }

    #[test]
    fn an_added_or_explicit_setting_needs_no_consent() {
        assert!(!changes("", "env: {A: b}", Vec::new()).needs_consent);
        let flags = vec![("limits.memory", json!("8g"))];
        let difference = changes("limits: {memory: 4g}", "", flags);
        assert_eq!(difference.lines, ["limits.memory: 4g -> 8g"]);
        assert!(!difference.needs_consent);
        let servers = "servers: {a: {command: b}}\nevolve: {grace: 3}\nports: {kernel: 9000}";
        assert_eq!(changes("", servers, Vec::new()), SettingChanges::default());
    }

    #[test]
    fn a_record_of_an_earlier_version_changes_nothing() {
        let next = resolved("env: {A: b}", Vec::new());
        let none = BTreeSet::new();
        let applied = AppliedSettings::new(&next, None, none.clone(), &none);
        let ports = Config::default().ports;
        let before: AppliedSettings = serde_json::from_str("{}").unwrap();
        let found = before.diff_settings(&applied, (ports, ports), &next, &none);
        assert_eq!(found, SettingChanges::default());
    }

    #[test]
    fn changed_packages_are_named_and_need_no_consent() {
        let folder = tempfile::tempdir().unwrap();
        let of_project = |text: &str| {
            fs::write(folder.path().join("osctl.yaml"), text).unwrap();
            let none = folder.path().join("none");
            ResolvedConfig::load(&none, Some(folder.path()), "default", Vec::new()).unwrap()
        };
        let none = BTreeSet::new();
        let applied =
            |resolved: &ResolvedConfig| AppliedSettings::new(resolved, None, none.clone(), &none);
        let before = applied(&of_project("packages: {apt: [jq], pip: [six]}"));
        let next = of_project("packages: {apt: [jq, tree]}");
        let ports = Config::default().ports;
        let mut found = before.diff_settings(&applied(&next), (ports, ports), &next, &none);
        found.add_image();
        assert_eq!(found.lines, ["packages.apt: +tree", "packages.pip: -six"]);
        assert!(!found.needs_consent);
    }
}
