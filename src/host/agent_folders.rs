//! The folders that agents write on this machine.

use super::folders::Folders;
use super::instance::Instance;
use crate::error::Result;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders in which the agents of all instances write, without this instance's recorded project and mounts, which
/// its next container may not have.
///
/// # Errors
/// When the state folder cannot be read.
pub(crate) fn agent_writable_folders(
    instance: &Instance,
    folders: &Folders,
) -> Result<Vec<PathBuf>> {
    let mut all = vec![
        canonicalize_existing(&instance.files_folder()),
        canonicalize_existing(&instance.data_folder()),
    ];
    for other in Instance::list_all(folders)? {
        if other.name != instance.name {
            all.extend([
                canonicalize_existing(&other.files_folder()),
                canonicalize_existing(&other.data_folder()),
            ]);
            all.extend(shared_folders(&other)?);
        }
    }
    Ok(all)
}

/// The folders of [`agent_writable_folders`], and this instance's recorded project and mounts.
///
/// # Errors
/// When the state folder cannot be read.
pub(crate) fn all_agent_writable_folders(
    instance: &Instance,
    folders: &Folders,
) -> Result<Vec<PathBuf>> {
    let mut all = agent_writable_folders(instance, folders)?;
    all.extend(shared_folders(instance)?);
    Ok(all)
}

/// Whether the folder is the project or a mount of an instance, which another instance may share.
///
/// # Errors
/// When the state folder cannot be read.
pub(crate) fn is_shared_folder(folder: &Path, folders: &Folders) -> Result<bool> {
    for instance in Instance::list_all(folders)? {
        if shared_folders(&instance)?.contains(&folder.into()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A folder or file beneath `folder` that another instance mounts. An agent that writes in `folder` could replace the
/// source, or a folder on the path to it, by a link, which the engine follows when that instance's container is
/// replaced.
///
/// # Errors
/// When a record cannot be read.
pub(crate) fn find_mount_beneath(
    folder: &Path,
    instance: &Instance,
    folders: &Folders,
) -> Result<Option<PathBuf>> {
    let is_beneath = |host: &PathBuf| host.starts_with(folder) && host != folder;
    for other in Instance::list_all(folders)? {
        if other.name != instance.name {
            let mounts = other
                .recorded_mounts()?
                .into_iter()
                .map(|mount| canonicalize_existing(&mount.host));
            if let Some(found) = mounts.into_iter().find(is_beneath) {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// The project and the writable mounts of an instance, if recorded. A record that cannot be read is an error: otherwise
/// the agent's files would be taken for the user's.
fn shared_folders(instance: &Instance) -> Result<Vec<PathBuf>> {
    let mounts = instance.writable_mounts()?;
    let project = instance.read_record()?.map(|record| record.project);
    let all = mounts.into_iter().chain(project);
    Ok(all.map(|folder| canonicalize_existing(&folder)).collect())
}

/// The path without links, as far as it exists.
pub(crate) fn canonicalize_existing(path: &Path) -> PathBuf {
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
