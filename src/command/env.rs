//! `osctl env`: sets, lists and removes the variables of the instance. No answer contains a value.

use super::CommandContext;
use super::answers::EnvironmentAnswer;
use super::candidates::variable_names;
use crate::error::{Error, Result, VerbOutcome};
use crate::protocol::environment::{UserEnvironment, check_variable_name, is_variable_name};
use anyhow::Context;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use std::convert::Infallible;
use std::io::Read;
use std::str::FromStr;
use std::{env, fmt};

/// Maximum bytes of a value from stdin.
const MAX_STDIN_VALUE_BYTES: u64 = 64 << 10;

#[derive(Debug, Args)]
pub(crate) struct EnvironmentArgs {
    #[command(subcommand)]
    verb: Option<EnvironmentVerb>,
}

impl EnvironmentArgs {
    pub(crate) fn changes_variables(&self) -> bool {
        !matches!(self.verb, None | Some(EnvironmentVerb::Ls))
    }
}

#[derive(Debug, Subcommand)]
enum EnvironmentVerb {
    /// List the names of the variables (default)
    #[command(alias = "list")]
    Ls,
    /// Set variables; a NAME without a value is asked for, or read from stdin
    Set {
        /// Variable to set. A value on the command line stays in the history of your shell
        #[arg(value_name = "NAME[=VALUE]", required = true)]
        assignments: Vec<EnvironmentAssignment>,
        /// Take the values from this shell
        #[arg(long)]
        from_env: bool,
    },
    /// Remove variables
    #[command(aliases = ["remove", "unset", "delete"])]
    Rm {
        /// Variable to remove
        #[arg(value_name = "NAME", required = true, add = ArgValueCandidates::new(variable_names))]
        names: Vec<String>,
    },
}

/// `NAME` or `NAME=VALUE`. The name is checked later: an error of clap would show the value.
#[derive(Clone)]
struct EnvironmentAssignment {
    name: String,
    value: Option<String>,
}

impl fmt::Debug for EnvironmentAssignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for EnvironmentAssignment {
    type Err = Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Infallible> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let name = name.into();
        Ok(Self { name, value })
    }
}

pub(crate) async fn run(args: EnvironmentArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    match args.verb.unwrap_or(EnvironmentVerb::Ls) {
        EnvironmentVerb::Ls => {
            let names = cx.instance.read_environment()?.unwrap_or_default().names();
            if cx.ui.json {
                cx.ui.print_json(&EnvironmentAnswer::new(names, None))?;
                return Ok(VerbOutcome::Done);
            }
            if names.is_empty() {
                let set = cx.instance.osctl_command("env set NAME");
                cx.ui
                    .print_message(format!("no variables are set; `{set}` sets one"));
            }
            names.iter().for_each(|name| cx.ui.print_line(name));
            Ok(VerbOutcome::Done)
        }
        EnvironmentVerb::Set {
            assignments,
            from_env,
        } => {
            let read = read_values(assignments, from_env, cx).await?;
            change_environment(cx, "set", |variables| {
                let names = read.iter().map(|(name, _)| name.clone()).collect();
                variables.0.extend(read);
                Ok(names)
            })
            .await
        }
        EnvironmentVerb::Rm { names } => {
            change_environment(cx, "removed", |variables| {
                for name in &names {
                    if variables.0.remove(name).is_none() {
                        let message = format!("the variable `{name}` is not set");
                        return Err(Error::usage(message, "`osctl env ls` lists the names").into());
                    }
                }
                Ok(names)
            })
            .await
        }
    }
}

/// Changes the instance's file, then the variables of the running container.
async fn change_environment(
    cx: &CommandContext,
    verb: &str,
    change: impl FnOnce(&mut UserEnvironment) -> Result<Vec<String>>,
) -> Result<VerbOutcome> {
    let _lock = cx.instance.lock()?;
    let mut variables = cx.instance.read_environment()?.unwrap_or_default();
    let changed = change(&mut variables)?;
    let invalid = |why| Error::usage(why, "`osctl env ls` lists the names");
    variables.check().map_err(invalid)?;
    cx.instance.save_environment(&variables)?;
    let is_applied = apply_to_container(cx, &variables).await?;
    if cx.ui.json {
        let answer = EnvironmentAnswer::new(variables.names(), Some(is_applied));
        cx.ui.print_json(&answer)?;
        return Ok(VerbOutcome::Done);
    }
    let names: Vec<String> = changed.iter().map(|name| format!("`{name}`")).collect();
    let when = match is_applied {
        true => {
            "for new commands, terminals and MCP servers, and in each kernel from its next code on"
        }
        false => "for the next start of the container",
    };
    cx.ui
        .print_message(format!("{verb} {} {when}", names.join(", ")));
    Ok(VerbOutcome::Done)
}

