//! The objects beside a process: stored by cryo, under a name that tells which checkpoint's they are.

use crate::companion::cryo::{self, Cryo, Refusal};
use crate::protocol::cryo::{Reason, Reload, Row, Store, Verdict};
use crate::protocol::kernel::KernelReport;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// Who keeps a kernel's objects, beside its process and for when that can't come back.
pub(crate) trait Objects: Debug + Send + Sync {
    /// Stores the objects of an idle session for a checkpoint of that name; what comes back is kept
    /// with it.
    fn store(&self, session: &str, checkpoint: &str) -> BoxFuture<'_, Result<Value, String>>;

    /// Bytes that storing a session's objects has moved so far.
    fn moved(&self, session: &str) -> u64;

    /// Stores what a session holds under its own name, as its kernel is about to give way.
    fn hold(&self, session: &str) -> BoxFuture<'_, Result<Value, String>>;

    /// Reloads what `store` or `hold` gave into that session, and tells what became of it.
    fn reload(&self, session: &str, stored: &Value) -> BoxFuture<'_, Result<Back, String>>;

    /// Removes what was stored for checkpoints of that name, but what `store` gave of these.
    fn keep(&self, checkpoint: &str, stored: &[Value]) -> BoxFuture<'_, ()>;
}

/// Objects that came back.
#[derive(Debug)]
pub(crate) struct Back {
    pub(super) report: KernelReport,
    /// Variables that did not, and why.
    pub(super) lost: Vec<String>,
}

/// Where cryo has them.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    name: String,
    generation: Option<u64>,
}

impl Objects for Cryo {
    fn store(&self, session: &str, checkpoint: &str) -> BoxFuture<'_, Result<Value, String>> {
        let wish = Store {
            name: Some(named(checkpoint)),
            session: session.into(),
            strict: false,
            dry_run: false,
            files: true,
            seen: None,
        };
        Box::pin(stored(self, wish, Reason::Asked))
    }

    fn hold(&self, session: &str) -> BoxFuture<'_, Result<Value, String>> {
        let wish = Store {
            name: None,
            session: session.into(),
            strict: false,
            dry_run: false,
            files: true,
            seen: None,
        };
        Box::pin(stored(self, wish, Reason::Restore))
    }

    fn moved(&self, session: &str) -> u64 {
        Self::moved(self, session)
    }

    fn reload(&self, session: &str, stored: &Value) -> BoxFuture<'_, Result<Back, String>> {
        let place = serde_json::from_value(stored.clone());
        let session = session.to_owned();
        Box::pin(async move {
            let Place { name, generation } = place.map_err(|error| error.to_string())?;
            let wish = Reload {
                name: Some(name),
                generation,
                session,
            };
            let reloaded = self.reload(wish).await.map_err(told)?;
            Ok(Back {
                report: reloaded.kernel,
                lost: lost(&reloaded.receipt),
            })
        })
    }

    fn keep(&self, checkpoint: &str, stored: &[Value]) -> BoxFuture<'_, ()> {
        let name = named(checkpoint);
        let kept = kept(&name, stored);
        Box::pin(async move {
            if kept.is_empty() {
                // There may be none.
                let _ = self.remove(name, None).await;
                return;
            }
            let lines = self.list().await.unwrap_or_default().into_iter();
            for line in lines.filter(|line| line.name == name) {
                let numbers = line.generations.iter().map(|found| found.generation);
                for number in numbers.filter(|number| !kept.contains(number)) {
                    if let Err(refusal) = self.remove(name.clone(), Some(number)).await {
                        tracing::warn!(name, number, "the objects stay: {}", told(refusal));
                    }
                }
            }
        })
    }
}

async fn stored(cryo: &Cryo, wish: Store, reason: Reason) -> Result<Value, String> {
    let stored = cryo.store(wish, reason).await.map_err(told)?;
    let place = Place {
        name: stored.name,
        generation: stored.generation,
    };
    serde_json::to_value(place).map_err(|error| error.to_string())
}

/// Where what `store` gave for that session lies in the folder of all objects, if it is whole.
pub(super) fn folders(objects: &Path, stored: Option<&Value>, session: &str) -> Vec<PathBuf> {
    let place = stored.and_then(|stored| serde_json::from_value::<Place>(stored.clone()).ok());
    let Some(Place {
        name,
        generation: Some(number),
    }) = place
    else {
        return Vec::new();
    };
    let number = number.to_string();
    let mut whole = cryo::stored_from(objects, &name, session);
    whole.retain(|path| path.file_name().is_some_and(|name| *name == *number));
    whole
}

/// The numbers that are referred to under that name.
fn kept(name: &str, stored: &[Value]) -> BTreeSet<u64> {
    let places = stored.iter().cloned().map(serde_json::from_value::<Place>);
    let same = places.flatten().filter(|place| place.name == name);
    same.filter_map(|place| place.generation).collect()
}

/// What a receipt calls lost, in words.
fn lost(receipt: &[Row]) -> Vec<String> {
    let lost = receipt.iter().filter(|row| row.verdict == Verdict::Lost);
    lost.map(|row| match &row.why {
        Some(why) => format!("`{}` ({why})", row.name),
        None => format!("`{}`", row.name),
    })
    .collect()
}

/// Apart from what people store: it must not push that out, nor come back by itself.
pub(super) fn named(checkpoint: &str) -> String {
    format!("{}{checkpoint}", cryo::BESIDE_CHECKPOINTS)
}

fn told(refusal: Refusal) -> String {
    match refusal {
        Refusal::Raised(raised) => raised.message,
        Refusal::Failed(why) | Refusal::Invalid(why) | Refusal::Losses(why) => why,
        Refusal::Full => "the disk is full".into(),
        Refusal::Damaged { why, .. } => why,
        Refusal::NoName(_) | Refusal::NoGeneration { .. } => "they are not there any more".into(),
        Refusal::Kernel(_) => "the kernel can't be asked".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{kept, lost};
    use crate::protocol::cryo::{Row, Verdict};
    use serde_json::json;

    #[test]
    fn what_checkpoints_refer_to_is_kept() {
        let of = |name: &str, generation| json!({"name": name, "generation": generation});
        // An earlier version also wrote how many were lost.
        let old = json!({"name": "criu-a", "generation": 3, "lost": 1});
        let stored = [of("criu-a", 1), old, of("criu-b", 2), json!(null)];
        assert_eq!(kept("criu-a", &stored), [1, 3].into());
        assert!(kept("criu-c", &stored).is_empty());
    }

    #[test]
    fn what_is_lost_is_named_with_its_reason() {
        let row = |name: &str, verdict, why: Option<&str>| Row {
            name: name.into(),
            verdict,
            kind: "int".into(),
            bytes: 0,
            why: why.map(str::to_owned),
        };
        let receipt = [
            row("a", Verdict::Saved, None),
            row("g", Verdict::Lost, Some("a generator")),
            row("x", Verdict::Lost, None),
        ];
        assert_eq!(lost(&receipt), ["`g` (a generator)", "`x`"]);
    }
}
