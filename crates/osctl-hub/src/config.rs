//! The configured servers: `mcpServers` in the body's `mcp.json`, and the files that override it.
//!
//! Later files win, server by server. If a file can't be read, its last valid content stays in effect. A server with
//! an invalid entry is refused even if an earlier file has a valid entry of that name, so that no client gets the
//! wider access that the later entry restricts. The status reports both errors; other servers are not
//! affected.

use super::name_filter::matches_pattern;
use osctl_protocol::environment::UserEnvironment;
use osctl_protocol::hex::hex;
use osctl_protocol::mcp::{McpServerEntry, McpServersFile, ServerStart};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{env, fs};

/// The timeout of one call, unless the server's entry sets one; progress restarts it.
const MCP_CALL_TIMEOUT: f64 = 300.0;
/// A server is ended after this time without a call, unless its entry sets another.
const MCP_IDLE_TIMEOUT: f64 = 1800.0;
/// The built-in server, whose tools have their own limits.
const BUILT_IN_SERVER: &str = "os";
/// The built-in tools of the lean profile. The others are for rare needs.
const BUILT_IN_LEAN_TOOLS: [&str; 21] = [
    "apply_patch",
    "cryo_store",
    "desktop_input",
    "desktop_screenshot",
    "edit_file",
    "end_job",
    "end_session",
    "evolve",
    "evolve_status",
    "execute_python_code",
    "find_files",
    "install_package",
    "interrupt",
    "list_sessions",
    "navigate_and_get_all_visible_text",
    "read_file",
    "read_output",
    "run_shell",
    "search_files",
    "wait_for_run",
    "write_file",
];
const MCP_DAY_SECONDS: f64 = 24.0 * 3600.0;
/// Longer durations count as 100 years, beyond which no clock reaches.
const MAX_MCP_CONFIG_SECONDS: f64 = 36_500.0 * MCP_DAY_SECONDS;

/// The valid configuration of one server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct McpServerConfig {
    pub(super) name: String,
    pub(super) transport: ServerTransport,
    pub(super) start: ServerStart,
    /// Whether all clients use one child.
    pub(super) is_shared: bool,
    pub(super) call_timeout: Duration,
    pub(super) idle_timeout: Option<Duration>,
    /// Patterns of the tools to offer; empty for all tools.
    pub(super) tool_patterns: Vec<String>,
    /// Patterns of the tools in the lean profile; `None` for all.
    pub(super) lean_patterns: Option<Vec<String>>,
    /// Whether the server receives cancellations.
    pub(super) forwards_cancel: bool,
}

/// How the hub reaches the server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) enum ServerTransport {
    Child {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: Option<PathBuf>,
    },
    Remote {
        url: String,
        headers: BTreeMap<String, String>,
    },
    /// The built-in server.
    Inside,
}

impl McpServerConfig {
    /// Whether the lean profile lists the tool.
    pub(super) fn is_lean_tool(&self, tool: &str) -> bool {
        self.lean_patterns
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(|one| matches_pattern(one, tool)))
    }

    /// Identifies the content of a cache. It changes with the server's command, with the version of its program, and
    /// with the version of osctl.
    pub(super) fn cache_digest(&self) -> String {
        let mut all = Sha256::new();
        all.update(env!("CARGO_PKG_VERSION"));
        // A map that was read from JSON can always be serialized.
        all.update(serde_json::to_vec(&self.transport).unwrap_or_default());
        let program = match &self.transport {
            ServerTransport::Child { command, .. } => Some(PathBuf::from(command)),
            ServerTransport::Inside => env::current_exe().ok(),
            ServerTransport::Remote { .. } => None,
        };
        if let Some(found) = program.and_then(|program| fs::metadata(program).ok()) {
            let changed = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            all.update(format!("{changed:?} {}", found.len()));
        }
        hex(&all.finalize()[..8])
    }
}

/// All servers by name, and the errors.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct McpConfig {
    pub(super) servers: BTreeMap<String, McpServerConfig>,
    /// Servers with an invalid entry, and the reason.
    pub(super) invalid_servers: BTreeMap<String, String>,
    pub(super) problems: Vec<String>,
}

/// The configuration files; later ones win.
#[derive(Debug)]
pub(super) struct McpConfigFiles {
    paths: Vec<PathBuf>,
    /// The last valid content of each file: an editor may write a file in several steps.
    last_valid: Vec<Option<McpServersFile>>,
    /// The modification time and size of each file at the last read.
    stamps: Vec<Option<(SystemTime, u64)>>,
}

