//! One layer over the other, each value with its source; what does not fit is named with its place.

use super::Config;
use super::project::{MAX_PROJECT_FILE_BYTES, PROJECT_FILE, has_anchor};
use super::variables::misspelt;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{env, fmt};

/// What a project's own file may set.
const PROJECT_KEYS: &[&str] = &[
    "body",
    "build_tools",
    "servers",
    "desktop.resolution",
    "desktop.depth",
];

/// Keys below which people choose the names.
const FREE_KEYS: &[&str] = &["env", "mounts", "hosts", "servers"];

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Variable(String),
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// The configuration, and each value with its source by dotted key.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) config: Config,
    pub(crate) values: BTreeMap<String, (Value, Source)>,
    /// What was left out, in sentences.
    pub(crate) warnings: Vec<String>,
}

impl Resolved {
    /// Reads all layers, as [`Resolved::load`] does, with the errors of each layer.
    pub(super) fn load_layers(
        file: Option<&Path>,
        project: Option<&Path>,
        flags: Vec<(&str, Value)>,
    ) -> Result<Self> {
        let mut layers = Layers::new()?;
        let own = project
            .map(|p| p.join(PROJECT_FILE))
            .filter(|own| Some(own.as_path()) != file);
        for (path, allowed) in own
            .iter()
            .map(|p| (p.as_path(), Some(PROJECT_KEYS)))
            .chain(file.map(|file| (file, None)))
        {
            layers.file(path, allowed)?;
        }
        // What is no text can't be a value of ours.
        let texts = env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        layers.variables(texts)?;
        for (key, value) in flags {
            layers.set(key, value, &Source::Flag, None)?;
        }
        layers.resolve()
    }
}

#[derive(Debug)]
struct Layers {
    values: BTreeMap<String, (Value, Source)>,
    warnings: Vec<String>,
}

impl Layers {
    fn new() -> Result<Self> {
        let mut values = BTreeMap::new();
        flatten(
            "",
            serde_json::to_value(Config::default())?,
            &mut |key, value| {
                values.insert(key, (value, Source::Default));
            },
        );
        let warnings = Vec::new();
        Ok(Self { values, warnings })
    }

    fn file(&mut self, path: &Path, allowed: Option<&[&str]>) -> Result<()> {
        let text = match allowed {
            Some(_) => read_anything(path),
            None => fs::read_to_string(path),
        };
        let text = match text {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(unreadable(path, &e.to_string())),
        };
        if allowed.is_some() && has_anchor(&text) {
            let why = "anchors (`&name`) and aliases (`*name`) are not allowed in a project; quote a value that begins with `&`";
            return Err(unreadable(path, why));
        }
        let value: Value =
            serde_yaml::from_str(&text).map_err(|e| unreadable(path, &e.to_string()))?;
        if value.is_null() {
            return Ok(());
        }
        if !value.is_object() {
            return Err(unreadable(path, "it must be a map of keys to values"));
        }
        let mut found = Vec::new();
        flatten("", value, &mut |key, value| found.push((key, value)));
        for (key, value) in found {
            self.set(&key, value, &Source::File(path.to_owned()), allowed)?;
        }
        Ok(())
    }

    /// `OSCTL_LIMITS_MEMORY=4g` is `limits.memory: 4g`; other `OSCTL_*` have meanings of their own.
    fn variables(&mut self, all: impl Iterator<Item = (String, String)>) -> Result<()> {
        let names: BTreeMap<String, String> = self
            .values
            .keys()
            .map(|key| {
                (
                    format!("OSCTL_{}", key.replace('.', "_").to_uppercase()),
                    key.clone(),
                )
            })
            .collect();
        for (name, text) in all {
            if let Some(key) = names.get(&name).filter(|_| !text.is_empty()) {
                let value = serde_yaml::from_str(&text).unwrap_or(Value::String(text));
                self.set(key, value, &Source::Variable(name), None)?;
            } else if let Some(meant) = misspelt(&name, names.keys()) {
                let warning = format!("the variable `{name}` is ignored; did you mean `{meant}`?");
                self.warnings.push(warning);
            }
        }
        Ok(())
    }

