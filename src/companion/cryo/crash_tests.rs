//! Stores that crash at each of their steps, on a real folder: an acknowledged generation keeps its content, and no
//! number is used twice.

use super::manifest::{CryoManifest, add_seal};
use super::retention::CryoLimits;
use super::store::CryoStorage;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CRASH_TEST_NAME: &str = "default";

/// The last step of a store before a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StoreCrashPoint {
    Numbered,
    /// The kernel has created its folder.
    FolderCreated,
    /// All files are written, and the folder is not renamed yet.
    Written,
    Renamed,
    /// The companion has verified the generation.
    Verified,
    Acknowledged,
}

const STORE_CRASH_POINTS: [StoreCrashPoint; 6] = [
    StoreCrashPoint::Numbered,
    StoreCrashPoint::FolderCreated,
    StoreCrashPoint::Written,
    StoreCrashPoint::Renamed,
    StoreCrashPoint::Verified,
    StoreCrashPoint::Acknowledged,
];

/// An event between two stores.
#[derive(Debug, Clone, Copy)]
enum CrashTestStep {
    /// A store up to the first step, with a concurrent store up to the second step.
    Store(StoreCrashPoint, Option<StoreCrashPoint>),
    /// The kernel of a companion that has ended continues up to this step.
    ContinueOrphan(StoreCrashPoint),
    /// The companion starts again.
    Restart,
    RemoveNewest,
    RemoveAll,
    /// The removal of the newest generation is cut off after its first step.
    RemovePartially,
    Prune,
    DryRun,
}

struct CrashTestStorage {
    folder: tempfile::TempDir,
    allocated: BTreeSet<u64>,
    /// The value of each acknowledged number.
    acknowledged: BTreeMap<u64, f64>,
    /// The last number whose store was cut off.
    interrupted: Option<(u64, StoreCrashPoint, f64)>,
    last_value: f64,
}

impl CrashTestStorage {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            allocated: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            interrupted: None,
            last_value: 0.0,
        }
    }

    fn store(&self) -> CryoStorage {
        CryoStorage::new(self.folder.path().to_owned())
    }

    fn allocate(&mut self) -> (u64, PathBuf, f64) {
        let (number, path) = self.store().next_generation(CRASH_TEST_NAME).unwrap();
        assert!(self.allocated.insert(number), "{number} was given twice");
        self.last_value += 1.0;
        (number, path, self.last_value)
    }

    /// Performs the steps of the kernel and the companion after `from` and up to `to`.
    fn continue_store(
        &mut self,
        (number, path, value): (u64, &Path, f64),
        from: StoreCrashPoint,
        to: StoreCrashPoint,
    ) {
        let part = path.with_file_name(format!("{number}.part"));
        for step in STORE_CRASH_POINTS
            .into_iter()
            .filter(|step| *step > from && *step <= to)
        {
            let done = match step {
                StoreCrashPoint::Numbered => Ok(()),
                StoreCrashPoint::FolderCreated => fs::create_dir(&part),
                StoreCrashPoint::Written => write_generation(&part, number, value),
                StoreCrashPoint::Renamed => fs::rename(&part, path),
                StoreCrashPoint::Verified => {
                    let found = self
                        .store()
                        .verify_stored(CRASH_TEST_NAME, number, "default")
                        .unwrap();
                    assert_eq!(found.created, value);
                    Ok(())
                }
                StoreCrashPoint::Acknowledged => {
                    self.acknowledged.insert(number, value);
                    Ok(())
                }
            };
            // A store whose folder was swept in between fails here, and is not acknowledged.
            if done.is_err() {
                return;
            }
        }
        if to < StoreCrashPoint::Acknowledged {
            self.interrupted = Some((number, to, value));
        }
    }

    fn apply_step(&mut self, step: CrashTestStep) {
        let store = self.store();
        match step {
            CrashTestStep::Store(cut, other) => {
                let (number, path, value) = self.allocate();
                if let Some(other) = other {
                    let (other_number, other_path, other_value) = self.allocate();
                    self.continue_store(
                        (other_number, &other_path, other_value),
                        StoreCrashPoint::Numbered,
                        other,
                    );
                }
                self.continue_store((number, &path, value), StoreCrashPoint::Numbered, cut);
            }
            CrashTestStep::ContinueOrphan(to) => {
                // No companion exists that could acknowledge it.
                let to = to.min(StoreCrashPoint::Renamed);
                if let Some((number, from, value)) = self.interrupted.take() {
                    let path = store.generation_path(CRASH_TEST_NAME, number);
                    self.continue_store((number, &path, value), from, to);
                }
            }
            CrashTestStep::Restart => store.sweep_unfinished(),
            CrashTestStep::RemoveNewest => {
                if let Some(newest) = store.list_generations(CRASH_TEST_NAME).first().copied() {
                    store
                        .remove_generations(CRASH_TEST_NAME, Some(newest))
                        .unwrap();
                    self.acknowledged.remove(&newest);
                }
            }
            CrashTestStep::RemoveAll => {
                let _ = store.remove_generations(CRASH_TEST_NAME, None);
                self.acknowledged.clear();
            }
            CrashTestStep::RemovePartially => {
                if let Some(newest) = store.list_generations(CRASH_TEST_NAME).first().copied() {
                    super::generation_number::reserve_up_to(
                        &self.folder.path().join(CRASH_TEST_NAME),
                        newest,
                    )
                    .unwrap();
                    let path = store.generation_path(CRASH_TEST_NAME, newest);
                    let removed = path.with_file_name(format!("{newest}.gone"));
                    if fs::rename(path, removed).is_ok() {
                        self.acknowledged.remove(&newest);
                    }
                }
            }
            CrashTestStep::Prune => {
                let limits = CryoLimits {
                    max_generations: 2,
                    max_age: Duration::from_secs(u64::MAX >> 20),
                    max_total_bytes: u64::MAX,
                };
                store.prune(limits, &BTreeMap::new());
                let left = store.list_generations(CRASH_TEST_NAME);
                self.acknowledged.retain(|number, _| left.contains(number));
            }
            CrashTestStep::DryRun => drop(store.peek_generation(CRASH_TEST_NAME).unwrap()),
        }
        self.assert_acknowledged();
    }

    fn assert_acknowledged(&self) {
        for (number, value) in &self.acknowledged {
            let manifest =
                CryoManifest::read(&self.store().generation_path(CRASH_TEST_NAME, *number));
            let found = manifest.map(|manifest| (manifest.generation, manifest.created));
            assert_eq!(found, Ok((*number, *value)), "generation {number}");
        }
    }
}

