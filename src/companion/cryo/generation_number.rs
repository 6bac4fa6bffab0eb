//! Generation numbers: each number is written to disk before its use, and no number is used twice.
//!
//! `NAME/last` holds the newest number that was ever used under a name. The file is replaced atomically and synced
//! before a number leaves this module, and stays when all generations of the name are removed. A crash before the
//! answer of a store therefore costs a number, and never makes one number mean two states.

use crate::atomic_write::{Durability, atomic_write, sync_folder};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// File with the newest number of a name.
const NEWEST_NUMBER_FILE: &str = "last";

/// Allocates the next number in the folder of a name. Creates the folder if it is missing.
///
/// # Errors
/// When the number can't be written to disk; a later call may then return the same number.
pub(super) fn allocate_number(folder: &Path) -> io::Result<u64> {
    let is_new = !folder.try_exists()?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    if is_new && let Some(parent) = folder.parent() {
        sync_folder(parent)?;
    }
    let _lock = lock_folder(folder)?;
    let number = newest_number(folder)? + 1;
    write_newest_number(folder, number)?;
    Ok(number)
}

/// Makes sure that later numbers are above `number`, whose generation is about to be removed.
pub(super) fn reserve_up_to(folder: &Path, number: u64) -> io::Result<()> {
    let _lock = lock_folder(folder)?;
    match read_newest_number(folder)? {
        // The process that wrote the number may have ended before the sync.
        Some(last) if last >= number => sync_folder(folder),
        _ => write_newest_number(folder, number),
    }
}

/// The newest number of a name: used, on disk, or in an unfinished folder.
pub(super) fn newest_number(folder: &Path) -> io::Result<u64> {
    let mut newest = read_newest_number(folder)?.unwrap_or(0);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(newest),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.split('.').next());
        newest = newest.max(number.and_then(|n| n.parse().ok()).unwrap_or(0));
    }
    Ok(newest)
}

/// Locks the folder. Two companions may share a folder for a moment, while one container replaces another.
fn lock_folder(folder: &Path) -> io::Result<File> {
    let folder = File::open(folder)?;
    folder.lock()?;
    Ok(folder)
}

fn read_newest_number(folder: &Path) -> io::Result<Option<u64>> {
    let path = folder.join(NEWEST_NUMBER_FILE);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let number = text.trim().parse().ok();
    if number.is_none() {
        tracing::error!(
            path = %path.display(),
            "the newest number is damaged; numbers continue after the newest folder"
        );
    }
    Ok(number)
}

/// Replaces the record. The caller holds the lock.
fn write_newest_number(folder: &Path, number: u64) -> io::Result<()> {
    let path = folder.join(NEWEST_NUMBER_FILE);
    let text = number.to_string();
    atomic_write(&path, text.as_bytes(), Durability::FolderSynced).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{NEWEST_NUMBER_FILE, allocate_number, newest_number, reserve_up_to};
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_number_is_on_the_disk_before_it_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("a");
        assert_eq!(allocate_number(&name).unwrap(), 1);
        // The store with this number has ended without writing a file.
        assert_eq!(allocate_number(&name).unwrap(), 2);
        assert_eq!(
            fs::read_to_string(name.join(NEWEST_NUMBER_FILE)).unwrap(),
            "2"
        );
        // A previous version kept no record of its generations.
        fs::remove_file(name.join(NEWEST_NUMBER_FILE)).unwrap();
        fs::create_dir(name.join("6")).unwrap();
        fs::create_dir(name.join("7.part")).unwrap();
        assert_eq!(newest_number(&name).unwrap(), 7);
        assert_eq!(allocate_number(&name).unwrap(), 8);
    }

    #[test]
    fn a_removed_generation_keeps_its_number() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("4")).unwrap();
        reserve_up_to(folder.path(), 4).unwrap();
        reserve_up_to(folder.path(), 3).unwrap();
        fs::remove_dir(folder.path().join("4")).unwrap();
        assert_eq!(allocate_number(folder.path()).unwrap(), 5);
    }

    #[test]
    fn a_damaged_record_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NEWEST_NUMBER_FILE), "ninety").unwrap();
        fs::create_dir(folder.path().join("3")).unwrap();
        assert_eq!(allocate_number(folder.path()).unwrap(), 4);
        assert_eq!(allocate_number(folder.path()).unwrap(), 5);
    }

    #[test]
    fn a_folder_that_can_not_be_read_gives_no_number() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        fs::write(&file, "").unwrap();
        assert!(allocate_number(&file).is_err() && newest_number(&file).is_err());
    }

    #[test]
    fn two_concurrent_stores_get_different_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let many = |folder: &Path| {
            (0..20)
                .map(|_| allocate_number(folder).unwrap())
                .collect::<Vec<_>>()
        };
        let numbers: BTreeSet<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| many(folder.path())))
                .collect();
            let taken = threads.into_iter().flat_map(|t| t.join().unwrap());
            taken.collect()
        });
        assert_eq!(numbers.len(), 80);
    }
}
