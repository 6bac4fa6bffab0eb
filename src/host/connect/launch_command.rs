//! The command that a client starts: a program, its arguments, its environment.

use serde_json::Value;
use std::collections::BTreeMap;

/// The arguments that mark an entry as osctl's.
const BRIDGE_ARGUMENTS: [&str; 2] = ["mcp", "stdio"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaunchCommand {
    /// An absolute path: desktop programs do not have the `PATH` of a shell.
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
}

impl LaunchCommand {
    /// The bridge to the instance that `arguments` name, restricted by `narrow`.
    pub(crate) fn for_bridge(
        program: String,
        mut arguments: Vec<String>,
        narrow: Vec<String>,
        environment: BTreeMap<String, String>,
    ) -> Self {
        arguments.extend(BRIDGE_ARGUMENTS.map(str::to_owned));
        arguments.extend(narrow);
        Self {
            program,
            args: arguments,
            environment,
        }
    }

    /// The same command by the name of the program, without this user's variables.
    pub(crate) fn for_other_users(self) -> Self {
        Self {
            program: "osctl".into(),
            args: self.args,
            environment: BTreeMap::new(),
        }
    }
}

/// The command that an entry starts, in any client's format.
pub(super) fn entry_command(entry: &Value) -> Option<LaunchCommand> {
    let texts = |value: &Value| -> Option<Vec<String>> {
        let texts = value.as_array()?.iter();
        texts.map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    let variables = ["env", "envs", "environment"];
    let environment = variables.iter().find_map(|key| entry[key].as_object());
    let environment = environment.into_iter().flatten();
    let environment =
        environment.map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let (program, arguments) = match texts(&entry["command"]) {
        Some(all) => {
            let (program, arguments) = all.split_first()?;
            (program.clone(), arguments.to_vec())
        }
        None => {
            let program = [&entry["command"], &entry["cmd"]];
            let program = program.iter().find_map(|program| program.as_str())?;
            (program.to_owned(), texts(&entry["args"])?)
        }
    };
    Some(LaunchCommand {
        program,
        args: arguments,
        environment: environment.collect::<Option<_>>()?,
    })
}

/// Whether an entry starts the bridge.
pub(super) fn is_bridge_entry(entry: &Value) -> bool {
    let call = entry_command(entry);
    call.is_some_and(|call| {
        call.args
            .windows(BRIDGE_ARGUMENTS.len())
            .any(|two| two == BRIDGE_ARGUMENTS)
    })
}

#[cfg(test)]
mod tests {
    use super::is_bridge_entry;
    use serde_json::json;

    #[test]
    fn an_entry_is_identified_by_its_command() {
        assert!(is_bridge_entry(
            &json!({"command": "/x/osctl", "args": ["mcp", "stdio"]})
        ));
        let arguments = ["/x/osctl", "--instance", "a", "mcp", "stdio"];
        assert!(is_bridge_entry(
            &json!({"type": "local", "command": arguments})
        ));
        for other in [
            json!({"command": "npx", "args": ["mcp", "x", "stdio"]}),
            json!({"url": "https://example.com"}),
            json!("mcp stdio"),
        ] {
            assert!(!is_bridge_entry(&other), "{other}");
        }
    }
}
