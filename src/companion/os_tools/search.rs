//! Tools that search: lines of files by a regular expression, and files by name.
//!
//! Both skip hidden files and files that `.gitignore` excludes, unless a call includes them. Neither follows links.

use super::server::OsServer;
use super::tool_error::ToolError;
use super::tool_result::{ToolResult, text_result};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, WalkBuilder};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// The default number of matching lines, and of found files.
const DEFAULT_SEARCH_MATCHES: usize = 100;
const DEFAULT_FOUND_FILES: usize = 200;
/// The most that a call can request.
const MAX_SEARCH_RESULTS: usize = 2000;
const MAX_SEARCH_CONTEXT_LINES: usize = 20;
/// The most characters of a shown line.
const MAX_SHOWN_LINE_CHARS: usize = 300;
/// The most bytes of a line that the search keeps in memory.
const MAX_SEARCH_LINE_BYTES: usize = 16 << 20;
/// After this time a search returns what it has found.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);
/// File systems whose files have no end, or block.
const UNSEARCHED_FOLDERS: [&str; 3] = ["/dev", "/proc", "/sys"];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchArgs {
    /// Regular expression, as of ripgrep.
    pattern: String,
    /// File or folder; `/repo` if omitted.
    path: Option<String>,
    /// Only files that match this glob, such as `*.py` or `!*.lock`.
    glob: Option<String>,
    #[serde(default)]
    /// Ignore case.
    ignore_case: bool,
    /// Lines to show before and after each match.
    #[serde(default)]
    context: usize,
    /// Include hidden files and files that `.gitignore` excludes.
    #[serde(default)]
    hidden: bool,
    /// Maximum matching lines; 100 if omitted.
    limit: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FindArgs {
    /// Glob of names or paths, such as `*.py`, `test_*` or `src/**/mod.rs`.
    glob: String,
    /// Folder; `/repo` if omitted.
    path: Option<String>,
    /// Include hidden files and files that `.gitignore` excludes.
    #[serde(default)]
    hidden: bool,
    /// Maximum files; 200 if omitted.
    limit: Option<usize>,
}

/// The matching lines of one file, with the lines around them.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct FileMatches {
    path: String,
    lines: Vec<FoundLine>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct FoundLine {
    number: u64,
    text: String,
    /// Whether the line matches; otherwise it is shown as context.
    matches: bool,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct SearchReport {
    folder: String,
    files: Vec<FileMatches>,
    match_count: usize,
    /// Why there may be more matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete: Option<&'static str>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct FindReport {
    folder: String,
    /// Paths in the folder; those of folders end with `/`.
    paths: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete: Option<&'static str>,
}

/// When a search ends before its end.
#[derive(Debug, Clone)]
struct SearchLimits {
    results: usize,
    deadline: Instant,
    is_cancelled: Arc<AtomicBool>,
}

#[tool_router(router = search_tools, vis = "pub(super)")]
impl OsServer {
    /// Search the lines of files for a regular expression. Binary files are skipped.
    #[tool(
        title = "Search files",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn search_files(
        &self,
        Parameters(args): Parameters<SearchArgs>,
        cx: RequestContext<RoleServer>,
    ) -> ToolResult {
        let root = self.search_root(args.path.as_deref())?;
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(args.ignore_case)
            .line_terminator(Some(b'\n'))
            .build(&args.pattern)
            .map_err(|e| ToolError(format!("`pattern` is not a regular expression: {e}")))?;
        let context = args.context.min(MAX_SEARCH_CONTEXT_LINES);
        let limit = args.limit.unwrap_or(DEFAULT_SEARCH_MATCHES);
        let (glob, hidden) = (args.glob, args.hidden);
        let report = run_search(cx, limit, move |limits| {
            let glob = glob.as_deref().map(|glob| parse_glob(&root, glob));
            search_lines(&root, &matcher, glob.transpose()?, hidden, context, &limits)
        })
        .await?;
        let text = report.summary_text();
        text_result(report, text)
    }

    /// Find files and folders by name or path.
    #[tool(
        title = "Find files",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn find_files(
        &self,
        Parameters(args): Parameters<FindArgs>,
        cx: RequestContext<RoleServer>,
    ) -> ToolResult {
        let root = self.search_root(args.path.as_deref())?;
        let limit = args.limit.unwrap_or(DEFAULT_FOUND_FILES);
        let (glob, hidden) = (args.glob, args.hidden);
        let report = run_search(cx, limit, move |limits| {
            let glob = parse_glob(&root, &glob)?;
            find_paths(&root, &glob, hidden, &limits)
        })
        .await?;
        let text = report.summary_text();
        text_result(report, text)
    }
}

impl OsServer {
    fn search_root(&self, path: Option<&str>) -> Result<PathBuf, ToolError> {
        let root = self.resolve_path(path.unwrap_or_default());
        let shown = root.display();
        let real = root
            .canonicalize()
            .map_err(|_| ToolError(format!("there is no `{shown}`")))?;
        match UNSEARCHED_FOLDERS.iter().find(|one| real.starts_with(one)) {
            Some(folder) => Err(ToolError(format!("files in `{folder}` are not searched"))),
            None => Ok(real),
        }
    }
}

/// Runs a search on a thread of its own, which ends soon after the call.
async fn run_search<T: Send + 'static>(
    cx: RequestContext<RoleServer>,
    limit: usize,
    search: impl FnOnce(SearchLimits) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    let is_cancelled = Arc::<AtomicBool>::default();
    let limits = SearchLimits {
        results: limit.min(MAX_SEARCH_RESULTS),
        deadline: Instant::now() + SEARCH_TIMEOUT,
        is_cancelled: is_cancelled.clone(),
    };
    let searching = spawn_blocking(move || search(limits));
    tokio::select! {
        found = searching => found.map_err(|e| ToolError(format!("the search failed: {e}")))?,
        () = cx.ct.cancelled() => {
            is_cancelled.store(true, Ordering::Relaxed);
            Err(ToolError::new("the call was cancelled"))
        }
    }
}

impl SearchLimits {
    /// Why the search ends now.
    fn reached(&self, results: usize) -> Option<&'static str> {
        if results >= self.results {
            Some("narrow the search, or raise `limit`")
        } else if Instant::now() >= self.deadline || self.is_cancelled.load(Ordering::Relaxed) {
            Some("the search ended after 30 s; narrow `path`")
        } else {
            None
        }
    }
}

