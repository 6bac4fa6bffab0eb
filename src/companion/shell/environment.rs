//! The environment of a session, for a program that is not one of its commands: the shell of a terminal.
//!
//! The environment is kept as bash code, which only bash can evaluate with certainty: a separate bash reads the
//! exported variables and executes `env`, which prints them. The rest of the context is left out, so no trap, function
//! or option of the session can run.

use super::context::ShellContext;
use super::retained_context::split_declarations;
use crate::companion::settings::COMPANION_ONLY_VARIABLES;
use crate::protocol::environment::UserEnvironment;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Maximum wait for bash: a person waits for the terminal.
const ENVIRONMENT_READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Variables that a terminal's shell sets itself, or that belong to the separate bash.
const EXCLUDED_VARIABLES: [&[u8]; 2] = [b"SHLVL", b"_"];

/// Names and values.
pub(crate) type EnvironmentVariables = Vec<(OsString, OsString)>;

/// Bash code that sets the variables, and whether these are all variables.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExportScript {
    script: Vec<u8>,
    is_complete: bool,
    /// The user's variables, if the script sets only a part of the variables.
    user: Arc<UserEnvironment>,
}

impl ExportScript {
    /// `None` when the session has the companion's environment.
    pub(super) fn from_context(context: &ShellContext) -> Option<Self> {
        let (definitions, changes) = context.variable_scripts();
        let user = context.environment().clone();
        if definitions.is_none() && changes.is_empty() && user.0.is_empty() {
            return None;
        }
        let declared = definitions
            .map(|definitions| split_declarations(definitions).1)
            .unwrap_or_default();
        let exported = declared.into_iter().filter(|line| is_exported(line));
        let mut script: Vec<u8> = exported.flatten().copied().collect();
        script.extend_from_slice(&changes);
        script.extend_from_slice(b"exec /usr/bin/env -0\n");
        Some(Self {
            script,
            is_complete: definitions.is_some(),
            user,
        })
    }

    /// # Errors
    /// When bash cannot be started, or does not answer.
    pub(super) async fn evaluate(self, bash: &Path) -> io::Result<EnvironmentVariables> {
        let mut command = Command::new(bash);
        command
            .args(["--noprofile", "--norc"])
            .env_remove("BASH_ENV")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        match self.is_complete {
            true => command.env_clear(),
            false => command.envs(&self.user.0),
        };
        for secret in COMPANION_ONLY_VARIABLES {
            command.env_remove(secret);
        }
        let mut child = command.spawn()?;
        let mut script = child.stdin.take();
        let run = async {
            if let Some(script) = &mut script {
                script.write_all(&self.script).await?;
            }
            drop(script);
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(ENVIRONMENT_READ_TIMEOUT, run).await??;
        match output.status.success() {
            true => Ok(parse_variables(&output.stdout)),
            false => Err(io::Error::other("bash can't evaluate the environment")),
        }
    }
}

fn is_exported(line: &[u8]) -> bool {
    let flags = line.strip_prefix(b"declare -").unwrap_or_default();
    flags.iter().take_while(|b| **b != b' ').any(|b| *b == b'x')
}

fn parse_variables(output: &[u8]) -> EnvironmentVariables {
    let each = output.split(|byte| *byte == 0);
    let named = each.filter_map(|variable| {
        let at = variable.iter().position(|byte| *byte == b'=')?;
        Some((&variable[..at], &variable[at + 1..]))
    });
    let native = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    named
        .filter(|(name, _)| !EXCLUDED_VARIABLES.contains(name))
        .map(|(name, value)| (native(name), native(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{ExportScript, ShellContext};
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::path::Path;

    const TEST_BASH_STATE: &[u8] = b"\0/tmp\0here\0set +o xtrace\n\0trap -- 'echo struck' DEBUG\nf () \n{ \n    cat <<E\ndeclare -x NO=\"1\"\nE\n}\ndeclare -f f\ndeclare -x A=\"it's \\\"\\$B\\\"\"\ndeclare -- plain=\"1\"\ndeclare -rx LINES_OF=$'one\\ntwo\\377'\ndeclare -x NAMED\ndeclare -x GONE=\"1\"\ndeclare -x PATH=\"/nowhere\"\n\0";

    #[test]
    fn new_session_inherits_environment() {
        assert_eq!(
            ExportScript::from_context(&ShellContext::new("/".into()).unwrap()),
            None
        );
    }

    #[tokio::test]
    async fn bash_prints_exported_variables_to_the_byte() {
        let mut context = ShellContext::new("/".into())
            .unwrap()
            .next_context(TEST_BASH_STATE)
            .unwrap();
        context.set_variable("GONE", None);
        context.set_variable("SET", Some("from outside"));
        let exports = ExportScript::from_context(&context).unwrap();
        let variables = exports.evaluate(Path::new("/bin/bash")).await.unwrap();
        let value = |name: &str| {
            let found = variables.iter().find(|(n, _)| n == name);
            found.map(|(_, value)| value.clone().into_vec())
        };
        assert_eq!(value("A").unwrap(), b"it's \"$B\"");
        assert_eq!(value("LINES_OF").unwrap(), b"one\ntwo\xff");
        assert_eq!(value("SET").unwrap(), b"from outside");
        assert_eq!(value("PATH").unwrap(), b"/nowhere");
        for none in ["plain", "NAMED", "GONE", "NO", "SHLVL", "_", "HOME"] {
            assert_eq!(value(none), None, "{none}");
        }
    }

    #[tokio::test]
    async fn changes_from_outside_are_added_to_the_companions_environment() {
        let mut context = ShellContext::new("/".into()).unwrap();
        context.set_variable("SET", Some("1"));
        let exports = ExportScript::from_context(&context).unwrap();
        let variables = exports.evaluate(Path::new("/bin/bash")).await.unwrap();
        let path = std::env::var_os("PATH").unwrap();
        for one in [("SET", OsString::from("1")), ("PATH", path)] {
            let one = (OsString::from(one.0), one.1);
            assert!(variables.contains(&one), "{one:?}");
        }
    }
}
