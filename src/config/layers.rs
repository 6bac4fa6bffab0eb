//! Configuration layers: each value with its source; an invalid value is reported with its place.

use super::variables::find_misspelt_key;
use super::{Config, example_value, is_instance_name};
use crate::error::{Error, Result, nearest_name};
use crate::protocol::packages::{MAX_PROJECT_FILE_BYTES, PROJECT_FILE};
use crate::protocol::yaml::{describe_type_error, find_key_line, has_anchor};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{env, fmt};

/// Keys that the project's own file may set.
const PROJECT_KEYS: &[&str] = &[
    "body",
    "build_tools",
    "packages",
    "servers",
    "desktop.resolution",
    "desktop.depth",
];

/// Keys that were renamed: the former name, which stays valid, and today's.
const FORMER_KEYS: &[(&str, &str)] = &[("evolve.probation", "evolve.watch_period")];

/// Keys below which users choose the names.
const FREE_FORM_KEYS: &[&str] = &["env", "mounts", "hosts", "servers"];

/// The key of the user's file whose entries are sections of instances.
const INSTANCES_KEY: &str = "instances";

/// Keys whose entries in the section of an instance are added to the general ones.
const MERGED_KEYS: &[&str] = &["env", "servers"];

/// Characters of a key per edit, up to which a key is suggested for an unknown one.
const CHARS_PER_KEY_EDIT: usize = 2;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConfigSource {
    Default,
    /// A file, and the line of the key if known.
    File {
        file: PathBuf,
        line: Option<usize>,
    },
    /// The section of an instance in the user's file, and the line of the key if known.
    Instance {
        file: PathBuf,
        name: String,
        line: Option<usize>,
    },
    Variable(String),
    Flag,
}