fn parse_glob(root: &Path, glob: &str) -> Result<Override, ToolError> {
    let mut globs = OverrideBuilder::new(root);
    let built = globs.add(glob).and_then(|globs| globs.build());
    built.map_err(|e| ToolError(format!("`glob` is invalid: {e}")))
}

/// The files and folders below `root`, sorted by path.
fn walk(root: &Path, hidden: bool) -> impl Iterator<Item = DirEntry> {
    let walk = WalkBuilder::new(root)
        .standard_filters(!hidden)
        .require_git(false)
        .sort_by_file_name(Ord::cmp)
        .filter_entry(|entry| {
            let is_unsearched = UNSEARCHED_FOLDERS
                .iter()
                .any(|folder| entry.path() == Path::new(folder));
            !(is_unsearched || entry.depth() > 0 && entry.file_name() == ".git")
        })
        .build();
    // A folder that can't be read has no files that can be searched.
    walk.filter_map(Result::ok)
}

/// The path in `root`; the name of `root` if it is the file itself.
fn path_in(root: &Path, path: &Path) -> String {
    let inner = path.strip_prefix(root).unwrap_or(path);
    match inner.as_os_str().is_empty() {
        true => path.file_name().unwrap_or_default().display().to_string(),
        false => inner.display().to_string(),
    }
}

