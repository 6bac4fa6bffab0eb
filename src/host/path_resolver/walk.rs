//! One walk along a path, from the root of the file system.

use super::{PathResolveError, PathResolver, ResolvedName};
use crate::archive::{EntryStat, Folder};
use crate::protocol::files::EntryKind;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

/// Limit of links on one path. Linux has the same limit.
const MAX_PATH_LINKS: u32 = 40;

/// The end of a walk.
pub(super) enum PathWalkStop {
    /// At the current folder.
    Folder,
    /// At a name in the current folder.
    Name(OsString, EntryStat),
    /// At an unused name in the current folder, and why it was not found.
    Missing(OsString, io::Error),
}

pub(super) struct PathWalk<'a> {
    resolver: &'a PathResolver,
    /// The current folder, without links.
    pub(super) location: PathBuf,
    agent_walk: Option<AgentFolderWalk>,
    pub(super) pending: VecDeque<OsString>,
    link_count: u32,
    /// The first agent's folder in which a name was looked up.
    pub(super) crossed_agent_folder: Option<PathBuf>,
}

/// The part of a walk in an agent's folder.
struct AgentFolderWalk {
    root: PathBuf,
    /// The folders from the agent's folder to the current one, each held open.
    open_folders: Vec<Folder>,
    /// The first link of the agent that was followed.
    link: Option<PathBuf>,
}

impl<'a> PathWalk<'a> {
    pub(super) fn start(resolver: &'a PathResolver, path: &Path) -> io::Result<Self> {
        let mut walk = Self {
            resolver,
            location: PathBuf::new(),
            agent_walk: None,
            pending: VecDeque::new(),
            link_count: 0,
            crossed_agent_folder: None,
        };
        let path = std::path::absolute(path)?;
        walk.begin_at_root(&path)?;
        Ok(walk)
    }

    /// Restarts at the root of an absolute path, and adds its names before the pending ones.
    fn begin_at_root(&mut self, path: &Path) -> io::Result<()> {
        let is_root =
            |part: &Component<'_>| matches!(part, Component::Prefix(_) | Component::RootDir);
        let root: PathBuf = path.components().take_while(is_root).collect();
        // Drives may have several forms; use the form of paths without links.
        self.location = fs::canonicalize(root)?;
        self.push_front(path);
        Ok(())
    }

    fn push_front(&mut self, path: &Path) {
        for part in path.components().rev() {
            match part {
                Component::Normal(name) => self.pending.push_front(name.into()),
                Component::ParentDir => self.pending.push_front("..".into()),
                Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
            }
        }
    }

    /// Walks to the end; only the last name may be missing.
    pub(super) fn run_to_end(&mut self) -> std::result::Result<PathWalkStop, PathResolveError> {
        match self.run_to_missing()? {
            PathWalkStop::Missing(_, error) if !self.pending.is_empty() => Err(error.into()),
            stop => Ok(stop),
        }
    }

