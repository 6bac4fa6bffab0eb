//! Checkpoints on disk: `NAME/GENERATION/{manifest.json, images/}`.
//!
//! One is written beside, as `.new-…`, comes to the disk and is then renamed, so that whatever has a
//! number is whole. What is left of one that was not finished goes at the next start. Each name keeps
//! its last [`KEPT`] generations.

use super::gauge::Gauge;
use super::manifest::{Image, Manifest, VERSION};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const KEPT: usize = 3;
const MANIFEST: &str = "manifest.json";
const IMAGES: &str = "images";
const UNFINISHED: &str = ".new-";

#[derive(Debug, Clone)]
pub(super) struct Store {
    root: PathBuf,
}

/// A checkpoint that is being written; removed when it is dropped before it is finished.
#[derive(Debug)]
pub(super) struct Draft {
    folder: PathBuf,
    path: PathBuf,
    pub(super) generation: u64,
}

/// One that is whole.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) manifest: Manifest,
    pub(super) path: PathBuf,
}

/// Why one can't be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Absent {
    /// There is none of that name, or not that generation.
    Unknown,
    /// It is not as it was written; another generation that is.
    Damaged {
        path: PathBuf,
        why: String,
        other: Option<u64>,
    },
}

impl Store {
    /// Removes what was not finished in an earlier life.
    pub(super) fn open(root: PathBuf) -> Self {
        for name in entries(&root) {
            for path in entries(&name).iter().filter(|path| is_unfinished(path)) {
                if let Err(error) = fs::remove_dir_all(path) {
                    tracing::warn!("`{}` stays: {error}", path.display());
                }
            }
        }
        Self { root }
    }

    /// Begins the next generation of that name.
    ///
    /// # Errors
    /// When the folder can't be made.
    pub(super) fn begin(&self, name: &str) -> io::Result<Draft> {
        let folder = self.root.join(name);
        let generation = self.generations(name).last().copied().unwrap_or(0) + 1;
        let draft = Draft {
            path: folder.join(generation.to_string()),
            folder: folder.join(format!("{UNFINISHED}{generation}")),
            generation,
        };
        if draft.folder.exists() {
            fs::remove_dir_all(&draft.folder)?;
        }
        // Everything that was in memory is in there.
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(draft.images())?;
        Ok(draft)
    }

    /// The generation of that name, the last one when none is named, if it is whole; all of it is
    /// read for that.
    ///
    /// # Errors
    /// [`Absent`].
    pub(super) fn find(
        &self,
        name: &str,
        generation: Option<u64>,
        gauge: &Gauge,
    ) -> Result<Found, Absent> {
        let all = self.generations(name);
        let generation = generation.or(all.last().copied());
        let generation = generation.filter(|wanted| all.contains(wanted));
        let generation = generation.ok_or(Absent::Unknown)?;
        let whole = self.whole(name, generation, gauge);
        let is_whole = |other: &u64| self.whole(name, *other, gauge).is_ok();
        whole.map_err(|why| Absent::Damaged {
            path: self.path(name, generation),
            why,
            other: all
                .into_iter()
                .rev()
                .find(|other| *other != generation && is_whole(other)),
        })
    }

    /// All that are whole, the newest first.
    pub(super) fn all(&self) -> Vec<Found> {
        let mut found = Vec::new();
        for folder in entries(&self.root) {
            let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let generations = self.generations(name).into_iter();
            found.extend(generations.filter_map(|number| self.read(name, number).ok()));
        }
        found.sort_by_key(|found| std::cmp::Reverse(found.manifest.created));
        found
    }

    fn whole(&self, name: &str, generation: u64, gauge: &Gauge) -> Result<Found, String> {
        let found = self.read(name, generation)?;
        gauge.of(found.manifest.size());
        match found.manifest.corruption(&found.images(), gauge) {
            Some(why) => Err(why),
            None => Ok(found),
        }
    }

