//! Resolution of the paths that a user names, where an agent may have planted links.
//!
//! The resolver walks a path component by component, and expands links one at a time. In a folder that no agent writes,
//! a link belongs to the user and is followed. In a folder that an agent writes, a link belongs to the agent: the
//! resolver follows it only while it stays in that folder, and refuses it where it leads out. From the agent's folder
//! on, the resolver opens every component by a descriptor from its parent, through no link. The result is a descriptor
//! and a name, never a path that is opened later, so that a link which is replaced after the check cannot lead
//! elsewhere.
//!
//! This module opens files to read. It writes nothing except the folders of [`PathResolver::make_folder`].

mod walk;

#[cfg(all(test, unix))]
mod tests;

use super::agent_folders::all_agent_writable_folders;
use super::folders::Folders;
use super::instance::Instance;
use crate::archive::{EntryStat, Folder};
use crate::error::{Error, Result};
use crate::protocol::files::EntryKind;
use crate::protocol::quote::quote_word;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use walk::{PathWalk, PathWalkStop};

/// Resolves paths, given the folders that agents write.
#[derive(Debug)]
pub(crate) struct PathResolver {
    agent_folders: Vec<AgentFolder>,
}

/// A folder that an agent writes.
#[derive(Debug)]
struct AgentFolder {
    /// Without links.
    path: PathBuf,
    /// Identifies the folder under any name; `None` while the folder does not exist.
    stat: Option<EntryStat>,
}

/// The target of a path.
#[derive(Debug)]
pub(crate) enum ResolvedPath {
    Folder(Folder),
    /// A file, another entry, or an unused name.
    Name(ResolvedName),
}

/// A name in a folder that is held open.
#[derive(Debug)]
pub(crate) struct ResolvedName {
    pub(crate) folder: Folder,
    pub(crate) name: OsString,
    /// The entry with this name; `None` if the name is unused.
    pub(crate) stat: Option<EntryStat>,
    /// Without links, for messages.
    pub(crate) path: PathBuf,
    /// Whether an agent writes in the folder.
    is_in_agent_folder: bool,
}

/// Why a path was not resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathResolveError {
    #[error("`{}` is a link out of `{}`, and the agent can write in that folder", link.display(), folder.display())]
    LeadsOut { link: PathBuf, folder: PathBuf },
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A path that an agent can redirect.
#[derive(Debug)]
pub(crate) struct RedirectablePath {
    /// The folder on the path in which the agent writes.
    pub(crate) folder: PathBuf,
}

impl PathResolver {
    /// A resolver that knows the folders of all instances. It knows an instance's mounts after the instance's first
    /// `up`.
    ///
    /// # Errors
    /// When the state folder cannot be read.
    pub(crate) fn new(instance: &Instance, folders: &Folders) -> Result<Self> {
        Ok(Self::with_agent_folders(all_agent_writable_folders(
            instance, folders,
        )?))
    }

    /// A resolver that knows these folders.
    pub(crate) fn with_agent_folders(agents: impl IntoIterator<Item = PathBuf>) -> Self {
        let known = |path: PathBuf| AgentFolder {
            stat: EntryStat::stat_path(&path).ok(),
            path,
        };
        Self {
            agent_folders: agents.into_iter().map(known).collect(),
        }
    }

    /// The target of the path. The last name may be unused; its folder must exist.
    ///
    /// # Errors
    /// When a link of an agent leads out of its folder, or the path cannot be opened.
    pub(crate) fn resolve(
        &self,
        path: &Path,
    ) -> std::result::Result<ResolvedPath, PathResolveError> {
        let mut walk = PathWalk::start(self, path)?;
        match walk.run_to_end()? {
            PathWalkStop::Folder => Ok(ResolvedPath::Folder(walk.into_folder()?)),
            PathWalkStop::Name(name, stat) => Ok(ResolvedPath::Name(
                walk.into_resolved_name(name, Some(stat))?,
            )),
            PathWalkStop::Missing(name, _) => {
                Ok(ResolvedPath::Name(walk.into_resolved_name(name, None)?))
            }
        }
    }

