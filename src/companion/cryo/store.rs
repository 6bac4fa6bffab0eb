//! Store of generations: `/data/cryo/NAME/NUMBER/`, with rising numbers under each name.
//!
//! The kernel writes a generation under a temporary name and renames the folder. This module allocates the number
//! ([`generation_number`]), verifies the generation before its acknowledgement, lists generations, and removes
//! superseded ones. A folder that was not renamed does not count.

use super::generation_number;
use super::manifest::CryoManifest;
use super::reload_record::last_reload;
use super::retention::{CryoLimits, RetentionCandidate, superseded_generations};
use super::{CHECKPOINT_STATE_PREFIX, CryoRefusal};
use crate::protocol::cryo::{GenerationDetails, GenerationList, StoreReason, StoredGeneration};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Suffixes of a generation's folder while it is written or removed.
const CRYO_TEMP_SUFFIXES: [&str; 2] = [".part", ".gone"];

/// For each name, the first generation that must not be removed now.
pub(super) type CryoPins = BTreeMap<String, u64>;

/// The folder of all names. The methods block.
#[derive(Debug, Clone)]
pub(super) struct CryoStorage {
    folder: PathBuf,
}

impl CryoStorage {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Removes unfinished folders of earlier companions.
    pub(super) fn sweep_unfinished(&self) {
        for name in self.list_names() {
            let folder = self.folder.join(name);
            for entry in list_subfolders(&folder) {
                if CRYO_TEMP_SUFFIXES
                    .iter()
                    .any(|suffix| entry.ends_with(suffix))
                {
                    let path = folder.join(&entry);
                    tracing::info!(path = %path.display(), "the companion removes an unfinished folder");
                }
            }
        }
        for name in self.list_names() {
            self.sweep_name(&name);
        }
    }

    pub(super) fn sweep_name(&self, name: &str) {
        let folder = self.folder.join(name);
        for entry in list_subfolders(&folder) {
            let path = folder.join(&entry);
            if CRYO_TEMP_SUFFIXES
                .iter()
                .any(|suffix| entry.ends_with(suffix))
                && let Err(error) = fs::remove_dir_all(&path)
            {
                tracing::warn!(path = %path.display(), %error, "an unfinished folder can't be removed");
            }
        }
    }

    pub(super) fn list_names(&self) -> Vec<String> {
        let mut names = list_subfolders(&self.folder);
        names.sort();
        names
    }

    /// Lists the generations of a name, newest first.
    pub(super) fn list_generations(&self, name: &str) -> Vec<u64> {
        let found = list_subfolders(&self.folder.join(name));
        let mut numbers: Vec<u64> = found.iter().filter_map(|n| n.parse().ok()).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        numbers
    }

    pub(super) fn generation_path(&self, name: &str, generation: u64) -> PathBuf {
        self.folder.join(name).join(generation.to_string())
    }

    /// Allocates a number that no other generation of the name has, and returns it with the generation's path.
    ///
    /// # Errors
    /// When the number can't be written to disk.
    pub(super) fn next_generation(&self, name: &str) -> Result<(u64, PathBuf), CryoRefusal> {
        let number = generation_number::allocate_number(&self.folder.join(name))
            .map_err(|e| allocation_refusal(&e))?;
        Ok((number, self.generation_path(name, number)))
    }

