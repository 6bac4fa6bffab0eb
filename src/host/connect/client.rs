//! The clients: what they are called, which file they read, and what an entry looks like in it.

use super::call::Call;
use super::edit::Entry;
use super::places::Places;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Seconds that a call may take where a client's own limit is too short for code that computes.
const PATIENCE: u64 = 600;

/// Seconds from the start to the list of tools, where a client's own limit may be too short.
const START: u64 = 60;

const DESCRIPTION: &str = "A computer of its own: Python, shell, files and a browser";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
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

/// The form of a file, and where in it the servers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// JSON, comments and trailing commas included.
    Json(&'static [&'static str]),
    Toml(&'static str),
    /// A block of YAML.
    Yaml(&'static str),
    /// A file that holds nothing else.
    Own,
}

impl Client {
    pub(crate) const ALL: [Self; 11] = [
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

    /// As it is typed.
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

    /// As its makers call it.
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

    /// What makes it take over the change.
    pub(crate) fn next(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "quit Claude Desktop and open it again",
            Self::ClaudeCode => "start `claude` anew; `/mcp` shows the server",
            Self::Cursor => "restart Cursor, or switch the server on in its settings under MCP",
            Self::VsCode => "run `MCP: List Servers` in VS Code and start the server",
            Self::Windsurf => "press refresh in Cascade's list of MCP servers, or restart Windsurf",
            Self::Zed => "nothing: Zed takes it over at once; its agent panel's settings show it",
            Self::Codex => "start `codex` anew; `/mcp` shows the server",
            Self::Gemini => "start `gemini` anew; `/mcp` shows the server",
            Self::OpenCode => "start `opencode` anew; `opencode mcp list` shows the server",
            Self::Goose => "begin a new session of goose",
            Self::Continue => "reload Continue's configuration, or restart the editor",
        }
    }

    /// The file of the person, for all projects.
    pub(super) fn file(self, places: &Places, name: &str) -> PathBuf {
        match self {
            Self::ClaudeDesktop => places.application("Claude/claude_desktop_config.json"),
            Self::ClaudeCode => places.named("CLAUDE_CONFIG_DIR", ".claude.json", ".claude.json"),
            Self::Cursor => places.home(".cursor/mcp.json"),
            Self::VsCode => places.application("Code/User/mcp.json"),
            Self::Windsurf => places.home(".codeium/windsurf/mcp_config.json"),
            Self::Zed => {
                places.unless_windows(places.config("zed/settings.json"), "Zed/settings.json")
            }
            Self::Codex => places.named("CODEX_HOME", "config.toml", ".codex/config.toml"),
            Self::Gemini => {
                let path = ".gemini/settings.json";
                places.named("GEMINI_CLI_HOME", path, path)
            }
            Self::OpenCode => {
                let commented = places.config("opencode/opencode.jsonc");
                match commented.exists() {
                    true => commented,
                    false => places.config("opencode/opencode.json"),
                }
            }
            Self::Goose => {
                let path = "config/config.yaml";
                let unix = places.config("goose/config.yaml");
                let usual = places.unless_windows(unix, "Block/goose/config/config.yaml");
                places.named("GOOSE_PATH_ROOT", path, &usual.to_string_lossy())
            }
            Self::Continue => {
                let path = format!("mcpServers/{name}.yaml");
                places.named("CONTINUE_GLOBAL_DIR", &path, &format!(".continue/{path}"))
            }
        }
    }

    /// The form of a file that says `read`.
    pub(super) fn form(self, read: &Value) -> Form {
        match self {
            Self::VsCode => Form::Json(&["servers"]),
            Self::Zed => Form::Json(&["context_servers"]),
            // Its second version has them one deeper, and still reads the first one's.
            Self::OpenCode => match &read["mcp"]["servers"] {
                Value::Object(servers) if !servers.contains_key("type") => {
                    Form::Json(&["mcp", "servers"])
                }
                _ => Form::Json(&["mcp"]),
            },
            Self::Codex => Form::Toml("mcp_servers"),
            Self::Goose => Form::Yaml("extensions"),
            Self::Continue => Form::Own,
            Self::ClaudeDesktop
            | Self::ClaudeCode
            | Self::Cursor
            | Self::Windsurf
            | Self::Gemini => Form::Json(&["mcpServers"]),
        }
    }

    /// How it writes down what to start.
    pub(super) fn entry(self, name: &str, call: &Call) -> Entry {
        let (program, words) = (json!(call.program), json!(call.words));
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
                    ("timeout", json!(PATIENCE)),
                ],
                "env",
            ),
            Self::Codex => (
                vec![
                    ("command", program),
                    ("args", words),
                    ("startup_timeout_sec", json!(START)),
                    ("tool_timeout_sec", json!(PATIENCE)),
                ],
                "env",
            ),
            Self::OpenCode => {
                let all: Vec<&String> = [&call.program].into_iter().chain(&call.words).collect();
                let kind = ("type", json!("local"));
                (vec![kind, ("command", json!(all))], "environment")
            }
            Self::Goose => (
                vec![
                    ("enabled", json!(true)),
                    kind,
                    ("name", json!(name)),
                    ("description", json!(DESCRIPTION)),
                    ("cmd", program),
                    ("args", words),
                    ("timeout", json!(PATIENCE)),
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
        Entry(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::Client;
    use crate::host::connect::Places;

    /// As each client's makers document it.
    #[test]
    fn each_client_has_its_file_on_each_platform() {
        let file = |client: Client, platform| {
            let path = client.file(&Places::on(platform), "osctl");
            path.to_string_lossy().replace('\\', "/")
        };
        for (client, linux, macos, windows) in [
            (
                Client::ClaudeDesktop,
                "/h/.config/Claude/claude_desktop_config.json",
                "/h/Library/Application Support/Claude/claude_desktop_config.json",
                "/h/AppData/Roaming/Claude/claude_desktop_config.json",
            ),
            (
                Client::VsCode,
                "/h/.config/Code/User/mcp.json",
                "/h/Library/Application Support/Code/User/mcp.json",
                "/h/AppData/Roaming/Code/User/mcp.json",
            ),
            (
                Client::Zed,
                "/h/.config/zed/settings.json",
                "/h/.config/zed/settings.json",
                "/h/AppData/Roaming/Zed/settings.json",
            ),
            (
                Client::Goose,
                "/h/.config/goose/config.yaml",
                "/h/.config/goose/config.yaml",
                "/h/AppData/Roaming/Block/goose/config/config.yaml",
            ),
        ] {
            assert_eq!(file(client, "linux"), linux);
            assert_eq!(file(client, "macos"), macos);
            assert_eq!(file(client, "windows"), windows);
        }
        for (client, everywhere) in [
            (Client::ClaudeCode, "/h/.claude.json"),
            (Client::Cursor, "/h/.cursor/mcp.json"),
            (Client::Windsurf, "/h/.codeium/windsurf/mcp_config.json"),
            (Client::Codex, "/h/.codex/config.toml"),
            (Client::Gemini, "/h/.gemini/settings.json"),
            (Client::OpenCode, "/h/.config/opencode/opencode.json"),
            (Client::Continue, "/h/.continue/mcpServers/osctl.yaml"),
        ] {
            for platform in ["linux", "macos", "windows"] {
                assert_eq!(file(client, platform), everywhere);
            }
        }
    }
}
