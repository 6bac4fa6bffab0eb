//! The project's own `osctl.yaml`, which the agent can write.
//!
//! An invalid file is an error of the verbs that build an image from the project (`up`, `build`, `evolve`). Every other
//! command warns and ignores the file, so that the agent can't disable the command line for the user.

use super::ResolvedConfig;
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// Maximum size of the project's file.
pub(super) const MAX_PROJECT_FILE_BYTES: u64 = 64 << 10;

/// The name of the file in the project.
pub(super) const PROJECT_FILE: &str = "osctl.yaml";

impl ResolvedConfig {
    /// Reads all layers; `file` is the user's own file, whose section of `instance` applies. An invalid project file is ignored, and the second value says
    /// why.
    ///
    /// # Errors
    /// When the user's own file, a variable or a flag is invalid.
    pub(crate) fn load_ignoring_bad_project(
        file: Option<&Path>,
        project: Option<&Path>,
        instance: &str,
        flags: Vec<(&str, Value)>,
    ) -> Result<(Self, Option<Error>)> {
        let own = Self::load_layers(file, None, instance, flags.clone())?;
        let Some(project) = project else {
            return Ok((own, None));
        };
        match Self::load_layers(file, Some(project), instance, flags) {
            Ok(resolved) => Ok((resolved, None)),
            Err(error) => Ok((own, Some(project_error(project, &error)))),
        }
    }

    /// Reads all layers; `flags` are dotted keys with their values.
    ///
    /// # Errors
    /// When a key is unknown, with the nearest known key, or a value is invalid.
    pub(crate) fn load(
        file: &Path,
        project: Option<&Path>,
        instance: &str,
        flags: Vec<(&str, Value)>,
    ) -> Result<Self> {
        match Self::load_ignoring_bad_project(Some(file), project, instance, flags)? {
            (_, Some(error)) => Err(error.into()),
            (resolved, None) => Ok(resolved),
        }
    }
}

/// Converts the error of a layer to one of the project's file, with the wrong key and the fix.
fn project_error(project: &Path, error: &anyhow::Error) -> Error {
    let file = project.join(PROJECT_FILE);
    let file = file.display();
    let edit = format!("edit or remove `{file}`");
    let (why, hint) = match error.downcast_ref() {
        Some(Error::UnknownKey { key, nearest, .. }) => {
            let hint = match nearest {
                Some(nearest) => format!("write `{nearest}`, or remove the key from `{file}`"),
                None => format!("remove the key from `{file}`"),
            };
            (format!("the key `{key}` is unknown"), hint)
        }
        Some(Error::BadValue { key, why, .. }) => (format!("`{key}`: {why}"), edit),
        Some(Error::Forbidden { key, .. }) => (
            format!("a project can't set `{key}`, because the agent can write the file"),
            format!(
                "remove the key from `{file}`; `osctl config edit` opens your own file, which can set it"
            ),
        ),
        Some(Error::Usage { message, .. }) => {
            let place = format!("`{file}` can't be read: ");
            (message.trim_start_matches(&place).to_owned(), edit)
        }
        _ => (format!("{error:#}"), edit),
    };
    Error::usage(
        format!("the project's file `{file}` can't be used: {why}"),
        hint,
    )
}

