//! The keeper's rules for a Dockerfile that an agent may have written.
//!
//! ```text
//! text ──syntax──▶ instructions ──check──▶ instructions ──▶ text, one line each
//! ```
//!
//! The engine is handed the text that is made anew from the instructions, and never the one that was
//! read: no comment, continuation or directive is left that another parser could read otherwise. What
//! engines of different age read differently (heredocs, doubled backslashes) is refused.
//!
//! Allowed are `FROM ${BASE}` and earlier stages, in `--from` too, and cache mounts, whose ids become
//! the instance's own: what another instance or the host finds in its caches is no agent's. The
//! instructions that a Dockerfile begins with exactly as the one inside of osctl does, upon the same
//! files, keep their ids, and so the layers that the host has built.

mod check;
mod shared;
mod syntax;

use super::Body;
use check::Checked;
use std::fmt;

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

/// The body's Dockerfile as the engine may have it, its caches belonging to `scope`.
///
/// # Errors
/// The first line that is against the rules.
pub(crate) fn permit(body: &Body, scope: &str) -> Result<String, Refusal> {
    permit_beside(body, &Body::embedded(), scope)
}

fn permit_beside(body: &Body, trusted: &Body, scope: &str) -> Result<String, Refusal> {
    let instructions = syntax::read(dockerfile(body))?;
    let shared = shared::length(&instructions, body, trusted);
    let mut checked = Checked::default();
    let mut text = String::new();
    for (index, instruction) in instructions.iter().enumerate() {
        let scope = (index >= shared).then_some(scope);
        text.push_str(&checked.permit(instruction, scope)?);
        text.push('\n');
    }
    if checked.stages() == 0 {
        return Err(Refusal::new(1, "it has no `FROM ${BASE}`"));
    }
    Ok(text)
}

fn dockerfile(body: &Body) -> &[u8] {
    body.files.get("Dockerfile").map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests;
