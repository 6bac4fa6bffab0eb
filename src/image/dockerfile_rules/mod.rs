//! The keeper's rules for a Dockerfile that an agent may have written.
//!
//! ```text
//! text ──syntax──▶ instructions ──instruction_check──▶ instructions ──▶ text, one line each
//! ```
//!
//! The engine receives text that is generated from the instructions, never the original text: it contains no comment,
//! continuation or directive that another parser could read differently. Syntax that engine versions read differently
//! (heredocs, doubled backslashes) is refused. Labels on which other tools could act are left out. The generated text
//! is parsed and checked again, as the engine receives it.
//!
//! Allowed are `FROM ${BASE}`, `FROM ${GROUND}` after a stage `ground`, and earlier stages, in `--from` too. The host
//! sets the two variables in each build. Cache mounts are allowed, and their ids become the instance's own: an agent
//! must not change the caches of another instance or of the host. The leading instructions that are identical to
//! those of the Dockerfile inside of osctl, on the same files, keep their ids, and so reuse the layers that the host
//! has built. If these instructions include the first `FROM ${GROUND}`, the published image of the stage `ground` may
//! replace that stage.

mod instruction_check;
mod step_lines;
mod syntax;
mod trusted_prefix;

use super::{Body, GROUND_ARG, GROUND_STAGE};
use crate::error::Error;
use crate::protocol::spec::BUILD_LABEL;
use instruction_check::{CacheMountPolicy, GROUND_IMAGE_VARIABLES, InstructionChecker};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use step_lines::StepLines;
use syntax::DockerfileInstruction;

/// Keys of labels that a note names.
const MAX_NAMED_LABEL_KEYS: usize = 10;

/// Why a Dockerfile is not built, and the line of the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DockerfileRefusal {
    /// The first line of the instruction, counted from 1.
    pub(crate) line: usize,
    pub(crate) why: String,
}

impl fmt::Display for DockerfileRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the Dockerfile: {}", self.line, self.why)
    }
}

impl DockerfileRefusal {
    fn new(line: usize, why: impl Into<String>) -> Self {
        Self {
            line,
            why: why.into(),
        }
    }
}

/// A Dockerfile that may be sent to the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PermittedDockerfile {
    pub(crate) text: String,
    /// Keys of labels that are left out.
    removed_labels: BTreeSet<String>,
    /// Whether the builder can use an image in the place of a stage, and all instructions up to the first `FROM
    /// ${GROUND}` are those inside of osctl.
    has_default_ground: bool,
    step_lines: StepLines,
    sources: DockerfileSources,
}

/// Where the lines of a body's Dockerfile come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct DockerfileSources {
    /// Whether the body is the default one.
    is_default: bool,
    default_lines: usize,
    packages_line: Option<usize>,
}

impl DockerfileSources {
    fn new(body: &Body) -> Self {
        Self {
            is_default: body.folder.is_none(),
            default_lines: body.default_lines,
            packages_line: body.packages_line,
        }
    }

    /// Names a line of the whole Dockerfile by the file that the user sees.
    fn describe_line(self, line: usize) -> String {
        match line.checked_sub(self.default_lines) {
            _ if self.packages_line.is_some_and(|first| line >= first) => {
                "packages of `osctl.yaml`".into()
            }
            Some(own @ 1..) if !self.is_default => format!("line {own} of the Dockerfile"),
            _ => format!("line {line} of the default Dockerfile"),
        }
    }
}

impl PermittedDockerfile {
    /// Adds the line in the file to the error of a build of this Dockerfile.
    pub(crate) fn locate_failure(&self, mut error: anyhow::Error) -> anyhow::Error {
        if let Some(Error::BuildFailed {
            why,
            step: Some(step),
            ..
        }) = error.downcast_mut()
            && let Some(line) = self.step_lines.find_line(step)
        {
            *why = format!("{}: {why}", self.sources.describe_line(line));
        }
        error
    }

    /// The published image that the build arguments name, if it has the same content as the stage `ground`.
    pub(crate) fn published_image<'a>(
        &self,
        args: &'a BTreeMap<String, String>,
    ) -> Option<&'a str> {
        let ground = args.get(GROUND_ARG).map(String::as_str);
        ground.filter(|ground| self.has_default_ground && *ground != GROUND_STAGE)
    }

    /// The warning for the user, if labels are left out.
    pub(crate) fn removed_labels_warning(&self) -> Option<String> {
        let named = self.removed_labels.iter().take(MAX_NAMED_LABEL_KEYS);
        let keys: Vec<String> = named.map(|key| format!("`{key}`")).collect();
        (!keys.is_empty()).then(|| {
            let mut keys = keys.join(", ");
            if let more @ 1.. = self.removed_labels.len().saturating_sub(MAX_NAMED_LABEL_KEYS) {
                keys.push_str(&format!(" and {more} more"));
            }
            format!("osctl leaves out the labels {keys}: other tools act on labels, so only `org.opencontainers.*` is allowed")
        })
    }
}

/// The builder that reads the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DockerfileDialect {
    BuildKit,
    /// The classic builder, which does not support cache mounts.
    Classic,
}

