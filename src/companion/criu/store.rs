//! The checkpoint store on disk: `NAME/GENERATION/{manifest.json, images/}`.
//!
//! A checkpoint is written to a temporary folder `.new-…`, synced and then renamed, so that every numbered checkpoint
//! is complete. The next start removes unfinished ones. Each name keeps its last [`MAX_CRIU_GENERATIONS`] generations.

use super::criu_progress::CriuProgress;
use super::manifest::{CRIU_MANIFEST_VERSION, CriuImageFile, CriuManifest};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const MAX_CRIU_GENERATIONS: usize = 3;
const CRIU_MANIFEST_FILE: &str = "manifest.json";
const CRIU_IMAGES_FOLDER: &str = "images";
const CRIU_DRAFT_PREFIX: &str = ".new-";

#[derive(Debug, Clone)]
pub(super) struct CriuStore {
    root: PathBuf,
}

/// A checkpoint that is being written; dropping it unfinished removes it.
#[derive(Debug)]
pub(super) struct CriuDraft {
    folder: PathBuf,
    path: PathBuf,
    pub(super) generation: u64,
}

/// A complete checkpoint.
#[derive(Debug, Clone)]
pub(super) struct FoundCheckpoint {
    pub(super) manifest: CriuManifest,
    pub(super) path: PathBuf,
}

/// Why a checkpoint can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CriuLookupError {
    /// No checkpoint of that name or of that generation exists.
    Unknown,
    /// The checkpoint was changed; `other` is an intact generation.
    Damaged {
        path: PathBuf,
        why: String,
        other_generation: Option<u64>,
    },
}

impl CriuStore {
    /// Opens the store and removes unfinished checkpoints of an earlier companion.
    pub(super) fn open(root: PathBuf) -> Self {
        for name in list_folder(&root) {
            for path in list_folder(&name).iter().filter(|path| is_unfinished(path)) {
                if let Err(error) = fs::remove_dir_all(path) {
                    tracing::warn!(path = %path.display(), %error, "an unfinished checkpoint can't be removed");
                }
            }
        }
        Self { root }
    }

    /// Starts a draft of the next generation of a name.
    ///
    /// # Errors
    /// When the folder can't be created.
    pub(super) fn begin_draft(&self, name: &str) -> io::Result<CriuDraft> {
        let folder = self.root.join(name);
        let generation = self.list_generations(name).last().copied().unwrap_or(0) + 1;
        let draft = CriuDraft {
            path: folder.join(generation.to_string()),
            folder: folder.join(format!("{CRIU_DRAFT_PREFIX}{generation}")),
            generation,
        };
        if draft.folder.exists() {
            fs::remove_dir_all(&draft.folder)?;
        }
        // The images contain the whole memory of the process, so only this user may read them.
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(draft.images_folder())?;
        Ok(draft)
    }

    /// Returns the generation, or the last one when `None`, after reading and verifying all of its images.
    ///
    /// # Errors
    /// [`CriuLookupError`].
    pub(super) fn find_verified(
        &self,
        name: &str,
        generation: Option<u64>,
        progress: &CriuProgress,
    ) -> Result<FoundCheckpoint, CriuLookupError> {
        let all = self.list_generations(name);
        let generation = generation.or(all.last().copied());
        let generation = generation.filter(|wanted| all.contains(wanted));
        let generation = generation.ok_or(CriuLookupError::Unknown)?;
        let verified = self.read_verified(name, generation, progress);
        let is_intact = |other: &u64| self.read_verified(name, *other, progress).is_ok();
        verified.map_err(|why| CriuLookupError::Damaged {
            path: self.generation_path(name, generation),
            why,
            other_generation: all
                .into_iter()
                .rev()
                .find(|other| *other != generation && is_intact(other)),
        })
    }

    /// Lists all complete checkpoints, the newest first.
    pub(super) fn list_all(&self) -> Vec<FoundCheckpoint> {
        let mut found = Vec::new();
        for folder in list_folder(&self.root) {
            let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let generations = self.list_generations(name).into_iter();
            found.extend(generations.filter_map(|number| self.read_checkpoint(name, number).ok()));
        }
        found.sort_by_key(|found| std::cmp::Reverse(found.manifest.created));
        found
    }

