//! The configuration: flags over `OSCTL_*` over the person's file over the project's file over
//! defaults, resolved once, each value with where it came from.
//!
//! A project's own file may only choose among [`PROJECT_KEYS`]: the agent can write there, so
//! mounts, ports and privileges come from the person alone.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

const PROJECT_KEYS: &[&str] = &["body", "build_tools"];

/// Keys below which people choose the names.
const FREE_KEYS: &[&str] = &["env", "mounts", "hosts"];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    /// Where the container runs.
    pub(crate) engine: EngineChoice,
    /// The folder of the body, beneath the project.
    pub(crate) body: PathBuf,
    /// The image that bodies start from.
    pub(crate) base: String,
    /// Whether compilers are in the image.
    pub(crate) build_tools: bool,
    /// A Linux binary of osctl, where this one is for another system.
    pub(crate) companion: Option<PathBuf>,
    /// The address of the host that ports are published on.
    pub(crate) bind: IpAddr,
    pub(crate) ports: Ports,
    /// Take the next free port where one is taken.
    pub(crate) auto_ports: bool,
    /// Whether requests need the token.
    pub(crate) auth: bool,
    /// Further names by which browsers and clients may call the companion.
    pub(crate) hosts: Vec<String>,
    pub(crate) limits: Limits,
    /// Further environment variables inside.
    pub(crate) env: BTreeMap<String, String>,
    /// Further mounts: `HOST:CONTAINER` or `HOST:CONTAINER:ro`.
    pub(crate) mounts: Vec<String>,
    /// Hand the engine's socket in: whoever holds it is root on the host.
    pub(crate) docker_socket: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EngineChoice {
    Docker,
    /// Plain processes of this machine, without isolation.
    Embedded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ports {
    pub(crate) kernel: u16,
    pub(crate) mcp: u16,
    pub(crate) vnc: u16,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// CPUs; all when null.
    pub(crate) cpus: Option<f64>,
    /// Such as `4g` or `512m`; all when null.
    pub(crate) memory: Option<String>,
    pub(crate) pids: u32,
    /// Size of `/dev/shm`.
    pub(crate) shm: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Docker,
            body: "body".into(),
            base: "debian:trixie-slim".into(),
            build_tools: true,
            companion: None,
            bind: Ipv4Addr::LOCALHOST.into(),
            ports: Ports {
                kernel: 8080,
                mcp: 8765,
                vnc: 5900,
            },
            auto_ports: false,
            auth: true,
            hosts: Vec::new(),
            limits: Limits {
                cpus: None,
                memory: None,
                pids: 4096,
                shm: "1g".into(),
            },
            env: BTreeMap::new(),
            mounts: Vec::new(),
            docker_socket: false,
        }
    }
}

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
}

impl Resolved {
    /// Reads all layers; `flags` are dotted keys with their values.
    ///
    /// # Errors
    /// An unknown key with the nearest known one, or a value that does not fit.
    pub(crate) fn load(
        file: &Path,
        project: Option<&Path>,
        flags: Vec<(&str, Value)>,
    ) -> Result<Self> {
        let mut layers = Layers::new()?;
        let own = project
            .map(|p| p.join("osctl.yaml"))
            .filter(|own| own != file);
        for (path, allowed) in own
            .iter()
            .map(|p| (p.as_path(), Some(PROJECT_KEYS)))
            .chain([(file, None)])
        {
            layers.file(path, allowed)?;
        }
        layers.variables(env::vars())?;
        for (key, value) in flags {
            layers.set(key, value, &Source::Flag, None)?;
        }
        layers.resolve()
    }
}

