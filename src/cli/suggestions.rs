//! Suggestions for words that are not verbs of osctl.
//!
//! clap suggests every similar name, also those of hidden verbs and aliases. This module keeps visible names only, and
//! replaces the suggestion for words of other programs with the right commands. An error shows the usage of the help;
//! clap would add the global options that are set.

use crate::error::nearest_name;
use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Characters of a verb or an option per edit, up to which it is suggested for an unknown word.
const CHARS_PER_VERB_EDIT: usize = 2;

/// Words that are first verbs of other programs, and the commands that do the same.
const WORD_TIPS: &[(&[&str], &[&str])] = &[
    (
        &["stop", "halt"],
        &[
            "`osctl down` stops and removes the container; saved state stays",
            "`osctl interrupt` interrupts running code",
            "`osctl evolve stop` cancels an evolve",
        ],
    ),
    (
        &["kill", "cancel"],
        &[
            "`osctl interrupt` interrupts running code",
            "`osctl sessions rm NAME` ends a session and its processes",
            "`osctl evolve stop` cancels an evolve",
            "`osctl down` stops and removes the container",
        ],
    ),
    (
        &["rm", "delete", "destroy"],
        &[
            "`osctl down` removes the container; saved state stays",
            "`osctl down --purge` also deletes the saved state",
            "`osctl sessions rm NAME` ends a session",
            "`osctl cryo rm NAME` removes stored variables",
            "`osctl remove NAME` removes packages",
        ],
    ),
    (
        &["uninstall"],
        &[
            "`osctl remove NAME` removes packages",
            "`osctl down --purge` removes the container and its state",
            "`osctl jupyter uninstall` removes the kernelspec",
            "`osctl mcp disconnect CLIENT` removes osctl from an MCP client",
        ],
    ),
    (
        &["run", "python", "python3", "ipython", "eval"],
        &[
            "`osctl exec CODE` and `osctl exec -f FILE` run Python",
            "`osctl repl` opens a Python console",
            "`osctl shell COMMAND` runs a command",
        ],
    ),
    (
        &["bash", "sh", "ssh", "terminal", "console"],
        &[
            "`osctl shell` opens a terminal",
            "`osctl shell COMMAND` runs a command",
        ],
    ),
    (
        &["install", "pip", "apt", "npm"],
        &[
            "`osctl add NAME` adds packages to the container and to its image",
            "`osctl jupyter install` adds a kernel to JupyterLab",
        ],
    ),
    (
        &["set", "setenv", "export"],
        &[
            "`osctl env set NAME` gives a variable to the container",
            "`osctl config edit` changes settings",
        ],
    ),
    (
        &["update", "upgrade", "rebuild"],
        &[
            "`osctl evolve` rebuilds from body/ and replaces the container",
            "`osctl init --update` updates body/ to this version of osctl",
        ],
    ),
    (
        &["create", "new"],
        &[
            "`osctl up` creates the container",
            "`osctl sessions create NAME` creates a session",
        ],
    ),
    (
        &["save", "store", "snapshot", "backup"],
        &[
            "`osctl cryo store` stores variables",
            "`osctl criu checkpoint` stores a whole kernel process",
        ],
    ),
    (
        &["load", "reload", "restore"],
        &[
            "`osctl cryo reload` reloads stored variables",
            "`osctl criu restore` restores a kernel process",
        ],
    ),
    (
        &["rollback", "undo", "revert"],
        &["`osctl evolve rollback` returns to the previous image"],
    ),
    (
        &["history", "jobs"],
        &[
            "`osctl activity` shows what clients ran, called and wrote",
            "`osctl runs` lists recent and running code",
            "`osctl evolve history` lists evolves",
        ],
    ),
    (
        &["open", "vnc", "browser", "view"],
        &["`osctl desktop` opens the desktop in a browser"],
    ),
    (
        &["connect", "disconnect", "tools", "servers", "call"],
        &[
            "`osctl mcp connect CLIENT` adds osctl to an MCP client",
            "`osctl mcp tools` lists the tools",
        ],
    ),
    (
        &["info", "inspect", "top", "stats"],
        &[
            "`osctl status` shows the instance",
            "`osctl doctor` checks the setup",
        ],
    ),
    (
        &["notebook", "lab"],
        &["`osctl jupyter install` connects JupyterLab to a session"],
    ),
    (
        &["clean", "prune", "clear"],
        &[
            "`osctl reset` clears the variables of a session",
            "`osctl down --purge` deletes the saved state",
        ],
    ),
];

