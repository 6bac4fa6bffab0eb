//! Completion candidates for shells: existing names, found within a short time limit. Errors are ignored.

use super::CommandContext;
use super::listed_runs::list_runs;
use crate::cli;
use crate::engine::Engine;
use crate::error::Result;
use crate::host::client::CompanionClient;
use crate::host::folders::Folders;
use crate::host::instance::Instance;
use crate::host::instance_lookup::{InstanceScope, find_instance};
use crate::host::keeper::KeeperContainer;
use crate::protocol::evolve::{KeeperReply, KeeperRequest};
use crate::protocol::files::{EntryKind, percent_encode};
use crate::protocol::kernel::DEFAULT_SESSION;
use crate::protocol::packages::PackageKind;
use crate::protocol::text_sanitizer::sanitize_line;
use crate::ui::Ui;
use clap::ArgMatches;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use futures_util::future::{FutureExt, select_ok};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// Prefix of a path inside.
pub(super) const REMOTE_PREFIX: &str = "os:";

/// Parts of the companion, whose lines can be selected as those of a service.
pub(super) const COMPANION_PARTS: [&str; 16] = [
    "activity",
    "companion",
    "criu",
    "cryo",
    "desktop",
    "display",
    "environment",
    "evolve",
    "files",
    "http",
    "kernel",
    "mcp",
    "pty",
    "runs",
    "service",
    "shell",
];

/// Time limit of candidates from the companion.
const CANDIDATES_TIMEOUT: Duration = Duration::from_millis(300);
/// Time limit for paths, which may be deep in a tree.
const PATH_CANDIDATES_TIMEOUT: Duration = Duration::from_millis(150);
/// Time limit of candidates from the engine.
const ENGINE_CANDIDATES_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of a candidate's description.
const MAX_CANDIDATE_TEXT_CHARS: usize = 60;

pub(crate) fn instance_names() -> Vec<CompletionCandidate> {
    let all = Folders::find().and_then(|folders| Instance::list_all(&folders));
    let names = all.unwrap_or_default().into_iter().map(|i| i.name);
    names.map(CompletionCandidate::new).collect()
}

pub(super) fn variable_names() -> Vec<CompletionCandidate> {
    collect_candidates(CANDIDATES_TIMEOUT, async |cx| {
        Ok(cx.instance.read_environment()?.unwrap_or_default().names())
    })
}

/// The names in the project's file.
pub(super) fn package_names() -> Vec<CompletionCandidate> {
    collect_candidates(CANDIDATES_TIMEOUT, async |cx| {
        let project = cx.require_record()?.project;
        let lists = cx
            .lenient_config(Some(&project), Vec::new())?
            .config
            .packages;
        let named = |kind: PackageKind| {
            let packages = lists.of(kind).iter();
            packages.map(move |package| kind.split(package).0.to_owned())
        };
        Ok(PackageKind::ALL_KINDS
            .into_iter()
            .flat_map(named)
            .collect::<Vec<String>>())
    })
}

pub(super) fn session_names() -> Vec<CompletionCandidate> {
    client_candidates(|client| async move {
        let found = client.list_sessions().await?;
        Ok(found.sessions.into_iter().map(|s| s.name).collect())
    })
}

pub(super) fn run_ids() -> Vec<CompletionCandidate> {
    client_candidates(|client| async move {
        let runs = list_runs(&client, false).await?.into_iter();
        Ok(runs
            .map(|run| describe_candidate(&run.summary.id, &run.code()))
            .collect())
    })
}

/// A candidate with a description; the agent chooses the text.
fn describe_candidate(value: &str, text: &str) -> CompletionCandidate {
    let text: String = sanitize_line(text)
        .chars()
        .take(MAX_CANDIDATE_TEXT_CHARS)
        .collect();
    CompletionCandidate::new(value).help((!text.is_empty()).then(|| text.into()))
}

/// The ids of evolve runs. The companion answers faster; the keeper also answers when the companion does not.
pub(super) fn evolve_runs() -> Vec<CompletionCandidate> {
    collect_candidates(ENGINE_CANDIDATES_TIMEOUT, async |cx| {
        let reported = async { Ok(cx.companion_client()?.evolve_runs().await?.runs) };
        let known = async {
            let Engine::Docker(docker) = cx.connect_engine(cx.require_record()?.engine).await?
            else {
                return Ok(Vec::new());
            };
            let (docker, instance) = (&docker, &cx.instance);
            match (KeeperContainer { docker, instance })
                .request_reply(&KeeperRequest::History {})
                .await?
            {
                KeeperReply::History { runs } => Ok(runs),
                other => anyhow::bail!("{other:?}"),
            }
        };
        let (runs, _) = select_ok([reported.boxed_local(), known.boxed_local()]).await?;
        Ok(runs.into_iter().map(|r| r.run.to_string()).collect())
    })
}

