//! File transfer: streams the files of the container in and out.
//!
//! [`FilesHandle`] is the handle: it takes paths and streams and does not depend on HTTP. Blocking threads do all work
//! on files. Bounded channels of a few pieces connect them to the companion's one thread ([`archive`]): a slow client
//! makes the thread wait, and memory use does not grow with the file.
//!
//! ```text
//! upload:  none ─start─▶ partial file, recorded ─complete─▶ synced ─rename─▶ in its place
//!                         │        ▲ └─disk full─▶ none: the old file stays untouched
//!                        cut       │ the same id resumes at its offset
//!                         ▼        │
//!                        kept for a day (without an id: removed immediately)
//! ```
//!
//! A client has the permissions of the container's user: links on the way to a path are followed. The module keeps no
//! versions, watches no files, and copies nothing within the container.

mod partial_uploads;
mod path;
mod refusal;
mod resolved_path;
mod store;
mod unpacking;

pub(crate) use path::ContainerPath;
pub(crate) use refusal::FilesRefusal;
pub(crate) use resolved_path::{ListingPage, OpenedFile, ResolvedFilePath};
pub(crate) use store::{UploadOutcome, UploadTarget};
pub(crate) use unpacking::ActiveUnpack;

use crate::archive::{
    self, ChunkReader, ChunkReceiver, ErrorReporting, Folder, PackSource, ResumePoint,
    UnpackPolicy, UnpackTotals, VerifiedReader,
};
use partial_uploads::PartialUploads;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use unpacking::ResumableUnpacks;

/// Concurrent streams: each occupies a thread while it runs.
const MAX_FILE_STREAMS: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct FilesHandle {
    partial_uploads: Arc<PartialUploads>,
    resumable_unpacks: ResumableUnpacks,
    stream_permits: Arc<Semaphore>,
}

impl FilesHandle {
    /// `data`: folder of the records of partial uploads. A background task removes what an earlier companion left.
    pub(crate) fn start(data: PathBuf) -> Self {
        let partial_uploads = Arc::new(PartialUploads::new(data.join("uploads")));
        tokio::spawn(partial_uploads::sweep_uploads(Arc::clone(&partial_uploads)));
        let stream_permits = Arc::new(Semaphore::new(MAX_FILE_STREAMS));
        Self {
            partial_uploads,
            resumable_unpacks: ResumableUnpacks::default(),
            stream_permits,
        }
    }

    /// Describes the file, folder or link at a path.
    pub(crate) async fn find_path(
        &self,
        place: ContainerPath,
    ) -> Result<ResolvedFilePath, FilesRefusal> {
        run_file_task(move || ResolvedFilePath::resolve(place)).await
    }

    /// Lists a folder's entries.
    pub(crate) async fn list_folder(
        &self,
        found: ResolvedFilePath,
        page: ListingPage,
    ) -> Result<crate::protocol::files::FileListing, FilesRefusal> {
        run_file_task(move || found.list_entries(page)).await
    }

    /// Opens a file; reads nothing yet.
    pub(crate) async fn open_file(
        &self,
        found: ResolvedFilePath,
    ) -> Result<OpenedFile, FilesRefusal> {
        run_file_task(move || found.open_file()).await
    }

    /// Streams `length` bytes of a file from `start` on; without a length, all bytes to the end, because the size of
    /// such a file is unknown.
    pub(crate) fn stream_file(
        &self,
        open: OpenedFile,
        start: u64,
        length: Option<u64>,
    ) -> Result<ChunkReceiver, FilesRefusal> {
        let permit = self.acquire_permit()?;
        let (writer, pieces) = archive::chunk_writer();
        tokio::task::spawn_blocking(move || {
            open.stream_to(start, length, writer);
            drop(permit);
        });
        Ok(pieces)
    }

    /// Streams a folder with its content, or one file, as a tar archive from a resume point on.
    pub(crate) async fn stream_archive(
        &self,
        found: ResolvedFilePath,
        from: ResumePoint,
    ) -> Result<ChunkReceiver, FilesRefusal> {
        let permit = self.acquire_permit()?;
        let (folder, name) = run_file_task(move || found.into_archive_source()).await?;
        let what = match name {
            None => PackSource::Folder(folder),
            Some(name) => PackSource::File {
                folder,
                archive_name: name.clone(),
                name,
            },
        };
        let held = move |_| {
            let _held = &permit;
        };
        Ok(archive::pack_stream(what, from, ErrorReporting::Archive, held).await?)
    }

    /// Stores a file: writes it beside its place first.
    pub(crate) async fn store_file(
        &self,
        target: UploadTarget,
        reader: ChunkReader,
    ) -> Result<UploadOutcome, FilesRefusal> {
        let (partial_uploads, permit) = (Arc::clone(&self.partial_uploads), self.acquire_permit()?);
        run_file_task(move || {
            run_with_permit(permit, || {
                store::store_upload(&partial_uploads, target, reader)
            })
        })
        .await
    }

    /// How much of an upload has arrived; for an archive, with the digest of the bytes without file data.
    pub(crate) async fn find_resume_point(
        &self,
        place: ContainerPath,
        id: String,
    ) -> Result<ResumePoint, FilesRefusal> {
        if let Some(resume_point) = self
            .resumable_unpacks
            .find_resume_point(&id, &place)
            .await?
        {
            return Ok(resume_point);
        }
        run_file_task(move || {
            Ok(ResumePoint {
                bytes: store::count_uploaded_bytes(&place, &id)?,
                ..ResumePoint::default()
            })
        })
        .await
    }

