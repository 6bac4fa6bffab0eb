//! Records of uploads that are incomplete, so that the companion can remove each of them.
//!
//! Each record is a file in a folder of the companion, named by the upload's id. It contains the path of the temporary
//! file beside the upload's destination, up to a NUL; for an archive, the path of the file that is written now. Records
//! survive the companion, as the temporary files do.

use super::FilesRefusal;
use crate::archive;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long an upload can be resumed.
const PARTIAL_UPLOAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const UPLOAD_SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Prefix of the ids of uploads that can't be resumed.
const ONE_SHOT_UPLOAD_PREFIX: &str = "once-";

#[derive(Debug)]
pub(super) struct PartialUploads {
    folder: PathBuf,
    active_ids: Mutex<HashSet<String>>,
}

/// An upload that a request is sending.
#[derive(Debug)]
pub(super) struct ActiveUpload<'a> {
    uploads: &'a PartialUploads,
    id: &'a str,
    record_file: File,
}

/// Returns a unique id of an upload that can't be resumed.
pub(super) fn generate_one_shot_id() -> Result<String, FilesRefusal> {
    let id = archive::random_id().map_err(|error| FilesRefusal::Failed(error.to_string()))?;
    Ok(format!("{ONE_SHOT_UPLOAD_PREFIX}{id}"))
}

/// Whether a client may use this id for an upload.
pub(super) fn is_upload_id(id: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (8..=48).contains(&id.len()) && id.bytes().all(fine) && !id.starts_with(ONE_SHOT_UPLOAD_PREFIX)
}

impl PartialUploads {
    pub(super) fn new(folder: PathBuf) -> Self {
        let active_ids = Mutex::default();
        Self { folder, active_ids }
    }

    /// Records an upload that writes to `path`. The upload is active until the returned value is dropped; the record
    /// stays until [`ActiveUpload::remove_record`] or until the upload expires.
    pub(super) fn begin_upload<'a>(
        &'a self,
        id: &'a str,
        path: &Path,
    ) -> Result<ActiveUpload<'a>, FilesRefusal> {
        if !self.active_ids.lock().insert(id.into()) {
            return Err(FilesRefusal::InProgress(id.into()));
        }
        let failed = FilesRefusal::for_path(&self.folder);
        let record_file = fs::create_dir_all(&self.folder)
            .and_then(|()| File::create(self.folder.join(id)))
            .map_err(|error| {
                self.active_ids.lock().remove(id);
                failed(error)
            })?;
        let active = ActiveUpload {
            uploads: self,
            id,
            record_file,
        };
        active.record_path(path).map_err(failed)?;
        Ok(active)
    }

    /// Removes the uploads that can't or will not be resumed.
    pub(super) fn remove_expired(&self, is_start: bool) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // An upload that can't be removed must not keep the others from removal.
            if let Err(error) = self.remove_if_expired(&entry, is_start) {
                tracing::warn!(path = %entry.path().display(), %error, "the companion can't remove a partial upload");
            }
        }
        Ok(())
    }

    /// Removes one record and its temporary file when the upload has expired.
    fn remove_if_expired(&self, entry: &fs::DirEntry, is_start: bool) -> io::Result<()> {
        let name = entry.file_name();
        let id = name.to_string_lossy();
        if self.active_ids.lock().contains(id.as_ref()) {
            return Ok(());
        }
        let mut path = fs::read(entry.path())?;
        // Bytes behind the NUL are left of a longer path.
        path.truncate(
            path.iter()
                .position(|byte| *byte == 0)
                .unwrap_or(path.len()),
        );
        let path = PathBuf::from(OsString::from_vec(path));
        let stat = fs::symlink_metadata(&path);
        let age = stat.and_then(|found| found.modified());
        let age = age.map(|time| time.elapsed().unwrap_or_default());
        let is_over = match age {
            Ok(age) => {
                age > PARTIAL_UPLOAD_TIMEOUT || (is_start && id.starts_with(ONE_SHOT_UPLOAD_PREFIX))
            }
            // The file is missing. During a start the record is stale; later it may have been written before its file.
            Err(_) => is_start,
        };
        if !is_over {
            return Ok(());
        }
        // The suffix proves that the file is a partial upload; a record that names another file must not remove it.
        let is_ours = path.to_string_lossy().ends_with(&format!(".osctl-{id}"));
        if is_ours && age.is_ok() {
            tracing::info!(path = %path.display(), "the companion removes an interrupted upload");
            fs::remove_file(&path)?;
        }
        fs::remove_file(entry.path())
    }
}

impl ActiveUpload<'_> {
    /// Records the path of the file that is written from now on.
    pub(super) fn record_path(&self, path: &Path) -> io::Result<()> {
        let path = [path.as_os_str().as_bytes(), &[0]].concat();
        self.record_file.write_all_at(&path, 0)
    }

    /// Removes the record after the file was moved to its place or removed.
    pub(super) fn remove_record(self) {
        // A record without its file is removed at the next start.
        let _ = fs::remove_file(self.uploads.folder.join(self.id));
    }
}

