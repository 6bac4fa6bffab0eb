//! What agents can write on this machine.
//!
//! Nothing that is mounted may lie beneath it, or above it: an agent would put a link to elsewhere in
//! its place, and the engine, which looks a mount's source up by its path, would follow that as root.

use super::folders::Folders;
use super::instance::Instance;
use crate::config::{self, Config};
use crate::error::{Error, Result};
use crate::protocol::spec::Mount;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the agents of all instances write, of this one wherever it is going to.
///
/// # Errors
/// When the state folder can't be read.
pub(crate) fn agents_folders(instance: &Instance, folders: &Folders) -> Result<Vec<PathBuf>> {
    let mut all = vec![real(&instance.files()), real(&instance.data())];
    for other in Instance::all(folders)? {
        if other.name != instance.name {
            all.extend([real(&other.files()), real(&other.data())]);
            all.extend(project_of(&other));
        }
    }
    Ok(all)
}

/// Whether it is some instance's project, which another one may share.
///
/// # Errors
/// When the state folder can't be read.
pub(crate) fn is_a_project(folder: &Path, folders: &Folders) -> Result<bool> {
    let all = Instance::all(folders)?;
    Ok(all
        .iter()
        .filter_map(project_of)
        .any(|project| project == folder))
}

/// One whose record can't be read has none that could be told.
fn project_of(instance: &Instance) -> Option<PathBuf> {
    let record = instance.record().ok().flatten()?;
    Some(real(&record.project))
}

/// Whether no agent can turn one of the person's own mounts into another one.
///
/// # Errors
/// When one lies beneath what agents write, or they write above it.
pub(crate) fn check_mounts(
    config: &Config,
    project: &Path,
    instance: &Instance,
    folders: &Folders,
) -> Result<()> {
    let mut agents = agents_folders(instance, folders)?;
    agents.push(real(project));
    let mounts = config.mounts.iter().filter_map(|text| config::mount(text));
    for (host, container, read_only) in mounts {
        let mount = Mount {
            host,
            container,
            read_only,
        };
        check_mount(&mount, &agents)?;
    }
    Ok(())
}

fn check_mount(mount: &Mount, agents: &[PathBuf]) -> Result<()> {
    let source = real(&mount.host);
    let trap = agents.iter().find(|folder| {
        let is_beneath = source.starts_with(folder) && source != **folder;
        let is_above = folder.starts_with(&source) && source != **folder && !mount.read_only;
        is_beneath || is_above
    });
    match trap {
        None => Ok(()),
        Some(folder) => Err(Error::usage(
            format!(
                "`{}` can't be mounted: an agent writes in `{}`, and could put a link to elsewhere in the other one's place",
                mount.host.display(),
                folder.display()
            ),
            "mount another folder; `mounts` in osctl.yaml names it",
        )
        .into()),
    }
}

/// The path without links, as far as it exists.
pub(crate) fn real(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    let mut at = path;
    loop {
        if let Ok(found) = fs::canonicalize(at) {
            return rest.iter().rev().fold(found, |p, name| p.join(name));
        }
        match (at.parent(), at.file_name()) {
            (Some(parent), Some(name)) => {
                rest.push(name);
                at = parent;
            }
            _ => return path.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check_mount;
    use crate::protocol::spec::Mount;

    #[test]
    fn a_mount_that_an_agent_can_turn_into_another_is_refused() {
        let agents = ["/p/agent".into()];
        let fits = |host: &str, read_only| {
            let (host, container) = (host.into(), "/m".into());
            let mount = Mount {
                host,
                container,
                read_only,
            };
            check_mount(&mount, &agents).is_ok()
        };
        assert!(fits("/p/other", false) && fits("/p/agent", false) && fits("/p", true));
        assert!(!fits("/p", false) && !fits("/p/agent/data", true));
    }
}
