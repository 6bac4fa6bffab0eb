use super::{ConfigLayers, ConfigSource, PROJECT_KEYS, ResolvedConfig};
use crate::error::Error;
use serde_json::json;
use std::fs;
use std::path::Path;

fn load(text: &str) -> crate::error::Result<ResolvedConfig> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("osctl.yaml");
    fs::write(&file, text).unwrap();
    let mut layers = ConfigLayers::new()?;
    layers.add_file(&file, "default", None)?;
    layers.resolve()
}

#[test]
fn later_layers_override_earlier_ones_and_are_the_source() {
    let mut layers = ConfigLayers::new().unwrap();
    let variables = [
        ("OSCTL_LIMITS_MEMORY", "4g"),
        ("OSCTL_PORTS_KERNEL", "9000"),
        ("OSCTL_JSON", "1"),
    ];
    layers
        .add_variables(variables.iter().map(|(k, v)| ((*k).into(), (*v).into())))
        .unwrap();
    layers
        .set_value("ports.kernel", json!(9001), &ConfigSource::Flag, None)
        .unwrap();
    let resolved = layers.resolve().unwrap();
    assert_eq!(resolved.config.limits.memory.as_deref(), Some("4g"));
    assert_eq!(resolved.config.ports.kernel, 9001);
    assert_eq!(resolved.values["ports.kernel"].1, ConfigSource::Flag);
    assert_eq!(
        resolved.values["limits.memory"].1,
        ConfigSource::Variable("OSCTL_LIMITS_MEMORY".into())
    );
}

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    let error = load("limits:\n  memroy: 4g\n").unwrap_err();
    let error = error.downcast_ref::<crate::error::Error>().unwrap();
    assert!(error.to_string().contains("`limits.memroy`"));
    assert!(error.to_string().contains("osctl.yaml:2 "));
    assert_eq!(error.hint().unwrap(), "did you mean `limits.memory`?");
}

#[test]
fn a_value_in_the_place_of_a_group_names_the_keys_of_the_group() {
    let error = load("image: true\n").unwrap_err().to_string();
    assert!(error.starts_with("invalid value of `image` in "), "{error}");
    assert!(
        error.ends_with(": the value must be a map with the keys `from`, `pull`"),
        "{error}"
    );
}

#[test]
fn a_former_key_sets_the_current_key() {
    let config = load("evolve:\n  probation: 7\n").unwrap().config;
    assert_eq!(config.evolve.watch_period, 7);
    let mut layers = ConfigLayers::new().unwrap();
    let variable = ("OSCTL_EVOLVE_PROBATION".into(), "8".into());
    layers.add_variables([variable].into_iter()).unwrap();
    assert_eq!(layers.resolve().unwrap().config.evolve.watch_period, 8);
}

#[test]
fn a_value_of_the_wrong_kind_is_named_with_its_place() {
    let text = load("ports:\n  kernel: many\n").unwrap_err().to_string();
    assert!(
        text.starts_with("invalid value of `ports.kernel` in ")
            && text.ends_with(
                "osctl.yaml:2: the value must be a whole number from 0 to 65535, not `\"many\"`"
            ),
        "{text}"
    );
}

#[test]
fn any_environment_name_is_accepted() {
    let config = load("env:\n  ANY_NAME: x\n").unwrap().config;
    assert_eq!(config.env["ANY_NAME"], "x");
}

#[test]
fn values_are_converted_to_the_type_of_their_key() {
    let config = load("limits:\n  memory: 1073741824\nauth: off\nenv:\n  PORT: 1\n  DEBUG: true\n")
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
        "evolve: {watch_period: 0}",
        "mcp: {start: true}",
        "desktop: {run: always}",
        "engine: embedded",
        "auth: false",
    ] {
        fs::write(&file, text).unwrap();
        let error = ConfigLayers::new()
            .unwrap()
            .add_file(&file, "default", Some(PROJECT_KEYS))
            .unwrap_err();
        assert!(error.to_string().contains("a project can't set"), "{text}");
    }
    let refused = || {
        let mut layers = ConfigLayers::new().unwrap();
        let error = layers
            .add_file(&file, "default", Some(PROJECT_KEYS))
            .unwrap_err();
        error.to_string()
    };
    fs::write(&file, " ".repeat(2 << 20)).unwrap();
    assert!(refused().contains("the file is not regular"));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(refused().contains("the file is not regular"));
    fs::remove_dir(&file).unwrap();
    fs::write(&file, "body: mine").unwrap();
    let resolved = ResolvedConfig::load(
        Path::new("/nonexistent"),
        Some(folder.path()),
        "default",
        vec![],
    )
    .unwrap();
    assert_eq!(resolved.config.body, Path::new("mine"));
}

