//! Checks that the parts of a folder have no import cycles, directly or by way of others.
//!
//! A part is a file or folder directly in one of [`FOLDERS`]. The scan reads `use` declarations and paths in code. A
//! name that the folder's `mod.rs` or `lib.rs` re-exports counts as an import of the part that defines the name; any
//! other name of `mod.rs` counts as an import of `mod.rs`, which imports every part.

use crate::laws::{Source, sources};
use crate::trials;
use std::collections::{BTreeMap, BTreeSet};

trials![
    the_scan_of_imports_reads_every_form,
    no_part_of_a_folder_imports_itself,
];

const FOLDERS: [&str; 9] = [
    "cli",
    "command",
    "companion",
    "engine",
    "host",
    "image",
    "keeper",
    "osctl-hub",
    "osctl-hub/child",
];

/// For each part, the parts that it imports and a sentence about one of the imports.
type ImportGraph = BTreeMap<String, BTreeMap<String, String>>;

fn no_part_of_a_folder_imports_itself() {
    let sources = sources();
    let mut details = String::new();
    for folder in FOLDERS {
        let graph = import_graph(folder, &sources);
        assert!(graph.len() > 3, "the scan reads the wrong folder");
        for circle in find_circles(&graph) {
            details += &describe_circle(folder, &graph, &circle);
        }
    }
    assert!(details.is_empty(), "circles:\n{details}");
}

fn the_scan_of_imports_reads_every_form() {
    let code =
        "use super::a::{self, B as C};\nuse crate::x::{b::{D, e::F}, y};\nlet g = super::c::h();";
    let source = Source::for_test("x/file.rs", code);
    let found: BTreeSet<String> = imported_paths(&source)
        .iter()
        .map(|path| path.join("::"))
        .collect();
    let expected = [
        "x::a",
        "x::a::B",
        "x::b::D",
        "x::b::e::F",
        "x::c::h",
        "x::y",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());

    let sources = [
        ("x/mod.rs", "mod one;\nmod two;\nuse two::Thing;"),
        ("x/one.rs", "use super::Thing;"),
        ("x/two/mod.rs", "mod inner;"),
        ("x/two/inner.rs", "use crate::x::three;"),
        ("x/three.rs", "fn f() { super::one::f(); }"),
    ]
    .map(|(path, code)| Source::for_test(path, code));
    let circles = find_circles(&import_graph("x", &sources));
    assert_eq!(circles, [["one", "three", "two"].map(str::to_owned).into()]);
}

fn import_graph(folder: &str, sources: &[Source]) -> ImportGraph {
    let root: Vec<String> = folder.split('/').map(str::to_owned).collect();
    let test_modules = test_modules(sources);
    let inside = || {
        let inside = sources.iter().map(|source| (source, module_path(source)));
        inside.filter(|(_, module)| {
            let is_test = test_modules.iter().any(|test| module.starts_with(test));
            module.starts_with(&root) && !is_test
        })
    };
    let mut graph: ImportGraph = inside()
        .filter_map(|(_, module)| Some((module.get(root.len())?.clone(), BTreeMap::new())))
        .collect();
    let parts: BTreeSet<String> = graph.keys().cloned().collect();
    let reexports = reexports(&root, sources, &parts);
    let every_part = parts
        .iter()
        .map(|part| (part.clone(), "declares the part".into()));
    graph.insert("mod".into(), every_part.collect());
    for (source, module) in inside() {
        let Some(part) = module.get(root.len()) else {
            continue;
        };
        for path in imported_paths(source) {
            let Some(name) = path.get(root.len()).filter(|_| path.starts_with(&root)) else {
                continue;
            };
            let target = match parts.contains(name) {
                true => name.clone(),
                false => reexports.get(name).cloned().unwrap_or("mod".into()),
            };
            if target != *part {
                let why = format!("`{}` names `{}`", source.file, path.join("::"));
                graph.get_mut(part).unwrap().insert(target, why);
            }
        }
    }
    graph
}

/// The modules that only tests compile.
fn test_modules(sources: &[Source]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for source in sources {
        for declared in source.code.split("#[cfg(test)]\n").skip(1) {
            let line = declared.lines().next().unwrap_or_default();
            if let Some((_, name)) = line.trim_end_matches(';').split_once("mod ") {
                found.push([module_path(source), vec![name.to_owned()]].concat());
            }
        }
    }
    found
}

