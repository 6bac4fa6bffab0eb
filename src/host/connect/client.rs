//! The supported MCP clients as a table: their names, their configuration files, and the form of an entry in each.

use self::ClientEntryValue::{
    Arguments, CommandLine, Environment, Program, Seconds, ServerName, Text, True,
};
use super::config_paths::{ClientConfigPaths, ClientFileLocation};
use super::edit::{self, ClientEntry};
use super::launch_command::LaunchCommand;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Seconds that a call may take, for clients whose own limit is too short for code that computes.
const CLIENT_TOOL_TIMEOUT: u64 = 600;

/// Seconds from the start to the list of tools, for clients whose own limit may be too short.
const CLIENT_STARTUP_TIMEOUT: u64 = 60;

const CLIENT_ENTRY_DESCRIPTION: &str =
    "A computer for the agent: Python, shell, files and a browser";

#[derive(Debug)]
pub(crate) struct ConnectClient {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The product name.
    pub(crate) title: &'static str,
    /// How to make the client load the change.
    pub(crate) reload_hint: &'static str,
    /// The user's configuration file, for all projects.
    location: ClientFileLocation,
    format: ClientFileFormat,
    /// The format of a file that already has this map of servers.
    nested_format: Option<ClientFileFormat>,
    /// The fields of an entry, in order.
    entry: &'static [(&'static str, ClientEntryValue)],
}

