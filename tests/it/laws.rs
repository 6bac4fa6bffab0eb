//! The laws of the architecture, checked in the text of each source file. Between the crates, the compiler checks them.

use crate::trials;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

trials![
    each_layer_names_only_what_it_may,
    the_settings_of_the_companion_name_no_part,
    each_variable_of_the_host_is_read_in_the_container,
    each_library_is_used_only_in_its_place,
    only_the_listed_modules_of_the_host_write_files,
    only_the_listed_modules_of_the_host_read_files,
    only_the_printer_prints_and_only_main_ends_the_process,
    no_path_climbs_and_no_glob_hides_names,
    no_lock_can_be_poisoned,
    whole_files_are_replaced_in_one_place,
    each_growing_delay_is_a_backoff,
    the_host_reads_no_answer_without_a_bound,
    the_token_is_sent_from_one_place,
    only_the_users_code_and_programs_get_unsanitized_text,
    no_file_has_too_many_lines,
    every_dependency_has_its_reason,
];

/// A source file: its place, and its code without tests and comments.
#[derive(Debug)]
pub(crate) struct Source {
    /// The path below `src`, for other crates than osctl behind the crate's name: `osctl-archive/pack.rs`.
    pub(crate) path: String,
    /// The path in the repository.
    pub(crate) file: String,
    pub(crate) code: String,
    lines: usize,
}

pub(crate) fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(Path::new("src"), Path::new("src"), "", &mut found);
    for member in crates() {
        let folder = Path::new("crates").join(&member).join("src");
        collect(&folder, &folder, &format!("{member}/"), &mut found);
    }
    assert!(found.len() > 30, "the scan reads the wrong folder");
    found
}

/// The names of the crates besides osctl.
fn crates() -> Vec<String> {
    let folders = fs::read_dir("crates").unwrap();
    let names = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
    names.collect()
}

fn collect(root: &Path, folder: &Path, prefix: &str, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.is_dir() {
            collect(root, &file, prefix, found);
        } else if file.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("mod tests {").next().unwrap();
            let code: Vec<&str> = code
                .lines()
                .filter(|l| !l.trim_start().starts_with("//"))
                .collect();
            let path = file.strip_prefix(root).unwrap().display();
            found.push(Source {
                path: format!("{prefix}{path}"),
                file: file.display().to_string(),
                code: code.join("\n"),
                lines: text.lines().count(),
            });
        }
    }
}

impl Source {
    pub(crate) fn for_test(path: &str, code: &str) -> Self {
        Self {
            path: path.into(),
            file: path.into(),
            code: code.into(),
            lines: code.lines().count(),
        }
    }

    /// The top-level module of the file, or its crate.
    fn layer(&self) -> &str {
        self.path.split('/').next().unwrap().trim_end_matches(".rs")
    }

    /// The crate's name, for the crates that have one in `path`.
    pub(crate) fn crate_name(&self) -> Vec<String> {
        let is_member = self.file.starts_with("crates/");
        let name = is_member.then(|| self.layer().to_owned());
        name.into_iter().collect()
    }

    /// The modules of the crate, and the crates of the workspace, that the file names.
    fn names(&self) -> BTreeSet<String> {
        let words = self
            .code
            .match_indices("crate::")
            .map(|(at, found)| &self.code[at + found.len()..]);
        let word = |rest: &str| {
            rest.chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect()
        };
        let mut named: BTreeSet<String> = words.clone().map(word).collect();
        // `use crate::{a, b::c};`
        for list in words.filter_map(|rest| rest.strip_prefix('{')?.split('}').next()) {
            named.extend(list.split(',').map(|part| word(part.trim())));
        }
        named.remove("");
        let members = crates().into_iter().map(|name| name.replace('-', "_"));
        named.extend(members.filter(|name| self.uses(name)));
        named
    }

    /// Whether the whole file is a test.
    fn is_test(&self) -> bool {
        self.path.ends_with("tests.rs") || self.path.contains("/tests/")
    }

    fn uses(&self, library: &str) -> bool {
        let mut rest = self.code.as_str();
        while let Some(at) = rest.find(library) {
            let before = rest[..at].chars().next_back();
            let after = &rest[at + library.len()..];
            let is_word = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':');
            if is_word && after.starts_with("::") {
                return true;
            }
            rest = after;
        }
        false
    }
}