/// As [`WORD_TIPS`], for the verbs after `osctl mcp`.
const MCP_WORD_TIPS: &[(&[&str], &[&str])] = &[(
    &["add", "install", "create", "new"],
    &[
        "`osctl config edit` opens your `osctl.yaml`: add the MCP server to `servers`, then run `osctl up`",
        "`osctl mcp connect CLIENT` adds osctl to an MCP client",
    ],
)];

/// Corrects the usage and the suggestions of a parse error: hidden verbs and aliases are not listed.
pub(super) fn correct_suggestions(error: &mut Error, command: &Command) {
    let parent = failed_command(error, command);
    if error.get(ContextKind::Usage).is_some() {
        let usage = parent.clone().render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    match error.kind() {
        ErrorKind::InvalidSubcommand => {}
        ErrorKind::MissingSubcommand => {
            let visible = parent.get_subcommands().filter(|verb| !verb.is_hide_set());
            let names = visible.map(|verb| verb.get_name().to_owned()).collect();
            error.insert(ContextKind::ValidSubcommand, ContextValue::Strings(names));
            return;
        }
        ErrorKind::UnknownArgument => return suggest_option(error, parent),
        _ => return,
    }
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => return,
    };
    let tips = match parent.get_name() {
        name if name == command.get_name() => word_tips(WORD_TIPS, &word),
        "mcp" => word_tips(MCP_WORD_TIPS, &word),
        _ => &[],
    };
    if !tips.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand);
        let tips = tips.iter().map(|tip| StyledStr::from(*tip)).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        return;
    }
    let names = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names,
        Some(ContextValue::String(name)) => vec![name],
        _ => Vec::new(),
    };
    // An empty list would leave an empty line in the message.
    error.remove(ContextKind::Suggested);
    let mut visible: Vec<String> = Vec::new();
    for name in names {
        let found = parent.find_subcommand(&name);
        let found = found.filter(|verb| !verb.is_hide_set());
        if let Some(name) = found.map(Command::get_name)
            && !visible.iter().any(|shown| shown == name)
        {
            visible.push(name.to_owned());
        }
    }
    // clap compares beginnings most: `ecex` means `exec`, and `statsu` does not mean `up`.
    let verbs = parent.get_subcommands().filter(|verb| !verb.is_hide_set());
    if let Some(nearest) = nearest_name(&word, verbs.map(Command::get_name), CHARS_PER_VERB_EDIT) {
        visible = vec![nearest.to_owned()];
    }
    if !visible.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(visible),
        );
    }
}

/// Suggests the nearest option, if clap suggests none: `--evn` means `--env`.
fn suggest_option(error: &mut Error, command: &Command) {
    if error.get(ContextKind::SuggestedArg).is_some() {
        return;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    let options = command
        .get_arguments()
        .filter(|option| !option.is_hide_set());
    let options = options.filter_map(clap::Arg::get_long);
    let word = word.trim_start_matches('-');
    if let Some(nearest) = nearest_name(word, options, CHARS_PER_VERB_EDIT) {
        let nearest = ContextValue::String(format!("--{nearest}"));
        error.insert(ContextKind::SuggestedArg, nearest);
    }
}

fn word_tips(all: &'static [(&[&str], &[&str])], word: &str) -> &'static [&'static str] {
    let found = all.iter().find(|(words, _)| words.contains(&word));
    found.map_or(&[], |(_, tips)| tips)
}

/// The command whose subcommand is unknown. The usage in the error names the command.
fn failed_command<'a>(error: &Error, command: &'a Command) -> &'a Command {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let words = usage.split_whitespace();
    let words = words.skip_while(|word| *word != command.get_name()).skip(1);
    words
        .map_while(|word| (!word.starts_with(['[', '<'])).then_some(word))
        .fold(command, |found, word| {
            found.find_subcommand(word).unwrap_or(found)
        })
}

#[cfg(test)]
mod tests {
    use super::WORD_TIPS;
    use crate::cli;
    use clap::Command;
    use clap::error::{ContextKind, ContextValue};
    use std::collections::BTreeSet;