fn search_lines(
    root: &Path,
    matcher: &RegexMatcher,
    glob: Option<Override>,
    hidden: bool,
    context: usize,
    limits: &SearchLimits,
) -> Result<SearchReport, ToolError> {
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .before_context(context)
        .after_context(context)
        .heap_limit(Some(MAX_SEARCH_LINE_BYTES))
        .build();
    let mut report = SearchReport {
        folder: root.display().to_string(),
        ..SearchReport::default()
    };
    for entry in walk(root, hidden) {
        let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
        let is_excluded = glob
            .as_ref()
            .is_some_and(|glob| glob.matched(entry.path(), false).is_ignore());
        if !is_file || is_excluded {
            continue;
        }
        report.incomplete = limits.reached(report.match_count);
        if report.incomplete.is_some() {
            break;
        }
        let mut found = MatchCollector {
            matches: FileMatches {
                path: path_in(root, entry.path()),
                lines: Vec::new(),
            },
            count: 0,
            earlier: report.match_count,
            limits,
        };
        // A file that vanished, or has a line without end, is left out.
        let _ = searcher.search_path(matcher, entry.path(), &mut found);
        report.match_count += found.count;
        if found.count > 0 {
            report.files.push(found.matches);
        }
    }
    Ok(report)
}

struct MatchCollector<'a> {
    matches: FileMatches,
    count: usize,
    /// Matches in earlier files.
    earlier: usize,
    limits: &'a SearchLimits,
}

impl MatchCollector<'_> {
    fn add_line(&mut self, number: Option<u64>, bytes: &[u8], matches: bool) {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end();
        let text = match text.char_indices().nth(MAX_SHOWN_LINE_CHARS) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.to_owned(),
        };
        self.matches.lines.push(FoundLine {
            number: number.unwrap_or_default(),
            text,
            matches,
        });
    }
}

impl Sink for MatchCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.add_line(found.line_number(), found.bytes(), true);
        self.count += 1;
        Ok(self.limits.reached(self.earlier + self.count).is_none())
    }

    fn context(&mut self, _: &Searcher, found: &SinkContext<'_>) -> io::Result<bool> {
        if *found.kind() != SinkContextKind::Other {
            self.add_line(found.line_number(), found.bytes(), false);
        }
        Ok(true)
    }
}

fn find_paths(
    root: &Path,
    glob: &Override,
    hidden: bool,
    limits: &SearchLimits,
) -> Result<FindReport, ToolError> {
    let mut report = FindReport {
        folder: root.display().to_string(),
        ..FindReport::default()
    };
    for entry in walk(root, hidden).filter(|entry| entry.depth() > 0) {
        let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
        let matched = glob.matched(entry.path(), is_folder);
        let is_wanted = match glob.num_whitelists() {
            0 => !matched.is_ignore(),
            _ => matched.is_whitelist(),
        };
        report.incomplete = limits.reached(report.paths.len());
        if report.incomplete.is_some() {
            break;
        }
        if is_wanted {
            let slash = if is_folder { "/" } else { "" };
            report.paths.push(path_in(root, entry.path()) + slash);
        }
    }
    Ok(report)
}

impl SearchReport {
    fn summary_text(&self) -> String {
        if self.files.is_empty() && self.incomplete.is_none() {
            return format!("no matches in `{}`", self.folder);
        }
        let mut text = format!("{} matching lines in `{}`", self.match_count, self.folder);
        for file in &self.files {
            text.push_str(&format!("\n\n{}", file.path));
            let mut previous = None;
            for line in &file.lines {
                if previous.is_some_and(|previous| previous + 1 < line.number) && self.has_context()
                {
                    text.push_str("\n--");
                }
                previous = Some(line.number);
                let mark = if line.matches { ':' } else { '-' };
                text.push_str(&format!("\n{}{mark} {}", line.number, line.text));
            }
        }
        if let Some(why) = self.incomplete {
            text.push_str(&format!("\n… more matches may follow: {why} …"));
        }
        text
    }

    fn has_context(&self) -> bool {
        let mut lines = self.files.iter().flat_map(|file| &file.lines);
        lines.any(|line| !line.matches)
    }
}

