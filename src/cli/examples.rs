//! The examples at the end of each help page.

use clap::Command;
use std::fmt::Write as _;

/// The words of each visible command after `osctl`, and its examples. A comment begins with `#`.
const COMMAND_EXAMPLES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "osctl up                      # start the container",
            "osctl exec 'print(6 * 7)'     # run Python; variables are kept",
            "osctl mcp connect claude-code # let Claude Code use the tools",
            "osctl exec --help             # options and examples of a command",
        ],
    ),
    (
        "up",
        &[
            "osctl up",
            "osctl up --yes --project ~/app",
            "osctl -i second up --move   # binds the instance `second` to this folder",
            "osctl up --env OPENAI_API_KEY --env MODE=test",
        ],
    ),
    (
        "down",
        &[
            "osctl down",
            "osctl down --force        # cancel a running evolve first",
            "osctl down --purge --yes  # delete the saved state, too",
        ],
    ),
    (
        "env",
        &[
            "osctl env set OPENAI_API_KEY --from-env",
            "osctl env ls",
            "osctl env rm OPENAI_API_KEY",
        ],
    ),
    (
        "env set",
        &[
            "osctl env set STRIPE_KEY            # asks for the value",
            "osctl env set MODE=test REGION=eu",
            "osctl env set OPENAI_API_KEY --from-env",
            "osctl env set DEPLOY_KEY < key.txt",
        ],
    ),
    ("env ls", &["osctl env ls", "osctl --json env ls"]),
    ("env rm", &["osctl env rm STRIPE_KEY MODE"]),
    ("restart", &["osctl restart", "osctl -i second restart"]),
    ("status", &["osctl status", "osctl --json status"]),
    (
        "logs",
        &[
            "osctl logs -n 50",
            "osctl logs -f kernel",
            "osctl logs mcp/filesystem",
        ],
    ),
    (
        "activity",
        &[
            "osctl activity --since 1h",
            "osctl activity -f --client claude-code",
            "osctl --json activity -n 20",
        ],
    ),
    ("ls", &["osctl ls", "osctl --json ls"]),
    (
        "build",
        &["osctl build", "osctl build --rebuild --project ~/app"],
    ),
    (
        "exec",
        &[
            "osctl exec 'x = 41; x + 1'",
            "osctl exec -f train.py --timeout 600",
            "osctl exec -f train.py -- --epochs 3",
            "echo 'print(x)' | osctl exec",
            "osctl exec -s experiment --detach 'train()'",
            "osctl exec -- '-x'            # code that begins with a hyphen",
        ],
    ),
    (
        "repl",
        &[
            "osctl repl                    # Tab completes, %debug inspects an error",
            "osctl repl -s experiment",
        ],
    ),
    (
        "shell",
        &[
            "osctl shell                   # open a terminal",
            "osctl shell ls -la /repo",
            "osctl shell 'cd /repo && git status | head'",
            "osctl shell --list",
            "osctl shell --end 4fcf9e7e",
            "osctl shell --attach          # return to the last used terminal",
        ],
    ),
    (
        "attach",
        &[
            "osctl attach 87f97a2b6800e28e",
            "osctl attach 87f9             # the first characters of the ID",
            "osctl attach 87f9 --out figures",
        ],
    ),
    (
        "runs",
        &["osctl runs", "osctl runs --running", "osctl --json runs"],
    ),
    ("sessions", &["osctl sessions", "osctl sessions create b"]),
    ("sessions ls", &["osctl sessions ls"]),
    (
        "sessions create",
        &["osctl sessions create b", "osctl exec -s b 'x = 1'"],
    ),
    ("sessions rm", &["osctl sessions rm b"]),
    (
        "interrupt",
        &[
            "osctl interrupt",
            "osctl interrupt -s experiment",
            "osctl interrupt 87f9          # the first characters of a run ID",
        ],
    ),
    (
        "reset",
        &["osctl reset", "osctl reset -s experiment --restart"],
    ),
    (
        "cp",
        &[
            "osctl cp data.csv os:/root/",
            "osctl cp os:/root/results .",
            "osctl cp os:/root/results - | tar -t",
            "pg_dump db | osctl cp - os:/root/db.sql",
        ],
    ),
    (
        "criu",
        &[
            "osctl criu status",
            "osctl criu checkpoint",
            "osctl criu restore",
        ],
    ),
    (
        "criu checkpoint",
        &[
            "osctl criu checkpoint",
            "osctl criu checkpoint before -s experiment --leave-running",
        ],
    ),
    (
        "criu restore",
        &[
            "osctl criu restore",
            "osctl criu restore before --generation 2",
        ],
    ),
    ("criu status", &["osctl criu status"]),
    ("criu ls", &["osctl criu ls"]),
    ("criu rm", &["osctl criu rm before"]),
    (
        "cryo",
        &["osctl cryo store", "osctl cryo ls", "osctl cryo reload"],
    ),
    (
        "cryo store",
        &[
            "osctl cryo store",
            "osctl cryo store before-refactoring --strict",
            "osctl cryo store --dry-run    # print the receipt only",
        ],
    ),
    (
        "cryo reload",
        &[
            "osctl cryo reload",
            "osctl cryo reload before-refactoring -s experiment",
        ],
    ),
    ("cryo ls", &["osctl cryo ls"]),
    (
        "cryo show",
        &[
            "osctl cryo show default",
            "osctl cryo show default --generation 3",
        ],
    ),
    (
        "cryo rm",
        &[
            "osctl cryo rm default",
            "osctl cryo rm default --generation 3",
        ],
    ),
    (
        "evolve",
        &[
            "osctl evolve --reason 'add graphviz'",
            "osctl evolve --dry-run        # build and test only",
            "osctl evolve status",
            "osctl evolve rollback",
        ],
    ),
    ("evolve stop", &["osctl evolve stop"]),
    ("evolve status", &["osctl evolve status"]),
    ("evolve history", &["osctl evolve history"]),
    (
        "evolve rollback",
        &[
            "osctl evolve rollback",
            "osctl evolve rollback 20261120-193600 --reason 'worked before'",
        ],
    ),
    (
        "evolve show",
        &[
            "osctl evolve show last",
            "osctl evolve show 20261120-193600",
        ],
    ),
    (
        "evolve logs",
        &["osctl evolve logs -f last", "osctl evolve logs 20261120-19"],
    ),
    ("evolve diff", &["osctl evolve diff last"]),
    (
        "mcp",
        &[
            "osctl mcp connect claude-code",
            "osctl mcp ls",
            "osctl mcp tools filesystem",
        ],
    ),
    ("mcp ls", &["osctl mcp ls"]),
    ("mcp status", &["osctl mcp status"]),
    (
        "mcp tools",
        &["osctl mcp tools", "osctl --json mcp tools filesystem"],
    ),
    (
        "mcp call",
        &[
            "osctl mcp call filesystem read_text_file path=/root/host/notes.txt",
            "osctl mcp call filesystem list_directory '{\"path\": \"/root\"}'",
        ],
    ),
    (
        "mcp stdio",
        &["osctl mcp stdio", "osctl mcp stdio --servers os,filesystem"],
    ),
    (
        "mcp connect",
        &[
            "osctl mcp connect",
            "osctl mcp connect claude-code",
            "osctl mcp connect cursor --dry-run",
            "osctl mcp connect vscode --profile full",
            "osctl mcp connect claude-code --scope project",
            "osctl mcp connect codex --yes --tools 'os__*'",
        ],
    ),
    ("mcp disconnect", &["osctl mcp disconnect claude-code"]),
    (
        "desktop",
        &[
            "osctl desktop",
            "osctl desktop --url           # print the link",
            "osctl desktop --resolution 1920x1080",
        ],
    ),
    (
        "screenshot",
        &[
            "osctl screenshot screen.png",
            "osctl screenshot part.png --region 0,0,800,600 --scale 0.5",
        ],
    ),
    ("jupyter", &["osctl jupyter install", "osctl jupyter ls"]),
    (
        "jupyter install",
        &[
            "osctl jupyter install",
            "osctl jupyter install -s experiment --prefix .venv",
        ],
    ),
    ("jupyter uninstall", &["osctl jupyter uninstall"]),
    ("jupyter ls", &["osctl jupyter ls"]),
    (
        "add",
        &[
            "osctl add polars",
            "osctl add 'pandas[excel]' scipy==1.16.3",
            "osctl add --apt graphviz",
            "osctl add --npm prettier",
        ],
    ),
    (
        "remove",
        &["osctl remove polars", "osctl remove --apt graphviz"],
    ),
    ("packages", &["osctl packages", "osctl packages lock"]),
    ("packages ls", &["osctl packages ls"]),
    (
        "packages lock",
        &["osctl packages lock           # after an edit of osctl.yaml"],
    ),
    (
        "init",
        &[
            "osctl init",
            "osctl init --full             # all files of the image",
            "osctl init --update ~/app",
        ],
    ),
    ("doctor", &["osctl doctor", "osctl doctor --fix"]),
    ("config", &["osctl config", "osctl config edit"]),
    ("config show", &["osctl config show"]),
    ("config path", &["osctl config path"]),
    ("config edit", &["EDITOR=nano osctl config edit"]),
    ("config init", &["osctl config init"]),
    (
        "completions",
        &[
            "osctl completions bash > ~/.local/share/bash-completion/completions/osctl",
            "source <(osctl completions zsh)",
        ],
    ),
];

