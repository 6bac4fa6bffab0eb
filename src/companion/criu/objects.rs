//! The objects of a checkpointed kernel, which cryo stores under a name derived from the checkpoint's name.

use crate::companion::cryo::{self, CryoRefusal, CryoService};
use crate::protocol::cryo::{CryoStore, CryoVerdict, ReceiptRow, ReloadRequest, StoreReason};
use crate::protocol::kernel::KernelReport;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// A store for the objects of kernels, used when a process can't be restored.
pub(crate) trait KernelObjectStore: Debug + Send + Sync {
    /// Stores the objects of an idle session for the checkpoint of that name. The returned reference is kept in the
    /// checkpoint.
    fn store_objects(
        &self,
        session: &str,
        checkpoint: &str,
    ) -> BoxFuture<'_, Result<Value, String>>;

    /// Bytes that the store of a session's objects has moved up to now.
    fn transferred_bytes(&self, session: &str) -> u64;

    /// Stores the objects of a session under the session's own name before another kernel replaces its kernel.
    fn back_up_objects(&self, session: &str) -> BoxFuture<'_, Result<Value, String>>;

    /// Reloads the objects of a reference from `store_objects` or `back_up_objects` into the session, and reports the
    /// result.
    fn reload_objects(
        &self,
        session: &str,
        stored: &Value,
    ) -> BoxFuture<'_, Result<ReloadedObjects, String>>;

    /// Removes the objects stored for checkpoints of that name, except those that `stored` refers to.
    fn retain_objects(&self, checkpoint: &str, stored: &[Value]) -> BoxFuture<'_, ()>;
}

/// Objects that were reloaded.
#[derive(Debug)]
pub(crate) struct ReloadedObjects {
    pub(super) report: KernelReport,
    /// Variables that were not reloaded, with the reasons.
    pub(super) lost_objects: Vec<String>,
}

/// Reference to objects that cryo stored.
#[derive(Debug, Serialize, Deserialize)]
struct StoredObjectsRef {
    name: String,
    generation: Option<u64>,
}

impl KernelObjectStore for CryoService {
    fn store_objects(
        &self,
        session: &str,
        checkpoint: &str,
    ) -> BoxFuture<'_, Result<Value, String>> {
        let request = CryoStore {
            name: Some(cryo_name_for(checkpoint)),
            session: session.into(),
            strict: false,
            dry_run: false,
            files: true,
            seen: None,
        };
        Box::pin(store_in_cryo(self, request, StoreReason::Requested))
    }

    fn back_up_objects(&self, session: &str) -> BoxFuture<'_, Result<Value, String>> {
        let request = CryoStore {
            name: None,
            session: session.into(),
            strict: false,
            dry_run: false,
            files: true,
            seen: None,
        };
        Box::pin(store_in_cryo(self, request, StoreReason::Restore))
    }

    fn transferred_bytes(&self, session: &str) -> u64 {
        Self::transferred_bytes(self, session)
    }

    fn reload_objects(
        &self,
        session: &str,
        stored: &Value,
    ) -> BoxFuture<'_, Result<ReloadedObjects, String>> {
        let place = serde_json::from_value(stored.clone());
        let session = session.to_owned();
        Box::pin(async move {
            let StoredObjectsRef { name, generation } = place.map_err(|error| error.to_string())?;
            let request = ReloadRequest {
                name: Some(name),
                generation,
                session,
            };
            let reloaded = self
                .reload(request)
                .await
                .map_err(describe_objects_refusal)?;
            Ok(ReloadedObjects {
                report: reloaded.kernel,
                lost_objects: describe_lost_objects(&reloaded.receipt),
            })
        })
    }

    fn retain_objects(&self, checkpoint: &str, stored: &[Value]) -> BoxFuture<'_, ()> {
        let name = cryo_name_for(checkpoint);
        let retained = list_retained_generations(&name, stored);
        Box::pin(async move {
            if retained.is_empty() {
                // There may be no generation.
                let _ = self.remove_generations(name, None).await;
                return;
            }
            let lines = self
                .list_generation_lists()
                .await
                .unwrap_or_default()
                .into_iter();
            for line in lines.filter(|line| line.name == name) {
                let numbers = line.generations.iter().map(|found| found.generation);
                for number in numbers.filter(|number| !retained.contains(number)) {
                    if let Err(refusal) = self.remove_generations(name.clone(), Some(number)).await
                    {
                        tracing::warn!(
                            name,
                            generation = number,
                            why = describe_objects_refusal(refusal),
                            "objects that no checkpoint needs can't be removed"
                        );
                    }
                }
            }
        })
    }
}

