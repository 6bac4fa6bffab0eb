//! The line in the Dockerfile of a step that a builder names.
//!
//! BuildKit names a step `[STAGE I/N] COMMAND` with expanded variables, and counts the instructions that make a layer,
//! after the `FROM` of a stage that is not based on another stage. The classic builder names a step `I/N : INSTRUCTION`.

use super::syntax::DockerfileInstruction;

/// The instructions that BuildKit counts.
const LAYER_INSTRUCTIONS: [&str; 4] = ["ADD", "COPY", "RUN", "WORKDIR"];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StepLines {
    stages: Vec<StageLines>,
    /// The instructions as the engine receives them, with their lines.
    instructions: Vec<(String, usize)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct StageLines {
    /// In lower case, as in BuildKit's output.
    name: String,
    from: usize,
    layers: Vec<usize>,
}

impl StepLines {
    /// Adds an instruction, of which the engine receives `text`.
    pub(super) fn add(&mut self, instruction: &DockerfileInstruction, text: &str) {
        let line = instruction.line;
        self.instructions.push((text.to_owned(), line));
        if instruction.keyword == "FROM" {
            let mut words = instruction.rest.split_whitespace().rev();
            let name = words.next().unwrap_or_default().to_lowercase();
            let is_named = words.next().is_some_and(|w| w.eq_ignore_ascii_case("as"));
            self.stages.push(StageLines {
                name: match is_named {
                    true => name,
                    false => format!("stage-{}", self.stages.len()),
                },
                from: line,
                layers: Vec::new(),
            });
        } else if let Some(stage) = self.stages.last_mut()
            && LAYER_INSTRUCTIONS.contains(&instruction.keyword.as_str())
        {
            stage.layers.push(line);
        }
    }

    /// The line of the step.
    pub(super) fn find_line(&self, step: &str) -> Option<usize> {
        match step.strip_prefix('[') {
            Some(rest) => self.find_buildkit_line(rest.split_once(']')?.0),
            None => {
                let (_, text) = step.split_once(" : ")?;
                let mut all = self.instructions.iter();
                Some(all.find(|(instruction, _)| instruction == text)?.1)
            }
        }
    }

    /// The line of `PLATFORM STAGE I/N`, of which only the number is always there.
    fn find_buildkit_line(&self, label: &str) -> Option<usize> {
        let mut words = label.split_whitespace().rev();
        let (number, total) = words.next()?.split_once('/')?;
        let (number, total): (usize, usize) = (number.parse().ok()?, total.parse().ok()?);
        let stage = match words.next().filter(|word| !word.contains('/')) {
            Some(name) => self.stages.iter().find(|stage| stage.name == name)?,
            None => self.stages.first()?,
        };
        let froms = total.checked_sub(stage.layers.len()).filter(|n| *n <= 1)?;
        match number.checked_sub(froms + 1) {
            Some(index) => stage.layers.get(index).copied(),
            None => Some(stage.from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StepLines;
    use crate::image::dockerfile_rules::syntax::parse_instructions;

    fn lines(dockerfile: &str) -> StepLines {
        let mut lines = StepLines::default();
        for instruction in parse_instructions(dockerfile.as_bytes()).unwrap() {
            lines.add(
                &instruction,
                &format!("{} {}", instruction.keyword, instruction.rest),
            );
        }
        lines
    }

    #[test]
    fn the_number_of_a_step_leads_to_its_line() {
        let all = lines(
            "FROM ${BASE} AS System\nENV A=b\nRUN one \\\n  more\n\nWORKDIR /x\nFROM system\nLABEL org.opencontainers.x=1\nCOPY a b\n# c\nRUN two\n",
        );
        for (step, line) in [
            ("[system 1/3] FROM debian@sha256:1", Some(1)),
            ("[system 2/3] RUN one   more", Some(3)),
            ("[system 3/3] WORKDIR /x", Some(6)),
            ("[stage-1 1/2] COPY a b", Some(9)),
            ("[linux/amd64 stage-1 2/2] RUN two", Some(11)),
            ("[stage-1 4/4] RUN more than the file has", None),
            ("[other 1/1] RUN x", None),
            ("[system 1/1] RUN x", None),
            ("[internal] load metadata", None),
            ("exporting to image", None),
            ("6/9 : RUN two", Some(11)),
            ("6/9 : RUN three", None),
        ] {
            assert_eq!(all.find_line(step), line, "{step}");
        }
        assert_eq!(lines("FROM a\nRUN b\n").find_line("[2/2] RUN b"), Some(2));
    }
}
