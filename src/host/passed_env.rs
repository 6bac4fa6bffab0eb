//! Variables that pass from a shell into the container: those that the user has named, and proxies.
//!
//! | named by | value |
//! |---|---|
//! | `up --env NAME=VALUE` | the given value |
//! | `up --env NAME` | the shell's |
//! | `up --env` of an earlier command | the container's, else the shell's |
//! | `pass_env` of the configuration | the shell's, else the container's |
//! | proxies that nothing above names, as Docker does | the shell's, without a user and a password |

use super::instance::Instance;
use super::proxies_and_ca;
use crate::config::{Config, is_passable_variable};
use crate::error::{Error, Result};
use crate::protocol::spec::ContainerEnv;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::str::FromStr;

/// The variable in the container with the names of the passed variables. The names count in the container's
/// specification digest and the values do not: values of another shell do not justify a replacement.
const PASSED_NAMES_VARIABLE: &str = "OSCTL_PASSED_ENV";

/// Variables that earlier versions passed automatically.
const FORMER_KEY_VARIABLES: &[&str] = &["OPENAI_API_KEY", "ANTHROPIC_API_KEY"];

/// `NAME` or `NAME=VALUE` of the command line.
#[derive(Clone)]
pub(crate) struct EnvArg {
    name: String,
    value: Option<String>,
}

impl std::fmt::Debug for EnvArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for EnvArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        match is_passable_variable(name) {
            true => Ok(Self {
                name: name.into(),
                value,
            }),
            // The text after the name may be secret.
            false => Err("the name is not a variable name, or is reserved for osctl".into()),
        }
    }
}

/// The variables on the command line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EnvArgs<'a> {
    pub(crate) added: &'a [EnvArg],
    /// Names that are no longer passed.
    pub(crate) removed: &'a [String],
}

impl EnvArgs<'_> {
    pub(crate) fn is_empty(self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    pub(crate) fn names(self) -> BTreeSet<String> {
        let given = self.added.iter().map(|given| given.name.clone());
        given.chain(self.removed.iter().cloned()).collect()
    }

    /// The names that the instance keeps: earlier names and those of the command line.
    pub(crate) fn retained_names(self, before: &BTreeSet<String>) -> BTreeSet<String> {
        let given = self.added.iter().map(|given| given.name.clone());
        let mut names: BTreeSet<String> = before.iter().cloned().chain(given).collect();
        names.retain(|name| !self.is_removed(name));
        names
    }

    fn is_removed(self, name: &str) -> bool {
        let mut removed = self.removed.iter();
        removed.any(|removed| proxies_and_ca::is_same_variable(removed, name))
    }
}

/// The variables to pass into the container.
#[derive(Debug, Clone, Default)]
pub(crate) struct PassedEnv {
    /// The names that the user has chosen, without the configuration's own `env`.
    pub(crate) names: BTreeSet<String>,
    values: ContainerEnv,
    /// The shell's proxies, which builds also use.
    proxies: BTreeMap<String, String>,
    /// The proxies whose user and password are removed.
    stripped_proxies: Vec<String>,
    /// The names of an earlier `up --env` whose value is lost with the container.
    lost: Vec<String>,
}

impl PassedEnv {
    /// `retained` are names of `up --env`, including this command's; `container` holds the variables of the existing
    /// container.
    ///
    /// # Errors
    /// When a name of the command line has no value.
    pub(crate) fn new(
        config: &Config,
        retained: &BTreeSet<String>,
        env_args: EnvArgs<'_>,
        container: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let shell = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Self::from_shell(&shell, config, retained, env_args, container)
    }