    fn refused(words: &str) -> String {
        let words = format!("osctl {words}");
        let words = words.split(' ').map(Into::into);
        let error = cli::parse_args(words).unwrap_err();
        cli::describe_parse_error(&error, false)
    }

    #[test]
    fn a_hidden_verb_is_never_suggested() {
        let command = cli::clap_command();
        let hidden = command.get_subcommands().filter(|verb| verb.is_hide_set());
        let hidden: Vec<&str> = hidden.map(clap::Command::get_name).collect();
        assert!(hidden.contains(&"verify") && hidden.len() > 10);
        for name in &hidden {
            let typo = format!("{name}x");
            let error = refused(&typo);
            for name in &hidden {
                assert!(!error.contains(&format!("'{name}'")), "{typo}: {error}");
            }
        }
    }

    #[test]
    fn a_nearer_hidden_verb_does_not_replace_the_nearest_visible_one() {
        // clap suggests `abdc` for `badc`, and not `dabc`.
        let command = Command::new("osctl")
            .subcommand_required(true)
            .subcommand(Command::new("abdc").hide(true))
            .subcommand(Command::new("dabc"));
        let parsed = command.clone().try_get_matches_from(["osctl", "badc"]);
        let mut error = parsed.unwrap_err();
        super::correct_suggestions(&mut error, &command);
        assert_eq!(
            error.get(ContextKind::SuggestedSubcommand),
            Some(&ContextValue::Strings(vec!["dabc".into()]))
        );
    }

    #[test]
    fn a_typo_gets_the_visible_name() {
        assert!(refused("exce 1").contains("'exec'"));
        assert!(refused("ecex 1").contains("'exec'"));
        assert!(refused("statsu").contains("a similar subcommand exists: 'status'"));
        assert!(refused("up --evn A=b").contains("a similar argument exists: '--env'"));
        assert!(!refused("up --xyz").contains("hint:"));
        assert!(!refused("xyz").contains("hint:"));
        // `list` is a hidden alias.
        let error = refused("sessions lisst");
        assert!(
            error.contains("'ls'") && !error.contains("'list'"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_verb_lists_the_visible_verbs() {
        let error = refused("--instance a");
        assert!(
            error.contains("[subcommands: ") && !error.contains("quiesce"),
            "{error}"
        );
    }

    #[test]
    fn a_usage_line_has_no_global_option() {
        let error = refused("--instance a attach");
        assert!(
            error.contains("Usage: osctl attach [OPTIONS] <ID>\n"),
            "{error}"
        );
        let error = refused("--instance a --config b cryo show");
        assert!(
            error.contains("Usage: osctl cryo show [OPTIONS] <NAME>\n"),
            "{error}"
        );
        let error = refused("--instance a");
        assert!(
            error.contains("Usage: osctl [OPTIONS] <COMMAND>\n"),
            "{error}"
        );
    }

    #[test]
    fn words_of_other_programs_name_the_command() {
        assert!(refused("stop").contains("  hint: `osctl down` stops"));
        assert!(refused("delete").contains("`osctl down --purge`"));
        assert!(refused("run x.py").contains("`osctl exec -f FILE`"));
        assert!(refused("install polars").contains("`osctl add NAME`"));
        assert!(!refused("delete").contains("'reset'"));
        assert!(refused("mcp add x").contains("hint: `osctl config edit` opens"));
        assert!(!refused("mcp stop").contains("osctl down"));
        // Words of the top level mean something else elsewhere.
        assert!(!refused("cryo stop").contains("osctl down"));
    }

    #[test]
    fn words_with_tips_are_not_verbs_and_tips_name_verbs() {
        let command = cli::clap_command();
        let mut words = BTreeSet::new();
        for (names, tips) in WORD_TIPS {
            for name in *names {
                let is_visible = command
                    .find_subcommand(name)
                    .is_some_and(|v| !v.is_hide_set());
                assert!(!is_visible, "{name}");
                assert!(words.insert(name), "{name} is there twice");
            }
            for tip in *tips {
                let verbs: Vec<&str> = tip
                    .match_indices("`osctl ")
                    .filter_map(|(at, found)| tip[at + found.len()..].split([' ', '`']).next())
                    .collect();
                assert!(!verbs.is_empty(), "{tip}");
                for verb in verbs {
                    assert!(command.find_subcommand(verb).is_some(), "{tip}");
                }
            }
        }
    }
}
