//! Replacement of whole files: a reader finds the old content or the new one, never a part.
//!
//! The content goes to a temporary file in the same folder, which then gets the name. A process that ends in between
//! leaves the old content, and a file `.tmp…` that no module reads. The names are paths: where an agent may write, the
//! host calls `archive::Folder::replace_file`, which does the same below a descriptor.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::path::Path;

/// What is on the disk when [`atomic_write`] returns, and thus survives a power loss. The end of the process takes
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing yet: a power loss may take the old content and the new one.
    Renamed,
    /// The content: after a power loss, the file has the old content or the new one.
    DataSynced,
    /// The content and the name: after a power loss, the file has the new content.
    FolderSynced,
}

/// Creates or replaces a file that only its owner can read. Returns the file, open for reading and writing.
///
/// # Errors
/// When the folder does not exist or can't be written. The old file is then unchanged, unless only the sync of the
/// folder failed.
pub fn atomic_write(path: &Path, content: &[u8], durability: Durability) -> io::Result<File> {
    atomic_write_as(path, content, None, durability)
}

/// Like [`atomic_write`], with these permissions.
pub fn atomic_write_as(
    path: &Path,
    content: &[u8],
    permissions: Option<Permissions>,
    durability: Durability,
) -> io::Result<File> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(content)?;
    if let Some(permissions) = permissions {
        temporary.as_file().set_permissions(permissions)?;
    }
    if durability != Durability::Renamed {
        temporary.as_file().sync_all()?;
    }
    let file = temporary.persist(path)?;
    if durability == Durability::FolderSynced {
        sync_folder(folder)?;
    }
    Ok(file)
}

/// Waits until the names in the folder are on the disk.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(all(test, unix))]
mod tests {
    use super::{Durability, atomic_write, atomic_write_as};
    use std::fs::{self, Permissions};
    use std::io::{Read, Seek};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    const ALL: [Durability; 3] = [
        Durability::Renamed,
        Durability::DataSynced,
        Durability::FolderSynced,
    ];

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_file_is_created_and_replaced_and_nothing_else_remains() {
        for durability in ALL {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            for content in ["a longer text", "short"] {
                let mut file = atomic_write(&path, content.as_bytes(), durability).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), content);
                assert_eq!(mode(&path), 0o600, "{durability:?}");
                let mut read = String::new();
                file.rewind().unwrap();
                file.read_to_string(&mut read).unwrap();
                assert_eq!(read, content);
            }
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn permissions_are_set_whatever_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for bits in [0o666, 0o640, 0o400] {
            let permissions = Some(Permissions::from_mode(bits));
            atomic_write_as(&path, b"", permissions, Durability::Renamed).unwrap();
            assert_eq!(mode(&path), bits);
        }
    }

    #[test]
    fn a_link_is_replaced_and_its_target_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "before").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        atomic_write(&link, b"after", Durability::Renamed).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "before");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
    }

    #[test]
    fn a_failed_write_changes_nothing() {
        for durability in ALL {
            let folder = tempfile::tempdir().unwrap();
            let in_the_way = folder.path().join("folder");
            fs::create_dir(&in_the_way).unwrap();
            fs::write(in_the_way.join("kept"), "").unwrap();
            assert!(atomic_write(&in_the_way, b"x", durability).is_err());
            assert!(atomic_write(&folder.path().join("none/file"), b"x", durability).is_err());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
            assert!(in_the_way.join("kept").exists());
        }
    }
}