impl FindReport {
    fn summary_text(&self) -> String {
        if self.paths.is_empty() && self.incomplete.is_none() {
            return format!("no such files in `{}`", self.folder);
        }
        let mut text = format!("in `{}`:\n{}", self.folder, self.paths.join("\n"));
        if let Some(why) = self.incomplete {
            text.push_str(&format!("\n… more files may follow: {why} …"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{SearchLimits, SearchReport, find_paths, parse_glob, search_lines};
    use grep_regex::RegexMatcher;
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn limits(results: usize) -> SearchLimits {
        SearchLimits {
            results,
            deadline: Instant::now() + Duration::from_secs(600),
            is_cancelled: Arc::default(),
        }
    }

    fn project() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("src/deep")).unwrap();
        fs::create_dir(root.join(".git")).unwrap();
        for (path, text) in [
            (".gitignore", "*.log\n"),
            (".git/config", "needle\n"),
            (".hidden", "needle\n"),
            ("a.log", "needle\n"),
            ("a.py", "one\nneedle = 1\nthree\nfour\nfive\nNEEDLE\n"),
            ("src/deep/b.rs", "let needle;\n"),
            ("src/binary", "needle\0needle\n"),
        ] {
            fs::write(root.join(path), text).unwrap();
        }
        std::os::unix::fs::symlink("/", root.join("link")).unwrap();
        folder
    }

    fn search(root: &Path, pattern: &str, glob: Option<&str>, hidden: bool) -> SearchReport {
        let matcher = RegexMatcher::new(pattern).unwrap();
        let glob = glob.map(|glob| parse_glob(root, glob).unwrap());
        search_lines(root, &matcher, glob, hidden, 0, &limits(100)).unwrap()
    }

    fn paths(report: &SearchReport) -> Vec<&str> {
        report.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn lines_are_found_in_files_that_belong_to_the_project() {
        let folder = project();
        let root = folder.path();
        assert_eq!(
            paths(&search(root, "needle", None, false)),
            ["a.py", "src/deep/b.rs"]
        );
        let hidden = search(root, "needle", None, true);
        assert_eq!(
            paths(&hidden),
            [".hidden", "a.log", "a.py", "src/deep/b.rs"]
        );
        assert_eq!(
            paths(&search(root, "needle", Some("*.py"), false)),
            ["a.py"]
        );
        let without = search(root, "needle", Some("!*.py"), false);
        assert_eq!(paths(&without), ["src/deep/b.rs"]);
        let one = search(&root.join("a.py"), "(?i)needle", None, false);
        assert_eq!(
            one.summary_text(),
            format!(
                "2 matching lines in `{}`\n\na.py\n2: needle = 1\n6: NEEDLE",
                root.join("a.py").display()
            )
        );
        let none = search(root, "nowhere", None, false).summary_text();
        assert!(none.starts_with("no matches in "), "{none}");
    }

    #[test]
    fn a_search_shows_lines_around_matches_and_ends_at_its_limit() {
        let folder = project();
        let root = folder.path();
        let matcher = RegexMatcher::new("(?i)needle").unwrap();
        let around = search_lines(root, &matcher, None, false, 1, &limits(2)).unwrap();
        let text = around.summary_text();
        let shown = "\n\na.py\n1- one\n2: needle = 1\n3- three\n--\n5- five\n6: NEEDLE\n… more matches may follow: narrow";
        assert!(text.contains(shown), "{text}");
        let cancelled = limits(100);
        cancelled
            .is_cancelled
            .store(true, std::sync::atomic::Ordering::Relaxed);
        let ended = search_lines(root, &matcher, None, false, 0, &cancelled).unwrap();
        assert_eq!(ended.match_count, 0);
        assert!(ended.summary_text().contains("narrow `path`"));
    }

    #[test]
    fn files_are_found_by_names_and_paths() {
        let folder = project();
        let root = folder.path();
        let find = |glob: &str, hidden: bool| {
            let glob = parse_glob(root, glob).unwrap();
            find_paths(root, &glob, hidden, &limits(100)).unwrap().paths
        };
        assert_eq!(find("*.rs", false), ["src/deep/b.rs"]);
        assert_eq!(find("src/*", false), ["src/binary", "src/deep/"]);
        assert_eq!(find("deep", false), ["src/deep/"]);
        assert_eq!(find("*.log", false), Vec::<String>::new());
        assert_eq!(find("*.log", true), ["a.log"]);
        assert!(parse_glob(root, "[").is_err());
        let glob = parse_glob(root, "*").unwrap();
        let first = find_paths(root, &glob, false, &limits(1)).unwrap();
        assert_eq!((first.paths.len(), first.incomplete.is_some()), (1, true));
    }
}