    fn read_verified(
        &self,
        name: &str,
        generation: u64,
        progress: &CriuProgress,
    ) -> Result<FoundCheckpoint, String> {
        let found = self.read_checkpoint(name, generation)?;
        progress.set_total(found.manifest.total_image_bytes());
        match found
            .manifest
            .find_checksum_mismatch(&found.images_folder(), progress)
        {
            Some(why) => Err(why),
            None => Ok(found),
        }
    }

    /// Reads a checkpoint after a quick check, without reading its images.
    fn read_checkpoint(&self, name: &str, generation: u64) -> Result<FoundCheckpoint, String> {
        let path = self.generation_path(name, generation);
        let text = fs::read(path.join(CRIU_MANIFEST_FILE))
            .map_err(|e| format!("`{CRIU_MANIFEST_FILE}` can't be read: {e}"))?;
        let version: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|e| format!("`{CRIU_MANIFEST_FILE}` is invalid: {e}"))?;
        let version = version["version"].as_u64();
        if version.is_none_or(|version| version > CRIU_MANIFEST_VERSION.into()) {
            return Err(format!(
                "it has version {}, and this osctl reads versions up to {CRIU_MANIFEST_VERSION}",
                version.map_or("unknown".into(), |version| version.to_string())
            ));
        }
        let manifest: CriuManifest = serde_json::from_slice(&text)
            .map_err(|e| format!("`{CRIU_MANIFEST_FILE}` is invalid: {e}"))?;
        match manifest.find_size_mismatch(&path.join(CRIU_IMAGES_FOLDER)) {
            Some(why) => Err(why),
            None => Ok(FoundCheckpoint { manifest, path }),
        }
    }

    /// The folder of all generations of a name.
    pub(super) fn name_folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the reason why a checkpoint can't hold a session, after a quick check.
    pub(super) fn find_problem(
        &self,
        name: &str,
        generation: u64,
        session: &str,
    ) -> Option<String> {
        if !self.generation_path(name, generation).exists() {
            return Some("it is missing".into());
        }
        match self.read_checkpoint(name, generation) {
            Ok(found) if found.manifest.session == session => None,
            Ok(found) => Some(format!(
                "it belongs to session `{}`",
                found.manifest.session
            )),
            Err(why) => Some(format!("it is damaged: {why}")),
        }
    }

    pub(super) fn generation_path(&self, name: &str, generation: u64) -> PathBuf {
        self.root.join(name).join(generation.to_string())
    }

    /// The existing generation numbers, in ascending order.
    fn list_generations(&self, name: &str) -> Vec<u64> {
        let number = |path: &PathBuf| path.file_name()?.to_str()?.parse().ok();
        let mut all: Vec<u64> = list_folder(&self.root.join(name))
            .iter()
            .filter_map(number)
            .collect();
        all.sort_unstable();
        all
    }

    /// Lists the object references of a name's checkpoints. Returns `None` when a manifest can't be read: its
    /// references are unknown then.
    pub(super) fn list_objects(&self, name: &str) -> Option<Vec<serde_json::Value>> {
        let numbers = self.list_generations(name).into_iter();
        let each = numbers.map(|number| {
            let text =
                fs::read(self.generation_path(name, number).join(CRIU_MANIFEST_FILE)).ok()?;
            let manifest: serde_json::Value = serde_json::from_slice(&text).ok()?;
            manifest.get("objects").cloned()
        });
        each.collect()
    }

    /// Removes every generation of a name and returns whether any existed.
    ///
    /// # Errors
    /// When the folder can't be removed.
    pub(super) fn remove(&self, name: &str) -> io::Result<bool> {
        match fs::remove_dir_all(self.root.join(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the oldest generations of a name beyond the limit, except those that hold a kernel.
    pub(super) fn prune_generations(&self, name: &str, in_use: &BTreeSet<PathBuf>) {
        let all = self.list_generations(name);
        for generation in &all[..all.len().saturating_sub(MAX_CRIU_GENERATIONS)] {
            let path = self.generation_path(name, *generation);
            if in_use.contains(&path) {
                continue;
            }
            if let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!(path = %path.display(), %error, "a superseded checkpoint can't be removed");
            }
        }
    }
}

impl FoundCheckpoint {
    pub(super) fn images_folder(&self) -> PathBuf {
        self.path.join(CRIU_IMAGES_FOLDER)
    }
}

impl CriuDraft {
    pub(super) fn images_folder(&self) -> PathBuf {
        self.folder.join(CRIU_IMAGES_FOLDER)
    }

    /// The path of the finished checkpoint.
    pub(super) fn final_path(&self) -> &Path {
        &self.path
    }

    /// Syncs all images to disk and lists them.
    ///
    /// # Errors
    /// When an image can't be read or written.
    pub(super) fn sync_images(&self) -> io::Result<Vec<super::manifest::CriuImageFile>> {
        let mut images = Vec::new();
        for path in list_folder(&self.images_folder()) {
            File::open(&path)?.sync_all()?;
            images.push(CriuImageFile::checksum_file(
                &path,
                &CriuProgress::default(),
            )?);
        }
        images.sort_by(|a, b| a.file.cmp(&b.file));
        File::open(self.images_folder())?.sync_all()?;
        Ok(images)
    }

    /// Renames the draft to its generation number.
    ///
    /// # Errors
    /// When the disk is full or fails; the draft is removed.
    pub(super) fn finish(self, manifest: &CriuManifest) -> io::Result<()> {
        let mut file = File::create(self.folder.join(CRIU_MANIFEST_FILE))?;
        file.write_all(&serde_json::to_vec_pretty(manifest)?)?;
        file.sync_all()?;
        File::open(&self.folder)?.sync_all()?;
        fs::rename(&self.folder, &self.path)?;
        // Sync the new name and the parent folders, one of which may be new.
        self.path
            .ancestors()
            .skip(1)
            .take(3)
            .try_for_each(|folder| File::open(folder)?.sync_all())
    }
}

impl Drop for CriuDraft {
    fn drop(&mut self) {
        // A finished draft was renamed, so this removes nothing.
        let _ = fs::remove_dir_all(&self.folder);
        // A name folder without a generation is removed, too.
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

fn list_folder(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).into_iter().flatten();
    read.flatten().map(|entry| entry.path()).collect()
}

fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(CRIU_DRAFT_PREFIX))
}

