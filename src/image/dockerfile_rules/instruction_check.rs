//! Checks of each instruction's arguments.

use super::DockerfileRefusal;
use super::syntax::DockerfileInstruction;
use crate::image::GROUND_STAGE;
use std::collections::BTreeSet;

/// Instructions that name no source of files or images.
const PLAIN_INSTRUCTIONS: &[&str] = &[
    "ARG",
    "CMD",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "HEALTHCHECK",
    "MAINTAINER",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
];

/// The only keys of labels that images get. Other tools act on labels of images and of the containers made from them,
/// and no list of those labels is complete.
const ALLOWED_LABEL_PREFIX: &str = "org.opencontainers.";

/// The variables in a `FROM` for the images that the host chooses.
const BASE_IMAGE_VARIABLES: [&str; 2] = ["${BASE}", "$BASE"];
pub(super) const GROUND_IMAGE_VARIABLES: [&str; 2] = ["${GROUND}", "$GROUND"];

/// File systems of the kernel. With some versions of runc, a step whose working directory is `/proc/self/fd/N` has
/// access to the host.
const KERNEL_FS_FOLDERS: &[&str] = &["proc", "sys", "dev"];

/// What to do with cache mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheMountPolicy<'a> {
    /// Keep their ids.
    Unchanged,
    /// Replace their ids by ids of this scope.
    Scoped(&'a str),
    /// Leave them out: the classic builder does not support them, and they only speed up builds.
    Removed,
}

/// The allowed keys of a cache mount; `from` is not one of them.
const CACHE_MOUNT_KEYS: &[&str] = &[
    "type",
    "id",
    "target",
    "dst",
    "destination",
    "sharing",
    "readonly",
    "ro",
    "uid",
    "gid",
    "mode",
];

/// The state after the instructions that are already checked.
#[derive(Debug, Default)]
pub(super) struct InstructionChecker {
    /// The names of the stages in lower case; `None` for a stage without a name.
    stages: Vec<Option<String>>,
    /// Keys of labels that are left out.
    removed_labels: BTreeSet<String>,
}

impl InstructionChecker {
    pub(super) fn stage_count(&self) -> usize {
        self.stages.len()
    }

    pub(super) fn into_removed_labels(self) -> BTreeSet<String> {
        self.removed_labels
    }

    /// Returns the instruction as a line, or `None` if nothing of it is left.
    pub(super) fn check_instruction(
        &mut self,
        instruction: &DockerfileInstruction,
        caches: CacheMountPolicy<'_>,
    ) -> Result<Option<String>, DockerfileRefusal> {
        let DockerfileInstruction {
            line,
            keyword,
            rest,
        } = instruction;
        let checked = match keyword.as_str() {
            "FROM" => self.check_from(rest),
            "RUN" => check_run(rest, caches),
            "COPY" => self.check_copy(rest),
            "ADD" => check_add(rest),
            "LABEL" => self.filter_labels(rest),
            "WORKDIR" => check_workdir(rest),
            "ONBUILD" => Err("`ONBUILD` is not allowed: it acts in later builds".into()),
            plain if PLAIN_INSTRUCTIONS.contains(&plain) => Ok(rest.clone()),
            unknown => Err(format!(
                "`{}` is not an instruction",
                escape_for_message(unknown)
            )),
        };
        match checked {
            Ok(rest) if keyword == "LABEL" && rest.is_empty() => Ok(None),
            Ok(rest) => Ok(Some(format!("{keyword} {rest}"))),
            Err(why) => Err(DockerfileRefusal::new(*line, why)),
        }
    }

    fn check_from(&mut self, rest: &str) -> Result<String, String> {
        let (flags, rest) = split_flags(rest)?;
        if let Some(InstructionFlag { name, .. }) = flags.first() {
            return Err(format!("`FROM --{name}` is not allowed"));
        }
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let (image, name) = match words.as_slice() {
            [image] => (*image, None),
            [image, by, name] if by.eq_ignore_ascii_case("as") => (*image, Some(*name)),
            _ => {
                return Err(
                    "`FROM` takes `${BASE}`, `${GROUND}` or a stage, and `AS` a name".into(),
                );
            }
        };
        // If that stage is missing, the builder would pull an image of its name.
        let is_ground = GROUND_IMAGE_VARIABLES.contains(&image) && self.is_stage(GROUND_STAGE);
        if !BASE_IMAGE_VARIABLES.contains(&image) && !is_ground && !self.is_stage(image) {
            return Err(format!(
                "`FROM {}` is not allowed, only `FROM ${{BASE}}`, `FROM ${{GROUND}}` after a stage `ground`, and earlier stages",
                escape_for_message(image)
            ));
        }
        let name = name.map(str::to_ascii_lowercase);
        if let Some(name) = &name {
            let fits = name.starts_with(|c: char| c.is_ascii_lowercase())
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            if !fits {
                return Err(format!(
                    "`{}` can't be the name of a stage",
                    escape_for_message(name)
                ));
            }
        }
        self.stages.push(name);
        Ok(rest.to_owned())
    }

