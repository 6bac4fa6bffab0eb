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
enum Cut {
    Numbered,
    /// The kernel has created its folder.
    Begun,
    /// All files are written, and the folder is not renamed yet.
    Written,
    Renamed,
    /// The companion has verified the generation.
    Looked,
    Acknowledged,
}

const CRASH_CUTS: [Cut; 6] = [
    Cut::Numbered,
    Cut::Begun,
    Cut::Written,
    Cut::Renamed,
    Cut::Looked,
    Cut::Acknowledged,
];

/// An event between two stores.
#[derive(Debug, Clone, Copy)]
enum CrashTestStep {
    /// A store up to the first step, with a concurrent store up to the second step.
    Store(Cut, Option<Cut>),
    /// The kernel of a companion that has ended continues up to this step.
    Straggler(Cut),
    /// The companion starts again.
    Boot,
    RemoveNewest,
    RemoveAll,
    /// The removal of the newest generation is cut off after its first step.
    RemoveHalf,
    Prune,
    Dry,
}

struct World {
    folder: tempfile::TempDir,
    given: BTreeSet<u64>,
    /// The value of each acknowledged number.
    acknowledged: BTreeMap<u64, f64>,
    /// The last number whose store was cut off.
    cut: Option<(u64, Cut, f64)>,
    values: f64,
}

impl World {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            given: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            cut: None,
            values: 0.0,
        }
    }

    fn store(&self) -> CryoStorage {
        CryoStorage::new(self.folder.path().to_owned())
    }

    fn number(&mut self) -> (u64, PathBuf, f64) {
        let (number, path) = self.store().next_generation(CRASH_TEST_NAME).unwrap();
        assert!(self.given.insert(number), "{number} was given twice");
        self.values += 1.0;
        (number, path, self.values)
    }

    /// Performs the steps of the kernel and the companion after `from` and up to `to`.
    fn continue_store(&mut self, (number, path, value): (u64, &Path, f64), from: Cut, to: Cut) {
        let part = path.with_file_name(format!("{number}.part"));
        for step in CRASH_CUTS
            .into_iter()
            .filter(|step| *step > from && *step <= to)
        {
            let done = match step {
                Cut::Numbered => Ok(()),
                Cut::Begun => fs::create_dir(&part),
                Cut::Written => write(&part, number, value),
                Cut::Renamed => fs::rename(&part, path),
                Cut::Looked => {
                    let found = self
                        .store()
                        .verify_stored(CRASH_TEST_NAME, number, "default")
                        .unwrap();
                    assert_eq!(found.created, value);
                    Ok(())
                }
                Cut::Acknowledged => {
                    self.acknowledged.insert(number, value);
                    Ok(())
                }
            };
            // A store whose folder was swept in between fails here, and is not acknowledged.
            if done.is_err() {
                return;
            }
        }
        if to < Cut::Acknowledged {
            self.cut = Some((number, to, value));
        }
    }

    fn step(&mut self, step: CrashTestStep) {
        let store = self.store();
        match step {
            CrashTestStep::Store(cut, other) => {
                let (number, path, value) = self.number();
                if let Some(other) = other {
                    let (beside, place, its) = self.number();
                    self.continue_store((beside, &place, its), Cut::Numbered, other);
                }
                self.continue_store((number, &path, value), Cut::Numbered, cut);
            }
            CrashTestStep::Straggler(to) => {
                // No companion exists that could acknowledge it.
                let to = to.min(Cut::Renamed);
                if let Some((number, from, value)) = self.cut.take() {
                    let path = store.generation_path(CRASH_TEST_NAME, number);
                    self.continue_store((number, &path, value), from, to);
                }
            }
            CrashTestStep::Boot => store.sweep_unfinished(),
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
            CrashTestStep::RemoveHalf => {
                if let Some(newest) = store.list_generations(CRASH_TEST_NAME).first().copied() {
                    super::generation_number::reserve_up_to(
                        &self.folder.path().join(CRASH_TEST_NAME),
                        newest,
                    )
                    .unwrap();
                    let path = store.generation_path(CRASH_TEST_NAME, newest);
                    let gone = path.with_file_name(format!("{newest}.gone"));
                    if fs::rename(path, gone).is_ok() {
                        self.acknowledged.remove(&newest);
                    }
                }
            }
            CrashTestStep::Prune => {
                let limits = CryoLimits {
                    count: 2,
                    age: Duration::from_secs(u64::MAX >> 20),
                    budget: u64::MAX,
                };
                store.prune(limits, &BTreeMap::new());
                let left = store.list_generations(CRASH_TEST_NAME);
                self.acknowledged.retain(|number, _| left.contains(number));
            }
            CrashTestStep::Dry => drop(store.peek_generation(CRASH_TEST_NAME).unwrap()),
        }
        self.check();
    }

    fn check(&self) {
        for (number, value) in &self.acknowledged {
            let manifest =
                CryoManifest::read(&self.store().generation_path(CRASH_TEST_NAME, *number));
            let found = manifest.map(|manifest| (manifest.generation, manifest.created));
            assert_eq!(found, Ok((*number, *value)), "generation {number}");
        }
    }
}

/// Writes a generation whose creation time is its value.
pub(super) fn write(folder: &Path, number: u64, value: f64) -> std::io::Result<()> {
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

fn cuts() -> impl Strategy<Value = Cut> {
    proptest::sample::select(&CRASH_CUTS[..])
}

fn steps() -> impl Strategy<Value = CrashTestStep> {
    prop_oneof![
        4 => (cuts(), proptest::option::of(cuts())).prop_map(|(cut, other)| CrashTestStep::Store(cut, other)),
        2 => Just(CrashTestStep::Boot),
        1 => cuts().prop_map(CrashTestStep::Straggler),
        1 => Just(CrashTestStep::RemoveNewest),
        1 => Just(CrashTestStep::RemoveAll),
        1 => Just(CrashTestStep::RemoveHalf),
        1 => Just(CrashTestStep::Prune),
        1 => Just(CrashTestStep::Dry),
    ]
}

#[test]
fn a_store_that_is_cut_off_at_any_step_gives_its_number_to_no_other() {
    for cut in CRASH_CUTS {
        for between in [
            CrashTestStep::Boot,
            CrashTestStep::RemoveAll,
            CrashTestStep::RemoveNewest,
            CrashTestStep::Straggler(Cut::Renamed),
        ] {
            let mut world = World::new();
            world.step(CrashTestStep::Store(Cut::Acknowledged, None));
            world.step(CrashTestStep::Store(cut, None));
            world.step(between);
            world.step(CrashTestStep::Boot);
            world.step(CrashTestStep::Store(Cut::Acknowledged, None));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_acknowledged_generation_keeps_its_content(steps in proptest::collection::vec(steps(), 1..24)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
    }
}
