//! The documentation: links resolve, every page is listed, and the commands that it shows exist.

use crate::commands::Ran;
use crate::packages::{install_tool, succeed};
use crate::trials;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

trials![
    every_link_and_anchor_resolves,
    every_page_is_in_the_summary,
    mdbook_makes_a_page_of_each_document = "docs::every_page_is_in_the_summary",
    the_readme_has_at_most_two_hundred_lines,
    every_command_that_is_shown_parses,
    every_example_in_the_help_parses,
];

const SUMMARY: &str = "docs/SUMMARY.md";

/// Pages beside the folder `docs`.
const PAGES: [&str; 4] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
];

const MAX_README_LINES: usize = 200;

/// Languages of code blocks that hold commands. In a `console`, a command begins with `$ `.
const CONSOLE: &str = "console";
const SCRIPT: &str = "sh";

/// What the tests need of a page.
#[derive(Debug, Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// The language and the text of each code block.
    blocks: Vec<(String, String)>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let (mut heading, mut language) = (None, None);
        let mut headings: BTreeMap<String, usize> = BTreeMap::new();
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    let earlier = headings.entry(name.clone()).or_default();
                    page.anchors.insert(match *earlier {
                        0 => name,
                        number => format!("{name}-{number}"),
                    });
                    *earlier += 1;
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(name))) => {
                    language = Some(name.into_string());
                    page.blocks.push((String::new(), String::new()));
                }
                Event::End(TagEnd::CodeBlock) => {
                    if let (Some(name), Some(block)) = (language.take(), page.blocks.last_mut()) {
                        block.0 = name;
                    }
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    } else if let (Some(_), Some(block)) = (&language, page.blocks.last_mut()) {
                        block.1.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// Each command line of the page as words.
    fn commands(&self) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for (language, text) in &self.blocks {
            match language.as_str() {
                CONSOLE => {
                    let typed = text.lines().filter_map(|line| line.strip_prefix("$ "));
                    found.extend(typed.flat_map(split_commands));
                }
                SCRIPT => found.extend(split_commands(text)),
                _ => {}
            }
        }
        found
    }
}

/// The anchor of a heading, as forges and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

fn pages() -> BTreeMap<PathBuf, Page> {
    let mut paths: Vec<PathBuf> = PAGES.iter().map(PathBuf::from).collect();
    collect(Path::new("docs"), &mut paths);
    assert!(paths.len() > 20, "the scan reads the wrong folder");
    let parse = |path: PathBuf| {
        let page = Page::parse(&fs::read_to_string(&path).unwrap());
        (path, page)
    };
    paths.into_iter().map(parse).collect()
}

/// The path that a link of a page names, without `.` and `..`.
fn resolve(page: &Path, target: &str) -> PathBuf {
    let mut resolved = page.parent().unwrap().to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => assert!(resolved.pop(), "{page:?}: `{target}` climbs out"),
            Component::CurDir => {}
            other => resolved.push(other),
        }
    }
    resolved
}