#[test]
fn servers_of_the_project_and_of_the_user_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("osctl.yaml");
    fs::write(&own, "servers:\n  a: {command: x}\n  b: {command: y}").unwrap();
    let file = folder.path().join("person.yaml");
    fs::write(
        &file,
        "servers:\n  b: {url: 'http://h'}\n  c: {disabled: true}",
    )
    .unwrap();
    let config = ResolvedConfig::load(&file, Some(folder.path()), "default", vec![])
        .unwrap()
        .config;
    let names: Vec<_> = config.servers.keys().map(String::as_str).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(config.servers["b"], json!({"url": "http://h"}));
    let text = load("servers:\n  a: {args: [x]}\n")
        .unwrap_err()
        .to_string();
    assert!(text.contains("`a` needs a `command`"), "{text}");
    let error = load("servers:\n  a: {comand: x}\n").unwrap_err();
    let error: Error = error.downcast().unwrap();
    let text = error.to_string();
    assert!(text.contains("key `servers.a.comand`"), "{text}");
    assert_eq!(error.hint().unwrap(), "did you mean `command`?");
}

#[test]
fn a_body_outside_the_project_is_refused() {
    assert!(load("body: ../elsewhere").is_err());
    assert!(load("body: /etc").is_err());
}

/// The configuration of the instance `blue` from this file of the user.
fn load_blue(text: &str) -> crate::error::Result<ResolvedConfig> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("osctl.yaml");
    fs::write(&file, text).unwrap();
    ResolvedConfig::load(&file, None, "blue", vec![])
}

#[test]
fn the_section_of_an_instance_overrides_the_general_values() {
    let general = "limits: {memory: 4g, pids: 300}\nenv: {A: a, B: b}\nmounts: ['/a:/a']\n";
    let sections = "instances:\n  blue: {limits: {memory: 8g}, env: {B: c, D: d}, mounts: ['/b:/b'], servers: {x: {command: y}}}\n  red: {criu: true}\n  default:\n";
    let resolved = load_blue(&format!("{sections}{general}")).unwrap();
    let config = &resolved.config;
    assert_eq!(config.limits.memory.as_deref(), Some("8g"));
    assert_eq!((config.limits.pids, config.criu), (300, false));
    let env: Vec<_> = config.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(env, ["A=a", "B=c", "D=d"]);
    assert_eq!(config.mounts, ["/b:/b"]);
    assert!(config.servers.contains_key("x"));
    let source = |key: &str| resolved.values[key].1.to_string();
    assert!(source("limits.memory").ends_with("osctl.yaml (instances.blue)"));
    assert!(source("limits.pids").ends_with("osctl.yaml"));
    assert!(!resolved.values.contains_key("instances"));
}

#[test]
fn a_section_that_can_not_be_used_is_refused_with_its_place() {
    for (text, expected) in [
        ("blue: {limits: {memroy: 1g}}", "`limits.memroy`"),
        (
            "red: {limits: {memroy: 1g}}",
            "osctl.yaml:1 (instances.red)",
        ),
        ("blue: {limits: {memory: 1x}}", "(instances.blue)"),
        (
            "blue: {instances: {red: {criu: true}}}",
            "`instances.red.criu`",
        ),
        ("blue: 1", "`instances.blue`"),
        ("'Not A Name': {}", "`instances.Not A Name`"),
        ("[blue]", "`instances`"),
    ] {
        let error = load_blue(&format!("instances: {{{text}}}").replace("{[blue]}", "[blue]"));
        let error = error.unwrap_err();
        assert!(error.to_string().contains(expected), "{text}: {error}");
        let hint = error.downcast_ref::<crate::error::Error>().unwrap().hint();
        if text.contains("memroy") {
            assert_eq!(hint.unwrap(), "did you mean `limits.memory`?");
        }
    }
    // An invalid value of another instance does not stop this one.
    assert!(load_blue("instances: {red: {limits: {memory: 1x}}}").is_ok());
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("osctl.yaml"),
        "instances: {blue: {criu: true}}",
    )
    .unwrap();
    let none = Path::new("/nonexistent");
    let error = ResolvedConfig::load(none, Some(folder.path()), "blue", vec![]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a project can't set `instances`")
    );
}
