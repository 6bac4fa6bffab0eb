//! From a body to an image: what it is made of, its digest, and the build context.
//!
//! Host and keeper build through this one module, so an image is the same whoever builds it.
//! It reads files, beneath a folder and through no link, and makes archives; it talks to no engine. Both
//! end a build that leaves the machine too little (`resource_watch`).

mod body;
mod companion;
mod context;
mod gather;
mod ground;
#[cfg(target_os = "linux")]
pub(crate) mod resource_watch;
mod rules;

pub(crate) use body::{Body, BodyFileUpdate};
pub(crate) use companion::CompanionBinary;
pub(crate) use context::{
    CaCertificate, ImageRecipe, binary_image_context, single_file_archive, single_file_content,
};
pub(crate) use gather::BodyReadLimit;
pub(crate) use ground::{
    GROUND_ARG, GROUND_LABEL, GROUND_REPOSITORY, GROUND_STAGE, ground_name, set_ground,
};
pub(crate) use rules::{DockerfileDialect, PermittedDockerfile, permit_dockerfile};

/// Label of an image: the digest of what it was built from.
pub(crate) const IMAGE_DIGEST_LABEL: &str = "osctl.digest";
