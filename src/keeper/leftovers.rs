//! What runs leave and nobody will go back to: images, records and bodies. Only what is this
//! instance's own is removed, and what can't be now is when the next run ends.

use super::journal::Entry;
use super::probation;
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
        let images = remove_images(site, &records, entry).await;
        shelf.prune(bounds.runs, bounds.bodies)?;
        shelf.clear(&site.charge.spec.image)?;
        images
    };
    if let Err(error) = removed.await {
        tracing::warn!("tidying up: {error:#}");
    }
}

async fn remove_images(site: &Site, records: &[Record], entry: Option<&Entry>) -> Result<()> {
    // First of all, because it keeps an image.
    name_previous(site, records).await?;
    let names = remove_names(site, records, entry).await;
    let nameless = remove_nameless(site, records, entry).await;
    names.and(nameless)
}

/// What `previous` names is what would be gone back to now, also after somebody went back.
async fn name_previous(site: &Site, records: &[Record]) -> Result<()> {
    let (docker, tag) = (&site.docker, site.tag("previous"));
    let Some(present) = site.find(site.name()).await? else {
        return Ok(());
    };
    if let Some(image) = probation::brought(records, Some(&present.image))
        && docker.image(image).await?.is_some()
    {
        return docker.tag(image, &tag).await;
    }
    match docker.image(&tag).await? {
        // An image without any name is lost.
        Some(image) if image.tags.len() > 1 => docker.remove_image(&tag).await,
        _ => Ok(()),
    }
}

/// The names of runs that did not succeed, and of those that are too old.
async fn remove_names(site: &Site, records: &[Record], entry: Option<&Entry>) -> Result<()> {
    let refuges = refuges(entry);
    let tags = site.docker.tags(&site.charge.image).await?;
    let (prefix, keep) = (site.tag("run-"), site.charge.bounds.images);
    for tag in outdated(&tags, &prefix, records, keep) {
        let image = site.docker.image(tag).await?;
        if !image.is_some_and(|image| is_last_name(&image, &refuges)) {
            site.docker.remove_image(tag).await?;
        }
    }
    Ok(())
}

/// The images that what is on, or on probation, may fall back to.
fn refuges(entry: Option<&Entry>) -> BTreeSet<String> {
    let mut refuges = BTreeSet::new();
    let mut at = entry;
    while let Some(entry) = at {
        let all = [&entry.image, &entry.previous, &entry.proven];
        refuges.extend(all.into_iter().flatten().cloned());
        at = entry.after.as_deref();
    }
    refuges
}

/// Whether one of the `refuges` would go with its name.
fn is_last_name(image: &Image, refuges: &BTreeSet<String>) -> bool {
    image.tags.len() < 2 && refuges.contains(&image.id)
}

fn outdated<'a>(
    tags: &'a [String],
    prefix: &str,
    records: &[Record],
    keep: usize,
) -> Vec<&'a String> {
    let kept: BTreeSet<String> = worth(records, keep)
        .map(|record| format!("{prefix}{}", record.run))
        .collect();
    let of_runs = tags.iter().filter(|tag| tag.starts_with(prefix));
    of_runs.filter(|tag| !kept.contains(*tag)).collect()
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
    wanted.extend(refuges(entry));
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
    use super::{is_last_name, outdated, refuges, unwanted};
    use crate::engine::{IMAGE_LABEL, Image};
    use crate::keeper::journal::{Entry, Step};
    use crate::keeper::samples::{entry, record};
    use crate::protocol::evolve::{Record, Stage, Task};
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
        // Nor does it go with its last name, however many have come after it.
        let refuges = refuges(Some(&entry));
        assert!(is_last_name(&image("proven", None, &["os:run"]), &refuges));
        let named = image("proven", None, &["os:run", "os:previous"]);
        assert!(!is_last_name(&named, &refuges));
        assert!(!is_last_name(&image("old", None, &["os:run"]), &refuges));
    }

    #[test]
    fn of_runs_that_succeeded_the_newest_keep_their_names() {
        let run = |second: u32, task, status, dry_run| Record {
            run: format!("20261121-1000{second:02}").parse().unwrap(),
            task,
            dry_run,
            body: (task == Task::Evolve).then(|| "sha256:b".into()),
            ..record(status, "new", "before")
        };
        let records = [
            run(7, Task::Evolve, Stage::Building, false),
            run(6, Task::Evolve, Stage::Failed, false),
            run(5, Task::Rollback, Stage::Succeeded, false),
            run(4, Task::Evolve, Stage::Succeeded, false),
            run(3, Task::Evolve, Stage::Succeeded, true),
            run(2, Task::Evolve, Stage::Succeeded, false),
            run(1, Task::Evolve, Stage::Succeeded, false),
        ];
        let tags: Vec<String> = (0..8)
            .map(|second| format!("os:run-20261121-1000{second:02}"))
            .chain(["os:latest".into(), "os:previous".into()])
            .collect();
        let gone = |keep| {
            let gone = outdated(&tags, "os:run-", &records, keep).into_iter();
            let seconds = gone.map(|tag| tag.chars().last().unwrap());
            seconds.collect::<String>()
        };
        assert_eq!(gone(2), "013567");
        assert_eq!(gone(3), "03567");
        assert_eq!(gone(0), "01234567");
    }
}