    fn set(
        &mut self,
        key: &str,
        value: Value,
        source: &Source,
        allowed: Option<&[&str]>,
    ) -> Result<()> {
        let top = key.split('.').next().unwrap_or(key);
        let known = self.values.contains_key(key) || FREE_KEYS.contains(&top);
        if !known {
            let nearest = nearest(key, self.values.keys());
            return Err(Error::UnknownKey {
                key: key.into(),
                place: source.to_string(),
                nearest,
            }
            .into());
        }
        if allowed.is_some_and(|allowed| !allowed.contains(&top) && !allowed.contains(&key)) {
            return Err(Error::Forbidden {
                key: key.into(),
                place: source.to_string(),
            }
            .into());
        }
        let mut value = as_meant(key, value);
        // A person's servers come beside those of the project.
        if key == "servers"
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

    fn resolve(self) -> Result<Resolved> {
        let mut whole = Value::Object(Map::new());
        for (key, (value, _)) in &self.values {
            insert(&mut whole, key, value.clone());
        }
        // Each value is tried alone on top of the defaults, so that the error can name it.
        let config = match serde_json::from_value(whole) {
            Ok(config) => config,
            Err(all) => return Err(self.culprit().unwrap_or_else(|| all.into())),
        };
        let resolved = Resolved {
            config,
            values: self.values,
            warnings: self.warnings,
        };
        resolved.check()?;
        Ok(resolved)
    }

    fn culprit(&self) -> Option<anyhow::Error> {
        let defaults = serde_json::to_value(Config::default()).ok()?;
        self.values.iter().find_map(|(key, (value, source))| {
            let mut one = defaults.clone();
            insert(&mut one, key, value.clone());
            let why = serde_json::from_value::<Config>(one).err()?.to_string();
            // The values handed in may be secret.
            let why = if key == "env" {
                "each value must be a text".into()
            } else {
                why
            };
            Some(
                Error::BadValue {
                    key: key.clone(),
                    place: source.to_string(),
                    why,
                }
                .into(),
            )
        })
    }
}

/// What YAML reads as a number or a word, where people mean a text or a switch.
fn as_meant(key: &str, value: Value) -> Value {
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

/// Reads a file that an agent may have put in a project: a link is not followed, a pipe is not waited for,
/// and the size is limited. The agent can't replace the project's own folder.
fn read_anything(path: &Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
    }
    if fs::symlink_metadata(path)?.is_symlink() {
        return Err(io::Error::other("it is a link"));
    }
    let file = options.read(true).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > MAX_PROJECT_FILE_BYTES {
        return Err(io::Error::other("it is no file of an ordinary size"));
    }
    let mut text = String::new();
    file.take(MAX_PROJECT_FILE_BYTES)
        .read_to_string(&mut text)?;
    Ok(text)
}

fn unreadable(path: &Path, why: &str) -> anyhow::Error {
    Error::usage(
        format!("`{}` can't be read: {why}", path.display()),
        "`osctl config edit` opens it",
    )
    .into()
}

fn flatten(prefix: &str, value: Value, each: &mut impl FnMut(String, Value)) {
    match value {
        Value::Object(map) if !FREE_KEYS.contains(&prefix) => {
            for (key, value) in map {
                let key = if prefix.is_empty() {
                    key
                } else {
                    format!("{prefix}.{key}")
                };
                flatten(&key, value, each);
            }
        }
        value => each(prefix.to_owned(), value),
    }
}

fn insert(whole: &mut Value, key: &str, value: Value) {
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

fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> Option<String> {
    let scored = known.map(|k| (strsim::jaro_winkler(key, k), k));
    scored
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| k.clone())
}

#[cfg(test)]
mod tests {
    use super::{Layers, PROJECT_KEYS, Resolved, Source};
    use serde_json::json;
    use std::fs;
    use std::path::Path;

    fn load(text: &str) -> crate::error::Result<Resolved> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("osctl.yaml");
        fs::write(&file, text).unwrap();
        let mut layers = Layers::new()?;
        layers.file(&file, None)?;
        layers.resolve()
    }