    fn from_shell(
        of_shell: proxies_and_ca::VariableLookup<'_>,
        config: &Config,
        retained: &BTreeSet<String>,
        env_args: EnvArgs<'_>,
        container: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let configured = config
            .pass_env
            .iter()
            .filter(|name| !env_args.is_removed(name));
        let named: BTreeSet<String> = configured.chain(retained).cloned().collect();
        let proxies = proxies_and_ca::proxy_variables(of_shell, &named);
        let mut passed = Self {
            stripped_proxies: proxies_and_ca::proxies_with_secret(of_shell, &named),
            values: ContainerEnv(proxies.clone()),
            proxies,
            ..Self::default()
        };
        for name in &named {
            if config.env.contains_key(name) {
                continue;
            }
            let given = env_args.added.iter().rfind(|given| given.name == *name);
            let value = match given {
                Some(EnvArg { value: None, .. }) => {
                    let missing = || {
                        let message = format!("`{name}` is not set in this shell");
                        Error::usage(
                            message,
                            format!("set the variable, or run `osctl up --env {name}=VALUE`"),
                        )
                    };
                    Some(of_shell(name).ok_or_else(missing)?)
                }
                Some(given) => given.value.clone(),
                None => {
                    let held = container.get(name).cloned();
                    match config.pass_env.contains(name) {
                        true => of_shell(name).or(held),
                        false => held.or_else(|| of_shell(name)),
                    }
                }
            };
            if let Some(value) = value {
                let others = proxies_and_ca::variable_spellings(name).into_iter();
                for other in others.filter(|other| !named.contains(other)) {
                    passed.values.set(&other, value.clone());
                }
                passed.values.set(name, value);
            } else if !config.pass_env.contains(name) {
                passed.lost.push(name.clone());
            }
            passed.names.insert(name.clone());
        }
        Ok(passed)
    }

    /// Adds the variables and their names to the container's environment.
    pub(super) fn apply_to(&self, env: &mut ContainerEnv) {
        env.0.extend(self.values.0.clone());
        if !self.names.is_empty() {
            let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
            env.set(PASSED_NAMES_VARIABLE, names.join(","));
        }
    }

    /// All values, for the digest.
    pub(super) fn values(&self) -> &BTreeMap<String, String> {
        &self.values.0
    }

    /// The shell's proxies, for the steps of a build.
    pub(crate) fn proxies(&self) -> &BTreeMap<String, String> {
        &self.proxies
    }

    /// Notes for the user about proxies whose password is removed.
    pub(crate) fn proxy_notes(&self) -> impl Iterator<Item = String> {
        self.stripped_proxies.iter().map(|name| {
            format!("`{name}` is passed without its user and password, which the agent could read; `osctl up --env {name}` passes them")
        })
    }

    /// Warnings about values that are lost, unless `osctl env` keeps them; `kept` are the names of those.
    pub(crate) fn lost_value_warnings(&self, instance: &Instance, kept: &[String]) -> Vec<String> {
        let lost = self.lost.iter().filter(|name| !kept.contains(name));
        let warning = |name: &String| {
            let [set, forget] = [format!("env set {name}"), format!("up --no-env {name}")]
                .map(|command| instance.osctl_command(&command));
            format!(
                "the value of `--env {name}=…` is not kept without the container; `{set}` keeps a value, `{forget}` forgets the name"
            )
        };
        lost.map(warning).collect()
    }

    /// Notes for the user.
    pub(crate) fn notes(&self, config: &Config) -> Vec<String> {
        let listed = |names: Vec<&str>| names.join(", ");
        let has_value = |name: &&String| self.values.0.contains_key(*name);
        let (set, mut unset): (Vec<&String>, Vec<&String>) = self.names.iter().partition(has_value);
        unset.retain(|name| !self.lost.contains(name));
        let is_upper = |name: &&String| !name.contains(|c: char| c.is_ascii_lowercase());
        let proxies = self.proxies.keys().filter(is_upper);
        let all: BTreeSet<&str> = set.into_iter().chain(proxies).map(String::as_str).collect();
        let mut notes: Vec<String> = self.proxy_notes().collect();
        if !all.is_empty() {
            notes.push(format!(
                "passing into the container: {}",
                listed(all.into_iter().collect())
            ));
        }
        if !unset.is_empty() {
            let names = unset.into_iter().map(String::as_str).collect();
            notes.push(format!(
                "not passed, because this shell does not set them: {}",
                listed(names)
            ));
        }
        let is_former = |name: &&&str| {
            let is_set = env::var(name).is_ok_and(|value| !value.is_empty());
            is_set && !self.names.contains(**name) && !config.env.contains_key(**name)
        };
        let former_names: Vec<&str> = FORMER_KEY_VARIABLES
            .iter()
            .filter(is_former)
            .copied()
            .collect();
        if !former_names.is_empty() {
            let flags: Vec<String> = former_names
                .iter()
                .map(|name| format!(" --env {name}"))
                .collect();
            notes.push(format!(
                "{} is set in this shell and is not passed; `osctl up{}` passes it",
                listed(former_names),
                flags.concat()
            ));
        }
        notes
    }
}

