//! The groups of verbs in `osctl --help`.
//!
//! clap lists all subcommands under one heading, so the list with groups is part of the help template. Names come from
//! [`VERB_GROUPS`], descriptions from clap.

use clap::Command;
use std::fmt::Write as _;

/// The heading of the options that every verb accepts.
pub(super) const GLOBAL_OPTIONS_HEADING: &str = "Global options";

/// Each visible verb, in the group and order of the help.
const VERB_GROUPS: [(&str, &[&str]); 8] = [
    ("Start and stop", &["up", "down", "restart"]),
    (
        "Run code",
        &[
            "exec",
            "repl",
            "shell",
            "attach",
            "runs",
            "sessions",
            "interrupt",
            "reset",
        ],
    ),
    ("Files", &["cp"]),
    ("State", &["cryo", "criu"]),
    (
        "Packages and image",
        &["add", "remove", "packages", "init", "build", "evolve"],
    ),
    (
        "Tools and clients",
        &["mcp", "jupyter", "desktop", "screenshot"],
    ),
    ("Inspect", &["status", "ls", "activity", "logs", "doctor"]),
    ("Configure", &["config", "env", "completions"]),
];

/// The help template of the top level, with the verbs of `command` in groups.
pub(super) fn help_template(command: &Command) -> String {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let verbs = VERB_GROUPS.iter().flat_map(|(_, verbs)| *verbs);
    let width = verbs.map(|verb| verb.len()).max().unwrap_or_default();
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n\n");
    for (title, verbs) in VERB_GROUPS {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{header}{title}:{header:#}");
        for name in verbs {
            let verb = command.find_subcommand(name);
            let about = verb.and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{name:<width$}{literal:#}  {about}");
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{header}{GLOBAL_OPTIONS_HEADING}:{header:#}");
    text + "{options}{after-help}"
}

#[cfg(test)]
mod tests {
    use super::VERB_GROUPS;
    use crate::cli;
    use std::collections::BTreeSet;

    #[test]
    fn each_visible_verb_is_in_one_group() {
        let command = cli::clap_command();
        let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let visible: BTreeSet<&str> = visible.map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = VERB_GROUPS.iter().flat_map(|(_, v)| *v).copied().collect();
        assert_eq!(visible, grouped.iter().copied().collect());
        assert_eq!(visible.len(), grouped.len(), "a verb is in two groups");
    }
}