impl McpConfigFiles {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        let last_valid = vec![None; paths.len()];
        Self {
            paths,
            last_valid,
            stamps: Vec::new(),
        }
    }

    /// Whether a file has changed since the last read.
    pub(super) fn has_changed(&self) -> bool {
        self.stamps != file_stamps(&self.paths)
    }

    /// Reads the files. A file that can't be read keeps its last valid content, and is reported as a problem.
    pub(super) fn read(&mut self, environment: &UserEnvironment) -> McpConfig {
        self.stamps = file_stamps(&self.paths);
        let mut found = McpConfig::built_in();
        for (path, last_valid) in self.paths.iter().zip(&mut self.last_valid) {
            let read = match fs::read(path) {
                Ok(text) => serde_json::from_slice(&text).map_err(|e| json_error_text(&e)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(McpServersFile::default()),
                Err(e) => Err(e.to_string()),
            };
            match read {
                Ok(servers) => *last_valid = Some(servers),
                Err(why) => {
                    let problem = format!("`{}` can't be read: {why}", path.display());
                    found.problems.push(problem);
                }
            }
            if let Some(servers) = last_valid.clone() {
                let own = |name: &str| environment.0.get(name).cloned();
                found.add_file(path, servers, |name| {
                    own(name).or_else(|| env::var(name).ok())
                });
            }
        }
        found
    }
}

/// Describes a JSON error without the file's content, which may be secret.
fn json_error_text(error: &serde_json::Error) -> String {
    match error.is_data() {
        true => "the file must contain an object with an object of servers in `mcpServers`".into(),
        false => error.to_string(),
    }
}

/// The modification time and size of each file, to detect changes.
fn file_stamps(files: &[PathBuf]) -> Vec<Option<(SystemTime, u64)>> {
    let one = |file: &PathBuf| {
        let found = fs::metadata(file).ok()?;
        Some((found.modified().ok()?, found.len()))
    };
    files.iter().map(one).collect()
}

impl McpConfig {
    /// The server that exists without any file.
    fn built_in() -> Self {
        let mut found = Self::default();
        if let Ok(os) = parse_server(BUILT_IN_SERVER, McpServerEntry::default(), &|_| None) {
            found.servers.insert(BUILT_IN_SERVER.into(), os);
        }
        found
    }

    fn add_file(
        &mut self,
        file: &Path,
        servers: McpServersFile,
        variable: impl Fn(&str) -> Option<String>,
    ) {
        for (name, raw_entry) in servers.mcp_servers {
            self.servers.remove(&name);
            self.invalid_servers.remove(&name);
            let read =
                McpServerEntry::parse_entry(&raw_entry).and_then(|entry| match entry.disabled {
                    true => Ok(None),
                    false => parse_server(&name, entry, &variable).map(Some),
                });
            match read {
                Ok(None) => {}
                Ok(Some(server)) => drop(self.servers.insert(name, server)),
                Err(why) => {
                    let file = file.display();
                    self.problems
                        .push(format!("the server `{name}` in `{file}` is refused: {why}"));
                    self.invalid_servers.insert(name, why);
                }
            }
        }
    }
}

fn parse_server(
    name: &str,
    entry: McpServerEntry,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<McpServerConfig, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) || name.contains("__") {
        let why =
            "a name consists of letters, digits, `-`, `.` and single `_`, at most 64 characters";
        return Err(why.into());
    }
    let is_built_in = name == BUILT_IN_SERVER;
    if is_built_in && (entry.command.is_some() || entry.url.is_some()) {
        return Err(
            "the built-in server has this name and accepts no `command` and no `url`".into(),
        );
    }
    let filled = |text: &str| expand_variables(text, variable);
    let all_filled = |map: BTreeMap<String, String>| {
        map.into_iter()
            .map(|(key, value)| (key, filled(&value)))
            .collect()
    };
    let transport = match (entry.command, entry.url) {
        (Some(command), None) => ServerTransport::Child {
            command: filled(&command),
            args: entry.args.iter().map(|arg| filled(arg)).collect(),
            env: all_filled(entry.env),
            cwd: entry.cwd.map(|cwd| filled(&cwd).into()),
        },
        (None, Some(url)) => ServerTransport::Remote {
            url: filled(&url),
            headers: all_filled(entry.headers),
        },
        (None, None) if is_built_in => ServerTransport::Inside,
        _ => return Err("a server needs either `command` or `url`".into()),
    };
    let seconds = |name: &str, field: Option<f64>, otherwise: f64| {
        let seconds = field.unwrap_or(otherwise);
        let time = Duration::try_from_secs_f64(seconds.min(MAX_MCP_CONFIG_SECONDS));
        time.map_err(|_| format!("`{name}` must be a number of seconds, not `{seconds}`"))
    };
    let (call_timeout, idle) = match is_built_in {
        true => (MCP_DAY_SECONDS, 0.0),
        false => (MCP_CALL_TIMEOUT, MCP_IDLE_TIMEOUT),
    };
    let idle = seconds("idle", entry.idle, idle)?;
    let call_timeout = seconds("timeout", entry.timeout, call_timeout)?;
    if call_timeout.is_zero() {
        return Err("`timeout` must be greater than 0".into());
    }
    Ok(McpServerConfig {
        name: name.into(),
        // A remote server distinguishes its clients itself, by their sessions.
        is_shared: entry.shared && matches!(transport, ServerTransport::Child { .. }),
        transport,
        // The built-in server starts at once, so that the first client gets its instructions.
        start: match is_built_in {
            true => ServerStart::Eager,
            false => entry.start,
        },
        call_timeout,
        idle_timeout: (!idle.is_zero()).then_some(idle),
        tool_patterns: entry.tools,
        lean_patterns: entry
            .lean
            .or_else(|| is_built_in.then(|| BUILT_IN_LEAN_TOOLS.map(str::to_owned).into())),
        forwards_cancel: entry.cancel.unwrap_or(true),
    })
}

