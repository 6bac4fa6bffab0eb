//! Real folders, driven through the traces of the model, and then compared with the model's last state.
//!
//! [`CryoStorage`] and [`generation_number`] perform the companion's steps. This module performs the kernel's
//! steps as the kernel does.

use super::{
    CRYO_MODEL_NUMBERS, CRYO_MODEL_RETAINED, CRYO_MODEL_STORES, CryoModelAction, CryoModelOrder,
    CryoModelState, CryoModelStep, EMPTY_CRYO_MODEL, value_of_store,
};
use crate::companion::cryo::crash_tests::write_generation;
use crate::companion::cryo::generation_number;
use crate::companion::cryo::manifest::CryoManifest;
use crate::companion::cryo::retention::CryoLimits;
use crate::companion::cryo::store::CryoStorage;
use crate::model_checker::assert_holds;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const CRYO_REPLAY_NAME: &str = "default";

/// Number of traces that are replayed.
const CRYO_MODEL_REPLAYS: usize = 300;

struct RealCryoFolder {
    folder: tempfile::TempDir,
    store: CryoStorage,
    numbers: [u64; CRYO_MODEL_STORES],
}

impl RealCryoFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = CryoStorage::new(folder.path().to_owned());
        Self {
            folder,
            store,
            numbers: [0; CRYO_MODEL_STORES],
        }
    }

    fn generation_path(&self, number: u64, suffix: &str) -> PathBuf {
        let name = format!("{number}{suffix}");
        self.folder.path().join(CRYO_REPLAY_NAME).join(name)
    }

    fn apply_action(&mut self, action: CryoModelAction) {
        match action {
            CryoModelAction::Step(store, step) => self.apply_step(store, step),
            CryoModelAction::Remove => {
                let newest = self
                    .store
                    .list_generations(CRYO_REPLAY_NAME)
                    .first()
                    .copied();
                self.store
                    .remove_generations(CRYO_REPLAY_NAME, newest)
                    .unwrap();
            }
            CryoModelAction::Sweep => self.store.sweep_unfinished(),
            CryoModelAction::Run
            | CryoModelAction::KernelCrash(_)
            | CryoModelAction::CompanionCrash(_)
            | CryoModelAction::ContainerCrash => {}
            CryoModelAction::PowerLoss => unreachable!("no test ends the machine"),
        }
    }

    fn apply_step(&mut self, store: usize, step: CryoModelStep) {
        let (number, value) = (self.numbers[store], f64::from(value_of_store(store)));
        let (part, path) = (
            self.generation_path(number, ".part"),
            self.generation_path(number, ""),
        );
        match step {
            // Lock, number and record are one call; no other step comes between them.
            CryoModelStep::Record => {
                self.numbers[store] = self.store.next_generation(CRYO_REPLAY_NAME).unwrap().0
            }
            CryoModelStep::Begin => {
                let _ = fs::remove_dir_all(&part);
                fs::create_dir(&part).unwrap();
            }
            // These fail when the model ends the store.
            CryoModelStep::Write => drop(write_generation(&part, number, value)),
            CryoModelStep::Rename => drop(fs::rename(part, path)),
            CryoModelStep::Verify => {
                match self
                    .store
                    .verify_stored(CRYO_REPLAY_NAME, number, "default")
                {
                    Ok(manifest) => assert_eq!(manifest.created, value),
                    Err(refusal) => assert!(!path.exists(), "{refusal:?}"),
                }
            }
            CryoModelStep::Prune => {
                let limits = CryoLimits {
                    max_generations: CRYO_MODEL_RETAINED,
                    max_age: Duration::from_secs(u64::MAX >> 20),
                    max_total_bytes: u64::MAX,
                };
                self.store.prune(limits, &BTreeMap::new());
            }
            CryoModelStep::NotStarted
            | CryoModelStep::Lock
            | CryoModelStep::Read
            | CryoModelStep::Number
            | CryoModelStep::Sync
            | CryoModelStep::Acknowledge
            | CryoModelStep::Ended => {}
        }
    }

    /// Compares numbers, folders and values with the model.
    fn assert_matches_model(&self, state: &CryoModelState, trace: &[CryoModelAction]) {
        for (store, doing) in state.stores.iter().enumerate() {
            if self.numbers[store] > 0 {
                assert_eq!(self.numbers[store], u64::from(doing.number), "{trace:?}");
            }
        }
        for number in 1..CRYO_MODEL_NUMBERS {
            let (generation, number) = (state.generations[number], number as u64);
            let found = CryoManifest::read(&self.generation_path(number, "")).ok();
            let found = found.map(|manifest| manifest.created as u8);
            assert_eq!(found, generation.complete, "generation {number}: {trace:?}");
            let is_part = self.generation_path(number, ".part").exists();
            assert_eq!(is_part, generation.partial.is_some(), "{number}: {trace:?}");
        }
        if state.last_number.0 > 0 {
            let newest =
                generation_number::newest_number(&self.folder.path().join(CRYO_REPLAY_NAME))
                    .unwrap();
            assert_eq!(newest, u64::from(state.newest_number()), "{trace:?}");
        }
    }
}

#[test]
fn the_folders_match_the_model() {
    let search = assert_holds(&CryoModelOrder::default(), EMPTY_CRYO_MODEL);
    let is_replayed = |trace: &[CryoModelAction]| !trace.contains(&CryoModelAction::PowerLoss);
    let traces = search.traces().filter(|(trace, _)| is_replayed(trace));
    let every = search.len().div_ceil(CRYO_MODEL_REPLAYS);
    for (trace, state) in traces.step_by(every) {
        let mut real = RealCryoFolder::new();
        trace.iter().for_each(|action| real.apply_action(*action));
        real.assert_matches_model(state, &trace);
    }
}