/// Adds the examples to the help of `command` and its subcommands; `words` are the words after `osctl`.
pub(super) fn with_examples(command: Command, words: &str) -> Command {
    let header = *command.get_styles().get_header();
    let found = COMMAND_EXAMPLES.iter().find(|(name, _)| *name == words);
    let command = match found {
        None => command,
        Some((_, examples)) => {
            let mut text = format!("{header}Examples:{header:#}");
            for example in *examples {
                // Writing into a string does not fail.
                let _ = write!(text, "\n  {example}");
            }
            command.after_help(text)
        }
    };
    command.mut_subcommands(|below| {
        let words = match words {
            "" => below.get_name().to_owned(),
            words => format!("{words} {}", below.get_name()),
        };
        with_examples(below, &words)
    })
}

#[cfg(test)]
mod tests {
    use super::COMMAND_EXAMPLES;
    use crate::cli;
    use clap::Command;
    use std::collections::BTreeSet;

    const MAX_HELP_COLUMNS: usize = 80;

    /// The words and the help, as `-h` and as `--help` print it, of each visible command.
    fn pages(mut command: Command, words: String, found: &mut Vec<(String, [String; 2])>) {
        let help = command.render_help().to_string();
        let long = command.render_long_help().to_string();
        let below = command.get_subcommands();
        let below = below.filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
        for below in below.cloned().collect::<Vec<_>>() {
            let words = format!("{words} {}", below.get_name());
            pages(below, words.trim_start().to_owned(), found);
        }
        found.push((words, [help, long]));
    }

