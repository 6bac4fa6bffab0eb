//! User folders that no agent writes, and the detection of changes in them.

use crate::harness::Home;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A user folder that no agent writes, with secrets.
pub(crate) fn victim(home: &Home, name: &str) -> PathBuf {
    let folder = home.folder.join(format!("victim-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("folder")).unwrap();
    for file in ["secret", "folder/secret"] {
        fs::write(folder.join(file), "SECRET").unwrap();
        fs::set_permissions(folder.join(file), fs::Permissions::from_mode(0o600)).unwrap();
    }
    folder
}

/// The mode, inode, time of change and content of files, by path.
pub(crate) type Listing = BTreeMap<PathBuf, (u32, u64, i64, i64, Vec<u8>)>;

/// The entries of a folder, with all that a write, a new name or a change of rights changes.
pub(crate) fn listing(folder: &Path) -> Listing {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        let content = match about.is_file() {
            true => fs::read(&path).unwrap(),
            false => Vec::new(),
        };
        if about.is_dir() {
            found.extend(listing(&path));
        }
        let value = (
            about.mode(),
            about.ino(),
            about.ctime(),
            about.ctime_nsec(),
            content,
        );
        found.insert(path, value);
    }
    found
}

/// Code that shows bytes as a PNG figure.
pub(crate) fn showing(bytes: &str) -> String {
    format!(
        "import base64\nclass F:\n    def _repr_mimebundle_(self, **_): return {{'image/png': base64.b64encode({bytes}).decode()}}\nF()"
    )
}

pub(crate) const PNG: &str = r"b'\x89PNG\r\n\x1a\n' + b'rest'";

/// Whether a file below contains the secret.
pub(crate) fn has_secret(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .any(|path| match path.is_symlink() {
            true => false,
            false if path.is_dir() => has_secret(&path),
            false => fs::read(&path).is_ok_and(|text| text.starts_with(b"SECRET")),
        })
}