impl Drop for ActiveUpload<'_> {
    fn drop(&mut self) {
        self.uploads.active_ids.lock().remove(self.id);
    }
}

/// Removes expired uploads immediately and then periodically.
pub(super) async fn sweep_uploads(uploads: Arc<PartialUploads>) {
    let mut is_start = true;
    loop {
        let uploads = Arc::clone(&uploads);
        let cleaned = tokio::task::spawn_blocking(move || uploads.remove_expired(is_start)).await;
        match cleaned {
            Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "the companion can't remove interrupted uploads");
            }
            _ => {}
        }
        is_start = false;
        tokio::time::sleep(UPLOAD_SWEEP_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{PartialUploads, is_upload_id};
    use std::fs;
    use std::time::{Duration, SystemTime};

    #[test]
    fn start_removes_expired_and_one_shot() {
        let folder = tempfile::tempdir().unwrap();
        let uploads = PartialUploads::new(folder.path().join("notes"));
        let old = SystemTime::now() - Duration::from_secs(25 * 3600);
        let begin_and_drop = |id: &str| {
            let path = folder.path().join(format!(".f.osctl-{id}"));
            fs::write(&path, "half").unwrap();
            drop(uploads.begin_upload(id, &path).unwrap());
            path
        };
        let (young, once, stale) = (
            begin_and_drop("resumable"),
            begin_and_drop("once-1"),
            begin_and_drop("forgotten"),
        );
        fs::File::options()
            .write(true)
            .open(&stale)
            .unwrap()
            .set_modified(old)
            .unwrap();
        let foreign = folder.path().join("foreign");
        fs::write(&foreign, "not ours").unwrap();
        drop(uploads.begin_upload("planted-", &foreign).unwrap());
        fs::File::options()
            .write(true)
            .open(&foreign)
            .unwrap()
            .set_modified(old)
            .unwrap();
        let running = folder.path().join(".f.osctl-once-2");
        fs::write(&running, "half").unwrap();
        let active = uploads.begin_upload("once-2", &running).unwrap();
        uploads.remove_expired(true).unwrap();
        drop(active);
        let there = [&young, &once, &stale, &foreign, &running].map(|path| path.exists());
        assert_eq!(there, [true, false, false, true, true]);
    }

    #[test]
    fn last_archive_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let uploads = PartialUploads::new(folder.path().join("notes"));
        let temporary_path = |name: &str| folder.path().join(format!(".{name}.osctl-once-1"));
        let paths = ["done", "a long name before it", "last"].map(temporary_path);
        let active = uploads.begin_upload("once-1", folder.path()).unwrap();
        for path in &paths {
            active.record_path(path).unwrap();
        }
        drop(active);
        // A file that only resembles a partial upload stays.
        for path in [&paths[0], &paths[2]] {
            fs::write(path, "half").unwrap();
        }
        uploads.remove_expired(true).unwrap();
        assert_eq!(paths.map(|path| path.exists()), [true, false, false]);
        assert_eq!(
            fs::read_dir(folder.path().join("notes")).unwrap().count(),
            0
        );
    }

    #[test]
    fn an_archive_that_was_cut_between_two_of_its_files_leaves_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let uploads = PartialUploads::new(folder.path().join("notes"));
        drop(uploads.begin_upload("once-1", folder.path()).unwrap());
        uploads.remove_expired(true).unwrap();
        assert!(folder.path().exists() && !folder.path().join("notes/once-1").exists());
    }

    #[test]
    fn failed_removal_blocks_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        let uploads = PartialUploads::new(notes.clone());
        let ids = ["once-1", "once-2", "once-3"];
        for id in ids {
            let path = folder.path().join(format!(".f.osctl-{id}"));
            fs::write(&path, "half").unwrap();
            drop(uploads.begin_upload(id, &path).unwrap());
            // A record that can't be read, and a temporary file that has become a folder.
            let stuck = folder.path().join(format!(".g.osctl-stuck-{id}"));
            fs::create_dir(&stuck).unwrap();
            drop(
                uploads
                    .begin_upload(&format!("stuck-{id}"), &stuck)
                    .unwrap(),
            );
            let old = SystemTime::now() - Duration::from_secs(25 * 3600);
            fs::File::open(&stuck).unwrap().set_modified(old).unwrap();
            fs::create_dir(notes.join(format!("odd-{id}"))).unwrap();
        }
        uploads.remove_expired(true).unwrap();
        for id in ids {
            assert!(!folder.path().join(format!(".f.osctl-{id}")).exists());
        }
    }

    #[test]
    fn upload_ids_are_validated() {
        assert!(is_upload_id("0123-abc_DEF"));
        for id in [
            "short",
            "a/../../b",
            "once-12345678",
            "12345678.",
            &"x".repeat(49),
        ] {
            assert!(!is_upload_id(id), "{id}");
        }
    }
}