fn every_link_and_anchor_resolves() {
    let pages = pages();
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for link in page.links.iter().filter(|link| !link.contains("://")) {
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match target {
                "" => path.clone(),
                target => resolve(path, target),
            };
            let has_anchor = || {
                pages
                    .get(&target)
                    .is_some_and(|page| page.anchors.contains(anchor))
            };
            if !target.exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links: {broken:#?}");
}

fn every_page_is_in_the_summary() {
    let pages = pages();
    let summary = Path::new(SUMMARY);
    let links = &pages[summary].links;
    let listed: BTreeSet<PathBuf> = links.iter().map(|link| resolve(summary, link)).collect();
    for path in pages.keys() {
        let is_listed = listed.contains(path) || path == summary || !path.starts_with("docs");
        assert!(is_listed, "`{}` is not in {SUMMARY}", path.display());
    }
}

fn mdbook_makes_a_page_of_each_document() {
    let mdbook = install_tool("mdbook", "0.5.4", &["--no-default-features"]);
    let book = tempfile::tempdir().unwrap();
    let mut build = Command::new(mdbook);
    let built = succeed(build.arg("build").arg("--dest-dir").arg(book.path()));
    for word in ["WARN", "ERROR"] {
        assert!(!built.stderr.contains(word), "{}", built.stderr);
    }
    for path in pages().keys() {
        let Ok(page) = path.strip_prefix("docs") else {
            continue;
        };
        // mdbook makes `index.html` of a README, and a sidebar of the summary.
        let html = match page.file_name().and_then(|name| name.to_str()) {
            Some("README.md") => page.with_file_name("index.html"),
            Some("SUMMARY.md") => continue,
            _ => page.with_extension("html"),
        };
        let text = fs::read_to_string(book.path().join(&html));
        let text = text.unwrap_or_else(|error| panic!("{html:?}: {error}"));
        assert!(text.contains("</h1>"), "{html:?} has no title");
    }
}

fn the_readme_has_at_most_two_hundred_lines() {
    let lines = fs::read_to_string("README.md").unwrap().lines().count();
    assert!(lines <= MAX_README_LINES, "README.md has {lines} lines");
}

fn every_command_that_is_shown_parses() {
    let mut checked = 0;
    for (path, page) in pages() {
        for words in page.commands() {
            let Some(arguments) = arguments_of_osctl(&words) else {
                continue;
            };
            check(&path, arguments);
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} commands were found");
}

fn every_example_in_the_help_parses() {
    let mut pages = vec![Vec::new()];
    let (mut checked, mut read) = (0, 0);
    while let Some(words) = pages.pop() {
        let name = PathBuf::from(format!("help of osctl {}", words.join(" ")));
        let help = run_without_effect(&[&words[..], &["--help".to_owned()]].concat()).stdout;
        let (above, examples) = help.split_once("\nExamples:\n").unwrap();
        for words in split_commands(examples) {
            let arguments = arguments_of_osctl(&words);
            arguments.into_iter().for_each(|words| check(&name, words));
            checked += usize::from(arguments.is_some());
        }
        read += 1;
        let (_, list) = above.split_once("Usage: osctl").unwrap();
        let (list, _) = list.split_once("\nGlobal options:\n").unwrap();
        let has_verbs = words.is_empty() || list.contains("\nCommands:\n");
        let (list, _) = list.split_once("\nOptions:\n").unwrap_or((list, ""));
        for line in list.lines().filter(|_| has_verbs) {
            let verb = line
                .strip_prefix("  ")
                .filter(|rest| !rest.starts_with(' '));
            let verb = verb.and_then(|rest| rest.split(' ').next());
            if let Some(verb) = verb.filter(|verb| *verb != "help") {
                pages.push([&words[..], &[verb.to_owned()]].concat());
            }
        }
    }
    assert!(
        read > 50 && checked > 100,
        "{read} pages, {checked} examples"
    );
}

/// The arguments, when the command is `osctl`, also behind variables and programs that start it.
fn arguments_of_osctl(words: &[String]) -> Option<&[String]> {
    let is_variable = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            let mut letters = name.chars();
            letters.all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        })
    };
    let is_before = |word: &String| is_variable(word) || ["sudo", "npx", "uvx"].contains(&&**word);
    let first = words.iter().position(|word| !is_before(word))?;
    let name = Path::new(&words[first]).file_name()?;
    (name == "osctl" && words[first] != "/osctl").then_some(&words[first + 1..])
}

/// Lets the binary parse the arguments: with `--help` behind them, nothing is executed.
///
/// What follows `shell` may belong to a command of the container. There, and where code may begin with a hyphen, a long
/// option must be in the help.
fn check(page: &Path, arguments: &[String]) {
    let mut parsed = arguments.to_vec();
    let shell = parsed.iter().position(|word| word == "shell");
    let escape = parsed.iter().position(|word| word == "--");
    let end = escape.unwrap_or(parsed.len());
    parsed.insert(shell.map_or(end, |at| at + 1), "--help".into());
    let ran = run_without_effect(&parsed);
    let line = format!("{}: osctl {}", page.display(), arguments.join(" "));
    assert!(
        ran.code == 0 && ran.stdout.contains("Usage: osctl"),
        "{line}: {ran:?}"
    );
    let known: BTreeSet<&str> = {
        ran.stdout
            .split(|c: char| c.is_whitespace() || "[=,".contains(c))
    }
    .collect();
    let options = arguments.iter().take_while(|word| *word != "--");
    for word in options.filter(|word| word.starts_with("--")) {
        let option = word.split('=').next().unwrap_or(word);
        assert!(
            known.contains(option),
            "{line}: `{option}` is not in the help"
        );
    }
}

/// Runs the binary without configuration, state and engine.
fn run_without_effect(arguments: &[String]) -> Ran {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("home-docs");
    let mut command = Command::new(env!("CARGO_BIN_EXE_osctl"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OSCTL_")) {
        command.env_remove(name);
    }
    command
        .args(arguments)
        .env("HOST_HOME", home)
        .env("DOCKER_HOST", "unix:///nonexistent/docker.sock");
    Ran::from(command.output().unwrap())
}

/// The commands of a script as words, as a shell splits them; expansions stay as they are.
fn split_commands(script: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut rest = script.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                while let Some(inner) = rest.next().filter(|inner| *inner != c) {
                    match (c, inner) {
                        ('"', '\\') => word.extend(rest.next()),
                        _ => word.push(inner),
                    }
                }
            }
            '\\' => match rest.next() {
                Some('\n') | None => {}
                Some(next) => word.get_or_insert_default().push(next),
            },
            '#' if word.is_none() => while rest.next_if(|c| *c != '\n').is_some() {},
            ' ' | '\t' => commands.last_mut().unwrap().extend(word.take()),
            '\n' | '|' | '&' | ';' | '(' | ')' | '<' | '>' => {
                commands.last_mut().unwrap().extend(word.take());
                commands.push(Vec::new());
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    commands.last_mut().unwrap().extend(word);
    commands
}
