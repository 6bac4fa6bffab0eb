//! Length of the prefix that a Dockerfile shares with the one inside of osctl.

use super::syntax::{self, DockerfileInstruction};
use super::{Body, dockerfile_content};

/// Counts the leading instructions that are those of the trusted body and copy the same files.
///
/// Instructions after the first difference do not count, because they may run content that the difference added.
pub(super) fn trusted_prefix_length(
    instructions: &[DockerfileInstruction],
    body: &Body,
    trusted: &Body,
) -> usize {
    let ignores = [".dockerignore", "Dockerfile.dockerignore"];
    if ignores.iter().any(|name| body.files.contains_key(*name)) {
        return 0;
    }
    let Ok(ours) = syntax::parse_instructions(dockerfile_content(trusted)) else {
        return 0;
    };
    let pairs = instructions.iter().zip(&ours);
    pairs
        .take_while(|(theirs, ours)| {
            let same = (&theirs.keyword, &theirs.rest) == (&ours.keyword, &ours.rest);
            same && has_same_sources(theirs, body, trusted)
        })
        .count()
}

fn has_same_sources(instruction: &DockerfileInstruction, body: &Body, trusted: &Body) -> bool {
    if !["COPY", "ADD"].contains(&instruction.keyword.as_str()) {
        return true;
    }
    let words: Vec<&str> = instruction.rest.split_ascii_whitespace().collect();
    if words.iter().any(|word| word.starts_with("--from=")) {
        return true;
    }
    let Some((_, sources)) = words.split_last() else {
        return false;
    };
    let sources = sources.iter().filter(|word| !word.starts_with("--"));
    sources.into_iter().all(|source| {
        let plain = !source.contains(['*', '?', '[', '"', '$', '\\']);
        plain && files_beneath(body, source).eq(files_beneath(trusted, source))
    })
}

/// The files that a source of `COPY` names.
fn files_beneath<'a>(
    body: &'a Body,
    source: &str,
) -> impl Iterator<Item = (&'a String, &'a Vec<u8>)> + use<'a> {
    let source = source.trim_start_matches("./").trim_matches('/').to_owned();
    body.files.iter().filter(move |(path, _)| {
        let rest = path.strip_prefix(source.as_str());
        source == "."
            || source.is_empty()
            || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
