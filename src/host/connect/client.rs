//! The supported MCP clients: their names, their configuration files, and the form of an entry in each.

use super::config_paths::ClientConfigPaths;
use super::edit::ClientEntry;
use super::launch_command::LaunchCommand;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Seconds that a call may take, for clients whose own limit is too short for code that computes.
const CLIENT_TOOL_TIMEOUT: u64 = 600;

/// Seconds from the start to the list of tools, for clients whose own limit may be too short.
const CLIENT_STARTUP_TIMEOUT: u64 = 60;

const CLIENT_ENTRY_DESCRIPTION: &str =
    "A computer for the agent: Python, shell, files and a browser";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectClient {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    VsCode,
    Windsurf,
    Zed,
    Codex,
    Gemini,
    OpenCode,
    Goose,
    Continue,
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

impl ConnectClient {
    pub(crate) const ALL_CLIENTS: [Self; 11] = [
        Self::ClaudeDesktop,
        Self::ClaudeCode,
        Self::Cursor,
        Self::VsCode,
        Self::Windsurf,
        Self::Zed,
        Self::Codex,
        Self::Gemini,
        Self::OpenCode,
        Self::Goose,
        Self::Continue,
    ];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "claude-desktop",
            Self::ClaudeCode => "claude-code",
            Self::Cursor => "cursor",
            Self::VsCode => "vscode",
            Self::Windsurf => "windsurf",
            Self::Zed => "zed",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::OpenCode => "opencode",
            Self::Goose => "goose",
            Self::Continue => "continue",
        }
    }

    /// The product name.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "Claude Desktop",
            Self::ClaudeCode => "Claude Code",
            Self::Cursor => "Cursor",
            Self::VsCode => "VS Code",
            Self::Windsurf => "Windsurf",
            Self::Zed => "Zed",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini CLI",
            Self::OpenCode => "opencode",
            Self::Goose => "goose",
            Self::Continue => "Continue",
        }
    }

    /// How to make the client load the change.
    pub(crate) fn reload_hint(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "quit Claude Desktop and open it again",
            Self::ClaudeCode => "restart `claude`; `/mcp` lists the servers",
            Self::Cursor => "restart Cursor; its MCP settings list and enable servers",
            Self::VsCode => "run `MCP: List Servers` in VS Code to start or stop the server",
            Self::Windsurf => "refresh the list of MCP servers in Cascade, or restart Windsurf",
            Self::Zed => {
                "nothing to do: Zed loads the change immediately; the settings of its agent panel list the servers"
            }
            Self::Codex => "restart `codex`; `/mcp` lists the servers",
            Self::Gemini => "restart `gemini`; `/mcp` lists the servers",
            Self::OpenCode => "restart `opencode`; `opencode mcp list` lists the servers",
            Self::Goose => "start a new goose session",
            Self::Continue => "reload Continue's configuration, or restart the editor",
        }
    }

    /// The user's configuration file, for all projects.
    pub(super) fn config_file(self, places: &ClientConfigPaths, name: &str) -> PathBuf {
        match self {
            Self::ClaudeDesktop => places.in_application_data("Claude/claude_desktop_config.json"),
            Self::ClaudeCode => {
                places.in_variable_folder("CLAUDE_CONFIG_DIR", ".claude.json", ".claude.json")
            }
            Self::Cursor => places.in_home(".cursor/mcp.json"),
            Self::VsCode => places.in_application_data("Code/User/mcp.json"),
            Self::Windsurf => places.in_home(".codeium/windsurf/mcp_config.json"),
            Self::Zed => {
                places.unless_windows(places.in_config("zed/settings.json"), "Zed/settings.json")
            }
            Self::Codex => {
                places.in_variable_folder("CODEX_HOME", "config.toml", ".codex/config.toml")
            }
            Self::Gemini => {
                let path = ".gemini/settings.json";
                places.in_variable_folder("GEMINI_CLI_HOME", path, path)
            }
            Self::OpenCode => {
                let commented = places.in_config("opencode/opencode.jsonc");
                match commented.exists() {
                    true => commented,
                    false => places.in_config("opencode/opencode.json"),
                }
            }
            Self::Goose => {
                let path = "config/config.yaml";
                let unix = places.in_config("goose/config.yaml");
                let usual = places.unless_windows(unix, "Block/goose/config/config.yaml");
                places.in_variable_folder("GOOSE_PATH_ROOT", path, &usual.to_string_lossy())
            }
            Self::Continue => {
                let path = format!("mcpServers/{name}.yaml");
                places.in_variable_folder(
                    "CONTINUE_GLOBAL_DIR",
                    &path,
                    &format!(".continue/{path}"),
                )
            }
        }
    }

    /// The format of a file with the contents `read`.
    pub(super) fn file_format(self, read: &Value) -> ClientFileFormat {
        match self {
            Self::VsCode => ClientFileFormat::Json(&["servers"]),
            Self::Zed => ClientFileFormat::Json(&["context_servers"]),
            // Version 2 nests the servers one level deeper, and still reads the format of version 1.
            Self::OpenCode => match &read["mcp"]["servers"] {
                Value::Object(servers) if !servers.contains_key("type") => {
                    ClientFileFormat::Json(&["mcp", "servers"])
                }
                _ => ClientFileFormat::Json(&["mcp"]),
            },
            Self::Codex => ClientFileFormat::Toml("mcp_servers"),
            Self::Goose => ClientFileFormat::Yaml("extensions"),
            Self::Continue => ClientFileFormat::DedicatedFile,
            Self::ClaudeDesktop
            | Self::ClaudeCode
            | Self::Cursor
            | Self::Windsurf
            | Self::Gemini => ClientFileFormat::Json(&["mcpServers"]),
        }
    }

    /// The client's entry for a command.
    pub(super) fn make_entry(self, name: &str, call: &LaunchCommand) -> ClientEntry {
        let (program, words) = (json!(call.program), json!(call.args));
        let kind = ("type", json!("stdio"));
        let (mut entry, variables) = match self {
            Self::ClaudeDesktop | Self::Windsurf | Self::Gemini => {
                (vec![("command", program), ("args", words)], "env")
            }
            Self::ClaudeCode | Self::Cursor | Self::VsCode => {
                (vec![kind, ("command", program), ("args", words)], "env")
            }
            Self::Zed => (
                vec![
                    ("command", program),
                    ("args", words),
                    ("timeout", json!(CLIENT_TOOL_TIMEOUT)),
                ],
                "env",
            ),
            Self::Codex => (
                vec![
                    ("command", program),
                    ("args", words),
                    ("startup_timeout_sec", json!(CLIENT_STARTUP_TIMEOUT)),
                    ("tool_timeout_sec", json!(CLIENT_TOOL_TIMEOUT)),
                ],
                "env",
            ),
            Self::OpenCode => {
                let all: Vec<&String> = [&call.program].into_iter().chain(&call.args).collect();
                let kind = ("type", json!("local"));
                (vec![kind, ("command", json!(all))], "environment")
            }
            Self::Goose => (
                vec![
                    ("enabled", json!(true)),
                    kind,
                    ("name", json!(name)),
                    ("description", json!(CLIENT_ENTRY_DESCRIPTION)),
                    ("cmd", program),
                    ("args", words),
                    ("timeout", json!(CLIENT_TOOL_TIMEOUT)),
                ],
                "envs",
            ),
            Self::Continue => (
                vec![
                    ("name", json!(name)),
                    kind,
                    ("command", program),
                    ("args", words),
                ],
                "env",
            ),
        };
        if !call.environment.is_empty() {
            entry.push((variables, json!(call.environment)));
        }
        ClientEntry(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectClient;
    use crate::host::connect::ClientConfigPaths;
    use std::path::{Path, PathBuf};

    /// The paths of each client's file on Linux, macOS and Windows.
    fn paths_on_each_platform(lookup_variable: fn(&str) -> Option<PathBuf>) -> String {
        let mut lines = String::new();
        for client in ConnectClient::ALL_CLIENTS {
            let paths = ["linux", "macos", "windows"].map(|platform| {
                let places =
                    ClientConfigPaths::for_test(Path::new("/h"), platform, lookup_variable);
                let path = client.config_file(&places, "osctl");
                path.to_string_lossy().replace('\\', "/")
            });
            lines += &format!("{}\n", client.name());
            match paths.iter().all(|path| *path == paths[0]) {
                true => lines += &format!("  {}\n", paths[0]),
                false => lines.extend(paths.map(|path| format!("  {path}\n"))),
            }
        }
        lines
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
