//! What was typed and what is meant: which way, and where it lands. Pure.

use super::CpArgs;
use crate::error::{Error, Result};
use crate::protocol::files::{Entry, EntryKind, decode, encode};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Before the path of what is inside.
pub(crate) const INSIDE: &str = "os:";

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) way: Way,
    pub(super) keep_setid: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    Up { from: PathBuf, to: Remote },
    FromStdin { to: Remote },
    Down { from: Remote, to: PathBuf },
    ToStdout { from: Remote },
}

/// A path inside; relative ones begin at the root, as for `docker cp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remote(Vec<u8>);

impl TryFrom<CpArgs> for Plan {
    type Error = anyhow::Error;

    fn try_from(args: CpArgs) -> Result<Self> {
        let CpArgs {
            source,
            destination,
            setuid,
        } = args;
        Ok(Self {
            way: way(source, destination)?,
            keep_setid: setuid,
        })
    }
}

fn way(source: OsString, destination: OsString) -> Result<Way> {
    let is_pipe = |side: &OsStr| side == "-";
    Ok(match (inside(&source)?, inside(&destination)?) {
        (Some(_), Some(_)) => {
            let message = "both sides are inside";
            return Err(Error::usage(message, "`osctl exec '!cp -a SRC DST'` copies there").into());
        }
        (None, None) => {
            let message = "neither side is inside";
            let hint = "write `os:/PATH` for what is inside: `osctl cp SRC os:/PATH`";
            return Err(Error::usage(message, hint).into());
        }
        (None, Some(to)) if is_pipe(&source) => Way::FromStdin { to },
        (None, Some(to)) => Way::Up {
            from: source.into(),
            to,
        },
        (Some(from), None) if is_pipe(&destination) => Way::ToStdout { from },
        (Some(from), None) => Way::Down {
            from,
            to: destination.into(),
        },
    })
}

fn inside(side: &OsStr) -> Result<Option<Remote>> {
    let path = side.as_encoded_bytes().strip_prefix(INSIDE.as_bytes());
    let Some(path) = path else { return Ok(None) };
    // In a URL it would climb out of the files, and into other endpoints.
    if path.split(|byte| *byte == b'/').any(|name| name == b"..") {
        let message = format!("`{}` climbs with `..`", side.to_string_lossy());
        return Err(Error::usage(message, "write the whole path: `os:/PATH`").into());
    }
    Ok(Some(Remote([b"/", path].concat())))
}

impl Remote {
    /// As it stands in a URL.
    pub(super) fn url(&self) -> String {
        encode(&self.0)
    }

    /// The same place, whether it is a folder or not.
    pub(super) fn bare(&self) -> String {
        let url = self.url();
        format!("/{}", url.trim_matches('/'))
    }

    /// Whether a slash says that it is a folder.
    pub(super) fn is_folder(&self) -> bool {
        self.0.ends_with(b"/")
    }

    /// Whether what is in it is meant, and not the folder itself.
    pub(super) fn is_contents(&self) -> bool {
        self.name().is_empty() || self.0.ends_with(b"/.")
    }

    pub(super) fn name(&self) -> &[u8] {
        let names = self.0.split(|byte| *byte == b'/');
        let mut names = names.filter(|name| !name.is_empty() && *name != b".");
        names.next_back().unwrap_or_default()
    }

    pub(super) fn join(&self, name: &[u8]) -> Self {
        Self([&self.0, b"/".as_slice(), name].concat())
    }

    /// The file that is written there: `there` is what it is, through links.
    pub(super) fn followed(&self, there: Option<&Entry>) -> Self {
        let file = there.filter(|entry| entry.kind == EntryKind::File);
        let real = file.and_then(|entry| decode(entry.real.as_deref()?));
        real.map_or_else(|| self.clone(), Self)
    }

    /// The folder that it lies in.
    pub(super) fn parent(&self) -> Self {
        let path = self.0.trim_ascii_end();
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Self(self.0[..=end].to_vec())
    }

    pub(super) fn shown(&self) -> String {
        format!("{INSIDE}{}", String::from_utf8_lossy(&self.0[1..]))
    }
}

/// What stands at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum There {
    Nothing,
    File,
    Folder,
}

/// How the source lands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Landing {
    /// As the destination.
    As,
    /// In it, by its own name.
    Within,
}

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    File,
    Folder,
    /// What is in the folder.
    Contents,
}

