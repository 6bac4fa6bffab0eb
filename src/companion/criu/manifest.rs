//! The manifest of a checkpoint: everything known about it besides its images, and the checks whether it can be
//! restored here.

use super::criu_progress::CriuProgress;
use super::error_text::CriuFailure;
use super::open_files::CriuOpenFile;
use crate::protocol::BODY_PROTOCOL_VERSION;
use crate::protocol::hex::hex;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str;

/// The version that this release writes; it reads every version up to this one.
pub(super) const CRIU_MANIFEST_VERSION: u32 = 1;

/// Larger files are compared by size only.
const MAX_HASHED_FILE_BYTES: u64 = 256 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CriuManifest {
    pub(super) version: u32,
    pub(super) name: String,
    pub(super) generation: u64,
    pub(super) session: String,
    /// Unix time in seconds.
    pub(super) created: u64,
    pub(super) kernel: CriuKernelInfo,
    pub(super) versions: CriuVersions,
    /// Uptime of the machine in seconds.
    pub(super) running_for: u64,
    /// The IDs of all processes and threads; a restore needs each of them free.
    pub(super) ids: BTreeSet<i32>,
    /// The socket on which the kernel listens.
    pub(super) socket: PathBuf,
    pub(super) mapped: Vec<CriuMappedFile>,
    /// Empty in checkpoints of earlier releases.
    #[serde(default)]
    pub(super) opened: BTreeSet<CriuOpenFile>,
    pub(super) images: Vec<CriuImageFile>,
    /// The shell's context, in the format of the shell module.
    pub(super) shell: Option<serde_json::Value>,
    /// The reference that the object store returned for the objects stored with the checkpoint.
    pub(super) objects: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CriuKernelInfo {
    pub(super) generation: u64,
    pub(super) execution_count: u64,
    pub(super) globals_count: u64,
    /// The version of the frame protocol.
    pub(super) protocol: u32,
    pub(super) python: String,
    pub(super) body: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CriuVersions {
    pub(super) osctl: String,
    pub(super) criu: String,
    pub(super) linux: String,
}

/// A file that a process has mapped; the restore needs an identical one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct CriuMappedFile {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// `None` if the content may change (a shared mapping) or the file is too large to hash.
    pub(super) sha256: Option<String>,
}

/// An image file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CriuImageFile {
    pub(super) file: String,
    pub(super) size: u64,
    /// CRC-32 of the content; `None` in checkpoints of earlier releases.
    #[serde(default)]
    pub(super) crc32: Option<u32>,
}

impl CriuImageFile {
    /// # Errors
    /// When the file can't be read.
    pub(super) fn checksum_file(path: &Path, progress: &CriuProgress) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default();
        let mut file = File::open(path)?;
        let (mut sum, mut size) = (crc32fast::Hasher::new(), 0);
        let mut piece = vec![0; 1 << 20];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                length => {
                    sum.update(&piece[..length]);
                    size += length as u64;
                    progress.add_bytes(length as u64);
                }
            }
        }
        Ok(Self {
            file: name.to_string_lossy().into_owned(),
            size,
            crc32: Some(sum.finalize()),
        })
    }
}

impl CriuManifest {
    pub(super) fn total_image_bytes(&self) -> u64 {
        self.images.iter().map(|image| image.size).sum()
    }

    /// Returns the reason why this companion can't communicate with the kernel, if any.
    pub(super) fn describe_protocol_mismatch(&self) -> Option<String> {
        let theirs = self.kernel.protocol;
        let describe = || {
            format!(
                "the kernel speaks protocol {theirs}, this companion speaks {BODY_PROTOCOL_VERSION}"
            )
        };
        (theirs != BODY_PROTOCOL_VERSION).then(describe)
    }

    /// Describes by how much the machine's uptime is behind that of the checkpoint. A kernel that waits for a time
    /// counted from the machine's start would wait too long.
    pub(super) fn describe_clock_lag(&self) -> Option<String> {
        let lag = self.running_for.checked_sub(monotonic_seconds() + 1)?;
        Some(format!(
            "the machine was restarted since the checkpoint: active sleeps and timers may end up to {lag} s late"
        ))
    }

    /// Returns the first image whose content differs from the written content: a flipped bit would be restored into a
    /// running process.
    pub(super) fn find_checksum_mismatch(
        &self,
        images: &Path,
        progress: &CriuProgress,
    ) -> Option<String> {
        let checked = self.images.iter().filter(|image| image.crc32.is_some());
        checked
            .map(|image| {
                (
                    image,
                    CriuImageFile::checksum_file(&images.join(&image.file), progress),
                )
            })
            .find_map(|(was, is)| match is {
                Ok(is) if is == *was => None,
                Ok(_) => Some(format!("`{}` was changed: its checksum differs", was.file)),
                Err(error) => Some(format!("`{}` can't be read: {error}", was.file)),
            })
    }