#[derive(Debug)]
struct Layers {
    values: BTreeMap<String, (Value, Source)>,
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
        Ok(Self { values })
    }

    fn file(&mut self, path: &Path, allowed: Option<&[&str]>) -> Result<()> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(unreadable(path, &e.to_string())),
        };
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
        if allowed.is_some_and(|allowed| !allowed.contains(&top)) {
            let why = "a project's file may not set it, because the agent can write there; set it in your own".to_owned();
            return Err(Error::BadValue {
                key: key.into(),
                place: source.to_string(),
                why,
            }
            .into());
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

impl Resolved {
    fn check(&self) -> Result<()> {
        let config = &self.config;
        let bad = |key: &str, why: String| {
            let place = self
                .values
                .get(key)
                .map(|(_, s)| s.to_string())
                .unwrap_or_default();
            Error::BadValue {
                key: key.into(),
                place,
                why,
            }
        };
        if !config.auth && !config.bind.is_loopback() {
            return Err(bad(
                "auth",
                format!(
                    "without it only loopback addresses can be bound, and `bind` is {}",
                    config.bind
                ),
            )
            .into());
        }
        if config.body.is_absolute()
            || config
                .body
                .components()
                .any(|c| c == std::path::Component::ParentDir)
        {
            return Err(bad("body", "it must lie beneath the project".into()).into());
        }
        for (key, text) in [
            ("limits.memory", config.limits.memory.as_deref()),
            ("limits.shm", Some(config.limits.shm.as_str())),
        ] {
            if let Some(text) = text {
                size(text)
                    .ok_or_else(|| bad(key, format!("`{text}` is no size like `512m` or `4g`")))?;
            }
        }
        if config
            .limits
            .cpus
            .is_some_and(|c| c <= 0.0 || !c.is_finite())
        {
            return Err(bad("limits.cpus", "it must be above zero".into()).into());
        }
        if config.limits.pids < 64 {
            return Err(bad("limits.pids", "below 64 nothing useful runs".into()).into());
        }
        for mount in &config.mounts {
            crate::config::mount(mount).ok_or_else(|| {
                bad(
                    "mounts",
                    format!("`{mount}` is not `HOST:CONTAINER[:ro]` with absolute paths"),
                )
            })?;
        }
        Ok(())
    }
}

/// `512m` as bytes; units are powers of 1024.
pub(crate) fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return None,
    };
    let number: f64 = digits.trim().parse().ok()?;
    (number > 0.0 && number.is_finite()).then_some((number * f64::from(unit)) as u64)
}

/// `HOST:CONTAINER[:ro]` as its parts.
pub(crate) fn mount(text: &str) -> Option<(PathBuf, String, bool)> {
    let (text, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text.strip_suffix(":rw").unwrap_or(text), false),
    };
    let (host, container) = text.rsplit_once(':')?;
    let absolute = Path::new(host).is_absolute() && container.starts_with('/');
    absolute.then(|| (host.into(), container.into(), read_only))
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
    use super::{Layers, PROJECT_KEYS, Resolved, Source, mount, size};
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
            "mounts: ['/:/host']",
            "bind: 0.0.0.0",
            "base: evil",
            "companion: /repo/x",
        ] {
            fs::write(&file, text).unwrap();
            let error = Layers::new()
                .unwrap()
                .file(&file, Some(PROJECT_KEYS))
                .unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("a project's file may not set it"),
                "{text}"
            );
        }
        fs::write(&file, "body: mine").unwrap();
        let resolved =
            Resolved::load(Path::new("/nonexistent"), Some(folder.path()), vec![]).unwrap();
        assert_eq!(resolved.config.body, Path::new("mine"));
    }

    #[test]
    fn the_body_lies_beneath_the_project() {
        assert!(load("body: ../elsewhere").is_err());
        assert!(load("body: /etc").is_err());
    }

    #[test]
    fn sizes_and_mounts_are_read_as_docker_does() {
        assert_eq!(size("512m"), Some(512 << 20));
        assert_eq!(size("1.5g"), Some(3 << 29));
        assert_eq!(size("12"), Some(12));
        assert_eq!(size("many"), None);
        assert_eq!(mount("/a:/b:ro"), Some(("/a".into(), "/b".into(), true)));
        assert_eq!(mount("/a:/b"), Some(("/a".into(), "/b".into(), false)));
        assert_eq!(mount("a:/b"), None);
    }
}
