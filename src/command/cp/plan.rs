//! The plan of a copy: direction and destination, computed from the arguments without side effects.

use super::CpArgs;
use crate::command::candidates::REMOTE_PREFIX;
use crate::error::{Error, Result};
use crate::protocol::files::{EntryKind, FileEntry, percent_decode, percent_encode};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct CpPlan {
    pub(super) way: CopyDirection,
    pub(super) keep_setid: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum CopyDirection {
    Up { from: PathBuf, to: RemotePath },
    FromStdin { to: RemotePath },
    Down { from: RemotePath, to: PathBuf },
    ToStdout { from: RemotePath },
}

/// A path inside; a relative path starts at the root, as in `docker cp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemotePath(Vec<u8>);

impl TryFrom<CpArgs> for CpPlan {
    type Error = anyhow::Error;

    fn try_from(args: CpArgs) -> Result<Self> {
        let CpArgs {
            source,
            destination,
            setuid,
        } = args;
        Ok(Self {
            way: parse_direction(source, destination)?,
            keep_setid: setuid,
        })
    }
}

fn parse_direction(source: OsString, destination: OsString) -> Result<CopyDirection> {
    let is_pipe = |side: &OsStr| side == "-";
    Ok(
        match (parse_remote(&source)?, parse_remote(&destination)?) {
            (Some(_), Some(_)) => {
                let message = "both paths are in the container";
                return Err(Error::usage(
                    message,
                    "`osctl shell cp -a SRC DST` copies inside the container",
                )
                .into());
            }
            (None, None) => {
                let message = "neither path is in the container";
                let hint = "prefix the path in the container with `os:`: `osctl cp SRC os:/PATH`";
                return Err(Error::usage(message, hint).into());
            }
            (None, Some(to)) if is_pipe(&source) => CopyDirection::FromStdin { to },
            (None, Some(to)) => CopyDirection::Up {
                from: source.into(),
                to,
            },
            (Some(from), None) if is_pipe(&destination) => CopyDirection::ToStdout { from },
            (Some(from), None) => CopyDirection::Down {
                from,
                to: destination.into(),
            },
        },
    )
}

fn parse_remote(side: &OsStr) -> Result<Option<RemotePath>> {
    let path = side
        .as_encoded_bytes()
        .strip_prefix(REMOTE_PREFIX.as_bytes());
    let Some(path) = path else { return Ok(None) };
    // In a URL, `..` would leave the files endpoint.
    if path.split(|byte| *byte == b'/').any(|name| name == b"..") {
        let message = format!("`{}` climbs with `..`", side.to_string_lossy());
        return Err(Error::usage(message, "write the full path: `os:/PATH`").into());
    }
    Ok(Some(RemotePath([b"/", path].concat())))
}

impl RemotePath {
    /// The path in a URL.
    pub(super) fn to_url(&self) -> String {
        percent_encode(&self.0)
    }

    /// The path without the slash at the end.
    pub(super) fn url_without_slash(&self) -> String {
        let url = self.to_url();
        format!("/{}", url.trim_matches('/'))
    }

    /// Whether a slash at the end marks a folder.
    pub(super) fn is_folder(&self) -> bool {
        self.0.ends_with(b"/")
    }

    /// Whether the path means the content of the folder and not the folder.
    pub(super) fn is_contents(&self) -> bool {
        self.file_name().is_empty() || self.0.ends_with(b"/.")
    }

    pub(super) fn file_name(&self) -> &[u8] {
        let names = self.0.split(|byte| *byte == b'/');
        let mut names = names.filter(|name| !name.is_empty() && *name != b".");
        names.next_back().unwrap_or_default()
    }

    pub(super) fn join(&self, name: &[u8]) -> Self {
        Self([&self.0, b"/".as_slice(), name].concat())
    }

    /// Follows a link at the destination to the file that is written; `there` is the metadata of the destination.
    pub(super) fn follow_link(&self, there: Option<&FileEntry>) -> Self {
        let file = there.filter(|entry| entry.kind == EntryKind::File);
        let real = file.and_then(|entry| percent_decode(entry.real.as_deref()?));
        real.map_or_else(|| self.clone(), Self)
    }

    /// The parent folder.
    pub(super) fn parent(&self) -> Self {
        let path = self.0.trim_ascii_end();
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Self(self.0[..=end].to_vec())
    }

    pub(super) fn to_display(&self) -> String {
        format!("{REMOTE_PREFIX}{}", String::from_utf8_lossy(&self.0[1..]))
    }
}

/// The existing entry at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DestinationKind {
    Nothing,
    File,
    Folder,
}

/// The position of the copy relative to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyPlacement {
    /// The copy gets the destination's name.
    As,
    /// The copy gets its own name in the destination.
    Within,
}