#[cfg(test)]
pub(super) mod tests {
    use super::{CriuLookupError, CriuProgress, CriuStore, FoundCheckpoint, MAX_CRIU_GENERATIONS};
    use crate::companion::criu::manifest::{CriuKernelInfo, CriuManifest, CriuVersions};
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    pub(in crate::companion::criu) fn write(store: &CriuStore, name: &str) -> u64 {
        let draft = store.begin_draft(name).unwrap();
        fs::write(draft.images_folder().join("pages-1.img"), "pages").unwrap();
        let generation = draft.generation;
        let manifest = CriuManifest {
            version: 1,
            name: name.into(),
            generation,
            session: "default".into(),
            created: generation,
            kernel: CriuKernelInfo {
                generation: 1,
                execution_count: 0,
                globals_count: 0,
                protocol: 1,
                python: "3.13.5".into(),
                body: "0.1.0".into(),
            },
            versions: CriuVersions {
                osctl: "0.1.0".into(),
                criu: "4.1.1".into(),
                linux: "6.18".into(),
            },
            running_for: 60,
            ids: [1].into(),
            socket: "/run/x.sock".into(),
            mapped: Vec::new(),
            images: draft.sync_images().unwrap(),
            shell: None,
            objects: None,
            opened: BTreeSet::new(),
        };
        draft.finish(&manifest).unwrap();
        store.prune_generations(name, &BTreeSet::new());
        generation
    }

    fn find(
        store: &CriuStore,
        generation: Option<u64>,
    ) -> Result<FoundCheckpoint, CriuLookupError> {
        store.find_verified("a", generation, &CriuProgress::default())
    }

