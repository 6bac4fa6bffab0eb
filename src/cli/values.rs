//! Checks of values that clap's own parsers accept or describe in words of Rust: numbers and names.

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, Command};
use std::any::TypeId;
use std::str::FromStr;

/// Arguments that name one object, by their fields.
const NAME_ARGUMENTS: [&str; 9] = [
    "attach", "end", "id", "name", "run", "server", "service", "session", "tool",
];

/// The command with these checks in all its arguments and subcommands.
pub(super) fn with_checked_values(command: Command) -> Command {
    command
        .mut_args(with_checked_value)
        .mut_subcommands(with_checked_values)
}

fn with_checked_value(arg: Arg) -> Arg {
    let value_type = arg.get_value_parser().type_id();
    let is_name = NAME_ARGUMENTS.contains(&arg.get_id().as_str());
    if value_type == TypeId::of::<f64>() {
        arg.value_parser(parse_decimal)
    } else if value_type == TypeId::of::<u64>() {
        arg.value_parser(parse_whole::<u64>)
    } else if value_type == TypeId::of::<usize>() {
        arg.value_parser(parse_whole::<usize>)
    } else if is_name && value_type == TypeId::of::<String>() {
        arg.value_parser(NonEmptyStringValueParser::new())
    } else {
        arg
    }
}

fn parse_decimal(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or("expected a number such as 2.5")
}

fn parse_whole<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse()
        .map_err(|_| "expected a whole number such as 20")
}

#[cfg(test)]
mod tests {
    use crate::cli;

    fn refused(words: &[&str]) -> String {
        let words = [&["osctl"][..], words].concat();
        let error = cli::parse_args(words.into_iter().map(Into::into)).unwrap_err();
        cli::describe_parse_error(&error, false)
    }

    #[test]
    fn a_value_that_is_not_a_number_is_described() {
        for (words, expected) in [
            (
                &["exec", "1", "--timeout", "5s"][..],
                "'--timeout <SECONDS>': expected a number such as 2.5",
            ),
            (&["screenshot", "a.png", "--scale", "nan"], "such as 2.5"),
            (&["logs", "-n", "all"], "expected a whole number such as 20"),
            (
                &["cryo", "show", "a", "--generation", "1.5"],
                "a whole number",
            ),
            (&["attach", "a", "--offset", "x"], "a whole number"),
        ] {
            let error = refused(words);
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        let words = ["osctl", "exec", "1", "--timeout", "0.5"];
        assert!(cli::parse_args(words.map(Into::into)).is_ok());
    }

    #[test]
    fn an_empty_name_is_a_usage_error() {
        for words in [
            &["attach", ""][..],
            &["interrupt", ""],
            &["exec", "-s", "", "1"],
            &["sessions", "rm", ""],
            &["cryo", "rm", ""],
            &["criu", "rm", ""],
            &["evolve", "show", ""],
            &["logs", ""],
            &["mcp", "tools", ""],
            &["shell", "--end", ""],
            &["jupyter", "install", "--name", ""],
        ] {
            let error = refused(words);
            assert!(error.contains("a value is required for '"), "{error}");
        }
        assert!(cli::parse_args(["osctl", "exec", ""].map(Into::into)).is_ok());
    }
}