/// `{:#}` adds the line.
impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Variable(name) => f.write_str(name),
            Self::Flag => f.write_str("flag"),
            Self::File { file, line } | Self::Instance { file, line, .. } => {
                write!(f, "{}", file.display())?;
                if let Some(line) = line.filter(|_| f.alternate()) {
                    write!(f, ":{line}")?;
                }
                match self {
                    Self::Instance { name, .. } => write!(f, " ({INSTANCES_KEY}.{name})"),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl ConfigSource {
    /// The source of a key in the same file, whose text is given.
    fn at_key(&self, key: &str, text: &str) -> Self {
        let mut source = self.clone();
        let mut keys: Vec<&str> = key.split('.').collect();
        if let Self::Instance { name, .. } = self {
            keys.splice(..0, [INSTANCES_KEY, name.as_str()]);
        }
        if let Self::File { line, .. } | Self::Instance { line, .. } = &mut source {
            *line = find_key_line(text, &keys);
        }
        source
    }
}

/// The resolved configuration, and each value with its source by dotted key.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedConfig {
    pub(crate) config: Config,
    pub(crate) values: BTreeMap<String, (Value, ConfigSource)>,
    /// Ignored values and files, in sentences.
    pub(crate) warnings: Vec<String>,
    /// The names of the instances that have a section in the user's file.
    pub(crate) sections: Vec<String>,
}

impl ResolvedConfig {
    /// Reads all layers, as [`ResolvedConfig::load`] does, and keeps the errors of each layer.
    pub(super) fn load_layers(
        file: Option<&Path>,
        project: Option<&Path>,
        instance: &str,
        flags: Vec<(&str, Value)>,
    ) -> Result<Self> {
        let mut layers = ConfigLayers::new()?;
        let own = project
            .map(|p| p.join(PROJECT_FILE))
            .filter(|own| Some(own.as_path()) != file);
        for (path, allowed) in own
            .iter()
            .map(|p| (p.as_path(), Some(PROJECT_KEYS)))
            .chain(file.map(|file| (file, None)))
        {
            layers.add_file(path, instance, allowed)?;
        }
        // A variable that is not UTF-8 can't be a value of the configuration.
        let texts = env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        layers.add_variables(texts)?;
        for (key, value) in flags {
            layers.set_value(key, value, &ConfigSource::Flag, None)?;
        }
        layers.resolve()
    }
}

#[derive(Debug)]
struct ConfigLayers {
    values: BTreeMap<String, (Value, ConfigSource)>,
    warnings: Vec<String>,
    sections: Vec<String>,
}

impl ConfigLayers {
    fn new() -> Result<Self> {
        let mut values = BTreeMap::new();
        flatten_keys(
            "",
            serde_json::to_value(Config::default())?,
            &mut |key, value| {
                values.insert(key, (value, ConfigSource::Default));
            },
        );
        let (warnings, sections) = (Vec::new(), Vec::new());
        Ok(Self {
            values,
            warnings,
            sections,
        })
    }

    fn add_file(&mut self, path: &Path, instance: &str, allowed: Option<&[&str]>) -> Result<()> {
        let text = match allowed {
            Some(_) => read_untrusted_file(path),
            None => fs::read_to_string(path),
        };
        let text = match text {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(unreadable_config_error(path, &e.to_string())),
        };
        if allowed.is_some() && has_anchor(&text) {
            let why = "anchors (`&name`) and aliases (`*name`) are not allowed in a project; quote a value that begins with `&`";
            return Err(unreadable_config_error(path, why));
        }
        let value: Value = serde_yaml::from_str(&text)
            .map_err(|e| unreadable_config_error(path, &e.to_string()))?;
        let mut value = match value {
            Value::Null => return Ok(()),
            Value::Object(value) => value,
            _ => {
                let why = "the file must be a map of keys to values";
                return Err(unreadable_config_error(path, why));
            }
        };
        let file = ConfigSource::File {
            file: path.to_owned(),
            line: None,
        };
        let sections = value.remove(INSTANCES_KEY);
        self.add_map(value, &file, &text, allowed)?;
        match sections {
            None | Some(Value::Null) => Ok(()),
            Some(_) if allowed.is_some() => Err(forbidden_error(INSTANCES_KEY, &file)),
            Some(Value::Object(sections)) => self.add_sections(sections, instance, path, &text),
            Some(_) => {
                let why = "the value must be a map from names of instances to maps of keys";
                Err(bad_section_error(INSTANCES_KEY, &file, &text, why))
            }
        }
    }

    /// Adds the section of the instance. The keys of the other sections are only checked.
    fn add_sections(
        &mut self,
        sections: Map<String, Value>,
        instance: &str,
        path: &Path,
        text: &str,
    ) -> Result<()> {
        let file = ConfigSource::File {
            file: path.to_owned(),
            line: None,
        };
        for (name, section) in sections {
            let key = format!("{INSTANCES_KEY}.{name}");
            if !is_instance_name(&name) {
                let why = "the name of an instance has at most 40 lower-case letters, digits, `-` and `_`";
                return Err(bad_section_error(&key, &file, text, why));
            }
            self.sections.push(name.clone());
            let section = match section {
                Value::Null => continue,
                Value::Object(section) => section,
                _ => {
                    let why = "the value must be a map of keys to values";
                    return Err(bad_section_error(&key, &file, text, why));
                }
            };
            let source = ConfigSource::Instance {
                file: path.to_owned(),
                name: name.clone(),
                line: None,
            };
            match name == instance {
                true => self.add_map(section, &source, text, None)?,
                false => Self::new()?.add_map(section, &source, text, None)?,
            }
        }
        Ok(())
    }

    fn add_map(
        &mut self,
        map: Map<String, Value>,
        file: &ConfigSource,
        text: &str,
        allowed: Option<&[&str]>,
    ) -> Result<()> {
        let mut found = Vec::new();
        flatten_keys("", Value::Object(map), &mut |key, value| {
            found.push((key, value));
        });
        for (key, value) in found {
            self.set_value(&key, value, &file.at_key(&key, text), allowed)?;
        }
        Ok(())
    }

    /// `OSCTL_LIMITS_MEMORY=4g` is `limits.memory: 4g`; some other `OSCTL_*` variables are not keys.
    fn add_variables(&mut self, all: impl Iterator<Item = (String, String)>) -> Result<()> {
        let former = FORMER_KEYS.iter().map(|(former, _)| *former);
        let names: BTreeMap<String, String> = self
            .values
            .keys()
            .map(String::as_str)
            .chain(former)
            .map(|key| {
                (
                    format!("OSCTL_{}", key.replace('.', "_").to_uppercase()),
                    key.to_owned(),
                )
            })
            .collect();
        for (name, text) in all {
            if let Some(key) = names.get(&name).filter(|_| !text.is_empty()) {
                let value = serde_yaml::from_str(&text).unwrap_or(Value::String(text));
                self.set_value(key, value, &ConfigSource::Variable(name), None)?;
            } else if let Some(meant) = find_misspelt_key(&name, names.keys()) {
                let warning = format!("the variable `{name}` is ignored; did you mean `{meant}`?");
                self.warnings.push(warning);
            }
        }
        Ok(())
    }

    fn set_value(
        &mut self,
        key: &str,
        value: Value,
        source: &ConfigSource,
        allowed: Option<&[&str]>,
    ) -> Result<()> {
        let renamed = FORMER_KEYS.iter().find(|(former, _)| *former == key);
        let key = renamed.map_or(key, |(_, today)| today);
        let top = key.split('.').next().unwrap_or(key);
        let known = self.values.contains_key(key) || FREE_FORM_KEYS.contains(&top);
        let group = format!("{key}.");
        let nested = self.values.keys().filter_map(|k| k.strip_prefix(&group));
        let nested: Vec<String> = nested.map(|key| format!("`{key}`")).collect();
        if !known && !nested.is_empty() {
            return Err(Error::BadValue {
                key: key.into(),
                place: format!("{source:#}"),
                why: format!(
                    "the value must be a map with the keys {}",
                    nested.join(", ")
                ),
                example: None,
            }
            .into());
        }
        if !known {
            let known = self.values.keys().map(String::as_str);
            let nearest = nearest_name(key, known, CHARS_PER_KEY_EDIT).map(str::to_owned);
            return Err(Error::UnknownKey {
                key: key.into(),
                place: format!("{source:#}"),
                nearest,
            }
            .into());
        }
        if allowed.is_some_and(|allowed| !allowed.contains(&top) && !allowed.contains(&key)) {
            return Err(forbidden_error(key, source));
        }
        if allowed.is_none() && top == "packages" {
            let why = "packages belong to a project: `osctl add NAME` writes them to the project's `osctl.yaml`";
            return Err(Error::BadValue {
                key: key.into(),
                place: format!("{source:#}"),
                why: why.into(),
                example: None,
            }
            .into());
        }
        let mut value = coerce_value(key, value);
        // The user's servers are added to those of the project.
        let is_section = matches!(source, ConfigSource::Instance { .. });
        if (key == "servers" || (is_section && MERGED_KEYS.contains(&key)))
            && let Some((Value::Object(before), _)) = self.values.get(key)
            && let Value::Object(added) = value
        {
            let mut all = before.clone();
            all.extend(added);
            value = Value::Object(all);
        }
        self.values.insert(key.into(), (value, source.clone()));
        Ok(())
    }

    fn resolve(self) -> Result<ResolvedConfig> {
        let mut whole = Value::Object(Map::new());
        for (key, (value, _)) in &self.values {
            insert_key(&mut whole, key, value.clone());
        }
        // If this fails, each value is tried alone on top of the defaults, so that the error can name the key.
        let config = match serde_json::from_value(whole) {
            Ok(config) => config,
            Err(all) => return Err(self.invalid_value_error().unwrap_or_else(|| all.into())),
        };
        let resolved = ResolvedConfig {
            config,
            values: self.values,
            warnings: self.warnings,
            sections: self.sections,
        };
        resolved.check_values()?;
        Ok(resolved)
    }

    fn invalid_value_error(&self) -> Option<anyhow::Error> {
        let defaults = serde_json::to_value(Config::default()).ok()?;
        self.values.iter().find_map(|(key, (value, source))| {
            let mut one = defaults.clone();
            insert_key(&mut one, key, value.clone());
            let why = serde_json::from_value::<Config>(one).err()?.to_string();
            // The values of variables may be secret.
            let why = if key == "env" {
                "each value must be text".into()
            } else {
                describe_type_error(&why)
            };
            Some(
                Error::BadValue {
                    key: key.clone(),
                    place: format!("{source:#}"),
                    why,
                    example: example_value(key),
                }
                .into(),
            )
        })
    }
}

/// Converts values that YAML reads as a number or a word but the key defines as text or as a switch.
fn coerce_value(key: &str, value: Value) -> Value {
    let text = |value: Value| match value {
        Value::Number(number) => Value::String(number.to_string()),
        Value::Bool(truth) => Value::String(truth.to_string()),
        other => other,
    };
    match (key, value) {
        ("limits.memory" | "limits.shm" | "sessions.memory" | "cryo.budget", value) => text(value),
        (
            "auth" | "auto_ports" | "build_tools" | "criu" | "docker_socket" | "image.pull",
            Value::String(word),
        ) => match word.as_str() {
            "on" | "yes" => Value::Bool(true),
            "off" | "no" => Value::Bool(false),
            _ => Value::String(word),
        },
        ("env", Value::Object(map)) => map.into_iter().map(|(k, v)| (k, text(v))).collect(),
        (_, value) => value,
    }
}

/// Reads a file that an agent may have put into a project: a link is not followed, a pipe does not block, and the size
/// is limited. The agent can't replace the project folder itself.
fn read_untrusted_file(path: &Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
    }
    if fs::symlink_metadata(path)?.is_symlink() {
        return Err(io::Error::other("the file is a link"));
    }
    let file = options.read(true).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > MAX_PROJECT_FILE_BYTES {
        return Err(io::Error::other(
            "the file is not regular, or is larger than 64 KiB",
        ));
    }
    let mut text = String::new();
    file.take(MAX_PROJECT_FILE_BYTES)
        .read_to_string(&mut text)?;
    Ok(text)
}