fn each_layer_names_only_what_it_may() {
    let allowed = |layer: &str| -> &[&str] {
        match layer {
            "main" => &["osctl"],
            "lib" => &[
                "cli",
                "command",
                "error",
                "log_output",
                "osctl_support",
                "ui",
            ],
            "cli" => &["command", "error"],
            "command" => &[
                "archive",
                "cli",
                "companion",
                "config",
                "engine",
                "error",
                "host",
                "image",
                "keeper",
                "log_output",
                "protocol",
                "supervise",
                "ui",
            ],
            "host" => &[
                "archive",
                "atomic_write",
                "backoff",
                "config",
                "engine",
                "error",
                "image",
                "protocol",
                "replacement",
            ],
            "companion" => &[
                "archive",
                "atomic_write",
                "backoff",
                "error",
                "model_checker",
                "osctl_hub",
                "osctl_support",
                "protocol",
                "supervise",
            ],
            "engine" => &["atomic_write", "error", "protocol"],
            "image" => &["archive", "error", "protocol"],
            "keeper" => &[
                "atomic_write",
                "backoff",
                "engine",
                "error",
                "image",
                "model_checker",
                "protocol",
                "replacement",
            ],
            "replacement" => &["engine", "error", "protocol"],
            "config" => &["error", "protocol"],
            "ui" => &["engine", "error", "protocol"],
            "error" => &["protocol"],
            // `model_checker` is only for the tests.
            "log_output" | "model_checker" => &[],
            other => panic!("`{other}` is a layer without a law"),
        }
    };
    // The manifests say what the other crates name.
    let sources = sources().into_iter();
    for source in sources.filter(|source| source.file.starts_with("src")) {
        let layer = source.layer().to_owned();
        for name in source.names() {
            let fine = name == layer || allowed(&layer).contains(&name.as_str());
            assert!(
                fine,
                "`{}` names `crate::{name}`, which `{layer}` may not",
                source.file
            );
        }
    }
}

/// The parts read their own limits with the functions of this file.
fn the_settings_of_the_companion_name_no_part() {
    let sources = sources();
    let settings = sources.iter().find(|s| s.path == "companion/settings.rs");
    let code = &settings.unwrap().code;
    assert!(!code.contains("super::") && !code.contains("crate::companion"));
}

/// A variable that only the host names would have no effect, without an error.
fn each_variable_of_the_host_is_read_in_the_container() {
    let sources = sources();
    let named_in = |places: &[&str]| -> BTreeSet<&str> {
        let files = sources
            .iter()
            .filter(|source| places.iter().any(|place| source.path.starts_with(place)));
        let literals = files.flat_map(|source| source.code.split('"'));
        literals.filter(|word| word.starts_with("OSCTL_")).collect()
    };
    let set = named_in(&["host/container_spec.rs", "engine/embedded.rs"]);
    let kernel = fs::read_to_string("body/kernel/main.py").unwrap();
    let mut read = named_in(&["companion/"]);
    read.extend(kernel.split('"'));
    let unread: Vec<_> = set.difference(&read).collect();
    assert!(set.len() > 20 && unread.is_empty(), "not read: {unread:?}");
}