    fn is_empty(folder: &Path) -> bool {
        fs::read_dir(folder).is_ok_and(|mut found| found.next().is_none())
    }

    #[test]
    fn generations_rise_and_the_last_ones_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let store = CriuStore::open(root.path().into());
        assert_eq!(find(&store, None).unwrap_err(), CriuLookupError::Unknown);
        let numbers: Vec<u64> = (0..5).map(|_| write(&store, "a")).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        assert_eq!(find(&store, None).unwrap().manifest.generation, 5);
        assert_eq!(find(&store, Some(3)).unwrap().manifest.generation, 3);
        assert_eq!(find(&store, Some(2)).unwrap_err(), CriuLookupError::Unknown);
        write(&store, "b");
        assert!(store.remove("no-such").is_ok_and(|found| !found));
        let all = store.list_all().into_iter().map(|f| f.manifest.generation);
        assert_eq!(all.collect::<Vec<_>>(), [5, 4, 3, 1]);
        assert!(store.remove("a").unwrap());
        assert_eq!(store.list_all().len(), 1);
    }

    #[test]
    fn a_checkpoint_that_holds_a_kernel_stays() {
        let root = tempfile::tempdir().unwrap();
        let store = CriuStore::open(root.path().into());
        let first = write(&store, "a");
        let in_use = BTreeSet::from([find(&store, Some(first)).unwrap().path]);
        for _ in 0..MAX_CRIU_GENERATIONS {
            let draft = store.begin_draft("a").unwrap();
            fs::rename(&draft.folder, &draft.path).unwrap();
        }
        store.prune_generations("a", &in_use);
        assert!(find(&store, Some(first)).is_ok());
        store.prune_generations("a", &BTreeSet::new());
        assert_eq!(
            find(&store, Some(first)).unwrap_err(),
            CriuLookupError::Unknown
        );
    }

    #[test]
    fn objects_are_known_when_every_manifest_can_be_read() {
        let root = tempfile::tempdir().unwrap();
        let store = CriuStore::open(root.path().into());
        assert_eq!(store.list_objects("a"), Some(Vec::new()));
        write(&store, "a");
        write(&store, "a");
        assert_eq!(store.list_objects("a").unwrap().len(), 2);
        // The references of a manifest of a later version are read, too.
        let manifest = root.path().join("a/1/manifest.json");
        fs::write(&manifest, r#"{"version":9,"objects":{"name":"n"}}"#).unwrap();
        assert_eq!(store.list_objects("a").unwrap()[0]["name"], "n");
        fs::write(&manifest, "{").unwrap();
        assert_eq!(store.list_objects("a"), None);
    }

    #[test]
    fn a_damaged_checkpoint_is_refused_and_an_earlier_one_is_offered() {
        let root = tempfile::tempdir().unwrap();
        let store = CriuStore::open(root.path().into());
        write(&store, "a");
        write(&store, "a");
        let images = root.path().join("a/2/images/pages-1.img");
        for damage in ["pag", "", "pagez"] {
            fs::write(&images, damage).unwrap();
            let Err(CriuLookupError::Damaged {
                why,
                other_generation,
                ..
            }) = find(&store, None)
            else {
                panic!("it is intact");
            };
            assert!(why.contains("pages-1.img"), "{why}");
            assert_eq!(other_generation, Some(1));
        }
        fs::write(root.path().join("a/1/manifest.json"), r#"{"version":9}"#).unwrap();
        let Err(CriuLookupError::Damaged {
            why,
            other_generation,
            ..
        }) = find(&store, Some(1))
        else {
            panic!("it is intact");
        };
        assert!(
            why.contains("version 9") && other_generation.is_none(),
            "{why}"
        );
    }

    #[test]
    fn an_unfinished_draft_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let store = CriuStore::open(root.path().into());
        drop(store.begin_draft("a").unwrap());
        assert!(is_empty(root.path()));
        write(&store, "a");
        std::mem::forget(store.begin_draft("a").unwrap());
        let store = CriuStore::open(root.path().into());
        assert_eq!(fs::read_dir(root.path().join("a")).unwrap().count(), 1);
        assert_eq!(write(&store, "a"), 2);
    }
}
