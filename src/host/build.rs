//! The image `os` of an instance, built exactly when what it is made of has changed.

use super::folders::Folders;
use super::instance::Instance;
use super::{provision, trust};
use crate::config::Config;
use crate::engine::{Build, Docker, Image, Progress};
use crate::error::{Error, Result};
use crate::image::{Body, Companion, DIGEST_LABEL, Recipe, classic};
use anyhow::Context;
use std::collections::BTreeMap;
use std::env;
use std::path::Path;

/// The image, and whether it was built just now.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) image: Image,
    pub(crate) fresh: bool,
}

/// What the image of this project would be made of.
///
/// # Errors
/// When the body or the companion binary can't be used.
pub(crate) fn recipe(docker: &Docker, config: &Config, project: &Path) -> Result<Recipe> {
    let body = Body::of_project(&project.join(&config.body))?;
    let companion = Companion::load(config.companion.as_deref(), docker.architecture())?;
    let args = BTreeMap::from([
        ("BASE".to_owned(), config.base.clone()),
        (
            "BUILD_TOOLS".to_owned(),
            u8::from(config.build_tools).to_string(),
        ),
    ]);
    Ok(Recipe {
        body,
        companion,
        certificates: trust::certificates(),
        args,
    })
}

/// Builds the image when its digest differs from the recipe's, or when `force`d.
///
/// # Errors
/// When the base can't be had or the build fails.
pub(crate) async fn ensure(
    docker: &Docker,
    config: &Config,
    instance: &Instance,
    recipe: &Recipe,
    options: Options<'_>,
    progress: &dyn Progress,
) -> Result<Built> {
    let tag = format!("{}:latest", instance.image());
    let digest = recipe.digest();
    let old = docker.image(&tag).await?;
    if old
        .as_ref()
        .is_some_and(|old| !old.labels.contains_key(DIGEST_LABEL))
    {
        return Err(Error::Foreign {
            what: "image",
            name: tag,
        }
        .into());
    }
    if let Some(image) = &old
        && !options.force
        && image.labels.get(DIGEST_LABEL) == Some(&digest)
    {
        return Ok(Built {
            image: image.clone(),
            fresh: false,
        });
    }
    let base = provision::base_image(
        docker,
        &config.base,
        options.folders,
        options.may_install,
        progress,
    )
    .await?;
    let mut args = recipe.args.clone();
    args.insert("BASE".into(), base);
    // Proxies are needed to build and are no part of the image.
    args.extend(trust::proxies());
    progress.step("building the image");
    let build = Build {
        tag: tag.clone(),
        context: recipe.archive(str::to_owned)?,
        classic_context: recipe.archive(classic)?,
        args,
        labels: recipe.labels(),
        // As the Docker client reads it.
        classic: env::var("DOCKER_BUILDKIT").is_ok_and(|v| v == "0"),
    };
    docker.build(&build, progress).await?;
    let image = docker
        .image(&tag)
        .await?
        .filter(|image| image.labels.get(DIGEST_LABEL) == Some(&digest))
        .context("the image that was just built is gone")?;
    if let Some(old) = old.filter(|old| old.id != image.id) {
        remove_nameless(docker, &old.id).await?;
    }
    Ok(Built { image, fresh: true })
}

/// Removes the instance's image, if it is osctl's.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn remove(docker: &Docker, instance: &Instance) -> Result<()> {
    let tag = format!("{}:latest", instance.image());
    match docker.image(&tag).await? {
        Some(image) if image.labels.contains_key(DIGEST_LABEL) => docker.remove_image(&tag).await,
        _ => Ok(()),
    }
}

/// Removes an image that nobody can name any more; a container that still runs it keeps it.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn remove_nameless(docker: &Docker, id: &str) -> Result<()> {
    match docker.image(id).await? {
        Some(image) if image.tags.is_empty() => docker.remove_image(id).await,
        _ => Ok(()),
    }
}

/// How to build.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options<'a> {
    pub(crate) folders: &'a Folders,
    /// Whether missing packages of the host may be installed.
    pub(crate) may_install: bool,
    /// Build even when nothing changed.
    pub(crate) force: bool,
}
