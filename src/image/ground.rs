//! The stage `ground` of the Dockerfile: what `FROM ${GROUND}` stands for in a build, and how images tell it.

use std::collections::BTreeMap;

/// The build argument that says what `FROM ${GROUND}` stands for.
pub(crate) const GROUND_ARG: &str = "GROUND";

/// The stage, where no published image takes its place.
pub(crate) const GROUND_STAGE: &str = "ground";

/// Label of an image that was built on a published one: the name of that.
pub(crate) const GROUND_LABEL: &str = "osctl.ground";

/// The repository of the names by which published images stay in the engine.
pub(crate) const GROUND_REPOSITORY: &str = "osctl-ground";

/// The name by which the published image `NAME@sha256:…` stays when the images without a tag are removed.
pub(crate) fn ground_name(reference: &str) -> String {
    let (_, digest) = reference.split_once("@sha256:").unwrap_or_default();
    format!("{GROUND_REPOSITORY}:{}", &digest[..digest.len().min(16)])
}

/// Sets the argument and the label of a build, on the published image or on the stage.
pub(crate) fn set_ground(
    published: Option<&str>,
    args: &mut BTreeMap<String, String>,
    labels: &mut BTreeMap<String, String>,
) {
    let ground = published.unwrap_or(GROUND_STAGE);
    args.insert(GROUND_ARG.into(), ground.into());
    labels.extend(published.map(|reference| (GROUND_LABEL.into(), ground_name(reference))));
}
