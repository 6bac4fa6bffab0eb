//! The variables of an instance that `osctl env` sets. Code, commands, terminals and MCP servers get them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use utoipa::ToSchema;

/// The file in the data folder from which the companion reads the variables at its start.
pub const ENVIRONMENT_FILE: &str = "environment.json";

/// Limits of the variables: their number, and the bytes of one value and of all values.
const MAX_VARIABLES: usize = 256;
const MAX_VARIABLE_BYTES: usize = 32 << 10;
const MAX_ENVIRONMENT_BYTES: usize = 256 << 10;

/// Maximum size of [`ENVIRONMENT_FILE`]: JSON escapes a byte in at most six characters.
pub const MAX_ENVIRONMENT_FILE_BYTES: u64 = 8 * MAX_ENVIRONMENT_BYTES as u64;

/// Variables on which shells, Python and the companion depend, apart from those with a reserved prefix.
const RESERVED_VARIABLES: [&str; 18] = [
    "ENV",
    "EUID",
    "HOME",
    "HOST_HOME",
    "HOST_PWD",
    "IFS",
    "OLDPWD",
    "PATH",
    "PPID",
    "PWD",
    "PYTHONHOME",
    "SHELL",
    "SHELLOPTS",
    "SHLVL",
    "UID",
    "USER",
    "VIRTUAL_ENV",
    "_",
];
const RESERVED_PREFIXES: [&str; 3] = ["OSCTL_", "LD_", "BASH"];

/// Names and values.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct UserEnvironment(pub BTreeMap<String, String>);

/// The values are secret.
impl fmt::Debug for UserEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl UserEnvironment {
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Checks all names and values; the error names no value.
    ///
    /// # Errors
    /// The message for the user.
    pub fn check(&self) -> Result<(), String> {
        for (name, value) in &self.0 {
            check_variable_name(name)?;
            if value.contains('\0') {
                return Err(format!("the value of `{name}` contains NUL"));
            }
            if value.len() > MAX_VARIABLE_BYTES {
                let limit = MAX_VARIABLE_BYTES >> 10;
                return Err(format!("the value of `{name}` is longer than {limit} KiB"));
            }
        }
        let bytes: usize = self.0.values().map(String::len).sum();
        match self.0.len() > MAX_VARIABLES || bytes > MAX_ENVIRONMENT_BYTES {
            true => Err(format!(
                "an instance can have at most {MAX_VARIABLES} variables with {} KiB in all",
                MAX_ENVIRONMENT_BYTES >> 10
            )),
            false => Ok(()),
        }
    }

    /// The variables that differ from `before`. A variable that was removed gets its value of `inherited`, if any.
    pub fn changes_since(
        &self,
        before: &Self,
        inherited: impl Fn(&str) -> Option<String>,
    ) -> Vec<(String, Option<String>)> {
        let set = self.0.iter();
        let set = set.filter(|(name, value)| before.0.get(*name) != Some(value));
        let set = set.map(|(name, value)| (name.clone(), Some(value.clone())));
        let removed = before.0.keys().filter(|name| !self.0.contains_key(*name));
        let removed = removed.map(|name| (name.clone(), inherited(name)));
        set.chain(removed).collect()
    }
}

/// Whether a variable can have the name, reserved or not.
pub fn is_variable_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter)
        && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
        && name.len() <= 128
}

/// # Errors
/// The message for the user.
pub fn check_variable_name(name: &str) -> Result<(), String> {
    if !is_variable_name(name) {
        return Err("a name consists of at most 128 letters, digits and `_`, and does not begin with a digit".into());
    }
    let is_reserved = RESERVED_VARIABLES.contains(&name)
        || RESERVED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix));
    match is_reserved {
        true => Err(format!("the variable `{name}` is reserved")),
        false => Ok(()),
    }
}

/// `PUT /environment`: the variables that replace the current ones.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceEnvironment {
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub variables: UserEnvironment,
}

/// The reply to `GET /environment` and `PUT /environment`. It contains no value.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentNames {
    pub names: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::{UserEnvironment, check_variable_name};

    fn environment(variables: &[(&str, &str)]) -> UserEnvironment {
        let owned = variables.iter().map(|(n, v)| ((*n).into(), (*v).into()));
        UserEnvironment(owned.collect())
    }

    #[test]
    fn names_of_osctl_and_of_the_shell_are_reserved() {
        for name in [
            "A",
            "_x1",
            "OPENAI_API_KEY",
            "OSCTL",
            "PATH_OF",
            "HTTPS_PROXY",
        ] {
            assert_eq!(check_variable_name(name), Ok(()), "{name}");
        }
        for name in [
            "",
            "1A",
            "A-B",
            "A=secret",
            "ä",
            "A\n",
            "OSCTL_AUTH",
            "PATH",
            "LD_PRELOAD",
            "BASH_ENV",
        ] {
            let error = check_variable_name(name).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn no_value_is_in_an_error_or_in_debug_output() {
        let secret = "hunter2\0";
        let set = environment(&[("A", secret)]);
        assert_eq!(set.check().unwrap_err(), "the value of `A` contains NUL");
        assert_eq!(format!("{set:?}"), r#"{"A"}"#);
        let long = "x".repeat(40 << 10);
        let error = environment(&[("A", &long)]).check().unwrap_err();
        assert_eq!(error, "the value of `A` is longer than 32 KiB");
        let names: Vec<String> = (0..300).map(|n| format!("A{n}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
        assert!(environment(&many).check().is_err());
        assert_eq!(environment(&many[..256]).check(), Ok(()));
    }

    #[test]
    fn a_removed_variable_has_its_inherited_value_again() {
        let before = environment(&[("A", "1"), ("B", "1"), ("C", "1"), ("D", "1")]);
        let now = environment(&[("A", "1"), ("B", "2"), ("E", "3")]);
        let inherited = |name: &str| (name == "C").then(|| "own".to_owned());
        let owned = |value: &str| Some(value.to_owned());
        assert_eq!(
            now.changes_since(&before, inherited),
            [
                ("B".into(), owned("2")),
                ("E".into(), owned("3")),
                ("C".into(), owned("own")),
                ("D".into(), None),
            ]
        );
        assert!(now.changes_since(&now, inherited).is_empty());
    }
}