    /// The destination of a file to be written.
    ///
    /// # Errors
    /// As [`PathResolver::resolve`], and when the path is a folder.
    pub(crate) fn resolve_name(
        &self,
        path: &Path,
    ) -> std::result::Result<ResolvedName, PathResolveError> {
        match self.resolve(path)? {
            ResolvedPath::Name(place) => Ok(place),
            ResolvedPath::Folder(_) => Err(io::Error::from(ErrorKind::IsADirectory).into()),
        }
    }

    /// The folder at the path; created with its parents if missing.
    ///
    /// # Errors
    /// As [`PathResolver::resolve`], and when a folder cannot be created.
    pub(crate) fn make_folder(&self, path: &Path) -> std::result::Result<Folder, PathResolveError> {
        let mut walk = PathWalk::start(self, path)?;
        loop {
            match walk.run_to_missing()? {
                PathWalkStop::Folder => return Ok(walk.into_folder()?),
                PathWalkStop::Name(..) => {
                    return Err(io::Error::from(ErrorKind::NotADirectory).into());
                }
                PathWalkStop::Missing(name, _) => walk.make_folder(&name)?,
            }
        }
    }

    /// Opens a file for reading; returns the file and its kind. In an agent's folder only a regular file is opened.
    ///
    /// # Errors
    /// As [`PathResolver::resolve`], and when the file cannot be opened.
    pub(crate) fn open_file(
        &self,
        path: &Path,
    ) -> std::result::Result<(File, EntryStat), PathResolveError> {
        self.resolve_name(path)?
            .open()
            .map_err(PathResolveError::from)
    }

    /// The path without links, if no agent can redirect it: no component of the path as written, links expanded one at
    /// a time, is a name in an agent's folder. Components that do not exist are kept as written.
    ///
    /// # Errors
    /// When a component is in an agent's folder.
    pub(crate) fn resolve_trusted(
        &self,
        path: &Path,
    ) -> std::result::Result<PathBuf, RedirectablePath> {
        let Ok(mut walk) = PathWalk::start(self, path) else {
            return Ok(path.into());
        };
        let stop = walk.run_to_missing();
        if let Some(folder) = walk.crossed_agent_folder {
            return Err(RedirectablePath { folder });
        }
        let mut found = walk.location;
        if let Ok(PathWalkStop::Name(name, _) | PathWalkStop::Missing(name, _)) = stop {
            found.push(name);
        }
        found.extend(walk.pending);
        Ok(found)
    }

    /// Whether this is an agent's folder.
    fn is_agent_folder(&self, path: &Path, stat: &EntryStat) -> bool {
        // On systems without file identities, names may differ in case.
        #[cfg(not(unix))]
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let is_same = |agent: &AgentFolder| {
            let known = agent.stat.filter(|known| known.identity != (0, 0));
            agent.path == path || known.is_some_and(|known| known.identity == stat.identity)
        };
        self.agent_folders.iter().any(is_same)
    }
}

impl ResolvedName {
    /// A name in a folder, of any kind.
    pub(crate) fn new(folder: Folder, name: OsString, path: PathBuf) -> Self {
        Self {
            folder,
            name,
            stat: None,
            path,
            is_in_agent_folder: true,
        }
    }

    /// Opens the file; returns the file and its kind.
    pub(crate) fn open(&self) -> io::Result<(File, EntryStat)> {
        let file = match self.is_in_agent_folder {
            true => self.folder.open_file(&self.name)?,
            // Also opens special names of the system, such as `/dev/stdin`.
            false => File::open(&self.path)?,
        };
        let stat = EntryStat::stat_file(&file)?;
        match self.is_in_agent_folder && stat.kind != EntryKind::File {
            true => Err(io::Error::other(format!(
                "it is {}, not a file",
                stat.kind.with_article()
            ))),
            false => Ok((file, stat)),
        }
    }
}

impl PathResolveError {
    /// The error for the user: the refusal of a link, or the result of `word` for the system's error.
    pub(crate) fn into_error(self, word: impl FnOnce(io::Error) -> anyhow::Error) -> anyhow::Error {
        match self {
            Self::LeadsOut { ref link, .. } => {
                let link = quote_word(link.as_os_str().as_encoded_bytes(), true);
                let hint = format!(
                    "see where the link leads: `readlink {link}`; name the target instead if you trust the target"
                );
                Error::usage(self.to_string(), hint).into()
            }
            Self::Io(error) => word(error),
        }
    }
}
