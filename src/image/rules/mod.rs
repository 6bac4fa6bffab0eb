//! The keeper's rules for a Dockerfile that an agent may have written.
//!
//! ```text
//! text ──syntax──▶ instructions ──check──▶ instructions ──▶ text, one line each
//! ```
//!
//! The engine receives the text that is written from the instructions, and never the text that was
//! read: no comment, continuation or directive is left that another parser could read otherwise. What
//! engines of different age read differently (heredocs, doubled backslashes) is refused. The written text is
//! read and checked again, as the engine receives it.
//!
//! Allowed are `FROM ${BASE}` and earlier stages, in `--from` too, and cache mounts, whose ids become
//! the instance's own: what another instance or the host finds in its caches is no agent's. The
//! instructions that a Dockerfile begins with exactly as the one inside of osctl does, upon the same
//! files, keep their ids, and so the layers that the host has built.

mod check;
mod shared;
mod syntax;

use super::Body;
use crate::protocol::spec::BUILD_LABEL;
use check::{Caches, Checked};
use std::fmt;
use syntax::Instruction;

/// Why a Dockerfile is not built, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The first line of the instruction, counted from 1.
    pub(crate) line: usize,
    pub(crate) why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the Dockerfile: {}", self.line, self.why)
    }
}

impl Refusal {
    fn new(line: usize, why: impl Into<String>) -> Self {
        Self {
            line,
            why: why.into(),
        }
    }
}

/// The builder that reads the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    BuildKit,
    /// Knows no cache mounts.
    Classic,
}

/// The body's Dockerfile as the engine may have it, its caches belonging to `scope`.
///
/// # Errors
/// The first line that is against the rules.
pub(crate) fn permit(body: &Body, scope: &str, dialect: Dialect) -> Result<String, Refusal> {
    permit_beside(body, &Body::embedded(), scope, dialect)
}

fn permit_beside(
    body: &Body,
    trusted: &Body,
    scope: &str,
    dialect: Dialect,
) -> Result<String, Refusal> {
    let instructions = syntax::read(dockerfile(body))?;
    let shared = shared::length(&instructions, body, trusted);
    let mut checked = Checked::default();
    let mut text = String::new();
    for (index, instruction) in instructions.iter().enumerate() {
        let caches = match dialect {
            Dialect::Classic => Caches::Dropped,
            Dialect::BuildKit if index < shared => Caches::Kept,
            Dialect::BuildKit => Caches::Scoped(scope),
        };
        text.push_str(&checked.permit(instruction, caches)?);
        text.push('\n');
    }
    if checked.stages() == 0 {
        return Err(Refusal::new(1, "it has no `FROM ${BASE}`"));
    }
    check_again(&text, &instructions)?;
    Ok(match dialect {
        Dialect::BuildKit => text,
        Dialect::Classic => mark(&text, scope),
    })
}

/// Labels what the classic builder leaves between the steps: each step is an image, and no image of a build that
/// failed has the labels of the whole.
fn mark(text: &str, scope: &str) -> String {
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

/// Checks the text that the engine receives: it is under the rules, each line is one instruction, and a second
/// reading gives the same text.
fn check_again(text: &str, instructions: &[Instruction]) -> Result<(), Refusal> {
    // Of a line of the text, the line in the file.
    let in_file = |line: usize| instructions.get(line - 1).map_or(1, |i| i.line);
    let in_place = |refusal: Refusal| Refusal::new(in_file(refusal.line), refusal.why);
    let again = syntax::read(text.as_bytes()).map_err(in_place)?;
    let mut checked = Checked::default();
    let mut lines = text.lines();
    for instruction in &again {
        let line = checked
            .permit(instruction, Caches::Kept)
            .map_err(in_place)?;
        if lines.next() != Some(line.as_str()) {
            let why = "builders read this instruction differently";
            return Err(Refusal::new(in_file(instruction.line), why));
        }
    }
    match lines.next() {
        None => Ok(()),
        Some(_) => {
            let line = instructions.last().map_or(1, |i| i.line);
            Err(Refusal::new(
                line,
                "builders read this instruction differently",
            ))
        }
    }
}

fn dockerfile(body: &Body) -> &[u8] {
    body.files.get("Dockerfile").map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests;
