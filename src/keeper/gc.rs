//! Garbage collection of images, records and bodies of runs that are no longer needed for a rollback. Only objects of
//! this instance are removed. An object that can't be removed now is removed after the next run.

use super::journal::RunJournalEntry;
use super::post_deploy_watch;
use super::run_store::KeeperRunStore;
use super::target::DeployTarget;
use crate::engine::{EngineImage, IMAGE_LABEL};
use crate::error::Result;
use crate::protocol::evolve::EvolveRecord;
use std::collections::BTreeSet;

/// Removes the images, records and bodies that no rollback needs. `entry` is the entry in the journal.
pub(super) async fn collect_garbage(
    target: &DeployTarget,
    run_store: &KeeperRunStore,
    entry: Option<&RunJournalEntry>,
) {
    let limits = &target.config.limits;
    let removed = async {
        let records = run_store.list_records()?;
        let images = remove_unneeded_images(target, &records, entry).await;
        run_store.prune_runs(limits.runs, limits.bodies)?;
        run_store.remove_uploaded_bodies(&target.config.spec.image)?;
        images
    };
    if let Err(error) = removed.await {
        tracing::warn!(error = %format_args!("{error:#}"), "the garbage collection failed");
    }
}

async fn remove_unneeded_images(
    target: &DeployTarget,
    records: &[EvolveRecord],
    entry: Option<&RunJournalEntry>,
) -> Result<()> {
    // First, because the name keeps an image.
    tag_previous_image(target, records).await?;
    let names = remove_outdated_tags(target, records, entry).await;
    let nameless = remove_dangling_images(target, records, entry).await;
    names.and(nameless)
}

/// Points the tag `previous` at the image that a rollback would take now, also after an earlier rollback.
async fn tag_previous_image(target: &DeployTarget, records: &[EvolveRecord]) -> Result<()> {
    let (docker, tag) = (&target.docker, target.image_tag("previous"));
    let Some(present) = target.find_container(target.container_name()).await? else {
        return Ok(());
    };
    if let Some(image) = post_deploy_watch::find_previous_image(records, Some(&present.image))
        && docker.find_image(image).await?.is_some()
    {
        return docker.tag_image(image, &tag).await;
    }
    match docker.find_image(&tag).await? {
        // Without its last name, the engine would delete the image.
        Some(image) if image.tags.len() > 1 => docker.remove_image(&tag).await,
        _ => Ok(()),
    }
}

/// Removes the tags of runs that did not succeed and of runs that are too old.
async fn remove_outdated_tags(
    target: &DeployTarget,
    records: &[EvolveRecord],
    entry: Option<&RunJournalEntry>,
) -> Result<()> {
    let fallbacks = fallback_images(entry);
    let tags = target.docker.list_tags(&target.config.image).await?;
    let (prefix, keep) = (target.image_tag("run-"), target.config.limits.images);
    for tag in outdated_tags(&tags, &prefix, records, keep) {
        let image = target.docker.find_image(tag).await?;
        if !image.is_some_and(|image| is_last_fallback_tag(&image, &fallbacks)) {
            target.docker.remove_image(tag).await?;
        }
    }
    Ok(())
}

/// The images that the active or watched run may fall back to.
fn fallback_images(entry: Option<&RunJournalEntry>) -> BTreeSet<String> {
    let mut fallbacks = BTreeSet::new();
    let mut at = entry;
    while let Some(entry) = at {
        let all = [&entry.image, &entry.previous, &entry.proven];
        fallbacks.extend(all.into_iter().flatten().cloned());
        at = entry.after.as_deref();
    }
    fallbacks
}

/// Whether removing this name would delete one of the `fallbacks`.
fn is_last_fallback_tag(image: &EngineImage, fallbacks: &BTreeSet<String>) -> bool {
    image.tags.len() < 2 && fallbacks.contains(&image.id)
}

fn outdated_tags<'a>(
    tags: &'a [String],
    prefix: &str,
    records: &[EvolveRecord],
    keep: usize,
) -> Vec<&'a String> {
    let retained: BTreeSet<String> = newest_retained_runs(records, keep)
        .map(|record| format!("{prefix}{}", record.run))
        .collect();
    let of_runs = tags.iter().filter(|tag| tag.starts_with(prefix));
    of_runs.filter(|tag| !retained.contains(*tag)).collect()
}

/// Removes images that have lost their last name.
async fn remove_dangling_images(
    target: &DeployTarget,
    records: &[EvolveRecord],
    entry: Option<&RunJournalEntry>,
) -> Result<()> {
    let images = target.docker.list_dangling_images().await?;
    let keep = target.config.limits.images;
    for id in unneeded_image_ids(&images, &target.config.instance, records, keep, entry) {
        target.docker.remove_image(id).await?;
    }
    Ok(())
}

/// The newest runs, whose images are kept.
fn newest_retained_runs(
    records: &[EvolveRecord],
    keep: usize,
) -> impl Iterator<Item = &EvolveRecord> {
    let replaced = |r: &&EvolveRecord| r.has_replaced_container() && r.body_digest.is_some();
    records.iter().filter(replaced).take(keep)
}