async fn store_in_cryo(
    cryo: &CryoService,
    request: CryoStore,
    reason: StoreReason,
) -> Result<Value, String> {
    let stored = cryo
        .store(request, reason)
        .await
        .map_err(describe_objects_refusal)?;
    let place = StoredObjectsRef {
        name: stored.name,
        generation: stored.generation,
    };
    serde_json::to_value(place).map_err(|error| error.to_string())
}

/// Returns the folder of the objects that `stored` refers to for that session, if they are complete.
pub(super) fn find_object_folders(
    objects: &Path,
    stored: Option<&Value>,
    session: &str,
) -> Vec<PathBuf> {
    let place =
        stored.and_then(|stored| serde_json::from_value::<StoredObjectsRef>(stored.clone()).ok());
    let Some(StoredObjectsRef {
        name,
        generation: Some(number),
    }) = place
    else {
        return Vec::new();
    };
    let number = number.to_string();
    let mut whole = cryo::generations_stored_from(objects, &name, session);
    whole.retain(|path| path.file_name().is_some_and(|name| *name == *number));
    whole
}

/// The generations of that name to which `stored` refers.
fn list_retained_generations(name: &str, stored: &[Value]) -> BTreeSet<u64> {
    let places = stored
        .iter()
        .cloned()
        .map(serde_json::from_value::<StoredObjectsRef>);
    let same = places.flatten().filter(|place| place.name == name);
    same.filter_map(|place| place.generation).collect()
}

/// Describes the variables that a receipt reports as lost.
fn describe_lost_objects(receipt: &[ReceiptRow]) -> Vec<String> {
    let lost = receipt
        .iter()
        .filter(|row| row.verdict == CryoVerdict::Lost);
    lost.map(|row| match &row.why {
        Some(why) => format!("`{}` ({why})", row.name),
        None => format!("`{}`", row.name),
    })
    .collect()
}

/// Name of a checkpoint's objects in cryo. The prefix keeps them apart from the objects that users store: they must
/// neither displace those nor be reloaded automatically.
pub(super) fn cryo_name_for(checkpoint: &str) -> String {
    format!("{}{checkpoint}", cryo::CHECKPOINT_STATE_PREFIX)
}

fn describe_objects_refusal(refusal: CryoRefusal) -> String {
    match refusal {
        CryoRefusal::UserError(raised) => raised.message,
        CryoRefusal::Failed(why) | CryoRefusal::Invalid(why) | CryoRefusal::StrictLosses(why) => {
            why
        }
        CryoRefusal::DiskFull => "the disk is full".into(),
        CryoRefusal::Damaged { why, .. } => why,
        CryoRefusal::NoName(_) | CryoRefusal::NoGeneration { .. } => {
            "they do not exist any more".into()
        }
        CryoRefusal::Kernel(_) => "the kernel does not answer".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{describe_lost_objects, list_retained_generations};
    use crate::protocol::cryo::{CryoVerdict, ReceiptRow};
    use serde_json::json;

    #[test]
    fn objects_of_checkpoints_are_kept() {
        let of = |name: &str, generation| json!({"name": name, "generation": generation});
        // An earlier version also wrote the number of lost variables.
        let old = json!({"name": "criu-a", "generation": 3, "lost": 1});
        let stored = [of("criu-a", 1), old, of("criu-b", 2), json!(null)];
        assert_eq!(list_retained_generations("criu-a", &stored), [1, 3].into());
        assert!(list_retained_generations("criu-c", &stored).is_empty());
    }

    #[test]
    fn lost_variables_are_named_with_their_reason() {
        let row = |name: &str, verdict, why: Option<&str>| ReceiptRow {
            name: name.into(),
            verdict,
            kind: "int".into(),
            bytes: 0,
            why: why.map(str::to_owned),
        };
        let receipt = [
            row("a", CryoVerdict::Saved, None),
            row("g", CryoVerdict::Lost, Some("a generator")),
            row("x", CryoVerdict::Lost, None),
        ];
        assert_eq!(
            describe_lost_objects(&receipt),
            ["`g` (a generator)", "`x`"]
        );
    }
}