/// The format of a file, and the location of the servers in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientFileFormat {
    /// JSON, with comments and trailing commas.
    Json(&'static [&'static str]),
    Toml(&'static str),
    /// A block of YAML.
    Yaml(&'static str),
    /// A dedicated file, which holds nothing else.
    DedicatedFile,
}

/// The value of a field of an entry.
#[derive(Debug, Clone, Copy)]
enum ClientEntryValue {
    True,
    Text(&'static str),
    Seconds(u64),
    ServerName,
    Program,
    Arguments,
    /// The program and its arguments as one list.
    CommandLine,
    /// A map of variables; an entry without variables does not have the field.
    Environment,
}

const COMMAND_FIELD: (&str, ClientEntryValue) = ("command", Program);
const ARGS_FIELD: (&str, ClientEntryValue) = ("args", Arguments);
const ENV_FIELD: (&str, ClientEntryValue) = ("env", Environment);
const TYPE_FIELD: (&str, ClientEntryValue) = ("type", Text("stdio"));
const TIMEOUT_FIELD: (&str, ClientEntryValue) = ("timeout", Seconds(CLIENT_TOOL_TIMEOUT));

const MCP_SERVERS_JSON: ClientFileFormat = ClientFileFormat::Json(&["mcpServers"]);

/// The clients, in the order in which osctl lists them.
pub(crate) static CONNECT_CLIENTS: [ConnectClient; 11] = [
    ConnectClient {
        name: "claude-desktop",
        title: "Claude Desktop",
        reload_hint: "quit Claude Desktop and open it again",
        location: ClientFileLocation::in_application_data("Claude/claude_desktop_config.json"),
        format: MCP_SERVERS_JSON,
        nested_format: None,
        entry: &[COMMAND_FIELD, ARGS_FIELD, ENV_FIELD],
    },
    ConnectClient {
        name: "claude-code",
        title: "Claude Code",
        reload_hint: "restart `claude`; `/mcp` lists the servers",
        location: ClientFileLocation::in_home(".claude.json")
            .moved_by("CLAUDE_CONFIG_DIR", ".claude.json"),
        format: MCP_SERVERS_JSON,
        nested_format: None,
        entry: &[TYPE_FIELD, COMMAND_FIELD, ARGS_FIELD, ENV_FIELD],
    },
    ConnectClient {
        name: "cursor",
        title: "Cursor",
        reload_hint: "restart Cursor; its MCP settings list and enable servers",
        location: ClientFileLocation::in_home(".cursor/mcp.json"),
        format: MCP_SERVERS_JSON,
        nested_format: None,
        entry: &[TYPE_FIELD, COMMAND_FIELD, ARGS_FIELD, ENV_FIELD],
    },
    ConnectClient {
        name: "vscode",
        title: "VS Code",
        reload_hint: "run `MCP: List Servers` in VS Code to start or stop the server",
        location: ClientFileLocation::in_application_data("Code/User/mcp.json"),
        format: ClientFileFormat::Json(&["servers"]),
        nested_format: None,
        entry: &[TYPE_FIELD, COMMAND_FIELD, ARGS_FIELD, ENV_FIELD],
    },
    ConnectClient {
        name: "windsurf",
        title: "Windsurf",
        reload_hint: "refresh the list of MCP servers in Cascade, or restart Windsurf",
        location: ClientFileLocation::in_home(".codeium/windsurf/mcp_config.json"),
        format: MCP_SERVERS_JSON,
        nested_format: None,
        entry: &[COMMAND_FIELD, ARGS_FIELD, ENV_FIELD],
    },
    ConnectClient {
        name: "zed",
        title: "Zed",
        reload_hint: "nothing to do: Zed loads the change immediately; the settings of its agent panel list the servers",
        location: ClientFileLocation::in_config("zed/settings.json")
            .on_windows("Zed/settings.json"),
        format: ClientFileFormat::Json(&["context_servers"]),
        nested_format: None,
        entry: &[COMMAND_FIELD, ARGS_FIELD, TIMEOUT_FIELD, ENV_FIELD],
    },
    ConnectClient {
        name: "codex",
        title: "Codex",
        reload_hint: "restart `codex`; `/mcp` lists the servers",
        location: ClientFileLocation::in_home(".codex/config.toml")
            .moved_by("CODEX_HOME", "config.toml"),
        format: ClientFileFormat::Toml("mcp_servers"),
        nested_format: None,
        entry: &[
            COMMAND_FIELD,
            ARGS_FIELD,
            ("startup_timeout_sec", Seconds(CLIENT_STARTUP_TIMEOUT)),
            ("tool_timeout_sec", Seconds(CLIENT_TOOL_TIMEOUT)),
            ENV_FIELD,
        ],
    },
    ConnectClient {
        name: "gemini",
        title: "Gemini CLI",
        reload_hint: "restart `gemini`; `/mcp` lists the servers",
        location: ClientFileLocation::in_home(".gemini/settings.json")
            .moved_by("GEMINI_CLI_HOME", ".gemini/settings.json"),
        format: MCP_SERVERS_JSON,
        nested_format: None,
        entry: &[COMMAND_FIELD, ARGS_FIELD, ENV_FIELD],
    },
    ConnectClient {
        name: "opencode",
        title: "opencode",
        reload_hint: "restart `opencode`; `opencode mcp list` lists the servers",
        location: ClientFileLocation::in_config("opencode/opencode.json")
            .unless_exists("opencode/opencode.jsonc"),
        format: ClientFileFormat::Json(&["mcp"]),
        // Version 2 nests the servers one level deeper, and still reads the format of version 1.
        nested_format: Some(ClientFileFormat::Json(&["mcp", "servers"])),
        entry: &[
            ("type", Text("local")),
            ("command", CommandLine),
            ("environment", Environment),
        ],
    },
    ConnectClient {
        name: "goose",
        title: "goose",
        reload_hint: "start a new goose session",
        location: ClientFileLocation::in_config("goose/config.yaml")
            .on_windows("Block/goose/config/config.yaml")
            .moved_by("GOOSE_PATH_ROOT", "config/config.yaml"),
        format: ClientFileFormat::Yaml("extensions"),
        nested_format: None,
        entry: &[
            ("enabled", True),
            TYPE_FIELD,
            ("name", ServerName),
            ("description", Text(CLIENT_ENTRY_DESCRIPTION)),
            ("cmd", Program),
            ARGS_FIELD,
            TIMEOUT_FIELD,
            ("envs", Environment),
        ],
    },
    ConnectClient {
        name: "continue",
        title: "Continue",
        reload_hint: "reload Continue's configuration, or restart the editor",
        location: ClientFileLocation::in_home(".continue/mcpServers/{name}.yaml")
            .moved_by("CONTINUE_GLOBAL_DIR", "mcpServers/{name}.yaml"),
        format: ClientFileFormat::DedicatedFile,
        nested_format: None,
        entry: &[
            ("name", ServerName),
            TYPE_FIELD,
            COMMAND_FIELD,
            ARGS_FIELD,
            ENV_FIELD,
        ],
    },
];

impl ConnectClient {
    /// The client with this name on the command line.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        CONNECT_CLIENTS.iter().find(|client| client.name == name)
    }

    /// Whether the client's configuration, or the folder for it, exists.
    pub(crate) fn is_installed(&self, places: &ClientConfigPaths) -> bool {
        let file = self.config_file(places, "osctl");
        let folder = match self.format {
            // The folder of single servers may be missing.
            ClientFileFormat::DedicatedFile => file.parent().and_then(Path::parent),
            _ => file.parent(),
        };
        file.exists() || folder.is_some_and(|folder| places.is_own_folder(folder))
    }

    pub(super) fn config_file(&self, places: &ClientConfigPaths, name: &str) -> PathBuf {
        match places.project_file() {
            Some(file) => file.into(),
            None => self.location.resolve(places, name),
        }
    }

    /// The format of a file with these settings.
    pub(super) fn file_format(&self, settings: &Value) -> ClientFileFormat {
        let servers = |format| edit::find_servers(format, settings)?.as_object();
        // A map with a type is an entry, not the map of entries.
        let is_nested = |format: &ClientFileFormat| {
            servers(*format).is_some_and(|servers| !servers.contains_key("type"))
        };
        self.nested_format.filter(is_nested).unwrap_or(self.format)
    }

    /// The client's entry for a command.
    pub(super) fn make_entry(&self, name: &str, call: &LaunchCommand) -> ClientEntry {
        let fields = self.entry.iter().filter_map(|(key, value)| {
            let value = match value {
                True => json!(true),
                Text(text) => json!(text),
                Seconds(seconds) => json!(seconds),
                ServerName => json!(name),
                Program => json!(call.program),
                Arguments => json!(call.args),
                CommandLine => {
                    let program = std::iter::once(&call.program);
                    json!(program.chain(&call.args).collect::<Vec<_>>())
                }
                Environment if call.environment.is_empty() => return None,
                Environment => json!(call.environment),
            };
            Some((*key, value))
        });
        ClientEntry(fields.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::CONNECT_CLIENTS;
    use crate::host::connect::ClientConfigPaths;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The paths of each client's file on Linux, macOS and Windows.
    fn paths_on_each_platform(lookup_variable: fn(&str) -> Option<PathBuf>) -> String {
        let mut lines = String::new();
        for client in &CONNECT_CLIENTS {
            let paths = ["linux", "macos", "windows"].map(|platform| {
                let places =
                    ClientConfigPaths::for_test(Path::new("/h"), platform, lookup_variable);
                let path = client.config_file(&places, "osctl");
                path.to_string_lossy().replace('\\', "/")
            });
            lines += &format!("{}\n", client.name);
            match paths.iter().all(|path| *path == paths[0]) {
                true => lines += &format!("  {}\n", paths[0]),
                false => lines.extend(paths.map(|path| format!("  {path}\n"))),
            }
        }
        lines
    }

    #[test]
    fn a_client_is_installed_if_its_folder_or_file_exists() {
        let home = tempfile::tempdir().unwrap();
        let places = ClientConfigPaths::for_test(home.path(), "linux", |_| None);
        let installed = || -> Vec<&str> {
            let clients = CONNECT_CLIENTS.iter();
            let found = clients.filter(|client| client.is_installed(&places));
            found.map(|client| client.name).collect()
        };
        assert!(installed().is_empty());
        for folder in [".cursor", ".continue", ".config/goose"] {
            fs::create_dir_all(home.path().join(folder)).unwrap();
        }
        fs::write(home.path().join(".claude.json"), "{}").unwrap();
        assert_eq!(installed(), ["claude-code", "cursor", "goose", "continue"]);
    }

    /// The locations that each client's documentation states.
    #[test]
    fn each_client_has_its_file_on_each_platform() {
        let expected = "\
claude-desktop
  /h/.config/Claude/claude_desktop_config.json
  /h/Library/Application Support/Claude/claude_desktop_config.json
  /h/AppData/Roaming/Claude/claude_desktop_config.json
claude-code
  /h/.claude.json
cursor
  /h/.cursor/mcp.json
vscode
  /h/.config/Code/User/mcp.json
  /h/Library/Application Support/Code/User/mcp.json
  /h/AppData/Roaming/Code/User/mcp.json
windsurf
  /h/.codeium/windsurf/mcp_config.json
zed
  /h/.config/zed/settings.json
  /h/.config/zed/settings.json
  /h/AppData/Roaming/Zed/settings.json
codex
  /h/.codex/config.toml
gemini
  /h/.gemini/settings.json
opencode
  /h/.config/opencode/opencode.json
goose
  /h/.config/goose/config.yaml
  /h/.config/goose/config.yaml
  /h/AppData/Roaming/Block/goose/config/config.yaml
continue
  /h/.continue/mcpServers/osctl.yaml
";
        assert_eq!(paths_on_each_platform(|_| None), expected);
    }

    #[test]
    fn variables_move_the_files_of_the_clients_that_read_them() {
        let expected = "\
claude-desktop
  /v/XDG_CONFIG_HOME/Claude/claude_desktop_config.json
  /h/Library/Application Support/Claude/claude_desktop_config.json
  /v/APPDATA/Claude/claude_desktop_config.json
claude-code
  /v/CLAUDE_CONFIG_DIR/.claude.json
cursor
  /h/.cursor/mcp.json
vscode
  /v/XDG_CONFIG_HOME/Code/User/mcp.json
  /h/Library/Application Support/Code/User/mcp.json
  /v/APPDATA/Code/User/mcp.json
windsurf
  /h/.codeium/windsurf/mcp_config.json
zed
  /v/XDG_CONFIG_HOME/zed/settings.json
  /v/XDG_CONFIG_HOME/zed/settings.json
  /v/APPDATA/Zed/settings.json
codex
  /v/CODEX_HOME/config.toml
gemini
  /v/GEMINI_CLI_HOME/.gemini/settings.json
opencode
  /v/XDG_CONFIG_HOME/opencode/opencode.json
goose
  /v/GOOSE_PATH_ROOT/config/config.yaml
continue
  /v/CONTINUE_GLOBAL_DIR/mcpServers/osctl.yaml
";
        let in_folder = |name: &str| Some(Path::new("/v").join(name));
        assert_eq!(paths_on_each_platform(in_folder), expected);
    }
}
