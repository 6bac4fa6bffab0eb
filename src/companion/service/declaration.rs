//! Declarations of services, as the body contains them.

use crate::protocol::yaml::describe_type_error;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Default time in seconds for a service to exit before it is killed.
const DEFAULT_SERVICE_GRACE_SECONDS: u64 = 2;

/// The kind of client that needs a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServiceNeed {
    /// Clients that look at the screen or draw on it.
    Display,
    /// People with a VNC client.
    Viewer,
    /// Clients that use the browser.
    Browser,
}

impl ServiceNeed {
    /// Whether the need `self` includes services of the need `other`: every need includes the display.
    pub(super) fn includes(self, other: Self) -> bool {
        other == self || other == Self::Display
    }
}

/// How to check that a service is ready.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServiceProbe {
    /// The X server answers.
    Display,
    /// A window manager manages the screen.
    WindowManager,
    /// The desktop's window exists and is drawn on the screen.
    Desktop,
    /// The taskbar's window is on the screen.
    Taskbar,
    /// A Unix socket accepts connections.
    Socket(PathBuf),
    /// A Unix socket answers with the VNC protocol.
    Rfb(PathBuf),
    /// A browser answers with the DevTools protocol.
    Cdp(u16),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServiceRestartPolicy {
    #[default]
    Always,
    /// Restart only after a failure: a user has closed a service that exits cleanly.
    OnFailure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceDeclaration {
    pub(crate) name: String,
    pub(crate) need: ServiceNeed,
    pub(crate) command: Vec<String>,
    pub(crate) dependencies: Vec<String>,
    pub(crate) readiness_probe: ServiceProbe,
    pub(crate) stale_files: Vec<PathBuf>,
    pub(crate) max_open_files: Option<u64>,
    pub(crate) grace: Duration,
    pub(crate) restart: ServiceRestartPolicy,
    pub(crate) environment: Arc<BTreeMap<String, String>>,
}

/// The file before its variables are substituted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServicesFile {
    /// Variables for every service.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    services: Vec<ServicesFileEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServicesFileEntry {
    name: String,
    need: ServiceNeed,
    command: Vec<String>,
    #[serde(default)]
    after: Vec<String>,
    ready: ServiceProbe,
    #[serde(default)]
    clean: Vec<String>,
    files: Option<u64>,
    grace: Option<u64>,
    #[serde(default)]
    restart: ServiceRestartPolicy,
}

/// The services, each after its dependencies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServiceDeclarations(Vec<Arc<ServiceDeclaration>>);

impl ServiceDeclarations {
    pub(super) fn parse(text: &str, variables: &[(&str, String)]) -> Result<Self, String> {
        // Parse as JSON, where a map with one key is a variant; YAML would need a tag.
        let value: Value = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
        let file: ServicesFile = serde_json::from_value(value)
            .map_err(|error| describe_type_error(&error.to_string()))?;
        let environment = file.environment.into_iter();
        let environment =
            environment.map(|(name, value)| Ok((name, substitute_variables(&value, variables)?)));
        let environment = Arc::new(environment.collect::<Result<_, String>>()?);
        let mut names = BTreeSet::new();
        let mut all = Vec::new();
        for written in file.services {
            let declaration = build_declaration(written, &environment, variables)?;
            let name = declaration.name.clone();
            if let Some(unknown) = declaration
                .dependencies
                .iter()
                .find(|a| !names.contains(*a))
            {
                return Err(format!(
                    "`{name}` has `{unknown}` in `after`, but `{unknown}` is not declared before `{name}`"
                ));
            }
            if !names.insert(name.clone()) {
                return Err(format!("service `{name}` is declared twice"));
            }
            all.push(Arc::new(declaration));
        }
        Ok(Self(all))
    }

    pub(super) fn all(&self) -> &[Arc<ServiceDeclaration>] {
        &self.0
    }
}