/// Returns whether the container is running and has the variables now.
async fn apply_to_container(cx: &CommandContext, variables: &UserEnvironment) -> Result<bool> {
    if cx.instance.read_record()?.is_none() {
        return Ok(false);
    }
    let client = cx.companion_client()?;
    match client.replace_environment(variables).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.downcast_ref(), Some(Error::NotRunning { .. })) => Ok(false),
        Err(error) => {
            let container = cx.instance.container_name();
            let message = format!(
                "the variables are saved, but `{container}` did not take them over: {error:#}"
            );
            let hint = format!("`{}` passes them again", cx.instance.osctl_command("up"));
            Err(Error::precondition(message, hint).into())
        }
    }
}

async fn read_values(
    assignments: Vec<EnvironmentAssignment>,
    from_env: bool,
    cx: &CommandContext,
) -> Result<Vec<(String, String)>> {
    let names = assignments.iter().map(|assignment| &assignment.name);
    for name in names {
        check_variable_name(name).map_err(|why| Error::usage(why, bad_name_hint(name)))?;
    }
    let is_unknown = |assignment: &&EnvironmentAssignment| assignment.value.is_none();
    let unknown = assignments.iter().filter(is_unknown).count();
    if unknown > 1 && !from_env && !cx.ui.can_prompt() {
        let hint = "set one variable per command, or add `--from-env`";
        return Err(Error::usage("stdin has the value of one variable only", hint).into());
    }
    let mut read = Vec::new();
    for EnvironmentAssignment { name, value } in assignments {
        let value = match value {
            Some(value) => value,
            None if from_env => shell_value(&name)?,
            None if cx.ui.can_prompt() => {
                let given = cx.ui.read_secret(&format!("Value of {name}")).await?;
                given.ok_or_else(|| no_value_error(&name))?
            }
            None => stdin_value(&name)?,
        };
        read.push((name, value));
    }
    Ok(read)
}

fn bad_name_hint(name: &str) -> &'static str {
    match is_variable_name(name) {
        true => {
            "variables on which the container depends are set by `env` in the configuration: `osctl config edit`"
        }
        // The text may be a value, which must not be shown.
        false => {
            "the name comes first: `osctl env set API_KEY` asks for the value, `osctl env set API_KEY=VALUE` sets it"
        }
    }
}

/// The error for the end of the input, or an empty line, at the question for a value: an empty value would replace one
/// that is set.
fn no_value_error(name: &str) -> Error {
    let hint = format!(
        "`osctl env set --from-env {name}` takes the value of this shell, `osctl env set {name}=` sets an empty one, and `osctl env rm {name}` removes the variable"
    );
    Error::usage(
        format!("no value was given for `{name}`; nothing was changed"),
        hint,
    )
}

fn shell_value(name: &str) -> Result<String> {
    let missing = |_| {
        let message = format!("`{name}` is not set in this shell, or is not UTF-8");
        Error::usage(
            message,
            format!("`osctl env set {name}` asks for the value"),
        )
    };
    Ok(env::var(name).map_err(missing)?)
}

/// The value on stdin, without a line break at the end.
fn stdin_value(name: &str) -> Result<String> {
    let mut value = String::new();
    std::io::stdin()
        .take(MAX_STDIN_VALUE_BYTES)
        .read_to_string(&mut value)
        .context("reading the value from stdin")?;
    let value = value.strip_suffix('\n').unwrap_or(&value);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        let hint = format!(
            "`printenv {name} | osctl env set {name}`, or `osctl env set {name}=` for an empty value"
        );
        return Err(Error::usage(format!("stdin has no value for `{name}`"), hint).into());
    }
    Ok(value.into())
}

#[cfg(test)]
mod tests {
    use super::{EnvironmentAssignment, bad_name_hint};
    use crate::cli::parse_args;

    #[test]
    fn a_bad_name_gets_the_form_and_a_reserved_one_the_configuration() {
        assert!(bad_name_hint("1X").contains("`osctl env set API_KEY` asks"));
        assert!(bad_name_hint("PATH").contains("`osctl config edit`"));
    }

    #[test]
    fn a_value_is_neither_in_debug_output_nor_in_an_error_of_the_command_line() {
        let parsed: EnvironmentAssignment = "A=b=c".parse().unwrap();
        assert_eq!((&*parsed.name, parsed.value.as_deref()), ("A", Some("b=c")));
        let words = ["osctl", "env", "set", "1-A=hunter2", "--no-such-option"];
        let error = parse_args(words.map(Into::into)).unwrap_err();
        assert!(!error.render().to_string().contains("hunter2"));
        let words = ["osctl", "env", "set", "1-A=hunter2"];
        let cli = parse_args(words.map(Into::into)).unwrap();
        assert!(!format!("{cli:?}").contains("hunter2"));
    }
}