/// The images of this instance that no record and no journal entry refers to.
fn unneeded_image_ids<'a>(
    images: &'a [EngineImage],
    instance: &str,
    records: &[EvolveRecord],
    keep: usize,
    entry: Option<&RunJournalEntry>,
) -> Vec<&'a str> {
    let of = |record: &EvolveRecord| [record.image.clone(), record.previous_image.clone()];
    let known: BTreeSet<String> = records.iter().flat_map(of).flatten().collect();
    let replaced = records.iter().filter(|r| r.has_replaced_container());
    let mut needed: BTreeSet<String> = replaced.take(keep).flat_map(of).flatten().collect();
    needed.extend(fallback_images(entry));
    let is_ours = |image: &EngineImage| {
        let label = image.labels.get(IMAGE_LABEL);
        label.map(String::as_str) == Some(instance) || known.contains(&image.id)
    };
    let unwanted = images
        .iter()
        .filter(|image| image.tags.is_empty() && is_ours(image) && !needed.contains(&image.id));
    unwanted.map(|image| image.id.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::{fallback_images, is_last_fallback_tag, outdated_tags, unneeded_image_ids};
    use crate::engine::{EngineImage, IMAGE_LABEL};
    use crate::keeper::journal::{RunJournalEntry, RunJournalStep};
    use crate::keeper::test_samples::{sample_entry, sample_record};
    use crate::protocol::evolve::{EvolveRecord, EvolveStage, RunTask};
    use std::collections::HashMap;

    fn image(id: &str, of: Option<&str>, tags: &[&str]) -> EngineImage {
        let label = of.map(|of| (IMAGE_LABEL.to_owned(), of.to_owned()));
        EngineImage {
            id: id.into(),
            labels: label.into_iter().collect::<HashMap<_, _>>(),
            tags: tags.iter().map(|tag| (*tag).into()).collect(),
            size: 1,
        }
    }

    #[test]
    fn images_that_no_rollback_needs_are_unneeded_and_foreign_images_are_not() {
        let images = [
            image("failed", Some("mine"), &[]),
            image("named", Some("mine"), &["os-mine:run"]),
            image("theirs", Some("other"), &[]),
            image("unknown", None, &[]),
            image("present", Some("mine"), &[]),
            image("before", None, &[]),
            image("old", Some("mine"), &[]),
            image("hosts-old", None, &[]),
            image("proven", Some("mine"), &[]),
        ];
        let records = [
            sample_record(EvolveStage::Failed, "failed", "present"),
            sample_record(EvolveStage::Succeeded, "present", "before"),
            sample_record(EvolveStage::Succeeded, "old", "hosts-old"),
        ];
        let mut entry = sample_entry(RunJournalStep::Preparing);
        let found = unneeded_image_ids(&images, "mine", &records, 1, Some(&entry));
        assert_eq!(found, ["failed", "old", "hosts-old", "proven"]);
        let before = RunJournalEntry {
            proven: Some("proven".into()),
            ..entry.clone()
        };
        entry.after = Some(Box::new(before));
        let found = unneeded_image_ids(&images, "mine", &records, 2, Some(&entry));
        assert_eq!(found, ["failed"]);
        // An image that a run may fall back to keeps its last name, regardless of how many runs came later.
        let fallbacks = fallback_images(Some(&entry));
        assert!(is_last_fallback_tag(
            &image("proven", None, &["os:run"]),
            &fallbacks
        ));
        let named = image("proven", None, &["os:run", "os:previous"]);
        assert!(!is_last_fallback_tag(&named, &fallbacks));
        assert!(!is_last_fallback_tag(
            &image("old", None, &["os:run"]),
            &fallbacks
        ));
    }

    #[test]
    fn the_newest_successful_runs_keep_their_tags() {
        let run = |second: u32, task, status, dry_run| EvolveRecord {
            run: format!("20261121-1000{second:02}").parse().unwrap(),
            task,
            dry_run,
            body_digest: (task == RunTask::Evolve).then(|| "sha256:b".into()),
            ..sample_record(status, "new", "before")
        };
        let records = [
            run(7, RunTask::Evolve, EvolveStage::Building, false),
            run(6, RunTask::Evolve, EvolveStage::Failed, false),
            run(5, RunTask::Rollback, EvolveStage::Succeeded, false),
            run(4, RunTask::Evolve, EvolveStage::Succeeded, false),
            run(3, RunTask::Evolve, EvolveStage::Succeeded, true),
            run(2, RunTask::Evolve, EvolveStage::Succeeded, false),
            run(1, RunTask::Evolve, EvolveStage::Succeeded, false),
        ];
        let tags: Vec<String> = (0..8)
            .map(|second| format!("os:run-20261121-1000{second:02}"))
            .chain(["os:latest".into(), "os:previous".into()])
            .collect();
        let gone = |keep| {
            let gone = outdated_tags(&tags, "os:run-", &records, keep).into_iter();
            let seconds = gone.map(|tag| tag.chars().last().unwrap());
            seconds.collect::<String>()
        };
        assert_eq!(gone(2), "013567");
        assert_eq!(gone(3), "03567");
        assert_eq!(gone(0), "01234567");
    }
}