    /// Discards a partial upload.
    pub(crate) async fn discard_upload(
        &self,
        place: ContainerPath,
        id: String,
    ) -> Result<(), FilesRefusal> {
        if self.resumable_unpacks.discard_unpacking(&id, &place) {
            return Ok(());
        }
        let partial_uploads = Arc::clone(&self.partial_uploads);
        run_file_task(move || store::remove_partial_upload(&partial_uploads, &place, &id)).await
    }

    /// Unpacks an archive below a folder, which is created if missing. With an id, the unpacking resumes at `offset`,
    /// where an earlier connection ended.
    pub(crate) fn start_unpacking(
        &self,
        place: ContainerPath,
        parents: bool,
        id: Option<&str>,
        offset: u64,
    ) -> Result<ActiveUnpack, FilesRefusal> {
        let permit = self.acquire_permit();
        let partial_uploads = Arc::clone(&self.partial_uploads);
        let to = place.clone();
        let unpack = move |reader: VerifiedReader<ChunkReader>| {
            run_with_permit(permit?, || {
                unpack_archive(&partial_uploads, to, parents, reader)
            })
        };
        match id {
            None => Ok(ActiveUnpack::without_resume(unpack)),
            Some(id) => self.resumable_unpacks.start_or_resume(
                store::check_upload_id(id)?,
                &place,
                offset,
                unpack,
            ),
        }
    }

    /// Creates a folder; `false` when it existed.
    pub(crate) async fn create_folder(
        &self,
        place: ContainerPath,
        parents: bool,
    ) -> Result<bool, FilesRefusal> {
        run_file_task(move || store::create_folder(&place, parents)).await
    }

    /// Removes a file, a link or an empty folder, with `recursive` also a folder with content. A link itself is
    /// removed, not its target.
    pub(crate) async fn remove_path(
        &self,
        place: ContainerPath,
        recursive: bool,
    ) -> Result<(), FilesRefusal> {
        run_file_task(move || {
            let path = &place.path;
            let failed = FilesRefusal::for_path(path);
            if path.parent().is_none() {
                return Err(FilesRefusal::Invalid("the root can't be removed".into()));
            }
            let is_folder = fs::symlink_metadata(path).map_err(&failed)?.is_dir();
            let removed = match (is_folder, recursive) {
                (false, _) if place.is_folder => {
                    return Err(FilesRefusal::NotAFolder(path.clone()));
                }
                (false, _) => fs::remove_file(path),
                (true, false) => fs::remove_dir(path),
                (true, true) => fs::remove_dir_all(path),
            };
            removed.map_err(failed)
        })
        .await
    }

    fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, FilesRefusal> {
        let permit = Arc::clone(&self.stream_permits).try_acquire_owned();
        permit.map_err(|_| FilesRefusal::TooManyStreams(MAX_FILE_STREAMS))
    }
}

fn unpack_archive(
    partial_uploads: &PartialUploads,
    place: ContainerPath,
    parents: bool,
    reader: VerifiedReader<ChunkReader>,
) -> Result<UnpackTotals, FilesRefusal> {
    let id = partial_uploads::generate_one_shot_id()?;
    let sets_root_attributes = store::create_folder(&place, parents)?;
    let folder = Folder::open(&place.path).map_err(FilesRefusal::for_path(&place.path))?;
    let policy = UnpackPolicy {
        keep_setid: true,
        sets_root_attributes,
        single_name: None,
        temporary_id: id.clone(),
    };
    let active = partial_uploads.begin_upload(&id, &place.path)?;
    let unpacked = archive::unpack_archive(reader, folder, policy, &mut |temporary_name| {
        active.record_path(&place.path.join(temporary_name))
    });
    active.remove_record();
    Ok(unpacked?)
}

fn run_with_permit<T>(permit: OwnedSemaphorePermit, work: impl FnOnce() -> T) -> T {
    let done = work();
    drop(permit);
    done
}

async fn run_file_task<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FilesRefusal> + Send + 'static,
) -> Result<T, FilesRefusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|ended| {
        Err(FilesRefusal::Failed(format!(
            "the file task ended: {ended}"
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::{ContainerPath, FilesHandle, PartialUploads};
    use std::fs;
    use std::path::Path;
    use tar::{EntryType, Header};

    /// Waits until a folder contains `count` names, and returns them.
    async fn wait_for_names(folder: &Path, count: usize) -> Vec<String> {
        loop {
            // The test may run before the folder exists.
            let entries = fs::read_dir(folder).into_iter().flatten();
            let names = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
            let mut names: Vec<String> = names.collect();
            if names.len() == count {
                names.sort();
                return names;
            }
            tokio::task::yield_now().await;
        }
    }

    fn tar_header(name: &str, size: u64) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    #[tokio::test]
    async fn start_removes_killed_unpacking() {
        let folder = tempfile::tempdir().unwrap();
        let (data, to) = (folder.path().join("data"), folder.path().join("to"));
        let files = FilesHandle::start(data.clone());
        let place = ContainerPath::parse(to.to_str().unwrap()).unwrap();
        let mut unpacking = files.start_unpacking(place, false, None, 0).unwrap();
        let whole = [
            tar_header("whole", 512),
            vec![b'w'; 512],
            tar_header("half", 5000),
        ]
        .concat();
        assert!(unpacking.feed_chunk(whole.into()).await);
        let there = wait_for_names(&to, 2).await;
        assert!(
            there[0].starts_with(".half.osctl-once-") && there[1] == "whole",
            "{there:?}"
        );
        // A file whose name resembles a partial upload but which has no record.
        fs::write(to.join(".other.osctl-once-1"), "").unwrap();
        // The next instance reads the records of the first one; no upload is active in it.
        PartialUploads::new(data.join("uploads"))
            .remove_expired(true)
            .unwrap();
        assert_eq!(
            wait_for_names(&to, 2).await,
            [".other.osctl-once-1", "whole"]
        );
    }
}
