//! What runs leave and nobody will go back to: images, records and bodies. Only what is this
//! instance's own is removed, and what can't be now is when the next run ends.

use super::journal::Entry;
use super::shelf::Shelf;
use super::site::Site;
use crate::engine::{IMAGE_LABEL, Image};
use crate::error::Result;
use crate::protocol::evolve::{Record, Stage};
use std::collections::BTreeSet;

/// Removes what is not worth keeping; `entry` is what the journal tells of.
pub(super) async fn remove(site: &Site, shelf: &Shelf, entry: Option<&Entry>) {
    let bounds = &site.charge.bounds;
    let removed = async {
        let records = shelf.records()?;
        let names = remove_names(site, &records).await;
        let images = remove_nameless(site, &records, entry).await;
        shelf.prune(bounds.runs, bounds.bodies)?;
        shelf.clear(&site.charge.spec.image)?;
        names.and(images)
    };
    if let Err(error) = removed.await {
        tracing::warn!("tidying up: {error:#}");
    }
}

/// The names of runs that did not succeed, and of those that are too old.
async fn remove_names(site: &Site, records: &[Record]) -> Result<()> {
    let prefix = site.tag("run-");
    let kept: BTreeSet<String> = worth(records, site.charge.bounds.images)
        .map(|record| format!("{prefix}{}", record.run))
        .collect();
    for tag in site.docker.tags(&site.charge.image).await? {
        if tag.starts_with(&prefix) && !kept.contains(&tag) {
            site.docker.remove_image(&tag).await?;
        }
    }
    Ok(())
}

/// Images that have lost their last name.
async fn remove_nameless(site: &Site, records: &[Record], entry: Option<&Entry>) -> Result<()> {
    let images = site.docker.nameless().await?;
    let keep = site.charge.bounds.images;
    for id in unwanted(&images, &site.charge.instance, records, keep, entry) {
        site.docker.remove_image(id).await?;
    }
    Ok(())
}

/// The newest runs whose images are kept.
fn worth(records: &[Record], keep: usize) -> impl Iterator<Item = &Record> {
    let succeeded = |r: &&Record| r.status == Stage::Succeeded && !r.dry_run && r.body.is_some();
    records.iter().filter(succeeded).take(keep)
}

/// Those that are ours, and that nothing leads to.
fn unwanted<'a>(
    images: &'a [Image],
    instance: &str,
    records: &[Record],
    keep: usize,
    entry: Option<&Entry>,
) -> Vec<&'a str> {
    let of = |record: &Record| [record.image.clone(), record.previous.clone()];
    let known: BTreeSet<String> = records.iter().flat_map(of).flatten().collect();
    let succeeded = records
        .iter()
        .filter(|r| r.status == Stage::Succeeded && !r.dry_run);
    let mut wanted: BTreeSet<String> = succeeded.take(keep).flat_map(of).flatten().collect();
    let mut at = entry;
    while let Some(entry) = at {
        let all = [&entry.image, &entry.previous, &entry.proven];
        wanted.extend(all.into_iter().flatten().cloned());
        at = entry.after.as_deref();
    }
    let is_ours = |image: &Image| {
        let label = image.labels.get(IMAGE_LABEL);
        label.map(String::as_str) == Some(instance) || known.contains(&image.id)
    };
    let unwanted = images
        .iter()
        .filter(|image| image.tags.is_empty() && is_ours(image) && !wanted.contains(&image.id));
    unwanted.map(|image| image.id.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::unwanted;
    use crate::engine::{IMAGE_LABEL, Image};
    use crate::keeper::journal::{Entry, Step};
    use crate::keeper::samples::{entry, record};
    use crate::protocol::evolve::Stage;
    use std::collections::HashMap;

    fn image(id: &str, of: Option<&str>, tags: &[&str]) -> Image {
        let label = of.map(|of| (IMAGE_LABEL.to_owned(), of.to_owned()));
        Image {
            id: id.into(),
            labels: label.into_iter().collect::<HashMap<_, _>>(),
            tags: tags.iter().map(|tag| (*tag).into()).collect(),
            size: 1,
        }
    }

    #[test]
    fn what_nobody_goes_back_to_goes_and_nobody_elses_does() {
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
            record(Stage::Failed, "failed", "present"),
            record(Stage::Succeeded, "present", "before"),
            record(Stage::Succeeded, "old", "hosts-old"),
        ];
        let mut entry = entry(Step::Preparing);
        let found = unwanted(&images, "mine", &records, 1, Some(&entry));
        assert_eq!(found, ["failed", "old", "hosts-old", "proven"]);
        let before = Entry {
            proven: Some("proven".into()),
            ..entry.clone()
        };
        entry.after = Some(Box::new(before));
        let found = unwanted(&images, "mine", &records, 2, Some(&entry));
        assert_eq!(found, ["failed"]);
    }
}
