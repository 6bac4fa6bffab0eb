//! The stage `ground` of the Dockerfile: what `FROM ${GROUND}` refers to in a build, and the labels that record it.

use std::collections::BTreeMap;

/// The build argument with the image or stage of `FROM ${GROUND}`.
pub(crate) const GROUND_ARG: &str = "GROUND";

/// The stage, which is used unless a published image replaces it.
pub(crate) const GROUND_STAGE: &str = "ground";

/// Label of an image that was built on a published one: the name of the published image.
pub(crate) const GROUND_LABEL: &str = "osctl.ground";

/// The repository of the names that keep published images in the engine.
pub(crate) const GROUND_REPOSITORY: &str = "osctl-ground";

/// The name that keeps the published image `NAME@sha256:…` when images without a tag are removed.
pub(crate) fn ground_name(reference: &str) -> String {
    let (_, digest) = reference.split_once("@sha256:").unwrap_or_default();
    format!("{GROUND_REPOSITORY}:{}", &digest[..digest.len().min(16)])
}

/// Sets the argument and the label of a build, to the published image or to the stage.
pub(crate) fn set_ground(
    published: Option<&str>,
    args: &mut BTreeMap<String, String>,
    labels: &mut BTreeMap<String, String>,
) {
    let ground = published.unwrap_or(GROUND_STAGE);
    args.insert(GROUND_ARG.into(), ground.into());
    labels.extend(published.map(|reference| (GROUND_LABEL.into(), ground_name(reference))));
}