    /// Walks to the end, or to the first missing name.
    pub(super) fn run_to_missing(&mut self) -> std::result::Result<PathWalkStop, PathResolveError> {
        while let Some(name) = self.pending.pop_front() {
            if name == ".." {
                self.go_up()?;
                continue;
            }
            if let Some(inside) = &self.agent_walk {
                self.crossed_agent_folder
                    .get_or_insert_with(|| inside.root.clone());
            }
            let stat = match self.stat_name(&name) {
                Ok(stat) => stat,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Ok(PathWalkStop::Missing(name, error));
                }
                Err(error) => return Err(error.into()),
            };
            match stat.kind {
                EntryKind::Folder => self.enter(&name, &stat)?,
                EntryKind::Symlink if !self.is_descriptor_link(&name) => self.expand_link(&name)?,
                _ if self.pending.is_empty() => return Ok(PathWalkStop::Name(name, stat)),
                _ => return Err(io::Error::from(ErrorKind::NotADirectory).into()),
            }
        }
        Ok(PathWalkStop::Folder)
    }

    fn stat_name(&self, name: &OsStr) -> io::Result<EntryStat> {
        match &self.agent_walk {
            Some(inside) => inside.current_folder().stat(name),
            None => EntryStat::lstat_path(&self.location.join(name)),
        }
    }

    fn enter(&mut self, name: &OsStr, stat: &EntryStat) -> io::Result<()> {
        match &mut self.agent_walk {
            Some(inside) => {
                let next = inside.current_folder().open_folder(name)?;
                inside.open_folders.push(next);
                self.location.push(name);
            }
            None => {
                self.location.push(name);
                if self.resolver.is_agent_folder(&self.location, stat) {
                    self.agent_walk = Some(AgentFolderWalk {
                        open_folders: vec![Folder::open(&self.location)?],
                        root: self.location.clone(),
                        link: None,
                    });
                }
            }
        }
        Ok(())
    }

    /// Moves to the parent folder.
    fn go_up(&mut self) -> std::result::Result<(), PathResolveError> {
        if let Some(inside) = &mut self.agent_walk {
            if inside.open_folders.len() > 1 {
                inside.open_folders.pop();
            } else if let Some(link) = inside.link.take() {
                let folder = inside.root.clone();
                return Err(PathResolveError::LeadsOut { link, folder });
            } else {
                self.agent_walk = None;
            }
        }
        self.location.pop();
        Ok(())
    }

    /// Replaces the name of a link by the link's target.
    fn expand_link(&mut self, name: &OsStr) -> std::result::Result<(), PathResolveError> {
        self.link_count += 1;
        if self.link_count > MAX_PATH_LINKS {
            return Err(io::Error::other("too many links").into());
        }
        let link = self.location.join(name);
        let Some(inside) = &mut self.agent_walk else {
            let target = fs::read_link(&link)?;
            match target.is_absolute() {
                true => self.begin_at_root(&target)?,
                false => self.push_front(&target),
            }
            return Ok(());
        };
        let target = link_target(inside.current_folder().read_link(name)?);
        inside.link.get_or_insert(link);
        if !target.has_root() {
            self.push_front(&target);
            return Ok(());
        }
        let Ok(rest) = target.strip_prefix(&inside.root) else {
            let link = inside.link.take().unwrap_or_default();
            let folder = inside.root.clone();
            return Err(PathResolveError::LeadsOut { link, folder });
        };
        inside.open_folders.truncate(1);
        self.location.clone_from(&inside.root);
        self.push_front(rest);
        Ok(())
    }

    /// Whether the name is a link of the kernel to an open file, such as `/proc/self/fd/0`, which has no path.
    fn is_descriptor_link(&self, name: &OsStr) -> bool {
        let is_descriptor = self.location.starts_with("/proc") && self.location.ends_with("fd");
        is_descriptor && self.pending.is_empty() && name.to_string_lossy().parse::<u32>().is_ok()
    }

    /// Creates a missing folder, which the walk then enters.
    pub(super) fn make_folder(&mut self, name: &OsStr) -> io::Result<()> {
        match &mut self.agent_walk {
            Some(inside) => {
                let next = inside.current_folder().ensure_folder(name)?;
                inside.open_folders.push(next);
                self.location.push(name);
            }
            None => {
                let parent = Folder::open(&self.location)?;
                parent.ensure_folder(name)?;
                self.location.push(name);
            }
        }
        Ok(())
    }

    pub(super) fn into_folder(self) -> io::Result<Folder> {
        match self.agent_walk {
            Some(mut inside) => inside.open_folders.pop().ok_or(ErrorKind::NotFound.into()),
            None => Folder::open(&self.location),
        }
    }

    pub(super) fn into_resolved_name(
        self,
        name: OsString,
        stat: Option<EntryStat>,
    ) -> io::Result<ResolvedName> {
        Ok(ResolvedName {
            path: self.location.join(&name),
            is_in_agent_folder: self.agent_walk.is_some(),
            folder: self.into_folder()?,
            name,
            stat,
        })
    }
}

fn link_target(bytes: Vec<u8>) -> PathBuf {
    #[cfg(unix)]
    return <OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes).into();
    #[cfg(not(unix))]
    return String::from_utf8_lossy(&bytes).into_owned().into();
}

impl AgentFolderWalk {
    fn current_folder(&self) -> &Folder {
        // The agent's folder is never popped.
        &self.open_folders[self.open_folders.len() - 1]
    }
}