/// The kind of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopySource {
    File,
    Folder,
    /// The content of a folder.
    Contents,
}

/// Applies the rules of `docker cp`; `shown` is the destination, and `is_slashed` says that its path ends with a slash.
pub(super) fn choose_placement(
    source: CopySource,
    there: DestinationKind,
    is_slashed: bool,
    shown: &str,
) -> Result<CopyPlacement> {
    let refuse = |message: String, hint: &str| Err(Error::usage(message, hint).into());
    match (source, there) {
        (CopySource::File, DestinationKind::Nothing) if is_slashed => refuse(
            format!("the folder `{shown}` does not exist"),
            "create it first, or omit the slash at the end",
        ),
        (CopySource::File, DestinationKind::File) if is_slashed => refuse(
            format!("`{shown}` is a file, not a folder"),
            "omit the slash at the end to replace the file",
        ),
        (CopySource::Folder | CopySource::Contents, DestinationKind::File) => refuse(
            format!("`{shown}` is a file, but the source is a folder"),
            "name a folder, or a path that does not exist",
        ),
        (CopySource::File | CopySource::Folder, DestinationKind::Folder) => {
            Ok(CopyPlacement::Within)
        }
        _ => Ok(CopyPlacement::As),
    }
}

/// The name of a local path in the destination folder; `None` if the path means the content of a folder.
pub(super) fn local_name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let is_contents = bytes.ends_with(b"/.") || bytes == b".";
    path.file_name().filter(|_| !is_contents)
}

#[cfg(test)]
mod tests {
    use super::{
        CopyDirection, CopyPlacement, CopySource, DestinationKind, FileEntry, RemotePath,
        choose_placement, local_name, parse_direction,
    };
    use std::path::Path;

    fn remote(text: &str) -> RemotePath {
        super::parse_remote(text.as_ref()).unwrap().unwrap()
    }

    #[test]
    fn one_side_is_inside_and_a_dash_is_a_pipe() {
        let parse = |a: &str, b: &str| parse_direction(a.into(), b.into());
        assert!(matches!(
            parse("a", "os:/b").unwrap(),
            CopyDirection::Up { .. }
        ));
        assert!(matches!(
            parse("os:b", "-").unwrap(),
            CopyDirection::ToStdout { .. }
        ));
        assert!(matches!(
            parse("-", "os:b").unwrap(),
            CopyDirection::FromStdin { .. }
        ));
        assert!(parse("a", "b").is_err() && parse("os:a", "os:b").is_err());
        // A local file with such a name is written `./os:x`.
        assert!(matches!(
            parse("./os:x", "os:y").unwrap(),
            CopyDirection::Up { .. }
        ));
    }

    #[test]
    fn remote_paths_begin_at_the_root() {
        assert_eq!(remote("os:etc/hosts").to_url(), "/etc/hosts");
        assert_eq!(remote("os:/a b").to_url(), "//a%20b");
        assert_eq!(remote("os:/a/b/").url_without_slash(), "/a/b");
        assert_eq!(remote("os:").url_without_slash(), "/");
        assert_eq!(remote("os:/a/b/.").file_name(), b"b");
        assert!(remote("os:/a/.").is_contents() && remote("os:/").is_contents());
        assert!(remote("os:").is_contents() && !remote("os:/a/").is_contents());
        assert_eq!(remote("os:a/b").parent().to_url(), "/a/");
    }

    #[test]
    fn a_remote_link_to_a_file_is_followed() {
        let entry = |kind: &str, real: Option<&str>| -> FileEntry {
            let entry = serde_json::json!({"name": "l", "path": "/l", "kind": kind, "size": 0,
                "allocated": 0, "mode": "0644", "mtime": "0.0", "real": real});
            serde_json::from_value(entry).unwrap()
        };
        let followed =
            |there: Option<&FileEntry>| remote("os:/l").follow_link(there).url_without_slash();
        assert_eq!(followed(Some(&entry("file", Some("/a%20b/c")))), "/a%20b/c");
        assert_eq!(followed(Some(&entry("folder", Some("/a")))), "/l");
        assert_eq!(followed(Some(&entry("file", None))), "/l");
        assert_eq!(followed(None), "/l");
    }

    #[test]
    fn the_destination_follows_docker_cp() {
        let rule = |source, there, slashed| choose_placement(source, there, slashed, "x").ok();
        use {CopyPlacement::*, CopySource as S, DestinationKind as T};
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
    fn a_path_that_ends_in_a_dot_means_the_content_of_a_folder() {
        let name =
            |path: &str| local_name(Path::new(path)).map(|n| n.to_string_lossy().into_owned());
        assert_eq!(name("a/b/"), Some("b".into()));
        for contents in ["a/.", ".", "..", "/", "a/.."] {
            assert_eq!(name(contents), None, "{contents}");
        }
    }
}
