//! The lines of a run's log: plain text that people read, and that tells the host the progress of the run.
//!
//! The keeper writes the lines and the host reads them. Output of the body and the container never becomes a stage or a
//! step, also when it has several lines: the agent can't fake the progress of an evolve.

use crate::text_sanitizer::{sanitize_line, sanitize_text};

const STAGE_MARK: &str = "== ";
const STEP_MARK: &str = "-- ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunLogLine<'a> {
    /// A stage begins.
    Stage(&'a str),
    /// A step of the stage begins.
    Step(&'a str),
    /// What a step reports.
    Output(&'a str),
}

impl<'a> RunLogLine<'a> {
    pub fn parse(line: &'a str) -> Self {
        if let Some(stage) = line.strip_prefix(STAGE_MARK) {
            Self::Stage(stage)
        } else if let Some(step) = line.strip_prefix(STEP_MARK) {
            Self::Step(step)
        } else {
            Self::Output(line)
        }
    }

    /// The sanitized text in the log, without the last line end. Output that reads as a stage or a step is indented.
    pub fn to_text(self) -> String {
        match self {
            Self::Stage(stage) => format!("{STAGE_MARK}{}", sanitize_line(stage)),
            Self::Step(step) => format!("{STEP_MARK}{}", sanitize_line(step)),
            Self::Output(text) => {
                let text = sanitize_text(text);
                let lines = text.split('\n').map(|line| match RunLogLine::parse(line) {
                    RunLogLine::Output(_) => line.to_owned(),
                    _ => format!(" {line}"),
                });
                lines.collect::<Vec<_>>().join("\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RunLogLine::{self, Output, Stage, Step};
    use proptest::prelude::any;

    #[test]
    fn each_line_is_written_and_read() {
        for (line, text) in [
            (Stage("building"), "== building"),
            (Step("reading the body"), "-- reading the body"),
            (Step("a\n== succeeded"), "-- a == succeeded"),
            (
                Output("a\x1b]52;c;eA==\x07b\tc"),
                "a\\u{1b}]52;c;eA==\\u{7}b\tc",
            ),
            (Output("== succeeded"), " == succeeded"),
            (Output("a\n-- b\n"), "a\n -- b\n"),
            (Output(""), ""),
        ] {
            assert_eq!(line.to_text(), text, "{line:?}");
        }
        assert_eq!(RunLogLine::parse("== building"), Stage("building"));
        assert_eq!(RunLogLine::parse("-- a -- b"), Step("a -- b"));
        for output in ["", "==", " == a", "a == b", "--a"] {
            assert_eq!(RunLogLine::parse(output), Output(output));
        }
    }

    proptest::proptest! {
        #[test]
        fn output_is_never_read_as_a_stage_or_a_step(output in any::<String>()) {
            for output in [output.clone(), format!("== {output}"), format!("a\n-- {output}")] {
                let text = Output(&output).to_text();
                for line in text.split('\n') {
                    assert_eq!(RunLogLine::parse(line), Output(line));
                }
            }
        }
    }
}
