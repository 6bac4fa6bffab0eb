//! The path in the container that a request names.

use super::FilesRefusal;
use crate::protocol::files::percent_decode;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// An absolute path without `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerPath {
    pub(crate) path: PathBuf,
    /// Whether a trailing slash says that the path names a folder.
    pub(crate) is_folder: bool,
}

impl ContainerPath {
    /// Parses the part after `/files` of a URL: percent-encoded bytes, which need not be UTF-8.
    ///
    /// # Errors
    /// When a segment is `..` or not a valid file name.
    pub(crate) fn parse(encoded: &str) -> Result<Self, FilesRefusal> {
        let invalid =
            |why: &str| FilesRefusal::Invalid(format!("`{encoded}` is not a valid path: {why}"));
        let bytes = percent_decode(encoded)
            .ok_or_else(|| invalid("a `%` needs two hexadecimal digits after it"))?;
        if bytes.contains(&0) {
            return Err(invalid("the path contains a zero byte"));
        }
        let mut path = PathBuf::from("/");
        for name in bytes.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => return Err(invalid("the path contains `..`")),
                name => path.push(OsString::from_vec(name.to_vec())),
            }
        }
        let is_folder = bytes.last().is_none_or(|last| *last == b'/');
        Ok(Self { path, is_folder })
    }
}

#[cfg(test)]
mod tests {
    use super::ContainerPath;
    use crate::protocol::files::percent_encode;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Component;

    #[test]
    fn dots_slashes_and_escapes_are_read_as_a_shell_would() {
        let path = |text: &str| {
            ContainerPath::parse(text).map(|p| (p.path.display().to_string(), p.is_folder))
        };
        assert_eq!(path("/etc//./hosts").unwrap(), ("/etc/hosts".into(), false));
        assert_eq!(path("").unwrap(), ("/".into(), true));
        assert_eq!(path("/a%20b/").unwrap(), ("/a b".into(), true));
        assert_eq!(path("/..a/b..").unwrap(), ("/..a/b..".into(), false));
        for text in [
            "/..",
            "/a/../b",
            "/%2e%2E/x",
            "/a%2f..%2fb",
            "/a%00",
            "/%f",
            "/%zz",
        ] {
            assert!(path(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_path_is_below_the_root_and_has_no_parent_component(text in "[a./%0-9A-F\\PC]{0,40}") {
            if let Ok(place) = ContainerPath::parse(&text) {
                let mut parts = place.path.components();
                prop_assert_eq!(parts.next(), Some(Component::RootDir));
                prop_assert!(parts.all(|part| matches!(part, Component::Normal(_))));
            }
        }

        #[test]
        fn every_path_of_names_is_found_again(names in proptest::collection::vec(proptest::collection::vec(1u8.., 1..20), 1..6)) {
            let fine = |name: &Vec<u8>| !name.contains(&b'/') && name != b"." && name != b"..";
            prop_assume!(names.iter().all(fine));
            let path = names.iter().flat_map(|name| [b"/", name.as_slice()].concat()).collect::<Vec<_>>();
            let place = ContainerPath::parse(&percent_encode(&path)).unwrap();
            prop_assert_eq!(place.path.as_os_str().as_bytes(), path.as_slice());
        }
    }
}