fn build_declaration(
    written: ServicesFileEntry,
    environment: &Arc<BTreeMap<String, String>>,
    variables: &[(&str, String)],
) -> Result<ServiceDeclaration, String> {
    let ServicesFileEntry {
        name,
        need,
        command,
        after: dependencies,
        ready: readiness_probe,
        clean,
        files: max_open_files,
        grace,
        restart,
    } = written;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(fits) {
        return Err(format!(
            "`{name}` is not a valid name of a service: use letters, digits, `-` and `_`"
        ));
    }
    if command.is_empty() {
        return Err(format!("`{name}` has no command"));
    }
    let fill = |text: &str| {
        substitute_variables(text, variables).map_err(|why| format!("`{name}`: {why}"))
    };
    let clean = clean.iter().map(|path| fill(path).map(PathBuf::from));
    let path = |path: PathBuf| fill(&path.to_string_lossy()).map(PathBuf::from);
    let readiness_probe = match readiness_probe {
        ServiceProbe::Socket(at) => ServiceProbe::Socket(path(at)?),
        ServiceProbe::Rfb(at) => ServiceProbe::Rfb(path(at)?),
        other => other,
    };
    let command = command.iter().map(|argument| fill(argument));
    Ok(ServiceDeclaration {
        command: command.collect::<Result<_, _>>()?,
        stale_files: clean.collect::<Result<_, _>>()?,
        grace: Duration::from_secs(grace.unwrap_or(DEFAULT_SERVICE_GRACE_SECONDS)),
        name: name.clone(),
        need,
        dependencies,
        readiness_probe,
        max_open_files,
        restart,
        environment: environment.clone(),
    })
}

/// Replaces each `${NAME}` by its value.
fn substitute_variables(text: &str, variables: &[(&str, String)]) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after
            .split_once('}')
            .ok_or_else(|| format!("`{text}` has a `${{` without a `}}`"))?;
        let value = variables.iter().find(|(known, _)| *known == name);
        let (_, value) = value.ok_or_else(|| format!("variable `{name}` does not exist"))?;
        filled.push_str(before);
        filled.push_str(value);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::{ServiceDeclarations, ServiceNeed, ServiceProbe};

    fn parsed(text: &str) -> Result<ServiceDeclarations, String> {
        ServiceDeclarations::parse(text, &[("RUN", "/run/x".into())])
    }

    #[test]
    fn the_declarations_of_the_body_are_valid() {
        let text = include_str!("../../../body/desktop/services.yaml");
        let names = [
            "WIDTH", "HEIGHT", "DEPTH", "DISPLAY", "RUN", "BODY", "PROFILE",
        ];
        let variables = names.map(|name| (name, format!("<{name}>")));
        let all = ServiceDeclarations::parse(text, &variables).unwrap();
        let names: Vec<&str> = all.all().iter().map(|d| d.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "xvfb", "dbus", "openbox", "pcmanfm", "tint2", "x11vnc", "chromium"
            ]
        );
        assert_eq!(
            all.all()[5].readiness_probe,
            ServiceProbe::Rfb("<RUN>/vnc.sock".into())
        );
        assert_eq!(all.all()[6].need, ServiceNeed::Browser);
    }

    #[test]
    fn invalid_declarations_are_named() {
        let service =
            |rest: &str| format!("services:\n  - {{need: display, ready: display, {rest}}}");
        for (text, why) in [
            (
                service("name: a, command: [x], after: [b]"),
                "`b` is not declared",
            ),
            (service("name: a, command: []"), "no command"),
            (service("name: a b, command: [x]"), "not a valid name"),
            (
                service("name: a, command: ['${NO}']"),
                "variable `NO` does not exist",
            ),
            (service("name: a, command: ['${RUN']"), "without a `}`"),
            (service("name: a, command: [x], extra: 1"), "extra"),
        ] {
            let error = parsed(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let twice =
            "services:\n  - &a {name: a, need: display, ready: display, command: [x]}\n  - *a";
        assert!(parsed(twice).unwrap_err().contains("declared twice"));
    }

    #[test]
    fn variables_are_expanded_in_every_field() {
        let text = "services:\n  - {name: a, need: viewer, ready: {socket: '${RUN}/s'}, command: ['-u${RUN}-${RUN}'], clean: ['${RUN}/s']}";
        let all = parsed(text).unwrap();
        let service = &all.all()[0];
        assert_eq!(service.command, ["-u/run/x-/run/x"]);
        assert_eq!(
            service.readiness_probe,
            ServiceProbe::Socket("/run/x/s".into())
        );
    }

    #[test]
    fn the_browser_and_the_viewer_need_the_display() {
        assert!(
            ServiceNeed::Browser.includes(ServiceNeed::Display)
                && ServiceNeed::Viewer.includes(ServiceNeed::Display)
        );
        assert!(
            !ServiceNeed::Display.includes(ServiceNeed::Browser)
                && !ServiceNeed::Viewer.includes(ServiceNeed::Browser)
        );
    }
}