fn each_library_is_used_only_in_its_place() {
    let places: &[(&str, &[&str])] = &[
        ("bollard", &["engine/docker/"]),
        (
            "axum",
            &[
                "companion/http/",
                "companion/refusal_table/",
                "osctl-hub/transport/",
                "osctl-support/api/",
            ],
        ),
        (
            "hyper",
            &[
                "companion/http/",
                "companion/desktop/cdp.rs",
                "engine/docker/fake_engine/",
                "host/token_proof.rs",
            ],
        ),
        ("x11rb", &["companion/display/"]),
        ("fast_image_resize", &["companion/display/capture.rs"]),
        ("des", &["companion/desktop/rfb.rs"]),
        ("open", &["command/desktop.rs"]),
        ("utoipa_axum", &["companion/http/"]),
        (
            "reqwest",
            &[
                "host/bounded_response.rs",
                "host/activity.rs",
                "host/archives.rs",
                "host/bridge/",
                "host/client.rs",
                "host/client/",
                "host/display.rs",
                "host/events.rs",
                "host/files.rs",
                "host/mcp.rs",
                "host/progress_stream.rs",
                "host/user_environment.rs",
                "osctl-hub/child/remote/",
            ],
        ),
        (
            "tokio_tungstenite",
            &["host/terminal/", "companion/desktop/page.rs"],
        ),
        ("rmcp", &["companion/os_tools/"]),
        (
            "schemars",
            &[
                "command/answers/",
                "command/instance_status.rs",
                "companion/os_tools/",
                "config/mod.rs",
                "image/body.rs",
                "osctl-protocol/",
                "ui/mod.rs",
            ],
        ),
        ("jsonc_parser", &["host/connect/json.rs"]),
        ("toml_edit", &["host/connect/toml.rs"]),
        (
            "similar",
            &[
                "companion/os_tools/text_edit.rs",
                "host/connect/change.rs",
                "keeper/run_diff.rs",
            ],
        ),
        ("zeromq", &["host/jupyter/"]),
        (
            "hmac",
            &[
                "host/jupyter/",
                "companion/desktop/one_time_tokens.rs",
                "osctl-protocol/proof.rs",
            ],
        ),
        (
            "chrono",
            &[
                "command/answers/",
                "command/format.rs",
                "host/jupyter/",
                "keeper/run_store.rs",
                "osctl-protocol/display.rs",
            ],
        ),
        ("clap", &["cli.rs", "cli/", "command/"]),
        ("clap_complete", &["cli.rs", "command/", "lib.rs"]),
        ("clap_mangen", &["command/man.rs"]),
        ("indicatif", &["ui/"]),
        ("dialoguer", &["ui/"]),
        ("console", &["ui/", "companion/service/log_lines.rs"]),
        (
            "reedline",
            &["command/repl/history.rs", "command/repl/prompt.rs"],
        ),
        (
            "nu_ansi_term",
            &["command/repl/highlight.rs", "command/repl/prompt.rs"],
        ),
        (
            "png",
            &["ui/picture/sixel.rs", "companion/display/capture.rs"],
        ),
        ("icy_sixel", &["ui/picture/sixel.rs"]),
        ("tar", &["image/", "osctl-archive/"]),
        ("directories", &["host/folders.rs"]),
        (
            "nix",
            &[
                "companion/",
                "config/layers.rs",
                "engine/docker/address.rs",
                "engine/embedded.rs",
                "host/disk.rs",
                "host/path_resolver/tests.rs",
                "host/provision.rs",
                "image/resource_watch.rs",
                "keeper/",
                "osctl-archive/",
                "osctl-hub/child/",
                "osctl-supervise/",
                "ui/picture/terminal_query.rs",
                "ui/screen/raw.rs",
            ],
        ),
    ];
    for source in sources() {
        for (library, allowed) in places {
            let fine =
                !source.uses(library) || allowed.iter().any(|place| source.path.starts_with(place));
            assert!(
                fine,
                "`{}` names `{library}`, which belongs in {allowed:?}",
                source.file
            );
        }
    }
}

/// Where an agent may write, `archive::Folder` writes, by descriptors; `host/path_resolver` opens that folder.
/// These modules write by paths, in folders that no agent writes.
fn only_the_listed_modules_of_the_host_write_files() {
    let owners = [
        // The history of the console, in osctl's own state.
        "command/repl/history.rs",
        // The root of a base image, in osctl's own state.
        "host/base.rs",
        // Configurations of MCP clients, in the user's home.
        "host/connect/change.rs",
        // The folders of an instance, which it creates and closes to other users.
        "host/folders.rs",
        // An instance's record and lock in osctl's own state; `down --purge` removes its data.
        "host/instance.rs",
        // Kernelspecs; `check_kernels_folder` refuses a folder that an agent writes.
        "host/jupyter/kernelspec.rs",
        // The engine's log, in osctl's own state.
        "host/provision.rs",
        // The two folders that an instance shares with its container, which it creates.
        "host/up.rs",
        // A resume point in osctl's own state, and a temporary folder.
        "host/remote.rs",
        // Tokens and records, in osctl's own state; the data folder is created.
        "host/secrets.rs",
    ];
    let writes = [
        "fs::write",
        "fs::copy",
        "fs::rename",
        "fs::hard_link",
        "fs::create_dir",
        "fs::remove_",
        "fs::set_permissions",
        "File::create",
        "File::options",
        "OpenOptions",
        "DirBuilder",
        "atomic_write(",
        "atomic_write_as(",
        "tempfile::",
        "unix::fs::symlink",
    ];
    for source in sources() {
        let is_host =
            ["host", "command"].contains(&source.layer()) || source.path == "image/body.rs";
        if !is_host || source.is_test() || owners.contains(&source.path.as_str()) {
            continue;
        }
        for word in writes {
            // The name of a type alone writes nothing.
            let code = source.code.replace("use tempfile::TempDir;", "");
            assert!(
                !code.contains(word),
                "`{}` has `{word}`: resolve the path with `PathResolver`, and write with `Folder`",
                source.file
            );
        }
    }
}

