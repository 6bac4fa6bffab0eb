//! From a body to an image: what it is made of, its digest, and the build context.
//!
//! Host and keeper build through this one module, so an image is the same whoever builds it.
//! It reads files, beneath a folder and through no link, and makes archives; it talks to no engine. Both
//! end a build that leaves the machine too little (`resource_watch`).

mod body;
mod body_reader;
mod build_context;
mod companion_binary;
mod dockerfile_rules;
mod ground;
#[cfg(target_os = "linux")]
pub(crate) mod resource_watch;

pub(crate) use body::{Body, BodyFileUpdate};
pub(crate) use body_reader::BodyReadLimit;
pub(crate) use build_context::{
    CaCertificate, ImageRecipe, binary_image_context, single_file_archive, single_file_content,
};
pub(crate) use companion_binary::CompanionBinary;
pub(crate) use dockerfile_rules::{DockerfileDialect, PermittedDockerfile, permit_dockerfile};
pub(crate) use ground::{
    GROUND_ARG, GROUND_LABEL, GROUND_REPOSITORY, GROUND_STAGE, ground_name, set_ground,
};

/// Label of an image: the digest of what it was built from.
pub(crate) const IMAGE_DIGEST_LABEL: &str = "osctl.digest";
