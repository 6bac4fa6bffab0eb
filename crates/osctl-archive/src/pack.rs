//! Packer: a file tree to an archive.
//!
//! Folders are walked by descriptors: a process that replaces a folder with a link during the walk exposes nothing
//! outside the tree. Sockets have no representation in archives and are left out. Changes during packing are included
//! if the walk has not reached them yet; a file that shrinks ends the archive with an error. Names are sorted, so the
//! same tree gives the same archive, and packing can start at a resume point.

use super::ARCHIVE_CHUNK_BYTES;
use super::chunk_channel::{ChunkReceiver, ChunkWriter, chunk_writer};
use super::error::ArchiveError;
use super::folder::{EntryStat, Folder, name_bytes};
use super::member::{ArchiveMember, DataSegment, MemberKind};
use super::resume_point::ResumePoint;
use super::sparse::data_segments;
use super::writer::TarWriter;
use osctl_protocol::files::EntryKind;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use tokio::sync::oneshot;

/// With more multiply linked files than this, more hard links are packed as separate files.
const MAX_TRACKED_LINKS: usize = 100_000;
/// Every folder on the path to the current entry is held open.
pub(super) const MAX_FOLDER_DEPTH: usize = 512;

/// The input of a pack operation.
#[derive(Debug)]
pub enum PackSource {
    /// Everything in the folder; the member of the folder itself is `.`.
    Folder(Folder),
    /// One file of a folder, under its own name or under another name.
    File {
        folder: Folder,
        name: OsString,
        archive_name: OsString,
    },
}

/// How the packer reports a read error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorReporting {
    /// In the archive, where possible; an osctl host or companion that unpacks it reads the error there.
    Archive,
    /// By cutting the stream.
    Stream,
}

/// Packs the archive from a resume point on, in a blocking thread. The thread calls `moved` with the number of file
/// bytes packed, including those before the resume point, and drops it when it ends.
///
/// # Errors
/// When the tree before the resume point has changed.
pub async fn pack_stream(
    what: PackSource,
    from: ResumePoint,
    reporting: ErrorReporting,
    mut moved: impl FnMut(u64) + Send + 'static,
) -> Result<ChunkReceiver, ArchiveError> {
    let (mut writer, chunks) = chunk_writer();
    let (start_sender, start_permit) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let to = StartNotifier {
            to: &mut writer,
            started: Some(start_sender),
        };
        let packed = write_archive(what, to, &from, reporting, &mut moved);
        let failed = packed.err().map(|fault| {
            tracing::info!(error = %fault, "the packing of an archive stopped early");
            io::Error::other(fault)
        });
        // The receiver may have been dropped.
        let _ = writer.finish(failed);
    });
    // Nothing is written before the resume point is reached.
    start_permit
        .await
        .map(|()| chunks)
        .map_err(|_| ArchiveError::SourceChanged)
}

/// A writer that signals its first write.
struct StartNotifier<'a> {
    to: &'a mut ChunkWriter,
    started: Option<oneshot::Sender<()>>,
}

impl StartNotifier<'_> {
    fn notify_start(&mut self) {
        if let Some(start_sender) = self.started.take() {
            // The caller may have dropped the receiver.
            let _ = start_sender.send(());
        }
    }
}

impl Write for StartNotifier<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.notify_start();
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.notify_start();
        self.to.flush()
    }
}

/// Writes the archive from a resume point on. When an entry can't be read, an error record replaces the end of the
/// archive, and the unpacker reports a failure.
///
/// # Errors
/// When the error can't be recorded in the archive (the caller must cut the stream then), the stream is not received
/// any more, or the resume point belongs to another stream.
fn write_archive(
    what: PackSource,
    to: impl Write,
    from: &ResumePoint,
    reporting: ErrorReporting,
    moved: &mut dyn FnMut(u64),
) -> Result<(), ArchiveError> {
    let mut packer = Packer {
        writer: TarWriter::new(to, from),
        path: Vec::new(),
        first_link_names: HashMap::new(),
        buffer: vec![0; ARCHIVE_CHUNK_BYTES],
        skipped_bytes: 0,
        count_moved: moved,
    };
    let packed = match what {
        PackSource::Folder(folder) => packer.pack_tree(folder),
        PackSource::File {
            folder,
            name,
            archive_name: called,
        } => packer.pack_single(&folder, &name, &called),
    };
    let packed = packed.and_then(|()| Ok(packer.writer.finish()?));
    match packed {
        Ok(()) => Ok(()),
        Err(_) if packer.writer.has_diverged() || packer.writer.is_before_resume_point() => {
            Err(ArchiveError::SourceChanged)
        }
        // Within the data of a file no error record can be written: the stream must be cut.
        Err(cut @ (ArchiveError::Stream(_) | ArchiveError::Truncated(_))) => Err(cut),
        Err(cut) if reporting == ErrorReporting::Stream => Err(cut),
        Err(fault) => Ok(packer.writer.write_error(&fault.to_string())?),
    }
}