/// Where an agent may write, `PathResolver` opens what the user names, and `archive::Folder` reads below it,
/// through no link. These modules read by paths, in places that no agent writes.
fn only_the_listed_modules_of_the_host_read_files() {
    let owners = [
        // The history of the console, in osctl's own state.
        "command/repl/history.rs",
        // The user's own file, which `check_config_file` has checked; the project's is read through no link.
        "config/layers.rs",
        // What `up` has found, in osctl's own state.
        "host/autorun/mod.rs",
        // The root of a base image, in osctl's own state, and the system's list of mounts.
        "host/base.rs",
        // Configurations of MCP clients, in the user's home.
        "host/connect/change.rs",
        // An instance's record, in osctl's own state.
        "host/instance.rs",
        // The file that Jupyter names when it starts the kernel, in Jupyter's runtime folder.
        "host/jupyter/connection.rs",
        // What the user names in a folder that no agent writes.
        "host/path_resolver/mod.rs",
        // The system's tables of sockets and processes.
        "host/ports.rs",
        // The engine's log, in osctl's own state.
        "host/provision.rs",
        // Tokens, in osctl's own state.
        "host/secrets.rs",
        // Certificate authorities that an administrator added, in folders of the system.
        "host/proxies_and_ca.rs",
        // The variables of `osctl env`, in osctl's own state.
        "host/user_environment.rs",
    ];
    let reads = ["fs::read(", "fs::read_to_string(", "File::open("];
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for source in sources() {
        let is_host = ["host", "command", "config"].contains(&source.layer());
        if !is_host || source.is_test() {
            continue;
        }
        for word in reads.iter().filter(|word| source.code.contains(**word)) {
            let owner = owners.iter().find(|owner| **owner == source.path);
            used.extend(owner);
            assert!(
                owner.is_some(),
                "`{}` has `{word}`: resolve the path with `PathResolver`, and read with `Folder`",
                source.file
            );
        }
    }
    let unused: Vec<_> = owners
        .iter()
        .filter(|owner| !used.contains(*owner))
        .collect();
    assert!(unused.is_empty(), "{unused:?} read nothing by paths");
}

fn only_the_printer_prints_and_only_main_ends_the_process() {
    for source in sources() {
        for word in [
            "println!",
            "eprintln!",
            "print!(",
            "eprint!(",
            "io::stdout()",
            "process::exit",
        ] {
            // Tests print the traces that they find.
            let may_print = source.path.starts_with("ui/") || source.path == "model_checker.rs";
            let fine = may_print || !source.code.contains(word);
            assert!(fine, "`{}` says `{word}`", source.file);
        }
    }
}

fn no_path_climbs_and_no_glob_hides_names() {
    for source in sources() {
        for word in [
            "super::super::",
            "use super::*",
            "#[allow(",
            "unimplemented!",
            "todo!",
        ] {
            assert!(
                !source.code.contains(word),
                "`{}` has `{word}`",
                source.file
            );
        }
    }
}