    /// Returns the next number without allocating it, for a trial. The number may be used again.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub(super) fn peek_generation(&self, name: &str) -> Result<(u64, PathBuf), CryoRefusal> {
        let newest = generation_number::newest_number(&self.folder.join(name))
            .map_err(|e| allocation_refusal(&e))?;
        Ok((newest + 1, self.generation_path(name, newest + 1)))
    }

    /// Verifies the generation that the kernel has stored.
    ///
    /// # Errors
    /// When the folder contains another generation, which must not be acknowledged.
    pub(super) fn verify_stored(
        &self,
        name: &str,
        generation: u64,
        session: &str,
    ) -> Result<CryoManifest, CryoRefusal> {
        let not_there = |why: String| {
            CryoRefusal::Failed(format!(
                "generation {generation} of `{name}` was not stored correctly: {why}"
            ))
        };
        let manifest =
            CryoManifest::read(&self.generation_path(name, generation)).map_err(not_there)?;
        let found = (&*manifest.name, manifest.generation, &*manifest.session);
        match found == (name, generation, session) {
            true => Ok(manifest),
            false => Err(not_there(format!(
                "the folder contains generation {} of `{}` from session `{}`",
                found.1, found.0, found.2
            ))),
        }
    }

    /// Finds a generation, or the newest.
    ///
    /// # Errors
    /// When the generation does not exist or is damaged. The refusal of a damaged one names the newest earlier
    /// generation that can be reloaded.
    pub(super) fn find_generation(
        &self,
        name: &str,
        wanted: Option<u64>,
    ) -> Result<IntactGeneration, CryoRefusal> {
        let numbers = self.list_generations(name);
        let Some(newest) = numbers.first().copied() else {
            return Err(CryoRefusal::NoName(name.into()));
        };
        let generation = wanted.unwrap_or(newest);
        if !numbers.contains(&generation) {
            let name = name.into();
            return Err(CryoRefusal::NoGeneration {
                name,
                generation,
                newest,
            });
        }
        let path = self.generation_path(name, generation);
        match CryoManifest::read(&path) {
            Ok(manifest) => Ok(IntactGeneration {
                generation,
                path,
                manifest,
            }),
            Err(why) => Err(self.damaged_refusal(name, generation, why)),
        }
    }

    /// The refusal of a damaged generation, with the newest earlier generation that can be reloaded.
    pub(super) fn damaged_refusal(&self, name: &str, generation: u64, why: String) -> CryoRefusal {
        let mut older = self
            .list_generations(name)
            .into_iter()
            .filter(|n| *n < generation);
        let previous =
            older.find(|number| CryoManifest::read(&self.generation_path(name, *number)).is_ok());
        CryoRefusal::Damaged {
            name: name.into(),
            generation,
            why,
            previous,
        }
    }

    pub(super) fn list_generation_lists(&self) -> Vec<GenerationList> {
        let line = |name: String| {
            let numbers = self.list_generations(&name).into_iter();
            let generations: Vec<_> = numbers
                .map(|n| self.describe_generation(&name, n))
                .collect();
            (!generations.is_empty()).then_some(GenerationList { name, generations })
        };
        self.list_names().into_iter().filter_map(line).collect()
    }

    pub(super) fn show_generation(
        &self,
        name: &str,
        wanted: Option<u64>,
    ) -> Result<GenerationDetails, CryoRefusal> {
        let found = self.find_generation(name, wanted)?;
        Ok(GenerationDetails {
            name: name.into(),
            generation: found
                .manifest
                .to_generation(found.generation, last_reload(&found.path)),
            path: found.path.display().to_string(),
            receipt: found.manifest.variables,
            libraries: found.manifest.libraries,
            packages: found.manifest.packages,
        })
    }

    /// Removes one generation, or all of a name. Returns the removed numbers.
    pub(super) fn remove_generations(
        &self,
        name: &str,
        wanted: Option<u64>,
    ) -> Result<Vec<u64>, CryoRefusal> {
        let numbers = self.list_generations(name);
        let Some(newest) = numbers.first().copied() else {
            return Err(CryoRefusal::NoName(name.into()));
        };
        if let Some(generation) = wanted.filter(|n| !numbers.contains(n)) {
            let name = name.into();
            return Err(CryoRefusal::NoGeneration {
                name,
                generation,
                newest,
            });
        }
        let removed: Vec<u64> = wanted.map_or(numbers, |one| vec![one]);
        for generation in &removed {
            self.discard_generation(name, *generation)
                .map_err(|error| {
                    CryoRefusal::Failed(format!("the generation can't be removed: {error}"))
                })?;
        }
        Ok(removed)
    }

    /// The newest generation of each name.
    pub(super) fn newest_generations(&self) -> CryoPins {
        let newest = |name: String| Some((self.list_generations(&name).first().copied()?, name));
        let all = self.list_names().into_iter().filter_map(newest);
        all.map(|(generation, name)| (name, generation)).collect()
    }

    /// Removes superseded generations. A `pinned` generation and all later ones under its name stay.
    pub(super) fn prune(&self, limits: CryoLimits, pinned: &CryoPins) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut all = Vec::new();
        let own = |line: &GenerationList| !line.name.starts_with(CHECKPOINT_STATE_PREFIX);
        for GenerationList { name, generations } in
            self.list_generation_lists().into_iter().filter(own)
        {
            all.extend(generations.into_iter().map(|found| {
                RetentionCandidate {
                    name: name.clone(),
                    generation: found.generation,
                    created: found.created,
                    size_bytes: found.size_bytes,
                    is_intact: found.damage.is_none(),
                    is_requested: found.reason == StoreReason::Requested.as_str(),
                    is_pinned: pinned
                        .get(&name)
                        .is_some_and(|first| found.generation >= *first),
                }
            }));
        }
        for (name, generation) in superseded_generations(&all, limits, now.as_secs_f64()) {
            match self.discard_generation(&name, generation) {
                Ok(()) => {
                    tracing::info!(
                        name,
                        generation,
                        "the companion removed a superseded generation"
                    )
                }
                Err(error) => {
                    tracing::warn!(name, generation, %error, "a superseded generation can't be removed")
                }
            }
        }
    }

    /// Removes a generation. Renames the folder first, so that a partial folder never counts as a generation. The
    /// number is not used again.
    fn discard_generation(&self, name: &str, generation: u64) -> io::Result<()> {
        generation_number::reserve_up_to(&self.folder.join(name), generation)?;
        let path = self.generation_path(name, generation);
        let removed = path.with_file_name(format!("{generation}{}", CRYO_TEMP_SUFFIXES[1]));
        // The remains of an earlier attempt.
        let _ = fs::remove_dir_all(&removed);
        fs::rename(&path, &removed)?;
        fs::remove_dir_all(&removed)
    }

    fn describe_generation(&self, name: &str, generation: u64) -> StoredGeneration {
        let path = self.generation_path(name, generation);
        match CryoManifest::read(&path) {
            Ok(manifest) => manifest.to_generation(generation, last_reload(&path)),
            Err(why) => StoredGeneration {
                generation,
                damage: Some(why),
                created: modified_seconds(&path),
                reason: String::new(),
                session: String::new(),
                size_bytes: folder_bytes(&path),
                python: String::new(),
                variables: 0,
                altered: 0,
                unverified: 0,
                lost: 0,
                reload: None,
            },
        }
    }
}