    /// It, as far as a quick look tells.
    fn read(&self, name: &str, generation: u64) -> Result<Found, String> {
        let path = self.path(name, generation);
        let text = fs::read(path.join(MANIFEST)).map_err(|e| format!("`{MANIFEST}`: {e}"))?;
        let version: serde_json::Value =
            serde_json::from_slice(&text).map_err(|e| format!("`{MANIFEST}`: {e}"))?;
        let version = version["version"].as_u64();
        if version.is_none_or(|version| version > VERSION.into()) {
            return Err(format!(
                "it has version {}, and this osctl knows those up to {VERSION}",
                version.map_or("unknown".into(), |version| version.to_string())
            ));
        }
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|e| format!("`{MANIFEST}`: {e}"))?;
        match manifest.damage(&path.join(IMAGES)) {
            Some(why) => Err(why),
            None => Ok(Found { manifest, path }),
        }
    }

    /// Of all generations of a name.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Why a session can't lie in a checkpoint, after a quick look.
    pub(super) fn trouble(&self, name: &str, generation: u64, session: &str) -> Option<String> {
        if !self.path(name, generation).exists() {
            return Some("it is missing".into());
        }
        match self.read(name, generation) {
            Ok(found) if found.manifest.session == session => None,
            Ok(found) => Some(format!("it is of session `{}`", found.manifest.session)),
            Err(why) => Some(format!("it is damaged: {why}")),
        }
    }

    pub(super) fn path(&self, name: &str, generation: u64) -> PathBuf {
        self.root.join(name).join(generation.to_string())
    }

    /// The numbers that are taken, in order.
    fn generations(&self, name: &str) -> Vec<u64> {
        let number = |path: &PathBuf| path.file_name()?.to_str()?.parse().ok();
        let mut all: Vec<u64> = entries(&self.root.join(name))
            .iter()
            .filter_map(number)
            .collect();
        all.sort_unstable();
        all
    }

    /// What the checkpoints of a name say about the objects beside them; nothing when one can't be
    /// read, as nobody knows then which these are.
    pub(super) fn objects(&self, name: &str) -> Option<Vec<serde_json::Value>> {
        let numbers = self.generations(name).into_iter();
        let each = numbers.map(|number| {
            let text = fs::read(self.path(name, number).join(MANIFEST)).ok()?;
            let manifest: serde_json::Value = serde_json::from_slice(&text).ok()?;
            manifest.get("objects").cloned()
        });
        each.collect()
    }

    /// Removes every generation of a name; whether there was any.
    ///
    /// # Errors
    /// When it stays.
    pub(super) fn remove(&self, name: &str) -> io::Result<bool> {
        match fs::remove_dir_all(self.root.join(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the oldest generations of a name beyond those that are kept, but none in which a kernel
    /// lies.
    pub(super) fn thin(&self, name: &str, in_use: &BTreeSet<PathBuf>) {
        let all = self.generations(name);
        for generation in &all[..all.len().saturating_sub(KEPT)] {
            let path = self.path(name, *generation);
            if in_use.contains(&path) {
                continue;
            }
            if let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!("`{}` stays: {error}", path.display());
            }
        }
    }
}

impl Found {
    pub(super) fn images(&self) -> PathBuf {
        self.path.join(IMAGES)
    }
}

impl Draft {
    pub(super) fn images(&self) -> PathBuf {
        self.folder.join(IMAGES)
    }

    /// Where it will be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The images, all of which have come to the disk.
    ///
    /// # Errors
    /// When one can't be read or written.
    pub(super) fn settle(&self) -> io::Result<Vec<super::manifest::Image>> {
        let mut images = Vec::new();
        for path in entries(&self.images()) {
            File::open(&path)?.sync_all()?;
            images.push(Image::of(&path, &Gauge::default())?);
        }
        images.sort_by(|a, b| a.file.cmp(&b.file));
        File::open(self.images())?.sync_all()?;
        Ok(images)
    }

    /// Gives it its number.
    ///
    /// # Errors
    /// When the disk is full or fails; nothing is left of it then.
    pub(super) fn finish(self, manifest: &Manifest) -> io::Result<()> {
        let mut file = File::create(self.folder.join(MANIFEST))?;
        file.write_all(&serde_json::to_vec_pretty(manifest)?)?;
        file.sync_all()?;
        File::open(&self.folder)?.sync_all()?;
        fs::rename(&self.folder, &self.path)?;
        // Its name, and those of the folders, one of which may be new.
        self.path
            .ancestors()
            .skip(1)
            .take(3)
            .try_for_each(|folder| File::open(folder)?.sync_all())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // A finished one is not there any more under that name.
        let _ = fs::remove_dir_all(&self.folder);
        // And a name without any generation is none.
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).into_iter().flatten();
    read.flatten().map(|entry| entry.path()).collect()
}

fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(UNFINISHED))
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Absent, Found, Gauge, KEPT, Store};
    use crate::companion::criu::manifest::{Kernel, Manifest, Versions};
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    pub(in crate::companion::criu) fn write(store: &Store, name: &str) -> u64 {
        let draft = store.begin(name).unwrap();
        fs::write(draft.images().join("pages-1.img"), "pages").unwrap();
        let generation = draft.generation;
        let manifest = Manifest {
            version: 1,
            name: name.into(),
            generation,
            session: "default".into(),
            created: generation,
            kernel: Kernel {
                generation: 1,
                execution_count: 0,
                globals_count: 0,
                protocol: 1,
                python: "3.13.5".into(),
                body: "0.1.0".into(),
            },
            versions: Versions {
                osctl: "0.1.0".into(),
                criu: "4.1.1".into(),
                linux: "6.18".into(),
            },
            running_for: 60,
            ids: [1].into(),
            socket: "/run/x.sock".into(),
            mapped: Vec::new(),
            images: draft.settle().unwrap(),
            shell: None,
            objects: None,
            opened: BTreeSet::new(),
        };
        draft.finish(&manifest).unwrap();
        store.thin(name, &BTreeSet::new());
        generation
    }

    fn find(store: &Store, generation: Option<u64>) -> Result<Found, Absent> {
        store.find("a", generation, &Gauge::default())
    }

    fn is_empty(folder: &Path) -> bool {
        fs::read_dir(folder).is_ok_and(|mut found| found.next().is_none())
    }

    #[test]
    fn generations_rise_and_the_last_ones_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path().into());
        assert_eq!(find(&store, None).unwrap_err(), Absent::Unknown);
        let numbers: Vec<u64> = (0..5).map(|_| write(&store, "a")).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        assert_eq!(find(&store, None).unwrap().manifest.generation, 5);
        assert_eq!(find(&store, Some(3)).unwrap().manifest.generation, 3);
        assert_eq!(find(&store, Some(2)).unwrap_err(), Absent::Unknown);
        write(&store, "b");
        assert!(store.remove("no-such").is_ok_and(|found| !found));
        let all = store.all().into_iter().map(|f| f.manifest.generation);
        assert_eq!(all.collect::<Vec<_>>(), [5, 4, 3, 1]);
        assert!(store.remove("a").unwrap());
        assert_eq!(store.all().len(), 1);
    }

    #[test]
    fn the_one_that_a_kernel_lies_in_stays() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path().into());
        let first = write(&store, "a");
        let in_use = BTreeSet::from([find(&store, Some(first)).unwrap().path]);
        for _ in 0..KEPT {
            let draft = store.begin("a").unwrap();
            fs::rename(&draft.folder, &draft.path).unwrap();
        }
        store.thin("a", &in_use);
        assert!(find(&store, Some(first)).is_ok());
        store.thin("a", &BTreeSet::new());
        assert_eq!(find(&store, Some(first)).unwrap_err(), Absent::Unknown);
    }

    #[test]
    fn objects_are_known_when_every_manifest_can_be_read() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path().into());
        assert_eq!(store.objects("a"), Some(Vec::new()));
        write(&store, "a");
        write(&store, "a");
        assert_eq!(store.objects("a").unwrap().len(), 2);
        // Of a later version, too.
        let manifest = root.path().join("a/1/manifest.json");
        fs::write(&manifest, r#"{"version":9,"objects":{"name":"n"}}"#).unwrap();
        assert_eq!(store.objects("a").unwrap()[0]["name"], "n");
        fs::write(&manifest, "{").unwrap();
        assert_eq!(store.objects("a"), None);
    }

    #[test]
    fn a_damaged_one_is_refused_and_the_one_before_is_offered() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path().into());
        write(&store, "a");
        write(&store, "a");
        let images = root.path().join("a/2/images/pages-1.img");
        for damage in ["pag", "", "pagez"] {
            fs::write(&images, damage).unwrap();
            let Err(Absent::Damaged { why, other, .. }) = find(&store, None) else {
                panic!("it is whole");
            };
            assert!(why.contains("pages-1.img"), "{why}");
            assert_eq!(other, Some(1));
        }
        fs::write(root.path().join("a/1/manifest.json"), r#"{"version":9}"#).unwrap();
        let Err(Absent::Damaged { why, other, .. }) = find(&store, Some(1)) else {
            panic!("it is whole");
        };
        assert!(why.contains("version 9") && other.is_none(), "{why}");
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path().into());
        drop(store.begin("a").unwrap());
        assert!(is_empty(root.path()));
        write(&store, "a");
        std::mem::forget(store.begin("a").unwrap());
        let store = Store::open(root.path().into());
        assert_eq!(fs::read_dir(root.path().join("a")).unwrap().count(), 1);
        assert_eq!(write(&store, "a"), 2);
    }
}