/// Replaces `${NAME}` and `${NAME:-default}` by values of the environment.
fn expand_variables(text: &str, variable: &impl Fn(&str) -> Option<String>) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let Some(length) = rest[start..].find('}') else {
            break;
        };
        let inner = &rest[start + 2..start + length];
        let (name, otherwise) = inner.split_once(":-").unwrap_or((inner, ""));
        filled.push_str(&rest[..start]);
        let value = variable(name).filter(|value| !value.is_empty());
        filled.push_str(value.as_deref().unwrap_or(otherwise));
        rest = &rest[start + length + 1..];
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::{McpConfig, McpConfigFiles, ServerTransport, UserEnvironment, expand_variables};
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    fn parse_files(texts: &[&str]) -> McpConfig {
        let mut found = McpConfig::default();
        for text in texts {
            let servers = serde_json::from_str(text).unwrap();
            found.add_file(Path::new("mcp.json"), servers, |name| {
                (name == "ROOT").then(|| "/r".into())
            });
        }
        found
    }

    #[test]
    fn the_body_of_this_repository_is_read() {
        let found = parse_files(&[include_str!("../../../body/mcp.json")]);
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        let names: Vec<_> = found.servers.keys().map(String::as_str).collect();
        assert_eq!(names, ["browser-use", "filesystem", "linux"]);
        assert_eq!(
            found.servers["browser-use"].call_timeout,
            Duration::from_secs(600)
        );
        let is_lean = |server: &str, tool: &str| found.servers[server].is_lean_tool(tool);
        assert!(is_lean("browser-use", "browser_click"));
        assert!(!is_lean("browser-use", "browser_close_all"));
        assert!(!is_lean("filesystem", "read_text_file"));
        // It ends at a cancellation.
        assert!(!found.servers["linux"].forwards_cancel);
    }

    #[test]
    fn later_files_override_earlier_ones_per_server() {
        let first =
            r#"{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y", "type": "stdio"}}}"#;
        let second =
            r#"{"mcpServers": {"a": {"url": "http://h/${ROOT}"}, "b": {"disabled": true}}}"#;
        let found = parse_files(&[first, second]);
        assert_eq!(found.servers.len(), 1);
        let ServerTransport::Remote { url, .. } = &found.servers["a"].transport else {
            panic!("{found:?}");
        };
        assert_eq!(url, "http://h//r");
    }

    #[test]
    fn an_invalid_server_does_not_affect_the_others() {
        let text = r#"{"mcpServers": {"a": {}, "b__c": {"command": "x"}, "os": {"command": "x"}, "d": {"command": "x"}}}"#;
        let found = parse_files(&[text]);
        assert_eq!(found.servers.len(), 1);
        assert_eq!(found.problems.len(), 3, "{:?}", found.problems);
    }

    #[test]
    fn a_wrong_field_refuses_its_server_alone_and_is_named() {
        for (wrong, why) in [
            (
                r#"{"command": "x", "args": "y"}"#,
                "`args` must be a list of strings",
            ),
            (
                r#"{"command": "x", "env": {"P": 1}}"#,
                "`env.P` must be a string",
            ),
            (r#"{"command": ["x"]}"#, "`command` must be a string"),
            (r#"{"command": "x", "start": "soon"}"#, "`start` must be"),
            (
                r#"{"command": "x", "timeout": "1"}"#,
                "`timeout` must be a number, not a string",
            ),
            (
                r#"{"command": "x", "timeout": -1}"#,
                "`timeout` must be a number of seconds, not `-1`",
            ),
            (
                r#"{"command": "x", "timeout": 0}"#,
                "`timeout` must be greater than 0",
            ),
            (
                r#"{"command": "x", "disabled": "no"}"#,
                "`disabled` must be",
            ),
            (r#""x""#, "the entry is not an object"),
            ("null", "the entry is not an object"),
        ] {
            // The valid entry of an earlier file is not used either.
            let before = r#"{"mcpServers": {"a": {"command": "x"}, "c": {"command": "x"}}}"#;
            let text = format!(r#"{{"mcpServers": {{"a": {wrong}, "b": {{"command": "x"}}}}}}"#);
            let found = parse_files(&[before, &text]);
            let names: Vec<_> = found.servers.keys().map(String::as_str).collect();
            assert_eq!(names, ["b", "c"], "{wrong}");
            assert!(found.invalid_servers["a"].starts_with(why), "{found:?}");
            assert!(found.problems[0].contains("`a` in `mcp.json`"), "{found:?}");
            // A later file may correct or remove the entry.
            let right = parse_files(&[&text, before]);
            assert!(right.servers.contains_key("a") && right.invalid_servers.is_empty());
            let disabled = parse_files(&[&text, r#"{"mcpServers": {"a": {"disabled": true}}}"#]);
            assert!(!disabled.servers.contains_key("a") && disabled.invalid_servers.is_empty());
        }
        let far = parse_files(&[r#"{"mcpServers": {"a": {"command": "x", "timeout": 1e19}}}"#]);
        assert!(far.servers["a"].call_timeout > Duration::from_secs(1 << 30));
    }

    #[test]
    fn a_half_written_file_leaves_its_previous_content_in_effect() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("1"), folder.path().join("2"));
        let mut files = McpConfigFiles::new(vec![first.clone(), second.clone()]);
        fs::write(&first, r#"{"mcpServers": {"a": {"command": "x"}}}"#).unwrap();
        fs::write(&second, "{").unwrap();
        let found = files.read(&UserEnvironment::default());
        assert!(found.servers.contains_key("a") && found.problems.len() == 1);
        let before = r#"{"mcpServers": {"b": {"command": "y"}}}"#;
        fs::write(&second, before).unwrap();
        assert!(files.has_changed());
        let whole = files.read(&UserEnvironment::default());
        assert!(!files.has_changed());
        assert!(whole.servers.contains_key("b") && whole.problems.is_empty());
        for half in ["", &before[..20]] {
            fs::write(&second, half).unwrap();
            let found = files.read(&UserEnvironment::default());
            assert_eq!(
                (found.servers, found.problems.len()),
                (whole.servers.clone(), 1)
            );
        }
        fs::write(&second, r#"{"mcpServers": "sk-1"}"#).unwrap();
        assert!(!files.read(&UserEnvironment::default()).problems[0].contains("sk-1"));
        fs::remove_file(&second).unwrap();
        assert!(
            !files
                .read(&UserEnvironment::default())
                .servers
                .contains_key("b")
        );
    }

    #[test]
    fn the_built_in_server_is_enabled_unless_a_file_disables_it() {
        let with = |text: &str| {
            let mut found = McpConfig::built_in();
            let servers = serde_json::from_str(text).unwrap();
            found.add_file(Path::new("mcp.json"), servers, |_| None);
            found
        };
        assert_eq!(
            with(r#"{"mcpServers": {}}"#).servers["os"].transport,
            ServerTransport::Inside
        );
        let filtered = with(r#"{"mcpServers": {"os": {"tools": ["read_*"]}}}"#);
        assert_eq!(filtered.servers["os"].tool_patterns, ["read_*"]);
        assert!(
            with(r#"{"mcpServers": {"os": {"disabled": true}}}"#)
                .servers
                .is_empty()
        );
    }

    #[test]
    fn variables_are_expanded() {
        let variable = |name: &str| (name == "A").then(|| "1".to_owned());
        assert_eq!(expand_variables("x${A}y${B:-z}${B}${", &variable), "x1yz${");
    }

    #[test]
    fn the_command_determines_the_cache() {
        let of = |text: &str| parse_files(&[text]).servers["a"].cache_digest();
        let one = of(r#"{"mcpServers": {"a": {"command": "x"}}}"#);
        let with_timeout = of(r#"{"mcpServers": {"a": {"command": "x", "timeout": 1}}}"#);
        let other = of(r#"{"mcpServers": {"a": {"command": "x", "args": ["1"]}}}"#);
        assert!(one == with_timeout && one != other);
    }
}
