//! Stores that are cut off at each of their steps, on a real folder: what was acknowledged stays what it was, and no
//! number is given to two.

use super::manifest::{Manifest, sealed};
use super::retention::Limits;
use super::store::Store;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NAME: &str = "default";

/// How far a store has come when something dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cut {
    Numbered,
    /// The kernel has made its folder.
    Begun,
    /// All is written, and not renamed.
    Written,
    Renamed,
    /// The companion has looked at it.
    Looked,
    Acknowledged,
}

const CUTS: [Cut; 6] = [
    Cut::Numbered,
    Cut::Begun,
    Cut::Written,
    Cut::Renamed,
    Cut::Looked,
    Cut::Acknowledged,
];

/// What happens between two stores.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A store that comes so far, while another one is on that comes so far.
    Store(Cut, Option<Cut>),
    /// The kernel of a companion that has died continues up to this step.
    Straggler(Cut),
    /// The companion begins again.
    Boot,
    RemoveNewest,
    RemoveAll,
    /// The removal of the newest is cut off behind its first step.
    RemoveHalf,
    Prune,
    Dry,
}

struct World {
    folder: tempfile::TempDir,
    given: BTreeSet<u64>,
    /// What each acknowledged number stands for.
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

    fn store(&self) -> Store {
        Store::new(self.folder.path().to_owned())
    }

    fn number(&mut self) -> (u64, PathBuf, f64) {
        let (number, path) = self.store().next(NAME).unwrap();
        assert!(self.given.insert(number), "{number} was given twice");
        self.values += 1.0;
        (number, path, self.values)
    }

    /// The steps of the kernel and the companion behind `from` and up to `to`.
    fn go_on(&mut self, (number, path, value): (u64, &Path, f64), from: Cut, to: Cut) {
        let part = path.with_file_name(format!("{number}.part"));
        for step in CUTS.into_iter().filter(|step| *step > from && *step <= to) {
            let done = match step {
                Cut::Numbered => Ok(()),
                Cut::Begun => fs::create_dir(&part),
                Cut::Written => write(&part, number, value),
                Cut::Renamed => fs::rename(&part, path),
                Cut::Looked => {
                    let found = self.store().stored(NAME, number, "default").unwrap();
                    assert_eq!(found.created, value);
                    Ok(())
                }
                Cut::Acknowledged => {
                    self.acknowledged.insert(number, value);
                    Ok(())
                }
            };
            // What was swept away meanwhile fails there, and is not acknowledged.
            if done.is_err() {
                return;
            }
        }
        if to < Cut::Acknowledged {
            self.cut = Some((number, to, value));
        }
    }

    fn step(&mut self, step: Step) {
        let store = self.store();
        match step {
            Step::Store(cut, other) => {
                let (number, path, value) = self.number();
                if let Some(other) = other {
                    let (beside, place, its) = self.number();
                    self.go_on((beside, &place, its), Cut::Numbered, other);
                }
                self.go_on((number, &path, value), Cut::Numbered, cut);
            }
            Step::Straggler(to) => {
                // No companion is left that could acknowledge it.
                let to = to.min(Cut::Renamed);
                if let Some((number, from, value)) = self.cut.take() {
                    let path = store.path(NAME, number);
                    self.go_on((number, &path, value), from, to);
                }
            }
            Step::Boot => store.sweep(),
            Step::RemoveNewest => {
                if let Some(newest) = store.generations(NAME).first().copied() {
                    store.remove(NAME, Some(newest)).unwrap();
                    self.acknowledged.remove(&newest);
                }
            }
            Step::RemoveAll => {
                let _ = store.remove(NAME, None);
                self.acknowledged.clear();
            }
            Step::RemoveHalf => {
                if let Some(newest) = store.generations(NAME).first().copied() {
                    super::number::hold(&self.folder.path().join(NAME), newest).unwrap();
                    let path = store.path(NAME, newest);
                    let gone = path.with_file_name(format!("{newest}.gone"));
                    if fs::rename(path, gone).is_ok() {
                        self.acknowledged.remove(&newest);
                    }
                }
            }
            Step::Prune => {
                let limits = Limits {
                    count: 2,
                    age: Duration::from_secs(u64::MAX >> 20),
                    budget: u64::MAX,
                };
                store.prune(limits, &BTreeMap::new());
                let left = store.generations(NAME);
                self.acknowledged.retain(|number, _| left.contains(number));
            }
            Step::Dry => drop(store.likely(NAME).unwrap()),
        }
        self.check();
    }

    fn check(&self) {
        for (number, value) in &self.acknowledged {
            let manifest = Manifest::read(&self.store().path(NAME, *number));
            let found = manifest.map(|manifest| (manifest.generation, manifest.created));
            assert_eq!(found, Ok((*number, *value)), "generation {number}");
        }
    }
}

/// A generation whose time is its value.
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
        "{{\"format\":1,\"name\":\"{NAME}\",\"generation\":{number},{}\"created\":{value:?}{}",
        &text[begin..created],
        &text[end..]
    );
    fs::write(folder.join("manifest.json"), sealed(&text))
}

fn cuts() -> impl Strategy<Value = Cut> {
    proptest::sample::select(&CUTS[..])
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (cuts(), proptest::option::of(cuts())).prop_map(|(cut, other)| Step::Store(cut, other)),
        2 => Just(Step::Boot),
        1 => cuts().prop_map(Step::Straggler),
        1 => Just(Step::RemoveNewest),
        1 => Just(Step::RemoveAll),
        1 => Just(Step::RemoveHalf),
        1 => Just(Step::Prune),
        1 => Just(Step::Dry),
    ]
}

#[test]
fn a_store_that_is_cut_off_at_any_step_gives_its_number_to_no_other() {
    for cut in CUTS {
        for between in [
            Step::Boot,
            Step::RemoveAll,
            Step::RemoveNewest,
            Step::Straggler(Cut::Renamed),
        ] {
            let mut world = World::new();
            world.step(Step::Store(Cut::Acknowledged, None));
            world.step(Step::Store(cut, None));
            world.step(between);
            world.step(Step::Boot);
            world.step(Step::Store(Cut::Acknowledged, None));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_acknowledged_stays_what_it_was(steps in proptest::collection::vec(steps(), 1..24)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
    }
}
