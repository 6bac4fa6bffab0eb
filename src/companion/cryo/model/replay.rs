//! Real folders, driven through the traces of the model, and then compared with its last state.
//!
//! [`Store`] and [`number`] do the companion's steps. The kernel's are done here as it does them.

use super::{Action, EMPTY, KEPT, NUMBERS, Order, STORES, State, Step, value_of};
use crate::companion::cryo::crashes::write;
use crate::companion::cryo::manifest::Manifest;
use crate::companion::cryo::number;
use crate::companion::cryo::retention::Limits;
use crate::companion::cryo::store::Store;
use crate::model::assert_holds;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const NAME: &str = "default";

/// Traces that are replayed.
const REPLAYS: usize = 300;

struct Real {
    folder: tempfile::TempDir,
    store: Store,
    numbers: [u64; STORES],
}

impl Real {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        Self {
            folder,
            store,
            numbers: [0; STORES],
        }
    }

    fn place(&self, number: u64, suffix: &str) -> PathBuf {
        let name = format!("{number}{suffix}");
        self.folder.path().join(NAME).join(name)
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Do(store, step) => self.step(store, step),
            Action::Remove => {
                let newest = self.store.generations(NAME).first().copied();
                self.store.remove(NAME, newest).unwrap();
            }
            Action::Sweep => self.store.sweep(),
            Action::KernelDies(_) | Action::CompanionDies(_) | Action::ContainerDies => {}
            Action::PowerFails => unreachable!("no test ends the machine"),
        }
    }

    fn step(&mut self, store: usize, step: Step) {
        let (number, value) = (self.numbers[store], f64::from(value_of(store)));
        let (part, place) = (self.place(number, ".part"), self.place(number, ""));
        match step {
            // The lock, the number and its record are one call, and no other one comes in between.
            Step::Record => self.numbers[store] = self.store.next(NAME).unwrap().0,
            Step::Begin => {
                let _ = fs::remove_dir_all(&part);
                fs::create_dir(&part).unwrap();
            }
            // These fail where the model ends the store.
            Step::Write => drop(write(&part, number, value)),
            Step::Rename => drop(fs::rename(part, place)),
            Step::Look => match self.store.stored(NAME, number, "default") {
                Ok(manifest) => assert_eq!(manifest.created, value),
                Err(refusal) => assert!(!place.exists(), "{refusal:?}"),
            },
            Step::Prune => {
                let limits = Limits {
                    count: KEPT,
                    age: Duration::from_secs(u64::MAX >> 20),
                    budget: u64::MAX,
                };
                self.store.prune(limits, &BTreeMap::new());
            }
            Step::Nothing
            | Step::Lock
            | Step::Read
            | Step::Number
            | Step::Sync
            | Step::Acknowledge
            | Step::Ended => {}
        }
    }

    /// Numbers, folders and values are those of the model.
    fn compare(&self, state: &State, trace: &[Action]) {
        for (store, doing) in state.stores.iter().enumerate() {
            if self.numbers[store] > 0 {
                assert_eq!(self.numbers[store], u64::from(doing.number), "{trace:?}");
            }
        }
        for number in 1..NUMBERS {
            let (generation, number) = (state.generations[number], number as u64);
            let found = Manifest::read(&self.place(number, "")).ok();
            let found = found.map(|manifest| manifest.created as u8);
            assert_eq!(found, generation.whole, "generation {number}: {trace:?}");
            let is_part = self.place(number, ".part").exists();
            assert_eq!(is_part, generation.part.is_some(), "{number}: {trace:?}");
        }
        if state.last.0 > 0 {
            let newest = number::newest(&self.folder.path().join(NAME)).unwrap();
            assert_eq!(newest, u64::from(state.newest()), "{trace:?}");
        }
    }
}

#[test]
fn the_folders_are_what_the_model_says() {
    let search = assert_holds(&Order::default(), EMPTY);
    let is_replayed = |trace: &[Action]| !trace.contains(&Action::PowerFails);
    let traces = search.traces().filter(|(trace, _)| is_replayed(trace));
    let every = search.len().div_ceil(REPLAYS);
    for (trace, state) in traces.step_by(every) {
        let mut real = Real::new();
        trace.iter().for_each(|action| real.act(*action));
        real.compare(state, &trace);
    }
}
