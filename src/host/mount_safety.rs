//! The checks that no file which osctl trusts is in a folder that agents write: mounts, the companion binary, osctl's
//! own executable and the configuration file.
//!
//! An agent could replace a component of a path by a link. The engine resolves a mount's source by its path as root, at
//! each replacement of the container, and the binary runs in the keeper, which holds the engine's socket. A path that
//! passes the check can be opened by name later: no agent can redirect it.

use super::agent_folders::{all_agent_writable_folders, canonicalize_existing, find_mount_beneath};
use super::folders::Folders;
use super::instance::Instance;
use super::path_resolver::{PathResolver, RedirectablePath};
use crate::config::{self, Config};
use crate::error::{Error, Result};
use crate::image::CompanionBinary;
use crate::protocol::spec::Mount;
use std::path::{Path, PathBuf};

/// Checks the sources of a container and its keeper: mounts, the companion binary, osctl's own executable and the
/// configuration file. Returns the mounts, without links.
///
/// # Errors
/// When an agent can redirect one of them, or a mount holds files that an agent must not reach.
pub(crate) fn check_sources(
    config: &Config,
    config_file: &Path,
    project: &Path,
    instance: &Instance,
    folders: &Folders,
) -> Result<Vec<Mount>> {
    let mut agents = all_agent_writable_folders(instance, folders)?;
    agents.push(canonicalize_existing(project));
    let mounts = config
        .mounts
        .iter()
        .filter_map(|text| config::parse_mount(text));
    let mounts: Vec<Mount> = mounts
        .map(|(host, container, read_only)| Mount {
            host,
            container,
            read_only,
        })
        .collect();
    let writable = mounts.iter().filter(|mount| !mount.read_only);
    agents.extend(writable.map(|mount| canonicalize_existing(&mount.host)));
    let resolver = PathResolver::with_agent_folders(agents.iter().cloned());
    let secrets = [&folders.config, &folders.state].map(|folder| canonicalize_existing(folder));
    for mount in &mounts {
        let source = check_mount(mount, &agents, &secrets, &resolver)?;
        let beneath = match mount.read_only {
            true => None,
            false => find_mount_beneath(&source, instance, folders)?,
        };
        if let Some(other) = beneath {
            return Err(unfit_mount_error(mount, &foreign_mount_reason(&other)));
        }
    }
    if let Some(companion) = &config.companion {
        check_trusted(
            companion,
            &resolver,
            "copy the binary to a folder that no agent can write, and pass the copy: `osctl up --companion PATH`",
        )?;
    }
    check_config_file(config_file, &resolver)?;
    check_executable(&resolver)?;
    let sources = mounts.into_iter().map(|mount| Mount {
        host: canonicalize_existing(&mount.host),
        ..mount
    });
    Ok(sources.collect())
}

/// Why no agent may write in a folder above the source of another instance's mount.
pub(crate) fn foreign_mount_reason(source: &Path) -> String {
    format!(
        "another instance mounts `{}`, and the agent could replace a part of that path with a link",
        source.display()
    )
}

fn unfit_mount_error(mount: &Mount, why: &str) -> anyhow::Error {
    let message = format!("`{}` can't be mounted: {why}", mount.host.display());
    let hint = "mount another folder; `osctl config edit` changes `mounts`";
    Error::usage(message, hint).into()
}

/// Checks that no agent can write the configuration.
///
/// # Errors
/// When an agent can.
pub(crate) fn check_config_file(file: &Path, resolver: &PathResolver) -> Result<()> {
    let hint = "keep the configuration in a folder that no agent can write; `osctl config path` shows the usual file";
    check_trusted(file, resolver, hint)
}

/// Checks that no agent can write the folder of Jupyter's kernelspecs: Jupyter executes their commands, and osctl
/// removes a kernelspec's folder by its path.
///
/// # Errors
/// When an agent can.
pub(crate) fn check_kernels_folder(data: &Path, resolver: &PathResolver) -> Result<()> {
    let hint = "use a Jupyter outside the project, or choose another folder with `--prefix DIR`";
    check_trusted(&data.join("kernels"), resolver, hint)
}

/// Checks that no agent can replace the running program, or the Linux binary in its package.
///
/// # Errors
/// When an agent can.
pub(crate) fn check_executable(resolver: &PathResolver) -> Result<()> {
    let hint = "run an osctl that is installed elsewhere: `cargo install --path .` installs your build to `~/.cargo/bin/osctl`";
    check_trusted(&std::env::current_exe()?, resolver, hint)?;
    let packaged = CompanionBinary::packaged_paths()?;
    let mut packaged = packaged.iter();
    packaged.try_for_each(|path| check_trusted(path, resolver, hint))
}

/// Checks that no agent can redirect or replace a file that osctl reads or executes.
///
/// # Errors
/// When an agent can.
fn check_trusted(path: &Path, resolver: &PathResolver, hint: &str) -> Result<()> {
    match resolver.resolve_trusted(path) {
        Ok(_) => Ok(()),
        Err(RedirectablePath { folder }) => {
            let (path, folder) = (path.display(), folder.display());
            let message = format!("`{path}` is not trusted: the agent can write in `{folder}`");
            Err(Error::usage(message, hint).into())
        }
    }
}

/// The source of the mount, without links.
fn check_mount(
    mount: &Mount,
    agents: &[PathBuf],
    secrets: &[PathBuf],
    resolver: &PathResolver,
) -> Result<PathBuf> {
    let refused = |why: String| Err(unfit_mount_error(mount, &why));
    let source = match resolver.resolve_trusted(&mount.host) {
        Ok(source) => source,
        Err(RedirectablePath { folder }) => {
            return refused(format!(
                "an agent can write in `{}`, and replace a part of the path with a link",
                folder.display()
            ));
        }
    };
    let is_nested = |folder: &&PathBuf| folder.starts_with(&source) || source.starts_with(folder);
    if let Some(folder) = secrets.iter().find(is_nested) {
        return refused(format!(
            "osctl keeps its configuration or its tokens in `{}`",
            folder.display()
        ));
    }
    let is_beneath = |folder: &&PathBuf| folder.starts_with(&source) && source != **folder;
    match agents.iter().find(is_beneath) {
        Some(folder) if !mount.read_only => refused(format!(
            "the agent could replace `{}`, which is also mounted, with a link",
            folder.display()
        )),
        _ => Ok(source),
    }
}

#[cfg(test)]
mod tests {
    use super::check_mount;
    use crate::host::path_resolver::PathResolver;
    use crate::protocol::spec::Mount;

    #[test]
    fn a_mount_that_an_agent_can_turn_into_another_is_refused() {
        let agents = ["/p/agent".into()];
        let resolver = PathResolver::with_agent_folders(agents.clone());
        let fits = |host: &str, read_only| {
            let (host, container) = (host.into(), "/m".into());
            let mount = Mount {
                host,
                container,
                read_only,
            };
            check_mount(&mount, &agents, &["/s".into()], &resolver).is_ok()
        };
        assert!(fits("/p/other", false) && fits("/p/agent", false) && fits("/p", true));
        assert!(!fits("/p", false));
        assert!(!fits("/s/tokens", true) && !fits("/", true));
    }
}
