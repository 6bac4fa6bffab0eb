//! How other programs start this very osctl, from any folder and without its person's environment.

use super::CommandContext;
use crate::error::Result;
use crate::host::mount_safety::check_executable;
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::fs::canonicalize;
use std::path::PathBuf;

/// By its full path. Where a link on the `PATH` leads here, the link is it: what it leads to may be
/// another folder after an update.
///
/// # Errors
/// When an agent can write it.
pub(super) fn program_path(cx: &CommandContext) -> Result<String> {
    let resolver = cx.path_resolver()?;
    check_executable(&resolver)?;
    let itself = std::env::current_exe()?;
    let linked = which::which("osctl").ok();
    let same = |linked: &PathBuf| canonicalize(linked).ok() == canonicalize(&itself).ok();
    // A link in a folder that an agent writes, such as a project's environment, may lead elsewhere later.
    let trusted = linked.filter(|linked| same(linked) && resolver.resolve_trusted(linked).is_ok());
    absolute_text(trusted.unwrap_or(itself))
}

/// The words for a configuration that is not the usual one.
///
/// # Errors
/// When an agent can write it.
pub(super) fn config_args(cx: &CommandContext) -> Result<Vec<String>> {
    cx.trusted_config_file()?;
    Ok(match cx.own_config_file() {
        None => Vec::new(),
        Some(file) => vec!["--config".into(), absolute_text(file.to_owned())?],
    })
}

/// Where the instance's state is found, when it is not in the usual place.
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