struct Packer<'a, W> {
    writer: TarWriter<W>,
    /// The path of the current entry.
    path: Vec<u8>,
    /// The first name of each file that has several.
    first_link_names: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    /// Bytes of data skipped before the resume point that were not passed to `count_moved` yet.
    skipped_bytes: u64,
    count_moved: &'a mut dyn FnMut(u64),
}

/// An open folder between the root and the current entry.
struct PackLevel {
    folder: Folder,
    names: std::vec::IntoIter<OsString>,
    /// Length of the folder's path.
    path_length: usize,
}

impl<W: Write> Packer<'_, W> {
    fn pack_tree(&mut self, root: Folder) -> Result<(), ArchiveError> {
        let stat = root.stat_self().map_err(ArchiveError::for_file(b"."))?;
        self.path = b".".to_vec();
        self.begin_member(stat, MemberKind::Folder)?;
        self.path.clear();
        let mut levels = vec![self.open_level(root)?];
        while let Some(level) = levels.last_mut() {
            self.path.truncate(level.path_length);
            let Some(name) = level.names.next() else {
                levels.pop();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend(name_bytes(&name));
            let stat = match level.folder.stat(&name) {
                // The entry was removed during the walk.
                Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => continue,
                found => found.map_err(ArchiveError::for_file(&self.path))?,
            };
            if stat.kind == EntryKind::Folder {
                let folder = level.folder.open_folder(&name);
                let folder = folder.map_err(ArchiveError::for_file(&self.path))?;
                if levels.len() == MAX_FOLDER_DEPTH {
                    let cause = std::io::Error::other("the folders are nested too deeply");
                    return Err(ArchiveError::for_file(&self.path)(cause));
                }
                self.begin_member(stat, MemberKind::Folder)?;
                levels.push(self.open_level(folder)?);
            } else {
                self.pack_leaf(&level.folder, &name, stat)?;
            }
        }
        Ok(())
    }

    fn pack_single(
        &mut self,
        folder: &Folder,
        name: &OsStr,
        called: &OsStr,
    ) -> Result<(), ArchiveError> {
        self.path = name_bytes(called).to_vec();
        let stat = folder
            .stat(name)
            .map_err(ArchiveError::for_file(name_bytes(name)))?;
        self.pack_leaf(folder, name, stat)
    }

    fn open_level(&self, folder: Folder) -> Result<PackLevel, ArchiveError> {
        let names = folder.names().map_err(ArchiveError::for_file(&self.path))?;
        Ok(PackLevel {
            folder,
            names: names.into_iter(),
            path_length: self.path.len(),
        })
    }

    fn pack_leaf(
        &mut self,
        folder: &Folder,
        name: &OsStr,
        stat: EntryStat,
    ) -> Result<(), ArchiveError> {
        let kind = match stat.kind {
            EntryKind::Symlink => {
                let target = folder
                    .read_link(name)
                    .map_err(ArchiveError::for_file(&self.path))?;
                MemberKind::Symlink(target)
            }
            EntryKind::Fifo => MemberKind::Special("a named pipe"),
            EntryKind::Device if stat.is_character => MemberKind::Special("a character device"),
            EntryKind::Device => MemberKind::Special("a block device"),
            EntryKind::Socket | EntryKind::Folder => return Ok(()),
            EntryKind::File => {
                if stat.link_count > 1 {
                    if let Some(first) = self.first_link_names.get(&stat.identity) {
                        let first = first.clone();
                        return self.begin_member(stat, MemberKind::HardLink(first));
                    }
                    if self.first_link_names.len() < MAX_TRACKED_LINKS {
                        self.first_link_names
                            .insert(stat.identity, self.path.clone());
                    }
                }
                return self.pack_file(folder, name);
            }
        };
        self.begin_member(stat, kind)
    }

    fn begin_member(&mut self, stat: EntryStat, kind: MemberKind) -> Result<(), ArchiveError> {
        let member = ArchiveMember {
            path: self.path.clone(),
            kind,
            mode: stat.mode,
            mtime: stat.mtime,
        };
        Ok(self.writer.begin_member(&member)?)
    }

    fn pack_file(&mut self, folder: &Folder, name: &OsStr) -> Result<(), ArchiveError> {
        let mut file = folder
            .open_file(name)
            .map_err(ArchiveError::for_file(&self.path))?;
        // The metadata of the open file decide, not those of the earlier stat.
        let stat = EntryStat::stat_file(&file).map_err(ArchiveError::for_file(&self.path))?;
        if stat.kind != EntryKind::File {
            return Ok(());
        }
        let size = stat.size;
        let segments = data_segments(&file, size, stat.allocated);
        let whole = [DataSegment {
            offset: 0,
            length: size,
        }];
        let kind = MemberKind::File {
            size,
            segments: segments.clone(),
        };
        self.begin_member(stat, kind)?;
        for DataSegment { offset, length } in segments.as_deref().unwrap_or(&whole) {
            if *offset > 0 || segments.is_some() {
                file.seek(SeekFrom::Start(*offset))
                    .map_err(ArchiveError::for_file(&self.path))?;
            }
            self.copy_data(&mut file, *length)?;
        }
        Ok(())
    }

    fn copy_data(&mut self, file: &mut File, mut left: u64) -> Result<(), ArchiveError> {
        if self.writer.is_before_resume_point() {
            let passed = self.writer.skip_data(left)?;
            self.skipped_bytes += passed;
            left -= passed;
            let ahead = i64::try_from(passed).unwrap_or(i64::MAX);
            file.seek(SeekFrom::Current(ahead))
                .map_err(ArchiveError::for_file(&self.path))?;
        }
        while left > 0 {
            let most = usize::try_from(left)
                .unwrap_or(ARCHIVE_CHUNK_BYTES)
                .min(ARCHIVE_CHUNK_BYTES);
            // The header is already written: a read error can only cut the stream.
            let read = file.read(&mut self.buffer[..most]);
            let Ok(read @ 1..) = read else {
                let name = String::from_utf8_lossy(&self.path).into_owned();
                return Err(ArchiveError::Truncated(name));
            };
            self.writer.write_data(&self.buffer[..read])?;
            left -= read as u64;
            (self.count_moved)(read as u64 + std::mem::take(&mut self.skipped_bytes));
        }
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::{ErrorReporting, PackSource, write_archive};
    use crate::resume_point::{ResumePoint, VerifiedReader};
    use crate::{ArchiveError, Folder, UnpackPolicy, unpack_archive};
    use std::fs;
    use std::os::unix::fs::{FileExt, symlink};
    use std::path::Path;

    fn grow(root: &Path) {
        fs::create_dir(root.join("folder")).unwrap();
        fs::write(root.join("folder/small"), "small").unwrap();
        fs::write(root.join("folder/none"), "").unwrap();
        fs::write(root.join("large"), vec![b'l'; 70_000]).unwrap();
        fs::hard_link(root.join("large"), root.join("twin")).unwrap();
        symlink("large", root.join("link")).unwrap();
        let sparse = fs::File::create(root.join("sparse")).unwrap();
        sparse.set_len(4 << 20).unwrap();
        for offset in [0, 1 << 20, 3 << 20] {
            sparse.write_all_at(b"data", offset).unwrap();
        }
    }

    fn from(root: &Path, resume_point: &ResumePoint) -> Result<(Vec<u8>, u64), ArchiveError> {
        let (mut stream, mut moved) = (Vec::new(), 0);
        let folder = Folder::open(root).unwrap();
        let mut count = |bytes| moved += bytes;
        write_archive(
            PackSource::Folder(folder),
            &mut stream,
            resume_point,
            ErrorReporting::Archive,
            &mut count,
        )?;
        Ok((stream, moved))
    }

    /// The resume point of a reader that has read exactly `at` bytes.
    fn cut(stream: &[u8], at: usize) -> ResumePoint {
        let destination = tempfile::tempdir().unwrap();
        let (traced, seen) = VerifiedReader::new(&stream[..at]);
        let folder = Folder::open(destination.path()).unwrap();
        // Unpacking usually fails at the cut, after it has read all bytes.
        let _ = unpack_archive(traced, folder, UnpackPolicy::default(), &mut |_| Ok(()));
        let resume_point = seen.borrow().resume_point(at as u64);
        resume_point.unwrap()
    }

    #[test]
    fn a_stream_resumes_at_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        grow(folder.path());
        let (whole, moved) = from(folder.path(), &ResumePoint::default()).unwrap();
        // The step makes the cuts fall on every offset within a block.
        for at in (0..whole.len()).step_by(509).chain([whole.len()]) {
            let (rest, moved_again) = from(folder.path(), &cut(&whole, at)).unwrap();
            assert!(rest == whole[at..], "{at}");
            // After the last byte of data there is no progress left to report.
            assert!(
                moved_again == moved || moved_again == 0,
                "{at}: {moved_again}"
            );
        }
    }

    #[test]
    fn a_tree_that_changed_before_the_resume_point_does_not_resume() {
        let folder = tempfile::tempdir().unwrap();
        grow(folder.path());
        let (whole, _) = from(folder.path(), &ResumePoint::default()).unwrap();
        let resume_points = [60_000, whole.len()].map(|at| cut(&whole, at));
        fs::write(folder.path().join("folder/small"), "other").unwrap();
        for resume_point in &resume_points {
            assert!(matches!(
                from(folder.path(), resume_point),
                Err(ArchiveError::SourceChanged)
            ));
        }
        fs::remove_file(folder.path().join("large")).unwrap();
        assert!(matches!(
            from(folder.path(), &resume_points[1]),
            Err(ArchiveError::SourceChanged)
        ));
    }

    #[test]
    fn a_tree_that_changed_after_the_resume_point_resumes() {
        let folder = tempfile::tempdir().unwrap();
        grow(folder.path());
        let (whole, _) = from(folder.path(), &ResumePoint::default()).unwrap();
        let resume_point = cut(&whole, 60_000);
        let sparse = fs::OpenOptions::new()
            .write(true)
            .open(folder.path().join("sparse"));
        sparse.unwrap().set_len(5 << 20).unwrap();
        let (rest, _) = from(folder.path(), &resume_point).unwrap();
        let (now, _) = from(folder.path(), &ResumePoint::default()).unwrap();
        assert!(now != whole && rest == now[60_000..]);
    }
}