fn forbidden_error(key: &str, source: &ConfigSource) -> anyhow::Error {
    Error::Forbidden {
        key: key.into(),
        place: format!("{source:#}"),
    }
    .into()
}

fn bad_section_error(key: &str, file: &ConfigSource, text: &str, why: &str) -> anyhow::Error {
    Error::BadValue {
        key: key.into(),
        place: format!("{:#}", file.at_key(key, text)),
        why: why.into(),
        example: None,
    }
    .into()
}

fn unreadable_config_error(path: &Path, why: &str) -> anyhow::Error {
    Error::usage(
        format!("`{}` can't be read: {why}", path.display()),
        "`osctl config edit` opens the file",
    )
    .into()
}

fn flatten_keys(prefix: &str, value: Value, each: &mut impl FnMut(String, Value)) {
    match value {
        Value::Object(map) if !FREE_FORM_KEYS.contains(&prefix) => {
            for (key, value) in map {
                let key = if prefix.is_empty() {
                    key
                } else {
                    format!("{prefix}.{key}")
                };
                flatten_keys(&key, value, each);
            }
        }
        value => each(prefix.to_owned(), value),
    }
}

fn insert_key(whole: &mut Value, key: &str, value: Value) {
    let mut at = whole;
    for part in key.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(map) = at else { return };
        at = map.entry(part).or_insert(Value::Null);
    }
    *at = value;
}

#[cfg(test)]
mod tests;