/// Writes a generation whose creation time is its value.
pub(super) fn write_generation(folder: &Path, number: u64, value: f64) -> std::io::Result<()> {
    let sample = Path::new("tests/kernel/cryo/samples/1/1");
    for file in ["objects", "buffers"] {
        fs::copy(sample.join(file), folder.join(file))?;
    }
    let text = fs::read_to_string(sample.join("manifest.json"))?;
    let begin = text.find("\"reason\"").unwrap();
    let created = text.find("\"created\"").unwrap();
    let end = created + text[created..].find(',').unwrap();
    let text = format!(
        "{{\"format\":1,\"name\":\"{CRASH_TEST_NAME}\",\"generation\":{number},{}\"created\":{value:?}{}",
        &text[begin..created],
        &text[end..]
    );
    fs::write(folder.join("manifest.json"), add_seal(&text))
}

fn crash_points() -> impl Strategy<Value = StoreCrashPoint> {
    proptest::sample::select(&STORE_CRASH_POINTS[..])
}

fn crash_steps() -> impl Strategy<Value = CrashTestStep> {
    prop_oneof![
        4 => (crash_points(), proptest::option::of(crash_points())).prop_map(|(cut, other)| CrashTestStep::Store(cut, other)),
        2 => Just(CrashTestStep::Restart),
        1 => crash_points().prop_map(CrashTestStep::ContinueOrphan),
        1 => Just(CrashTestStep::RemoveNewest),
        1 => Just(CrashTestStep::RemoveAll),
        1 => Just(CrashTestStep::RemovePartially),
        1 => Just(CrashTestStep::Prune),
        1 => Just(CrashTestStep::DryRun),
    ]
}

#[test]
fn interrupted_store_number_not_reused() {
    for cut in STORE_CRASH_POINTS {
        for between in [
            CrashTestStep::Restart,
            CrashTestStep::RemoveAll,
            CrashTestStep::RemoveNewest,
            CrashTestStep::ContinueOrphan(StoreCrashPoint::Renamed),
        ] {
            let mut world = CrashTestStorage::new();
            world.apply_step(CrashTestStep::Store(StoreCrashPoint::Acknowledged, None));
            world.apply_step(CrashTestStep::Store(cut, None));
            world.apply_step(between);
            world.apply_step(CrashTestStep::Restart);
            world.apply_step(CrashTestStep::Store(StoreCrashPoint::Acknowledged, None));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_acknowledged_generation_keeps_its_content(steps in proptest::collection::vec(crash_steps(), 1..24)) {
        let mut world = CrashTestStorage::new();
        for step in steps {
            world.apply_step(step);
        }
    }
}