    /// Returns the first image whose size differs from the written size.
    pub(super) fn find_size_mismatch(&self, images: &Path) -> Option<String> {
        self.images.iter().find_map(|image| {
            let size = fs::metadata(images.join(&image.file)).map(|found| found.len());
            match size {
                Ok(size) if size == image.size => None,
                Ok(size) => Some(format!(
                    "`{}` has {size} bytes instead of {}",
                    image.file, image.size
                )),
                Err(error) => Some(format!("`{}` can't be read: {error}", image.file)),
            }
        })
    }

    /// Returns the first open file of the checkpoint that can't be opened again.
    pub(super) fn find_changed_open_file(&self) -> Option<CriuFailure> {
        self.opened.iter().find_map(CriuOpenFile::describe_change)
    }

    /// Lists the mapped files that differ here, each with the difference.
    pub(super) fn list_changed_mapped_files(&self) -> Vec<String> {
        let differs = |was: &CriuMappedFile| {
            let path = was.path.display();
            match CriuMappedFile::from_path(&was.path, was.sha256.is_some()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Some(format!("`{path}` is missing"))
                }
                Err(error) => Some(format!("`{path}` can't be read: {error}")),
                Ok(is) if is == *was => None,
                Ok(is) if is.size != was.size => Some(format!(
                    "`{path}` has {} bytes and had {}",
                    is.size, was.size
                )),
                Ok(_) => Some(format!("`{path}` has different contents")),
            }
        };
        self.mapped.iter().filter_map(differs).collect()
    }
}

/// Seconds since the machine's start, on the clock that timers use.
pub(super) fn monotonic_seconds() -> u64 {
    // Every Linux has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| now.tv_sec().cast_unsigned())
}

impl CriuMappedFile {
    /// Describes a file as it is now.
    ///
    /// # Errors
    /// When the file can't be read.
    fn from_path(path: &Path, is_hashed: bool) -> io::Result<Self> {
        let size = fs::metadata(path)?.len();
        let sha256 = match is_hashed && size <= MAX_HASHED_FILE_BYTES {
            true => Some(hash_mapped_file(path)?),
            false => None,
        };
        Ok(Self {
            path: path.into(),
            size,
            sha256,
        })
    }

