//! Identity labels of containers and images: the owner, and the specification that a container was created from.

use crate::error::Result;
use crate::protocol::hex::hex;
use crate::protocol::spec::ContainerSpec;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// Label of every object that osctl creates: the instance that the object belongs to.
pub(crate) const OWNER_LABEL: &str = "osctl.instance";

/// The owner label of images. It differs from [`OWNER_LABEL`], because containers that a user runs by hand take the
/// labels of their image.
pub(crate) const IMAGE_LABEL: &str = "osctl.image-of";

/// Label of a container: the digest of the specification that it was created from.
pub(crate) const SPEC_DIGEST_LABEL: &str = "osctl.specification";

/// Labels a specification with the digest of its permanent parts: of its labels only the owner counts, and variables
/// that are `passing` do not. Host and keeper must compute the same digest, because each compares it to decide
/// whether a container that the other one created is still the requested one.
///
/// # Errors
/// When the specification can't be serialized.
pub(crate) fn set_spec_digest(spec: &mut ContainerSpec, passing: &BTreeSet<String>) -> Result<()> {
    let mut permanent = spec.clone();
    permanent.env.0.retain(|key, _| !passing.contains(key));
    permanent.labels.retain(|key, _| key == OWNER_LABEL);
    let digest = hex(Sha256::digest(serde_json::to_vec(&permanent)?));
    spec.labels.insert(SPEC_DIGEST_LABEL.into(), digest);
    Ok(())
}
