//! Reload record: what a reload restored and what it lost, for later reports.
//!
//! A generation's folder keeps what its last reload lost, in `reload.json`. The file is removed with the generation and
//! is not part of the stored state.

use super::manifest::CryoManifest;
use super::store::CryoStorage;
use crate::atomic_write::{Durability, atomic_write};
use crate::companion::kernel::runs_since;
use crate::protocol::cryo::{CryoVerdict, ReceiptRow};
use crate::protocol::restored::{
    LastReload, LostVariable, MAX_LISTED_LOSSES, RestoredFrom, SkippedGeneration,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const RELOAD_RECORD_FILE: &str = "reload.json";

/// Maximum bytes that are read of the record: another program may have written the file.
const MAX_RELOAD_RECORD_BYTES: u64 = 1 << 20;

/// Describes a reload of the generation in `folder` from the kernel's answer and the manifest. `counts` is the folder
/// of the run counts.
pub(super) fn describe_restored(
    folder: &Path,
    answer: &Value,
    counts: &Path,
) -> Option<RestoredFrom> {
    let (name, generation) = parse_generation_path(folder)?;
    let manifest = match CryoManifest::read(folder) {
        Ok(manifest) => manifest,
        Err(why) => {
            tracing::warn!(path = %folder.display(), why, "the manifest of the reloaded generation can't be read");
            return None;
        }
    };
    // A verdict that this version does not know is not a loss.
    let rows = answer["receipt"].as_array()?;
    let stored = verdicts(&manifest.variables);
    let verdict_of = |row: &Value| stored.get(row["name"].as_str()?).copied();
    // The stored value of a variable that comes back different is lost, unless the receipt of the store said so.
    let is_lost = |row: &Value| match row["verdict"].as_str() {
        Some("lost") => true,
        Some("altered") => matches!(
            verdict_of(row),
            Some(CryoVerdict::Saved | CryoVerdict::Recipe)
        ),
        _ => false,
    };
    let lost = rows
        .iter()
        .filter(|row| is_lost(row))
        .map(|row| LostVariable {
            name: row["name"].as_str().unwrap_or_default().into(),
            why: row["why"].as_str().map(str::to_owned),
            was_saved: verdict_of(row).is_some_and(|verdict| verdict != CryoVerdict::Lost),
        });
    let mut lost: Vec<LostVariable> = lost.collect();
    // Losses that the receipt of the store did not name come first.
    lost.sort_by_key(|lost| !lost.was_saved);
    let lost_count = lost.len() as u64;
    let unexpected = lost.iter().filter(|lost| lost.was_saved).count() as u64;
    lost.truncate(MAX_LISTED_LOSSES);
    let altered = rows.iter().filter(|row| row["verdict"] == "altered");
    let altered = altered.filter(|row| !is_lost(row)).filter_map(|row| {
        let why = row["why"].as_str().unwrap_or("no reason is known");
        Some(format!("`{}` is altered: {why}", row["name"].as_str()?))
    });
    let changed = answer["warnings"].as_array().into_iter().flatten();
    let changed = changed.filter_map(|warning| warning.as_str().map(str::to_owned));
    let warnings = altered.chain(changed);
    let since = manifest
        .runs
        .and_then(|runs| runs_since(counts, &manifest.session, runs, manifest.created));
    Some(RestoredFrom {
        name,
        generation,
        created: manifest.created,
        runs_after: since.map(|(runs, _)| runs),
        runs_after_is_estimate: since.is_some_and(|(_, is_estimate)| is_estimate),
        variables: rows.len() as u64 - lost_count,
        lost_count,
        lost_unexpectedly: unexpected,
        lost,
        skipped: Vec::new(),
        warnings: warnings.take(MAX_LISTED_LOSSES).collect(),
    })
}

/// Lists the generations of a name above `number`, which can't be reloaded. `cryo` is the folder of all names.
pub(super) fn damaged_generations_above(
    cryo: &Path,
    name: &str,
    generation: u64,
) -> Vec<SkippedGeneration> {
    let store = CryoStorage::new(cryo.to_owned());
    let newer = store.list_generations(name).into_iter();
    let newer = newer.filter(|number| *number > generation);
    let damaged = newer.filter_map(|number| {
        let why = CryoManifest::read(&store.generation_path(name, number)).err()?;
        Some(SkippedGeneration {
            generation: number,
            why,
        })
    });
    damaged.collect()
}

/// Writes the losses of a reload into a session beside the generation in `folder`.
pub(super) fn write_reload_record(folder: &Path, session: &str, from: &RestoredFrom) {
    let lost = from.lost.iter().filter(|lost| lost.was_saved);
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let reload = LastReload {
        time: since.unwrap_or_default().as_secs_f64(),
        session: session.to_owned(),
        lost_count: from.lost_unexpectedly,
        lost: lost.cloned().collect(),
    };
    let path = folder.join(RELOAD_RECORD_FILE);
    let text = serde_json::to_vec(&reload).map_err(io::Error::from);
    if let Err(error) = text.and_then(|text| atomic_write(&path, &text, Durability::Renamed)) {
        tracing::warn!(path = %path.display(), %error, "the losses of the reload can't be written");
    }
}

pub(super) fn last_reload(folder: &Path) -> Option<LastReload> {
    let path = folder.join(RELOAD_RECORD_FILE);
    if fs::metadata(&path).ok()?.len() > MAX_RELOAD_RECORD_BYTES {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// What a store reported of each variable.
fn verdicts(rows: &[ReceiptRow]) -> BTreeMap<&str, CryoVerdict> {
    rows.iter().map(|row| (&*row.name, row.verdict)).collect()
}

/// Parses `…/NAME/NUMBER`.
fn parse_generation_path(folder: &Path) -> Option<(String, u64)> {
    let number = folder.file_name()?.to_str()?.parse().ok()?;
    let name = folder.parent()?.file_name()?.to_str()?.to_owned();
    Some((name, number))
}

#[cfg(test)]
mod tests {
    use super::{damaged_generations_above, describe_restored, last_reload, write_reload_record};
    use crate::companion::cryo::manifest::add_seal;
    use serde_json::{Value, json};
    use std::fs;
    use std::path::Path;

    /// Writes a generation that was stored after `runs` runs.
    fn write(place: &Path, runs: u64) {
        let sample = Path::new("tests/kernel/cryo/samples/1/1");
        fs::create_dir_all(place).unwrap();
        for file in ["objects", "buffers"] {
            fs::copy(sample.join(file), place.join(file)).unwrap();
        }
        let text = fs::read_to_string(sample.join("manifest.json")).unwrap();
        let text = text.replacen(
            "\"format\":1,",
            &format!("\"format\":1,\"runs\":{runs},"),
            1,
        );
        fs::write(place.join("manifest.json"), add_seal(&text)).unwrap();
    }

    fn row(name: &str, verdict: &str, why: Option<&str>) -> Value {
        json!({"name": name, "verdict": verdict, "type": "int", "bytes": 0, "why": why})
    }

    #[test]
    fn a_reload_reports_its_losses_and_the_runs_after_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("cryo/mine/3");
        write(&place, 4);
        let answer = json!({"receipt": [
            row("gone", "lost", Some("a generator")),
            row("text", "saved", None),
            row("scaled", "lost", Some("TypeError: no")),
            // A verdict of a later version.
            row("up", "doubtful", None),
            row("half", "altered", Some("came back without `x`")),
            // The store called it saved.
            row("matrix", "altered", Some("its len is 1")),
        ], "warnings": ["`lib.py` has changed"]});
        let from = describe_restored(&place, &answer, folder.path()).unwrap();
        assert_eq!(
            (&*from.name, from.generation, from.runs_after),
            ("mine", 3, None)
        );
        assert_eq!(
            (from.variables, from.lost_count, from.lost_unexpectedly),
            (3, 3, 2)
        );
        let warnings = [
            "`half` is altered: came back without `x`",
            "`lib.py` has changed",
        ];
        assert_eq!(from.warnings, warnings);
        let lost: Vec<_> = from.lost.iter().map(|l| (&*l.name, l.was_saved)).collect();
        assert_eq!(lost, [("scaled", true), ("matrix", true), ("gone", false)]);
        let count = format!("{:020}\nboot\n0\n", 6);
        fs::write(folder.path().join("default.runs"), count).unwrap();
        let from = describe_restored(&place, &answer, folder.path()).unwrap();
        assert_eq!(
            (from.runs_after, from.runs_after_is_estimate),
            (Some(2), false)
        );
        assert!(last_reload(&place).is_none());
        write_reload_record(&place, "other", &from);
        let record = last_reload(&place).unwrap();
        assert_eq!(
            (&*record.session, record.lost_count, &*record.lost[0].name),
            ("other", 2, "scaled")
        );
        fs::write(place.join("reload.json"), "{").unwrap();
        assert!(last_reload(&place).is_none());
    }

    #[test]
    fn newer_generations_that_are_damaged_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=4 {
            write(&folder.path().join(format!("a/{number}")), 0);
        }
        fs::write(folder.path().join("a/3/objects"), "").unwrap();
        let skipped = damaged_generations_above(folder.path(), "a", 2);
        assert_eq!(skipped.len(), 1);
        assert_eq!(skipped[0].generation, 3);
        assert!(skipped[0].why.contains("bytes instead of"));
    }
}