    /// Lists all files that these processes have mapped, in their current state.
    ///
    /// # Errors
    /// When a process has ended, or a file can't be read.
    pub(super) fn list_for_pids(pids: &BTreeSet<i32>) -> io::Result<Vec<Self>> {
        let mut found = BTreeSet::new();
        for pid in pids {
            found.extend(parse_mapped_files(&fs::read_to_string(format!(
                "/proc/{pid}/maps"
            ))?));
        }
        let mut mapped = Vec::new();
        for (path, is_private) in &found {
            // A file that is also mapped shared may change.
            if *is_private && found.contains(&(path.clone(), false)) {
                continue;
            }
            match Self::from_path(path, *is_private) {
                Ok(file) => mapped.push(file),
                // The mapped file was deleted, so its content is in the images.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(mapped)
    }
}

/// Reads the files from the text of `/proc/PID/maps`, and whether each mapping is private.
fn parse_mapped_files(maps: &str) -> BTreeSet<(PathBuf, bool)> {
    let read = |line: &str| {
        let mut fields = line.splitn(6, ' ');
        let flags = fields.nth(1)?;
        let inode = fields.nth(2)?;
        let path = fields.next()?.trim_start();
        let is_file = inode != "0" && path.starts_with('/') && !path.starts_with("/memfd:");
        let is_there = !path.ends_with(" (deleted)") && !path.starts_with("/dev/");
        (is_file && is_there).then(|| (path.into(), flags.ends_with('p')))
    };
    maps.lines().filter_map(read).collect()
}

fn hash_mapped_file(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(hash.finalize())),
            count => hash.update(&piece[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BODY_PROTOCOL_VERSION, CriuImageFile, CriuManifest, CriuMappedFile, monotonic_seconds,
        parse_mapped_files,
    };
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// A manifest as version 1 wrote it.
    const CRIU_MANIFEST_V1_JSON: &str = r#"{"version":1,"name":"default","generation":3,"session":"default",
        "created":1795240000,"kernel":{"generation":7,"execution_count":12,"globals_count":3,
        "protocol":1,"python":"3.13.5","body":"0.1.0"},"versions":{"osctl":"0.1.0","criu":"4.1.1",
        "linux":"6.18.44"},"running_for":60,"ids":[131090,131091],"socket":"/run/osctl/kernels/ab-1.sock",
        "mapped":[{"path":"/usr/bin/python3.13","size":6,"sha256":"00"},
        {"path":"/root/host/shared","size":9,"sha256":null}],
        "images":[{"file":"pages-1.img","size":4}],"shell":null,"objects":null}"#;

    #[test]
    fn the_first_version_stays_readable() {
        let manifest: CriuManifest = serde_json::from_str(CRIU_MANIFEST_V1_JSON).unwrap();
        assert_eq!(
            (manifest.total_image_bytes(), manifest.kernel.generation),
            (4, 7)
        );
        assert!(manifest.ids.contains(&131_091) && manifest.mapped.len() == 2);
    }

    #[test]
    fn another_protocol_and_a_restarted_machine_are_reported() {
        let mut manifest: CriuManifest = serde_json::from_str(CRIU_MANIFEST_V1_JSON).unwrap();
        manifest.kernel.protocol = BODY_PROTOCOL_VERSION;
        manifest.running_for = monotonic_seconds();
        assert_eq!(
            (
                manifest.describe_protocol_mismatch(),
                manifest.describe_clock_lag()
            ),
            (None, None)
        );
        manifest.kernel.protocol += 1;
        manifest.running_for += 100;
        assert!(
            manifest
                .describe_protocol_mismatch()
                .unwrap()
                .contains("protocol")
        );
        assert!(manifest.describe_clock_lag().unwrap().contains("s late"));
    }

    #[test]
    fn truncated_and_missing_images_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let manifest: CriuManifest = serde_json::from_str(CRIU_MANIFEST_V1_JSON).unwrap();
        assert!(
            manifest
                .find_size_mismatch(folder.path())
                .unwrap()
                .contains("pages-1.img")
        );
        fs::write(folder.path().join("pages-1.img"), "123").unwrap();
        assert!(
            manifest
                .find_size_mismatch(folder.path())
                .unwrap()
                .contains("3 bytes")
        );
        fs::write(folder.path().join("pages-1.img"), "1234").unwrap();
        assert_eq!(manifest.find_size_mismatch(folder.path()), None);
        assert_eq!(
            manifest.images,
            [CriuImageFile {
                crc32: None,
                file: "pages-1.img".into(),
                size: 4
            }]
        );
    }

    #[test]
    fn changed_files_are_reported_with_the_difference() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["same", "other", "longer", "gone", "shared"] {
            fs::write(path(name), "before").unwrap();
        }
        let mut manifest: CriuManifest = serde_json::from_str(CRIU_MANIFEST_V1_JSON).unwrap();
        let is_private = |name: &str| name != "shared";
        manifest.mapped = ["same", "other", "longer", "gone", "shared"]
            .map(|name| CriuMappedFile::from_path(&path(name), is_private(name)).unwrap())
            .into();
        assert!(manifest.list_changed_mapped_files().is_empty());
        fs::write(path("other"), "behind").unwrap();
        fs::write(path("shared"), "behind").unwrap();
        fs::write(path("longer"), "before and after").unwrap();
        fs::remove_file(path("gone")).unwrap();
        let changes = manifest.list_changed_mapped_files();
        assert_eq!(changes.len(), 3, "{changes:?}");
        assert!(changes[0].contains("different contents") && changes[1].contains("16 bytes"));
        assert!(changes[2].contains("missing"));
    }

    #[test]
    fn only_files_that_have_a_name_are_mapped_files() {
        let maps = "\
55d0-55d1 r--p 00000000 08:01 1234 /usr/bin/python3.13
55d1-55d2 r-xp 00000000 08:01 1234 /usr/bin/python3.13
7f00-7f01 rw-s 00000000 08:01 99                         /root/host/a file
7f01-7f02 rw-p 00000000 00:00 0
7f02-7f03 rw-p 00000000 08:01 77 /tmp/gone (deleted)
7f03-7f04 rw-s 00000000 00:05 78 /memfd:x (deleted)
7f04-7f05 rw-p 00000000 00:00 0 [stack]
";
        let expected: BTreeSet<(PathBuf, bool)> = [
            ("/usr/bin/python3.13".into(), true),
            ("/root/host/a file".into(), false),
        ]
        .into();
        assert_eq!(parse_mapped_files(maps), expected);
        let own = CriuMappedFile::list_for_pids(&[std::process::id() as i32].into()).unwrap();
        let exe = std::env::current_exe().unwrap();
        assert!(own.iter().any(|file| file.path == Path::new(&exe)));
    }
}