pub(super) fn checkpoint_names() -> Vec<CompletionCandidate> {
    client_candidates(|client| async move {
        let found = client.list_checkpoints().await?.checkpoints.into_iter();
        let names: BTreeSet<String> = found.map(|c| c.name).collect();
        Ok(names.into_iter().collect())
    })
}

pub(super) fn stored_names() -> Vec<CompletionCandidate> {
    client_candidates(|client| async move {
        let found = client.cryo_list().await?;
        Ok(found.cryo.into_iter().map(|line| line.name).collect())
    })
}

pub(super) fn server_names() -> Vec<CompletionCandidate> {
    client_candidates(|client| async move {
        let found = client.fetch_hub_status().await?;
        Ok(found.servers.into_iter().map(|s| s.name).collect())
    })
}

/// The services, the parts of the companion and the MCP servers, whose logs `osctl logs` shows.
pub(super) fn log_services() -> Vec<CompletionCandidate> {
    let mut found = client_candidates(|client| async move {
        let (health, hub) = tokio::try_join!(client.fetch_health(), client.fetch_hub_status())?;
        let services = health.services.into_iter().map(|service| service.name);
        let servers = hub.servers.into_iter().map(|s| format!("mcp/{}", s.name));
        let services = services.filter(|name| !COMPANION_PARTS.contains(&name.as_str()));
        Ok(services.chain(servers).collect())
    });
    found.extend(COMPANION_PARTS.map(CompletionCandidate::new));
    found
}

