//! The command with which other programs start this osctl, from any folder and without the user's environment.

use super::CommandContext;
use crate::error::Result;
use crate::host::mount_safety::check_executable;
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::fs::canonicalize;
use std::path::PathBuf;

/// The full path of the program. If a link on the `PATH` points to it, the path of the link is used, because an update
/// may change its target.
///
/// # Errors
/// When an agent can write the program.
pub(super) fn program_path(cx: &CommandContext) -> Result<String> {
    let resolver = cx.path_resolver()?;
    check_executable(&resolver)?;
    let itself = std::env::current_exe()?;
    let linked = which::which("osctl").ok();
    let same = |linked: &PathBuf| canonicalize(linked).ok() == canonicalize(&itself).ok();
    // A link in a folder that an agent can write, such as a project's environment, may later point elsewhere.
    let trusted = linked.filter(|linked| same(linked) && resolver.resolve_trusted(linked).is_ok());
    absolute_text(trusted.unwrap_or(itself))
}

/// The arguments that select a configuration file other than the default one.
///
/// # Errors
/// When an agent can write the file.
pub(super) fn config_args(cx: &CommandContext) -> Result<Vec<String>> {
    cx.trusted_config_file()?;
    Ok(match cx.own_config_file() {
        None => Vec::new(),
        Some(file) => vec!["--config".into(), absolute_text(file.to_owned())?],
    })
}

/// The variables that locate the instance's state if it is not in the default place.
pub(super) fn state_environment() -> BTreeMap<String, String> {
    let home = std::env::var("HOST_HOME").ok().filter(|h| !h.is_empty());
    home.map(|home| ("HOST_HOME".into(), home))
        .into_iter()
        .collect()
}

fn absolute_text(path: PathBuf) -> Result<String> {
    let absolute = std::path::absolute(&path)?;
    let text = absolute.to_str().map(str::to_owned);
    text.with_context(|| format!("`{}` is not UTF-8", path.display()))
}
