//! By what a container is known: whose it is, and the specification that it was made from.

use crate::error::Result;
use crate::protocol::hex::hex;
use crate::protocol::spec::ContainerSpec;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// Label of everything of ours: the instance it belongs to.
pub(crate) const OWNER_LABEL: &str = "osctl.instance";

/// The same for images: containers that somebody runs by hand take the labels of theirs.
pub(crate) const IMAGE_LABEL: &str = "osctl.image-of";

/// Label of a container: the digest of the specification that it was created from.
pub(crate) const SPEC_DIGEST_LABEL: &str = "osctl.specification";

/// Labels a specification with the digest of what lasts of it: of its labels only the owner counts, and
/// variables that are `passing` do not. Host and keeper must agree on it, because whoever made a
/// container, the other one asks whether it is still the one that is wanted.
///
/// # Errors
/// When it can't be digested.
pub(crate) fn set_spec_digest(spec: &mut ContainerSpec, passing: &BTreeSet<String>) -> Result<()> {
    let mut lasting = spec.clone();
    lasting.env.0.retain(|key, _| !passing.contains(key));
    lasting.labels.retain(|key, _| key == OWNER_LABEL);
    let digest = hex(Sha256::digest(serde_json::to_vec(&lasting)?));
    spec.labels.insert(SPEC_DIGEST_LABEL.into(), digest);
    Ok(())
}