/// Checks the body's Dockerfile and generates the text for the engine, with cache ids of `scope`.
///
/// # Errors
/// The first line that violates the rules.
pub(crate) fn permit_dockerfile(
    body: &Body,
    scope: &str,
    dialect: DockerfileDialect,
) -> Result<PermittedDockerfile, DockerfileRefusal> {
    let permitted = permit_with_trusted(body, &Body::embedded(), scope, dialect);
    // The user sees only the lines of an extension.
    permitted.map_err(|refusal| DockerfileRefusal {
        line: refusal
            .line
            .checked_sub(body.default_lines)
            .unwrap_or(refusal.line),
        ..refusal
    })
}

/// Whether the first instruction of a Dockerfile is `FROM` this stage. A text that can't be parsed counts, so that
/// [`permit_dockerfile`] names its line.
pub(super) fn begins_with_stage(text: &[u8], stage: &str) -> bool {
    let Ok(instructions) = syntax::parse_instructions(text) else {
        return true;
    };
    let first = instructions.first();
    first.is_some_and(|first| {
        let image = first.rest.split_ascii_whitespace().next();
        first.keyword == "FROM" && image.is_some_and(|image| image.eq_ignore_ascii_case(stage))
    })
}

fn permit_with_trusted(
    body: &Body,
    trusted: &Body,
    scope: &str,
    dialect: DockerfileDialect,
) -> Result<PermittedDockerfile, DockerfileRefusal> {
    let instructions = syntax::parse_instructions(dockerfile_content(body))?;
    let shared = trusted_prefix::trusted_prefix_length(&instructions, body, trusted);
    let begins_at_ground = |i: &DockerfileInstruction| {
        i.keyword == "FROM" && GROUND_IMAGE_VARIABLES.iter().any(|g| i.rest.starts_with(g))
    };
    // The classic builder builds every stage, including those that are not needed.
    let has_usual_ground = dialect == DockerfileDialect::BuildKit
        && instructions[..shared].iter().any(begins_at_ground);
    let mut checked = InstructionChecker::default();
    let mut text = String::new();
    let mut step_lines = StepLines::default();
    // The line in the file for each line of the text.
    let mut places = Vec::new();
    for (index, instruction) in instructions.iter().enumerate() {
        let caches = match dialect {
            DockerfileDialect::Classic => CacheMountPolicy::Removed,
            DockerfileDialect::BuildKit if index < shared => CacheMountPolicy::Unchanged,
            DockerfileDialect::BuildKit => CacheMountPolicy::Scoped(scope),
        };
        if let Some(line) = checked.check_instruction(instruction, caches)? {
            step_lines.add(instruction, &line);
            text.push_str(&line);
            text.push('\n');
            places.push(instruction.line);
        }
    }
    if checked.stage_count() == 0 {
        return Err(DockerfileRefusal::new(1, "the file has no `FROM ${BASE}`"));
    }
    verify_generated_text(&text, &places)?;
    let text = match dialect {
        DockerfileDialect::BuildKit => text,
        DockerfileDialect::Classic => add_build_labels(&text, scope),
    };
    let left_out = checked.into_removed_labels();
    Ok(PermittedDockerfile {
        text,
        removed_labels: left_out,
        has_default_ground: has_usual_ground,
        step_lines,
        sources: DockerfileSources::new(body),
    })
}

/// Labels the images that the classic builder leaves between the steps: each step is an image, and a failed build
/// does not set the labels of the final image.
fn add_build_labels(text: &str, scope: &str) -> String {
    let mut marked = String::with_capacity(text.len());
    for line in text.lines() {
        marked.push_str(line);
        marked.push('\n');
        if line.starts_with("FROM ") {
            marked.push_str(&format!("LABEL {BUILD_LABEL}={scope}\n"));
        }
    }
    marked
}

/// Checks the text that the engine receives: it satisfies the rules, each line is one instruction, and parsing it
/// again gives the same text.
fn verify_generated_text(text: &str, places: &[usize]) -> Result<(), DockerfileRefusal> {
    let in_file = |line: usize| places.get(line - 1).copied().unwrap_or(1);
    let in_place =
        |refusal: DockerfileRefusal| DockerfileRefusal::new(in_file(refusal.line), refusal.why);
    let again = syntax::parse_instructions(text.as_bytes()).map_err(in_place)?;
    let mut checked = InstructionChecker::default();
    let mut lines = text.lines();
    for instruction in &again {
        let line = checked
            .check_instruction(instruction, CacheMountPolicy::Unchanged)
            .map_err(in_place)?;
        if lines.next() != line.as_deref() {
            let why = "builders read this instruction differently";
            return Err(DockerfileRefusal::new(in_file(instruction.line), why));
        }
    }
    match lines.next() {
        None => Ok(()),
        Some(_) => {
            let line = places.last().copied().unwrap_or(1);
            Err(DockerfileRefusal::new(
                line,
                "builders read this instruction differently",
            ))
        }
    }
}

fn dockerfile_content(body: &Body) -> &[u8] {
    body.files.get("Dockerfile").map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests;
