//! Images from bodies: the content of an image, its digest, and the build context.
//!
//! Host and keeper build through this one module, so both create the same image. It reads files beneath a folder,
//! without following links, and writes archives; it does not call the engine. Both cancel a build that leaves the
//! machine too few resources (`resource_watch`).

mod body;
mod body_reader;
mod build_context;
mod companion_binary;
mod dockerfile_rules;
mod ground;
mod project_body;
mod project_packages;
#[cfg(target_os = "linux")]
pub(crate) mod resource_watch;

pub(crate) use body::{Body, BodyFileUpdate};
pub(crate) use body_reader::BodyReadLimit;
pub(crate) use build_context::{
    CaCertificate, IMAGE_DIGEST_LABEL, ImageRecipe, binary_image_context, single_file_archive,
    single_file_content,
};
pub(crate) use companion_binary::CompanionBinary;
#[cfg(test)]
pub(crate) use companion_binary::sample_executable;
pub(crate) use dockerfile_rules::{DockerfileDialect, PermittedDockerfile, permit_dockerfile};
pub(crate) use ground::{
    GROUND_ARG, GROUND_LABEL, GROUND_REPOSITORY, GROUND_STAGE, ground_name, set_ground,
};
