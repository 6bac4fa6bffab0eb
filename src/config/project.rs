//! The project's own `osctl.yaml`, which the agent can write.
//!
//! An invalid file is an error of the verbs that build an image from the project (`up`, `build`, `evolve`) or use its
//! packages (`add`, `remove`, `packages`). Every other command warns and ignores the file, so that the agent can't disable
//! the command line for the user.

use super::ResolvedConfig;
use crate::error::{Error, Result};
use crate::protocol::packages::PROJECT_FILE;
use serde_json::Value;
use std::path::Path;

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
    let file = project.join(PROJECT_FILE).display().to_string();
    let edit = format!("edit or remove `{file}`");
    let place = match error.downcast_ref() {
        Some(
            Error::UnknownKey { place, .. }
            | Error::BadValue { place, .. }
            | Error::Forbidden { place, .. },
        ) if place.starts_with(&file) => place.clone(),
        _ => file.clone(),
    };
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
            let start = format!("`{file}` can't be read: ");
            (message.trim_start_matches(&start).to_owned(), edit)
        }
        _ => (format!("{error:#}"), edit),
    };
    Error::usage(
        format!("the project's file `{place}` can't be used: {why}"),
        hint,
    )
}

#[cfg(test)]
mod tests {
    use crate::config::ResolvedConfig;
    use crate::protocol::packages::MAX_PROJECT_FILE_BYTES;
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
            (
                "build_tools: [1]",
                "osctl.yaml:1` can't be used: `build_tools`: the value must be `true` or `false`, not a list",
            ),
            (
                "packages:\n  pip: polars",
                "osctl.yaml:2` can't be used: `packages.pip`: the value must be a list, not `\"polars\"`",
            ),
            ("servers: {a: &x {command: y}, b: *x}", "anchors"),
            (
                "packages: {pip: [--pre]}",
                "`--pre` is not a package of pip",
            ),
            ("packages: {gem: [x]}", "the key `packages.gem` is unknown"),
            ("packages: [x]", "`packages`: the value must be a map"),
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