/// The tools of the server that is on the command line.
pub(super) fn tool_names() -> Vec<CompletionCandidate> {
    let Some(server) = CompletionLine::being_completed().server else {
        return Vec::new();
    };
    client_candidates(|client| async move {
        let listed = client
            .send_server_request(Some(&server), "tools/list", serde_json::json!({}))
            .await?;
        let listed: serde_json::Value = serde_json::from_str(listed.get())?;
        let tools = listed["tools"].as_array().into_iter().flatten();
        let names = tools.filter_map(|tool| tool["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    })
}

pub(super) fn terminal_ids() -> Vec<CompletionCandidate> {
    client_candidates(|client| async move {
        let found = client.list_terminals().await?.terminals.into_iter();
        let running = found.filter(|terminal| terminal.exit.is_none());
        Ok(running.map(|terminal| terminal.id).collect())
    })
}

/// Local paths, and after `os:` paths inside.
pub(super) fn path_candidates(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let Some(path) = text.strip_prefix(REMOTE_PREFIX) else {
        let mut found = PathCompleter::any().stdio().complete(current);
        if REMOTE_PREFIX.starts_with(text.as_ref()) {
            found.push(CompletionCandidate::new(REMOTE_PREFIX));
        }
        return found;
    };
    client_candidates_within(PATH_CANDIDATES_TIMEOUT, async |client| {
        matching_paths("/", path, REMOTE_PREFIX, &client).await
    })
}

/// Paths inside, for the words of a command; relative paths start at the working directory of the session's shell.
pub(super) fn inside_path_candidates(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(path) = current.to_str().filter(|path| !path.is_empty()) else {
        return Vec::new();
    };
    let session = CompletionLine::being_completed().session;
    client_candidates_within(PATH_CANDIDATES_TIMEOUT, async |client| {
        let cwd = client.shell_location(&session).await?.cwd;
        matching_paths(&cwd, path, "", &client).await
    })
}

/// The paths inside that begin with `path`, which is relative to `base` unless it is absolute.
async fn matching_paths(
    base: &str,
    path: &str,
    prefix: &str,
    client: &CompanionClient,
) -> Result<Vec<String>> {
    let (folder, begin) = path.split_at(path.rfind('/').map_or(0, |slash| slash + 1));
    let whole = match folder.starts_with('/') {
        true => folder.to_owned(),
        false => format!("{}/{folder}", base.trim_end_matches('/')),
    };
    let found = client
        .list_folder(&percent_encode(resolve_dots(&whole).as_bytes()))
        .await?
        .entries;
    // A name that is not UTF-8 can't be typed.
    let found = found
        .into_iter()
        .filter(|e| e.name.starts_with(begin) && !e.name.contains('\u{fffd}'));
    let place = found.map(|entry| match entry.kind {
        EntryKind::Folder => format!("{prefix}{folder}{}/", entry.name),
        _ => format!("{prefix}{folder}{}", entry.name),
    });
    Ok(place.collect())
}

/// Resolves `..`, which the companion does not follow, and returns the absolute path of the folder with a slash at the
/// end.
fn resolve_dots(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let whole: String = names.iter().map(|name| format!("/{name}")).collect();
    format!("{whole}/")
}

/// The options on the incomplete command line that determine where candidates come from.
#[derive(Debug, PartialEq, Eq)]
struct CompletionLine {
    instance: Option<String>,
    config: Option<PathBuf>,
    session: String,
    /// The MCP server before the word that is completed.
    server: Option<String>,
}

impl CompletionLine {
    /// Shells pass the command line after `--`.
    fn being_completed() -> Self {
        Self::parse_words(std::env::args_os().skip_while(|word| word != "--").skip(1))
    }

    /// Parses the words by the rules of the command line, which separate the words of a command inside, and of the
    /// environment.
    fn parse_words(words: impl Iterator<Item = OsString>) -> Self {
        let found = cli::clap_command()
            .ignore_errors(true)
            .try_get_matches_from(words)
            .unwrap_or_default();
        let text = |matches: &ArgMatches, name: &str| {
            let value = matches.try_get_one::<String>(name).ok().flatten();
            value.cloned()
        };
        let mut verb = &found;
        while let Some((_, below)) = verb.subcommand() {
            verb = below;
        }
        Self {
            instance: text(&found, "instance"),
            config: found
                .try_get_one::<PathBuf>("config")
                .ok()
                .flatten()
                .cloned(),
            session: text(verb, "session").unwrap_or_else(|| DEFAULT_SESSION.into()),
            server: text(verb, "server"),
        }
    }
}

fn client_candidates<T: Into<CompletionCandidate>, F: Future<Output = Result<Vec<T>>>>(
    ask: impl FnOnce(CompanionClient) -> F,
) -> Vec<CompletionCandidate> {
    client_candidates_within(CANDIDATES_TIMEOUT, ask)
}

fn client_candidates_within<T: Into<CompletionCandidate>, F: Future<Output = Result<Vec<T>>>>(
    timeout: Duration,
    ask: impl FnOnce(CompanionClient) -> F,
) -> Vec<CompletionCandidate> {
    collect_candidates(timeout, async |cx| ask(cx.companion_client()?).await)
}

fn collect_candidates<T: Into<CompletionCandidate>>(
    timeout: Duration,
    ask: impl AsyncFnOnce(CommandContext) -> Result<Vec<T>>,
) -> Vec<CompletionCandidate> {
    let collect = || {
        let line = CompletionLine::being_completed();
        let folders = Folders::find()?;
        let ui = Ui::new(false, true, 0, None);
        let instance = find_instance(line.instance.as_deref(), InstanceScope::Existing, &folders)?;
        let cx =
            CommandContext::new(ui, folders, instance, line.config.as_deref())?.without_warnings();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async { tokio::time::timeout(timeout, ask(cx)).await? })
    };
    let found = collect().unwrap_or_default();
    found.into_iter().map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::{CompletionLine, resolve_dots};

    #[test]
    fn dots_in_a_path_are_resolved() {
        assert_eq!(resolve_dots("/root/host/../"), "/root/");
        assert_eq!(resolve_dots("/root/../../x/./"), "/x/");
        assert_eq!(resolve_dots("/root/.."), "/");
        assert_eq!(resolve_dots("/..a/b../"), "/..a/b../");
    }

    #[test]
    fn an_unfinished_command_line_is_parsed() {
        let read = |words: &str| {
            let words = words.split(' ').map(Into::into);
            let line = CompletionLine::parse_words(words);
            (line.instance, line.config, line.session)
        };
        let server = |words: &str| {
            let words = words.split(' ').map(Into::into);
            CompletionLine::parse_words(words).server
        };
        assert_eq!(server("osctl mcp call os ").as_deref(), Some("os"));
        assert_eq!(server("osctl exec "), None);
        let complete = |instance: Option<&str>, config: Option<&str>, session: &str| {
            let instance = instance.map(str::to_owned);
            (instance, config.map(Into::into), session.into())
        };
        let nothing = complete(None, None, "default");
        assert_eq!(read("osctl cp "), nothing);
        assert_eq!(read("osctl"), nothing);
        assert_eq!(
            read("osctl shell --session b ls "),
            complete(None, None, "b")
        );
        assert_eq!(
            read("osctl --instance=a --config f shell --session=b ls x"),
            complete(Some("a"), Some("f"), "b")
        );
        assert_eq!(
            read("osctl exec --session b --instance a --config f --nonsense"),
            complete(Some("a"), Some("f"), "b")
        );
        // The options of a command inside do not belong to osctl.
        assert_eq!(
            read("osctl shell --session b ls --session c --instance d "),
            complete(None, None, "b")
        );
        assert_eq!(read("osctl --instance a cp --help "), nothing);
        assert_eq!(read("osctl --instance"), nothing);
    }
}