    #[test]
    fn later_layers_win_and_say_so() {
        let mut layers = Layers::new().unwrap();
        let variables = [
            ("OSCTL_LIMITS_MEMORY", "4g"),
            ("OSCTL_PORTS_KERNEL", "9000"),
            ("OSCTL_JSON", "1"),
        ];
        layers
            .variables(variables.iter().map(|(k, v)| ((*k).into(), (*v).into())))
            .unwrap();
        layers
            .set("ports.kernel", json!(9001), &Source::Flag, None)
            .unwrap();
        let resolved = layers.resolve().unwrap();
        assert_eq!(resolved.config.limits.memory.as_deref(), Some("4g"));
        assert_eq!(resolved.config.ports.kernel, 9001);
        assert_eq!(resolved.values["ports.kernel"].1, Source::Flag);
        assert_eq!(
            resolved.values["limits.memory"].1,
            Source::Variable("OSCTL_LIMITS_MEMORY".into())
        );
    }

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        let error = load("limits:\n  memroy: 4g\n").unwrap_err();
        let error = error.downcast_ref::<crate::error::Error>().unwrap();
        assert!(error.to_string().contains("`limits.memroy`"));
        assert_eq!(error.hint().unwrap(), "did you mean `limits.memory`?");
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_named_with_its_place() {
        let text = load("ports:\n  kernel: many\n").unwrap_err().to_string();
        assert!(
            text.contains("`ports.kernel`") && text.contains("osctl.yaml"),
            "{text}"
        );
    }

    #[test]
    fn environment_names_are_free() {
        let config = load("env:\n  ANY_NAME: x\n").unwrap().config;
        assert_eq!(config.env["ANY_NAME"], "x");
    }

    #[test]
    fn numbers_and_words_are_taken_as_they_are_meant() {
        let config =
            load("limits:\n  memory: 1073741824\nauth: off\nenv:\n  PORT: 1\n  DEBUG: true\n")
                .unwrap()
                .config;
        assert_eq!(
            (config.limits.memory.as_deref(), config.auth),
            (Some("1073741824"), false)
        );
        assert_eq!(
            (config.env["PORT"].as_str(), config.env["DEBUG"].as_str()),
            ("1", "true")
        );
        let text = load("env:\n  KEY: [very-secret]\n")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("`env`") && !text.contains("very-secret"),
            "{text}"
        );
    }

    #[test]
    fn without_authentication_only_loopback_is_bound() {
        let text = load("auth: false\nbind: 0.0.0.0\n")
            .unwrap_err()
            .to_string();
        assert!(text.contains("loopback"), "{text}");
        assert!(load("auth: false\n").is_ok());
    }

    #[test]
    fn a_project_may_not_grant_itself_privileges() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("osctl.yaml");
        for text in [
            "docker_socket: true",
            "criu: true",
            "mounts: ['/:/host']",
            "bind: 0.0.0.0",
            "base: evil",
            "companion: /repo/x",
            "env: {PATH: /repo}",
            "hosts: [evil]",
            "limits: {memory: 1t}",
            "ports: {kernel: 22}",
            "evolve: {probation: 0}",
            "mcp: {start: true}",
            "desktop: {run: always}",
            "engine: embedded",
            "auth: false",
        ] {
            fs::write(&file, text).unwrap();
            let error = Layers::new()
                .unwrap()
                .file(&file, Some(PROJECT_KEYS))
                .unwrap_err();
            assert!(
                error.to_string().contains("can't be set by a project"),
                "{text}"
            );
        }
        let refused = || {
            let mut layers = Layers::new().unwrap();
            let error = layers.file(&file, Some(PROJECT_KEYS)).unwrap_err();
            error.to_string()
        };
        fs::write(&file, " ".repeat(2 << 20)).unwrap();
        assert!(refused().contains("no file of an ordinary size"));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(refused().contains("no file of an ordinary size"));
        fs::remove_dir(&file).unwrap();
        fs::write(&file, "body: mine").unwrap();
        let resolved =
            Resolved::load(Path::new("/nonexistent"), Some(folder.path()), vec![]).unwrap();
        assert_eq!(resolved.config.body, Path::new("mine"));
    }

    #[test]
    fn servers_of_the_project_and_of_the_person_come_together() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("osctl.yaml");
        fs::write(&own, "servers:\n  a: {command: x}\n  b: {command: y}").unwrap();
        let file = folder.path().join("person.yaml");
        fs::write(
            &file,
            "servers:\n  b: {url: 'http://h'}\n  c: {disabled: true}",
        )
        .unwrap();
        let config = Resolved::load(&file, Some(folder.path()), vec![])
            .unwrap()
            .config;
        let names: Vec<_> = config.servers.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(config.servers["b"], json!({"url": "http://h"}));
        let text = load("servers:\n  a: {args: [x]}\n")
            .unwrap_err()
            .to_string();
        assert!(text.contains("`a` needs a `command`"), "{text}");
    }

    #[test]
    fn the_body_lies_beneath_the_project() {
        assert!(load("body: ../elsewhere").is_err());
        assert!(load("body: /etc").is_err());
    }
}