/// The variables of a container whose values may differ in another shell without a replacement.
pub(crate) fn passed_variable_names(env: &ContainerEnv, config: &Config) -> BTreeSet<String> {
    let proxies = proxies_and_ca::PROXY_VARIABLES.iter();
    let proxies = proxies.flat_map(|name| [(*name).to_owned(), name.to_uppercase()]);
    let names = env.0.get(PASSED_NAMES_VARIABLE).map_or("", String::as_str);
    let names = names.split(',').filter(|name| !name.is_empty());
    let all = proxies.chain(names.map(str::to_owned));
    all.filter(|name| !config.env.contains_key(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::{EnvArg, EnvArgs, PassedEnv, passed_variable_names};
    use crate::config::Config;
    use crate::host::folders::Folders;
    use crate::host::instance::Instance;
    use crate::protocol::spec::ContainerEnv;
    use std::collections::{BTreeMap, BTreeSet};

    fn passed(
        config: &Config,
        given: &[&str],
        removed: &[&str],
        retained: &[&str],
    ) -> ContainerEnv {
        let given: Vec<EnvArg> = given.iter().map(|text| text.parse().unwrap()).collect();
        let removed: Vec<String> = removed.iter().map(|name| (*name).into()).collect();
        let env_args = EnvArgs {
            added: &given,
            removed: &removed,
        };
        let retained: BTreeSet<String> = retained.iter().map(|name| (*name).into()).collect();
        let container = BTreeMap::from([("HELD".into(), "of the container".into())]);
        let passed = PassedEnv::new(
            config,
            &env_args.retained_names(&retained),
            env_args,
            &container,
        )
        .unwrap();
        let mut env = ContainerEnv::default();
        passed.apply_to(&mut env);
        env
    }

    #[test]
    fn a_variable_passes_only_when_it_is_named() {
        let mut config = Config::default();
        let env = passed(&config, &[], &[], &[]);
        assert!(!env.0.contains_key("PATH") && !env.0.contains_key("OSCTL_PASSED_ENV"));
        let env = passed(&config, &["PATH", "A=b=c"], &[], &["HELD"]);
        assert_eq!(env.0["PATH"], std::env::var("PATH").unwrap());
        assert_eq!((&*env.0["A"], &*env.0["HELD"]), ("b=c", "of the container"));
        assert_eq!(env.0["OSCTL_PASSED_ENV"], "A,HELD,PATH");
        let env = passed(&config, &[], &["HELD"], &["HELD"]);
        assert!(!env.0.contains_key("HELD"));
        config.pass_env = vec!["PATH".into(), "HELD".into(), "NOWHERE".into()];
        let env = passed(&config, &[], &[], &[]);
        assert_eq!(env.0["HELD"], "of the container");
        assert!(env.0.contains_key("PATH") && !env.0.contains_key("NOWHERE"));
        assert!("OSCTL_AUTH=off".parse::<EnvArg>().is_err());
        assert!(!"1=secret".parse::<EnvArg>().unwrap_err().contains("secret"));
        let shown = format!("{:?}", "A=secret".parse::<EnvArg>().unwrap());
        assert!(!shown.contains("secret"));
    }

    #[test]
    fn a_value_of_an_earlier_command_line_that_is_lost_is_a_warning() {
        let folders = Folders::beneath("/h".as_ref());
        let instance = Instance::new("default", &folders).unwrap();
        let retained = ["LOST".to_owned()].into();
        let none = BTreeMap::new();
        let config = Config {
            pass_env: vec!["OF_NO_SHELL".into()],
            ..Config::default()
        };
        let passed = PassedEnv::new(&config, &retained, EnvArgs::default(), &none).unwrap();
        let warnings = passed.lost_value_warnings(&instance, &[]);
        assert_eq!(
            warnings,
            [
                "the value of `--env LOST=…` is not kept without the container; `osctl env set LOST` keeps a value, `osctl up --no-env LOST` forgets the name"
            ]
        );
        assert!(
            passed
                .lost_value_warnings(&instance, &["LOST".into()])
                .is_empty()
        );
        let notes = passed.notes(&config).concat();
        assert!(
            notes.contains("OF_NO_SHELL") && !notes.contains("LOST"),
            "{notes}"
        );
    }

    #[test]
    fn a_variable_of_the_command_line_without_a_value_is_an_error() {
        let given = ["OF_NO_SHELL".parse().unwrap()];
        let env_args = EnvArgs {
            added: &given,
            removed: &[],
        };
        let retained = env_args.retained_names(&BTreeSet::new());
        let error =
            PassedEnv::new(&Config::default(), &retained, env_args, &BTreeMap::new()).unwrap_err();
        assert!(
            error.to_string().contains("`OF_NO_SHELL` is not set"),
            "{error}"
        );
    }

    #[test]
    fn a_proxys_password_passes_in_both_spellings_exactly_where_the_variable_is_named() {
        let shell = |name: &str| (name == "HTTPS_PROXY").then(|| "http://u:secret@p".to_owned());
        let proxies = |pass_env: &[&str], given: &[&str], removed: &[&str], retained: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let given: Vec<EnvArg> = given.iter().map(|text| text.parse().unwrap()).collect();
            let removed: Vec<String> = owned(removed);
            let config = Config {
                pass_env: owned(pass_env),
                ..Config::default()
            };
            let env_args = EnvArgs {
                added: &given,
                removed: &removed,
            };
            let retained = env_args.retained_names(&owned(retained).into_iter().collect());
            let passed =
                PassedEnv::from_shell(&shell, &config, &retained, env_args, &BTreeMap::new())
                    .unwrap();
            let mut env = ContainerEnv::default();
            passed.apply_to(&mut env);
            let noted = passed.notes(&config).concat().contains("without its user");
            let [upper, lower] = ["HTTPS_PROXY", "https_proxy"].map(|name| env.0[name].clone());
            (upper, lower, passed.proxies()["https_proxy"].clone(), noted)
        };
        let (with, without) = ("http://u:secret@p".to_owned(), "http://p".to_owned());
        let passes = (with.clone(), with.clone(), with.clone(), false);
        let strips = (without.clone(), without.clone(), without, true);
        let name = ["HTTPS_PROXY"];
        assert_eq!(proxies(&[], &[], &[], &[]), strips);
        assert_eq!(proxies(&[], &name, &[], &[]), passes);
        assert_eq!(proxies(&[], &[], &[], &name), passes);
        assert_eq!(proxies(&name, &[], &[], &[]), passes);
        for removed in ["HTTPS_PROXY", "https_proxy"] {
            assert_eq!(proxies(&name, &[], &[removed], &name), strips);
        }
        let given = "http://other".to_owned();
        let passed = proxies(&[], &["HTTPS_PROXY=http://other"], &[], &[]);
        assert_eq!(passed, (given.clone(), given, with, false));
    }

    #[test]
    fn passed_names_include_proxies_and_exclude_configured_variables() {
        let mut env = ContainerEnv::default();
        env.set("OSCTL_PASSED_ENV", "A,B");
        let mut config = Config::default();
        config.env.insert("B".into(), "own".into());
        let names = passed_variable_names(&env, &config);
        assert!(
            names.contains("A") && names.contains("http_proxy") && names.contains("HTTP_PROXY")
        );
        assert!(!names.contains("B") && !names.contains("OSCTL_PASSED_ENV"));
    }
}