/// The rest of the code names neither a temporary file of `tempfile` nor the rename, and writes no file in place.
fn whole_files_are_replaced_in_one_place() {
    let writers_in_place = [
        // The history of the console, whose file an editor has open.
        "command/repl/history.rs",
        // A value for the kernel.
        "companion/criu/pid_reservation.rs",
        "osctl-supervise/supervisor.rs",
        // An image and a container of the embedded engine, before they get their name.
        "engine/embedded.rs",
        // The root of a base image, before it gets its name.
        "host/base.rs",
    ];
    for source in sources() {
        let path = source.path.as_str();
        if path == "osctl-support/atomic_write.rs" || source.is_test() {
            continue;
        }
        let mut words = vec!["NamedTempFile", ".persist("];
        words.extend((!writers_in_place.contains(&path)).then_some("fs::write("));
        for word in words {
            let file = &source.file;
            let has_word = source.code.contains(word);
            assert!(!has_word, "`{file}` has `{word}`: call `atomic_write`");
        }
    }
}

fn each_growing_delay_is_a_backoff() {
    for source in sources() {
        for word in [
            "_DELAY *",
            "delay *",
            "DELAY.saturating_mul",
            "delay.saturating_mul",
        ] {
            let file = &source.file;
            let has_word = source.code.contains(word);
            assert!(!has_word, "`{file}` has `{word}`: call `Backoff`");
        }
    }
}

/// `parking_lot` has the locks; those of the standard library return a `PoisonError` after a panic.
fn no_lock_can_be_poisoned() {
    for source in sources() {
        for line in source.code.lines() {
            let is_std = line.contains("std::sync::") && !line.contains("tokio::sync::");
            let is_lock = ["Mutex", "RwLock", "Condvar"]
                .iter()
                .any(|word| line.contains(word));
            assert!(
                !(is_std && is_lock),
                "`{}` has `{}`: take the lock of `parking_lot`",
                source.file,
                line.trim()
            );
        }
    }
}

fn the_host_reads_no_answer_without_a_bound() {
    for source in sources().iter().filter(|s| s.layer() == "host") {
        for word in [
            ".json()",
            ".json::<",
            ".bytes().await",
            ".text().await",
            ".bytes_stream()",
        ] {
            assert!(
                !source.code.contains(word),
                "`{}` has `{word}`; `host/bounded_response.rs` reads bodies",
                source.file
            );
        }
    }
}

fn the_token_is_sent_from_one_place() {
    for source in sources() {
        for word in ["bearer_auth", "Client::builder()"] {
            let place = ["host/client.rs", "companion/", "osctl-hub/"];
            let fine = place.iter().any(|place| source.path.starts_with(place));
            assert!(
                fine || !source.code.contains(word),
                "`{}` has `{word}`",
                source.file
            );
        }
    }
}

fn only_the_users_code_and_programs_get_unsanitized_text() {
    let places = [
        "command/completions.rs",
        "command/cp/",
        "command/follow.rs",
        "command/keeper.rs",
        "command/mcp/stdio.rs",
        "command/relay.rs",
        "command/shell_command.rs",
        "ui/",
    ];
    let sources = sources();
    for word in [
        "ui.print_data(",
        "ui.print_stderr(",
        "ui.stdout_writer()",
        "ui.stderr_writer()",
    ] {
        let users = || sources.iter().filter(|source| source.code.contains(word));
        assert!(users().next().is_some(), "`{word}` has another name");
        for source in users() {
            assert!(
                places.iter().any(|place| source.path.starts_with(place)),
                "`{}` has `{word}`, which sanitizes nothing",
                source.file
            );
        }
    }
}

fn no_file_has_too_many_lines() {
    for source in sources() {
        assert!(
            source.lines <= 600,
            "`{}` has {} lines: split it",
            source.file,
            source.lines
        );
    }
}

/// The reason of a dependency of several crates is in the table of the workspace.
fn every_dependency_has_its_reason() {
    let members = crates().into_iter();
    let mut manifests: Vec<_> = members.map(|m| format!("crates/{m}/Cargo.toml")).collect();
    manifests.push("Cargo.toml".into());
    let mut seen = 0;
    for manifest in manifests {
        let text = fs::read_to_string(&manifest).unwrap();
        let mut section = "";
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if line.starts_with('[') {
                section = line;
            } else if section.contains("dependencies]") && line.contains('=') {
                seen += 1;
                let has_reason = line.contains(" # ") || line.ends_with(".workspace = true");
                assert!(has_reason, "no reason beside `{line}` in {manifest}");
            }
        }
    }
    assert!(seen > 20);
}