/// The names that the root file of this module imports, and their parts.
fn reexports(
    module: &[String],
    sources: &[Source],
    parts: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let is_root = |source: &&Source| module_path(source) == module;
    let source = sources.iter().find(is_root).unwrap();
    let imports = use_paths(&source.code).0.into_iter();
    let imports = imports.map(|path| match &*path[0] {
        "self" => path[1..].to_vec(),
        _ => path,
    });
    let own = imports.filter(|path| parts.contains(&path[0]));
    own.filter_map(|path| Some((path.last()?.clone(), path[0].clone())))
        .collect()
}

/// `companion::kernel` for `companion/kernel/mod.rs`, `osctl-hub` for `osctl-hub/lib.rs`.
fn module_path(source: &Source) -> Vec<String> {
    let path = source.path.trim_end_matches(".rs");
    let path = path.trim_end_matches("/mod").trim_end_matches("/lib");
    path.split('/').map(str::to_owned).collect()
}

/// The paths that the file names, from the root of osctl; for other crates behind the crate's name.
fn imported_paths(source: &Source) -> Vec<Vec<String>> {
    let (mut paths, rest) = use_paths(&source.code);
    paths.extend(inline_paths(&rest));
    let absolute = paths.into_iter().filter_map(|path| {
        let ups = path.iter().take_while(|word| *word == "super").count();
        match &*path[0] {
            "crate" => Some([&source.crate_name(), &path[1..]].concat()),
            "super" => {
                let mut module = module_path(source);
                module.truncate(module.len().saturating_sub(ups));
                Some([&module, &path[ups..]].concat())
            }
            _ => None,
        }
    });
    absolute.collect()
}

/// The paths of all `use` declarations, and the code without them.
fn use_paths(code: &str) -> (Vec<Vec<String>>, String) {
    let (mut paths, mut rest) = (Vec::new(), String::new());
    let mut declaration = String::new();
    for line in code.lines() {
        let words = line.trim_start();
        let is_use =
            words.starts_with("use ") || words.starts_with("pub") && words.contains(" use ");
        if declaration.is_empty() && !is_use {
            rest += line;
            rest.push('\n');
            continue;
        }
        declaration += words;
        if declaration.ends_with(';') {
            let tree = declaration.trim_end_matches(';');
            expand_use_tree(tree.split_once("use ").unwrap().1, &[], &mut paths);
            declaration.clear();
        }
    }
    (paths, rest)
}

/// Expands `a::{b, c::D}` to `a::b` and `a::c::D`.
fn expand_use_tree(tree: &str, before: &[String], paths: &mut Vec<Vec<String>>) {
    let (names, list) = match tree.split_once('{') {
        Some((names, list)) => (names, Some(list.strip_suffix('}').unwrap())),
        None => (tree.split(" as ").next().unwrap(), None),
    };
    let names = names.trim().split("::").filter(|name| !name.is_empty());
    let names = names
        .enumerate()
        .filter(|(at, name)| *name != "self" || *at > 0);
    let path: Vec<String> = before
        .iter()
        .cloned()
        .chain(names.map(|(_, name)| name.to_owned()))
        .collect();
    let Some(list) = list else {
        paths.push(path);
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in list.char_indices().chain([(list.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = list[start..at].trim();
                if !part.is_empty() {
                    expand_use_tree(part, &path, paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The paths in code that begin with `crate` or `super`.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let is_path = |letter: char| letter.is_alphanumeric() || "_:".contains(letter);
    let words = code.split(|letter| !is_path(letter));
    let words = words.filter(|word| {
        ["crate::", "super::"]
            .iter()
            .any(|start| word.starts_with(start))
    });
    words
        .map(|word| {
            let names = word.split("::").filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        })
        .collect()
}

/// The sets of parts that import each other, directly or by way of others.
fn find_circles(graph: &ImportGraph) -> Vec<BTreeSet<String>> {
    let reached = |from: &str| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(part) = next.pop() {
            for target in graph[&part].keys() {
                if reached.insert(target.clone()) {
                    next.push(target.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|part| (part, reached(part))).collect();
    let circles = graph.keys().filter_map(|part| {
        let both = reached[part]
            .iter()
            .filter(|other| reached[other].contains(part));
        let circle: BTreeSet<String> = both.cloned().collect();
        // Each circle once, at its first part.
        (circle.first() == Some(part)).then_some(circle)
    });
    circles.collect()
}

fn describe_circle(folder: &str, graph: &ImportGraph, circle: &BTreeSet<String>) -> String {
    let imports = circle.iter().flat_map(|part| {
        let within = graph[part]
            .iter()
            .filter(|(target, _)| circle.contains(*target));
        within.map(move |(target, why)| format!("  {part} → {target}: {why}\n"))
    });
    format!("{folder}:\n{}", imports.collect::<String>())
}