/// The rules of `docker cp`; `shown` is the destination, which `is_slashed` says is a folder.
pub(super) fn landing(
    source: Source,
    there: There,
    is_slashed: bool,
    shown: &str,
) -> Result<Landing> {
    let refuse = |message: String, hint: &str| Err(Error::usage(message, hint).into());
    match (source, there) {
        (Source::File, There::Nothing) if is_slashed => refuse(
            format!("there is no folder `{shown}`"),
            "make it first, or leave the slash out",
        ),
        (Source::File, There::File) if is_slashed => refuse(
            format!("`{shown}` is a file, not a folder"),
            "leave the slash out to replace it",
        ),
        (Source::Folder | Source::Contents, There::File) => refuse(
            format!("`{shown}` is a file, and a folder is to go there"),
            "name a folder, or what does not exist",
        ),
        (Source::File | Source::Folder, There::Folder) => Ok(Landing::Within),
        _ => Ok(Landing::As),
    }
}

/// The name by which a local path lands in a folder; nothing when it means what is in it.
pub(super) fn local_name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let is_contents = bytes.ends_with(b"/.") || bytes == b".";
    path.file_name().filter(|_| !is_contents)
}

#[cfg(test)]
mod tests {
    use super::{Entry, Landing, Remote, Source, There, Way, landing, local_name, way};
    use std::path::Path;

    fn remote(text: &str) -> Remote {
        super::inside(text.as_ref()).unwrap().unwrap()
    }

    #[test]
    fn one_side_is_inside_and_a_dash_is_a_pipe() {
        let parse = |a: &str, b: &str| way(a.into(), b.into());
        assert!(matches!(parse("a", "os:/b").unwrap(), Way::Up { .. }));
        assert!(matches!(parse("os:b", "-").unwrap(), Way::ToStdout { .. }));
        assert!(matches!(parse("-", "os:b").unwrap(), Way::FromStdin { .. }));
        assert!(parse("a", "b").is_err() && parse("os:a", "os:b").is_err());
        // What is here and called so is written `./os:x`.
        assert!(matches!(parse("./os:x", "os:y").unwrap(), Way::Up { .. }));
    }

    #[test]
    fn remote_paths_begin_at_the_root() {
        assert_eq!(remote("os:etc/hosts").url(), "/etc/hosts");
        assert_eq!(remote("os:/a b").url(), "//a%20b");
        assert_eq!(remote("os:/a/b/").bare(), "/a/b");
        assert_eq!(remote("os:").bare(), "/");
        assert_eq!(remote("os:/a/b/.").name(), b"b");
        assert!(remote("os:/a/.").is_contents() && remote("os:/").is_contents());
        assert!(remote("os:").is_contents() && !remote("os:/a/").is_contents());
        assert_eq!(remote("os:a/b").parent().url(), "/a/");
    }

    #[test]
    fn a_link_there_is_followed_to_the_file() {
        let entry = |kind: &str, real: Option<&str>| -> Entry {
            let entry = serde_json::json!({"name": "l", "path": "/l", "kind": kind, "size": 0,
                "allocated": 0, "mode": "0644", "mtime": "0.0", "real": real});
            serde_json::from_value(entry).unwrap()
        };
        let followed = |there: Option<&Entry>| remote("os:/l").followed(there).bare();
        assert_eq!(followed(Some(&entry("file", Some("/a%20b/c")))), "/a%20b/c");
        assert_eq!(followed(Some(&entry("folder", Some("/a")))), "/l");
        assert_eq!(followed(Some(&entry("file", None))), "/l");
        assert_eq!(followed(None), "/l");
    }

    #[test]
    fn it_lands_as_docker_users_know_it() {
        let rule = |source, there, slashed| landing(source, there, slashed, "x").ok();
        use {Landing::*, Source as S, There as T};
        assert_eq!(rule(S::File, T::Nothing, false), Some(As));
        assert_eq!(rule(S::File, T::Nothing, true), None);
        assert_eq!(rule(S::File, T::File, false), Some(As));
        assert_eq!(rule(S::File, T::File, true), None);
        assert_eq!(rule(S::File, T::Folder, false), Some(Within));
        assert_eq!(rule(S::Folder, T::Nothing, true), Some(As));
        assert_eq!(rule(S::Folder, T::File, false), None);
        assert_eq!(rule(S::Folder, T::Folder, false), Some(Within));
        assert_eq!(rule(S::Contents, T::Folder, false), Some(As));
        assert_eq!(rule(S::Contents, T::Nothing, false), Some(As));
    }

    #[test]
    fn a_dot_means_what_is_in_a_folder() {
        let name =
            |path: &str| local_name(Path::new(path)).map(|n| n.to_string_lossy().into_owned());
        assert_eq!(name("a/b/"), Some("b".into()));
        for contents in ["a/.", ".", "..", "/", "a/.."] {
            assert_eq!(name(contents), None, "{contents}");
        }
    }
}
