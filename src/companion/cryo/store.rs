//! What is stored: `/data/cryo/NAME/NUMBER/`, numbers rising under each name.
//!
//! The kernel writes a generation beside its place and renames it; here it gets its number ([`generation_number`]), is looked
//! at before it is acknowledged, is listed, and goes when it is superseded. What was not renamed was never there.

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

/// What a generation is called while it is written, or removed.
const CRYO_TEMP_SUFFIXES: [&str; 2] = [".part", ".gone"];

/// Of each name the first generation that must not go now.
pub(super) type CryoPins = BTreeMap<String, u64>;

/// The folder of all names. Its methods block.
#[derive(Debug, Clone)]
pub(super) struct CryoStorage {
    folder: PathBuf,
}

impl CryoStorage {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Removes what an earlier life left half-way.
    pub(super) fn sweep_unfinished(&self) {
        for name in self.list_names() {
            for entry in list_subfolders(&self.folder.join(name)) {
                if CRYO_TEMP_SUFFIXES
                    .iter()
                    .any(|beside| entry.ends_with(beside))
                {
                    tracing::info!("removing `{entry}`, which was never finished");
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
            if CRYO_TEMP_SUFFIXES
                .iter()
                .any(|beside| entry.ends_with(beside))
                && let Err(error) = fs::remove_dir_all(folder.join(&entry))
            {
                tracing::warn!("`{entry}` can't be removed: {error}");
            }
        }
    }

    pub(super) fn list_names(&self) -> Vec<String> {
        let mut names = list_subfolders(&self.folder);
        names.sort();
        names
    }

    /// The newest first.
    pub(super) fn list_generations(&self, name: &str) -> Vec<u64> {
        let found = list_subfolders(&self.folder.join(name));
        let mut numbers: Vec<u64> = found.iter().filter_map(|n| n.parse().ok()).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        numbers
    }

    pub(super) fn generation_path(&self, name: &str, generation: u64) -> PathBuf {
        self.folder.join(name).join(generation.to_string())
    }

    /// A number that no generation of the name had or will have again, and the place of its generation.
    ///
    /// # Errors
    /// When it can't be put onto the disk.
    pub(super) fn next_generation(&self, name: &str) -> Result<(u64, PathBuf), CryoRefusal> {
        let number = generation_number::allocate_number(&self.folder.join(name))
            .map_err(|e| not_numbered(&e))?;
        Ok((number, self.generation_path(name, number)))
    }

    /// The same for what is not going to be stored: the number may be given again.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub(super) fn peek_generation(&self, name: &str) -> Result<(u64, PathBuf), CryoRefusal> {
        let newest = generation_number::newest_number(&self.folder.join(name))
            .map_err(|e| not_numbered(&e))?;
        Ok((newest + 1, self.generation_path(name, newest + 1)))
    }

    /// What the kernel says it has stored, as it is found in its place.
    ///
    /// # Errors
    /// When something else is there, which is not to be acknowledged.
    pub(super) fn verify_stored(
        &self,
        name: &str,
        generation: u64,
        session: &str,
    ) -> Result<CryoManifest, CryoRefusal> {
        let not_there = |why: String| {
            CryoRefusal::Failed(format!(
                "generation {generation} of `{name}` is not what was to be stored: {why}"
            ))
        };
        let manifest =
            CryoManifest::read(&self.generation_path(name, generation)).map_err(not_there)?;
        let found = (&*manifest.name, manifest.generation, &*manifest.session);
        match found == (name, generation, session) {
            true => Ok(manifest),
            false => Err(not_there(format!(
                "generation {} of `{}` from session `{}` was found",
                found.1, found.0, found.2
            ))),
        }
    }

    /// That generation, or the newest.
    ///
    /// # Errors
    /// When there is none, or it is damaged; then with the one before it that is not.
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

    /// The refusal of a generation, with what can be reloaded instead.
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

    pub(super) fn list_lines(&self) -> Vec<GenerationList> {
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

    /// Removes one generation, or all of that name. Returns those that went.
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
        let gone: Vec<u64> = wanted.map_or(numbers, |one| vec![one]);
        for generation in &gone {
            self.discard_generation(name, *generation)
                .map_err(|error| CryoRefusal::Failed(format!("it can't be removed: {error}")))?;
        }
        Ok(gone)
    }

    /// The newest generation of each name.
    pub(super) fn newest_generations(&self) -> CryoPins {
        let newest = |name: String| Some((self.list_generations(&name).first().copied()?, name));
        let all = self.list_names().into_iter().filter_map(newest);
        all.map(|(generation, name)| (name, generation)).collect()
    }

    /// Removes what is superseded now. What is `pinned` stays, and what came after it under its name.
    pub(super) fn prune(&self, limits: CryoLimits, pinned: &CryoPins) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut all = Vec::new();
        let own = |line: &GenerationList| !line.name.starts_with(CHECKPOINT_STATE_PREFIX);
        for GenerationList { name, generations } in self.list_lines().into_iter().filter(own) {
            all.extend(generations.into_iter().map(|found| {
                RetentionCandidate {
                    name: name.clone(),
                    generation: found.generation,
                    created: found.created,
                    size: found.size_bytes,
                    is_whole: found.damage.is_none(),
                    is_asked: found.reason == StoreReason::Asked.word(),
                    is_pinned: pinned
                        .get(&name)
                        .is_some_and(|first| found.generation >= *first),
                }
            }));
        }
        for (name, generation) in superseded_generations(&all, limits, now.as_secs_f64()) {
            match self.discard_generation(&name, generation) {
                Ok(()) => tracing::info!(name, generation, "a superseded state was removed"),
                Err(error) => tracing::warn!(name, generation, "it can't be removed: {error}"),
            }
        }
    }