/// Whether the text may define a YAML anchor. Aliases repeat anchors, so 64 KiB can expand to gigabytes. The parser
/// expands aliases while it reads, so the text is checked before: an anchor is a `&` where a value can begin, followed
/// by a name.
pub(super) fn has_anchor(text: &str) -> bool {
    let begins_value =
        |before: char| before.is_whitespace() || "[]{},:-?!\u{feff}".contains(before);
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(now) = rest.next() {
        let is_named = rest.peek().is_some_and(|c| !c.is_whitespace() && *c != '&');
        if now == '&' && begins_value(before) && is_named {
            return true;
        }
        before = now;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::{MAX_PROJECT_FILE_BYTES, has_anchor};
    use crate::config::ResolvedConfig;
    use nix::time::{ClockId, clock_gettime};
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    /// The error for a project's file, and the CPU time of the check.
    fn refused(text: &str) -> (String, Duration) {
        let project = tempfile::tempdir().unwrap();
        fs::write(project.path().join("osctl.yaml"), text).unwrap();
        let clock = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
        let begin = clock();
        let none = Path::new("/nonexistent");
        let (resolved, error) = ResolvedConfig::load_ignoring_bad_project(
            Some(none),
            Some(project.path()),
            "default",
            vec![],
        )
        .unwrap();
        let elapsed = clock().saturating_sub(begin);
        assert_eq!(resolved.config, crate::config::Config::default(), "{text}");
        let error = error.unwrap();
        assert!(
            ResolvedConfig::load(none, Some(project.path()), "default", vec![])
                .unwrap_err()
                .to_string()
                .contains("the project's file"),
            "{text}"
        );
        (format!("{error} | {}", error.hint().unwrap()), elapsed)
    }

    #[test]
    fn a_bad_project_file_is_refused_with_its_key_and_a_fix() {
        for (text, expected) in [
            (
                "limits: {memory: 1g}",
                "a project can't set `limits.memory`",
            ),
            ("docker_socket: true", "remove the key from"),
            ("body: [", "edit or remove"),
            ("body: /etc", "`body`: the folder must be in the project"),
            ("bdy: x", "the key `bdy` is unknown"),
            ("build_tool: x", "write `build_tools`, or remove the key"),
            ("- a", "the file must be a map of keys"),
            ("desktop: {depth: 7}", "`desktop.depth`"),
            ("build_tools: [1]", "`build_tools`"),
            ("servers: {a: &x {command: y}, b: *x}", "anchors"),
        ] {
            let (message, _) = refused(text);
            assert!(
                message.contains(expected) && message.contains("osctl.yaml"),
                "{message}"
            );
            assert!(!message.contains("config show"), "circular: {message}");
        }
    }

    #[test]
    fn a_project_file_that_expands_or_nests_is_refused_in_seconds() {
        let bytes = usize::try_from(MAX_PROJECT_FILE_BYTES).unwrap();
        let list = "x,".repeat(bytes / 4);
        let alias_bomb = format!("b: &b [{list}x]\nc: [{}]", "*b,".repeat(bytes / 8));
        let huge = format!(
            "b: &b [{}x]\nc: [{}]",
            "x,".repeat(400_000),
            "*b,".repeat(60_000)
        );
        let deep = "[".repeat(bytes - 1);
        let maps = "{a: ".repeat(bytes / 5);
        let keys = "? ".repeat(bytes / 3);
        for text in [alias_bomb, huge, deep, maps, keys] {
            let (message, elapsed) = refused(&text);
            assert!(elapsed < Duration::from_secs(10), "{elapsed:?}: {message}");
        }
    }

    #[test]
    fn an_anchor_is_found_and_an_ampersand_of_a_value_is_not() {
        for text in [
            "a: &x 1",
            "&x a: 1",
            "a: [&x 1]",
            "a: {b: [1,&x 2]}",
            "a: {\"b\":&x 1}",
            "- &x",
            "\u{feff}&x a: 1",
            "a: !t &x 1",
            "a:\n  &x\n  b: 1",
        ] {
            assert!(has_anchor(text), "{text}");
        }
        for text in [
            "a: b && c",
            "a: http://h/?x=1&y=2",
            "a: sleep 1 &",
            "a: '&x'",
            "a: x 2>&1",
            "a: b & c",
        ] {
            assert!(!has_anchor(text), "{text}");
        }
    }

    #[test]
    fn the_users_own_file_keeps_its_aliases() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.yaml");
        fs::write(&file, "limits: {memory: &m 3g, shm: *m}").unwrap();
        let config = ResolvedConfig::load(&file, None, "default", vec![])
            .unwrap()
            .config;
        assert_eq!(config.limits.shm, "3g");
    }
}