    /// Whether this is the name of an earlier stage.
    fn is_stage(&self, word: &str) -> bool {
        let word = word.to_ascii_lowercase();
        self.stages.iter().flatten().any(|name| *name == word)
    }

    /// Keeps the labels on which no other tool acts. Only the label syntax that every builder reads alike is allowed.
    fn filter_labels(&mut self, rest: &str) -> Result<String, String> {
        if rest.contains(['$', '\\']) {
            return Err("a variable or a backslash in a `LABEL` is not allowed".into());
        }
        let mut words_left = Vec::new();
        for word in split_quoted_words(rest)? {
            let Some((key, _)) = word.split_once('=') else {
                return Err("a `LABEL` takes the form `KEY=VALUE`".into());
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            match key.starts_with(ALLOWED_LABEL_PREFIX) && key.chars().all(plain) {
                true => words_left.push(word),
                false => drop(self.removed_labels.insert(escape_for_message(key))),
            }
        }
        Ok(words_left.join(" "))
    }

    fn check_copy(&self, rest: &str) -> Result<String, String> {
        reject_heredoc(rest)?;
        let (flags, _) = split_flags(rest)?;
        // The current stage is the last one, and can't be a source.
        let earlier = self.stages.len().saturating_sub(1);
        for InstructionFlag { name, value } in flags {
            match name.as_str() {
                "chown" | "chmod" | "link" | "parents" | "exclude" => {}
                "from" => {
                    let by_number = value.parse::<usize>().is_ok_and(|n| n < earlier);
                    let names = self.stages[..earlier].iter().flatten();
                    let by_name = names.into_iter().any(|n| n.eq_ignore_ascii_case(&value));
                    if !by_number && !by_name {
                        return Err(format!(
                            "`COPY --from={}` is not allowed, only earlier stages",
                            escape_for_message(&value)
                        ));
                    }
                }
                _ => {
                    return Err(format!(
                        "`COPY --{}` is not allowed",
                        escape_for_message(&name)
                    ));
                }
            }
        }
        Ok(rest.to_owned())
    }
}

fn check_run(rest: &str, caches: CacheMountPolicy<'_>) -> Result<String, String> {
    reject_heredoc(rest)?;
    let (flags, command) = split_flags(rest)?;
    let mut words = Vec::new();
    for InstructionFlag { name, value } in flags {
        if name != "mount" {
            return Err(format!(
                "`RUN --{}` is not allowed",
                escape_for_message(&name)
            ));
        }
        words.extend(check_cache_mount(&value, caches)?);
    }
    words.push(command.to_owned());
    Ok(words.join(" "))
}

/// The flag of a cache mount, unless the builder does not support it.
fn check_cache_mount(value: &str, caches: CacheMountPolicy<'_>) -> Result<Option<String>, String> {
    let mut fields: Vec<(String, &str)> = Vec::new();
    for field in value.split(',') {
        let (key, value) = field.split_once('=').unwrap_or((field, ""));
        let key = key.to_ascii_lowercase();
        if key == "type" && !value.eq_ignore_ascii_case("cache") {
            return Err(format!(
                "`--mount=type={}` is not allowed, only `cache`",
                escape_for_message(value)
            ));
        }
        if !CACHE_MOUNT_KEYS.contains(&key.as_str()) {
            return Err(format!(
                "`{}` of a mount is not allowed",
                escape_for_message(&key)
            ));
        }
        if value.contains('$') {
            return Err("a variable in a mount is not allowed".into());
        }
        if fields.iter().any(|(known, _)| *known == key) {
            return Err(format!("`{key}` of a mount is given twice"));
        }
        fields.push((key, value));
    }
    let field = |key: &str| fields.iter().find(|(k, _)| k == key).map(|(_, v)| *v);
    if field("type").is_none() {
        return Err("a mount without `type=cache` is not allowed".into());
    }
    let targets = ["target", "dst", "destination"];
    let Some(target) = targets.into_iter().find_map(field) else {
        return Err("a mount without a target is not allowed".into());
    };
    let scope = match caches {
        CacheMountPolicy::Unchanged => return Ok(Some(format!("--mount={value}"))),
        CacheMountPolicy::Removed => return Ok(None),
        CacheMountPolicy::Scoped(scope) => scope,
    };
    let id = field("id").unwrap_or(target);
    let others = fields.iter().filter(|(key, _)| key != "id");
    let others: Vec<String> = others
        .map(|(key, value)| match value.is_empty() {
            true => key.clone(),
            false => format!("{key}={value}"),
        })
        .collect();
    Ok(Some(format!(
        "--mount={},id={scope}/{id}",
        others.join(",")
    )))
}

fn check_add(rest: &str) -> Result<String, String> {
    reject_heredoc(rest)?;
    let (flags, places) = split_flags(rest)?;
    for InstructionFlag { name, .. } in flags {
        if !["chown", "chmod", "link"].contains(&name.as_str()) {
            return Err(format!(
                "`ADD --{}` is not allowed",
                escape_for_message(&name)
            ));
        }
    }
    // A backslash may encode either character: `["http\\u003a//…"]`.
    if places.contains([':', '$', '\\']) {
        return Err(
            "`ADD` of an address or a variable is not allowed: download it in a `RUN`".into(),
        );
    }
    Ok(rest.to_owned())
}

/// Splits words at blanks outside of quotes.
fn split_quoted_words(rest: &str) -> Result<Vec<&str>, String> {
    let (mut words, mut begin, mut quote) = (Vec::new(), 0, None);
    for (at, c) in rest.char_indices() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            (' ' | '\t', None) => {
                words.push(&rest[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if quote.is_some() {
        return Err("a quote in a `LABEL` is not closed".into());
    }
    words.push(&rest[begin..]);
    words.retain(|word| !word.is_empty());
    Ok(words)
}

/// Checks a working directory of steps and containers.
fn check_workdir(rest: &str) -> Result<String, String> {
    if rest.contains(['$', '"', '\'', '\\']) {
        return Err("a variable, quote or backslash in a `WORKDIR` is not allowed".into());
    }
    let mut parts = rest
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    if parts.clone().any(|part| part == "..") {
        return Err("`..` in a `WORKDIR` is not allowed".into());
    }
    // A relative path may be relative to `/`.
    if parts
        .next()
        .is_some_and(|first| KERNEL_FS_FOLDERS.contains(&first))
    {
        return Err(format!(
            "`WORKDIR {}` is not allowed: it is a folder of the kernel",
            escape_for_message(rest)
        ));
    }
    Ok(rest.to_owned())
}

/// A flag `--name=value` before the other arguments.
struct InstructionFlag {
    name: String,
    value: String,
}

/// Splits off the flags at the start of an instruction.
fn split_flags(rest: &str) -> Result<(Vec<InstructionFlag>, &str), String> {
    let mut flags = Vec::new();
    let mut rest = rest;
    while rest.starts_with("--") {
        let (word, after) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        if word.contains(['"', '\'', '\\', '`']) {
            return Err("quotes and backslashes in a flag are not allowed".into());
        }
        let (name, value) = word[2..].split_once('=').unwrap_or((&word[2..], ""));
        flags.push(InstructionFlag {
            name: name.to_ascii_lowercase(),
            value: value.to_owned(),
        });
        rest = after.trim_start_matches([' ', '\t']);
    }
    Ok((flags, rest))
}

/// Refuses heredocs: engines up to 20.10 read the lines of a heredoc as instructions. `<<<` is not a heredoc.
fn reject_heredoc(rest: &str) -> Result<(), String> {
    for word in rest.split_ascii_whitespace() {
        let without = word.replace("<<<", "");
        let hidden = word.contains("${") && word.matches('<').count() > 1;
        if without.contains("<<") || hidden {
            return Err("a heredoc is not allowed: put its lines into a file of the body".into());
        }
    }
    Ok(())
}

/// Escapes the agent's text for a message to people.
fn escape_for_message(text: &str) -> String {
    text.escape_debug().take(80).collect()
}