    fn all_pages() -> Vec<(String, [String; 2])> {
        let mut command = cli::clap_command();
        command.build();
        let mut found = Vec::new();
        pages(command, String::new(), &mut found);
        assert!(found.len() > 50, "{}", found.len());
        found
    }

    #[test]
    fn each_help_page_has_examples_and_global_options_last() {
        let mut names = BTreeSet::new();
        for (words, texts) in all_pages() {
            for text in &texts {
                let at = |heading: &str| text.find(&format!("\n{heading}:\n"));
                let (global, examples) = (at("Global options"), at("Examples"));
                assert!(global.is_some() && global < examples, "{words}: {text}");
                assert!(at("Options") < global, "{words}: {text}");
                let own = &text[..global.unwrap_or_default()];
                assert!(!own.contains("--instance"), "{words}: {text}");
            }
            names.insert(words);
        }
        let listed: BTreeSet<String> = COMMAND_EXAMPLES.iter().map(|(w, _)| (*w).into()).collect();
        assert_eq!(names, listed);
        assert_eq!(names.len(), COMMAND_EXAMPLES.len());
    }

    #[test]
    fn each_help_line_fits_eighty_columns() {
        for (words, texts) in all_pages() {
            for line in texts.iter().flat_map(|text| text.lines()) {
                let width = line.chars().count();
                assert!(width <= MAX_HELP_COLUMNS, "{words}: {width}: {line}");
            }
        }
    }

    #[test]
    fn an_example_is_in_one_line() {
        for (words, examples) in COMMAND_EXAMPLES {
            for example in *examples {
                let width = example.chars().count() + 2;
                assert!(width <= MAX_HELP_COLUMNS, "{width}: {example}");
                let is_of_command = example.contains(&format!("osctl {words}"));
                let has_options = example.contains("osctl -");
                assert!(
                    is_of_command || has_options || *words == "sessions create",
                    "{example}"
                );
            }
        }
    }
}