    /// Under another name first, so that no half of it is ever taken for the whole. Its number is not given again.
    fn discard_generation(&self, name: &str, generation: u64) -> io::Result<()> {
        generation_number::reserve_up_to(&self.folder.join(name), generation)?;
        let path = self.generation_path(name, generation);
        let gone = path.with_file_name(format!("{generation}{}", CRYO_TEMP_SUFFIXES[1]));
        // What was left by an earlier attempt.
        let _ = fs::remove_dir_all(&gone);
        fs::rename(&path, &gone)?;
        fs::remove_dir_all(&gone)
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

/// A generation whose manifest is whole.
#[derive(Debug)]
pub(super) struct IntactGeneration {
    pub(super) generation: u64,
    pub(super) path: PathBuf,
    pub(super) manifest: CryoManifest,
}

fn not_numbered(error: &io::Error) -> CryoRefusal {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => CryoRefusal::Full,
        _ => CryoRefusal::Failed(format!("the number of a generation can't be kept: {error}")),
    }
}

/// Names of folders within one; an unreadable one has none.
fn list_subfolders(folder: &Path) -> Vec<String> {
    let found = match fs::read_dir(folder) {
        Ok(found) => found,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!("`{}` can't be read: {error}", folder.display());
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

    fn write(folder: &Path, place: &str) {
        let sample = Path::new("tests/kernel/cryo/samples/1/1");
        let place = folder.join(place);
        fs::create_dir_all(&place).unwrap();
        for file in ["objects", "buffers", "manifest.json"] {
            fs::copy(sample.join(file), place.join(file)).unwrap();
        }
    }

    #[test]
    fn a_folder_weighs_what_its_files_do() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(folder_bytes(&folder.path().join("none")), 0);
        fs::write(folder.path().join("a"), "123").unwrap();
        fs::write(folder.path().join("b"), "45").unwrap();
        assert_eq!(folder_bytes(folder.path()), 5);
    }

    #[test]
    fn what_was_never_finished_is_swept_and_the_rest_stays() {
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
    fn what_belongs_to_a_checkpoint_is_not_pruned() {
        let folder = tempfile::tempdir().unwrap();
        let store = CryoStorage::new(folder.path().to_owned());
        for name in ["a", "criu-a"] {
            for number in 1..=3 {
                write(folder.path(), &format!("{name}/{number}"));
            }
        }
        let limits = CryoLimits {
            count: 1,
            age: Duration::ZERO,
            budget: 0,
        };
        store.prune(limits, &BTreeMap::new());
        assert_eq!(store.list_generations("a"), [3]);
        assert_eq!(store.list_generations("criu-a"), [3, 2, 1]);
    }

    #[test]
    fn what_a_body_is_tried_with_stays_with_all_that_comes_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = CryoStorage::new(folder.path().to_owned());
        write(folder.path(), "a/1");
        write(folder.path(), "a/2");
        let pinned = store.newest_generations();
        write(folder.path(), "a/3");
        write(folder.path(), "a/4");
        let limits = CryoLimits {
            count: 1,
            age: Duration::ZERO,
            budget: 0,
        };
        store.prune(limits, &pinned);
        assert_eq!(store.list_generations("a"), [4, 3, 2]);
        store.prune(limits, &BTreeMap::new());
        assert_eq!(store.list_generations("a"), [4]);
    }
}