/// A generation with an intact manifest.
#[derive(Debug)]
pub(super) struct IntactGeneration {
    pub(super) generation: u64,
    pub(super) path: PathBuf,
    pub(super) manifest: CryoManifest,
}

fn allocation_refusal(error: &io::Error) -> CryoRefusal {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => CryoRefusal::DiskFull,
        _ => CryoRefusal::Failed(format!("the generation number can't be written: {error}")),
    }
}

/// Names of the subfolders; an unreadable folder has none.
fn list_subfolders(folder: &Path) -> Vec<String> {
    let found = match fs::read_dir(folder) {
        Ok(found) => found,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(path = %folder.display(), %error, "a folder of stored generations can't be read");
            }
            return Vec::new();
        }
    };
    let folders = found
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    folders
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn modified_seconds(path: &Path) -> f64 {
    let time = fs::metadata(path).and_then(|m| m.modified());
    let since = time.ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    since.unwrap_or_default().as_secs_f64()
}

/// Bytes of the files in a folder.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::{CryoLimits, CryoStorage, folder_bytes};
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    fn write(folder: &Path, path: &str) {
        let sample = Path::new("tests/kernel/cryo/samples/1/1");
        let path = folder.join(path);
        fs::create_dir_all(&path).unwrap();
        for file in ["objects", "buffers", "manifest.json"] {
            fs::copy(sample.join(file), path.join(file)).unwrap();
        }
    }

    #[test]
    fn the_size_of_a_folder_is_the_size_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(folder_bytes(&folder.path().join("none")), 0);
        fs::write(folder.path().join("a"), "123").unwrap();
        fs::write(folder.path().join("b"), "45").unwrap();
        assert_eq!(folder_bytes(folder.path()), 5);
    }

    #[test]
    fn unfinished_folders_are_swept_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = CryoStorage::new(folder.path().to_owned());
        write(folder.path(), "a/1");
        write(folder.path(), "a/2.part");
        write(folder.path(), "b/3.gone");
        fs::write(folder.path().join("a/last"), "4").unwrap();
        assert_eq!(store.list_generations("a"), [1]);
        store.sweep_unfinished();
        assert!(!folder.path().join("a/2.part").exists());
        assert!(!folder.path().join("b/3.gone").exists());
        assert!(store.find_generation("a", None).is_ok());
        assert_eq!(store.next_generation("a").unwrap().0, 5);
    }

    #[test]
    fn states_of_a_checkpoint_are_not_pruned() {
        let folder = tempfile::tempdir().unwrap();
        let store = CryoStorage::new(folder.path().to_owned());
        for name in ["a", "criu-a"] {
            for number in 1..=3 {
                write(folder.path(), &format!("{name}/{number}"));
            }
        }
        let limits = CryoLimits {
            max_generations: 1,
            max_age: Duration::ZERO,
            max_total_bytes: 0,
        };
        store.prune(limits, &BTreeMap::new());
        assert_eq!(store.list_generations("a"), [3]);
        assert_eq!(store.list_generations("criu-a"), [3, 2, 1]);
    }

    #[test]
    fn generations_of_a_trial_stay_with_all_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let store = CryoStorage::new(folder.path().to_owned());
        write(folder.path(), "a/1");
        write(folder.path(), "a/2");
        let pinned = store.newest_generations();
        write(folder.path(), "a/3");
        write(folder.path(), "a/4");
        let limits = CryoLimits {
            max_generations: 1,
            max_age: Duration::ZERO,
            max_total_bytes: 0,
        };
        store.prune(limits, &pinned);
        assert_eq!(store.list_generations("a"), [4, 3, 2]);
        store.prune(limits, &BTreeMap::new());
        assert_eq!(store.list_generations("a"), [4]);
    }
}
