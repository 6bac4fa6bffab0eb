//! The image `os` of an instance and the keeper's image, built only when their inputs have changed.

use super::folders::Folders;
use super::instance::{INSTANCE_LABEL, Instance, KEEPER_NAME};
use super::provision::InstallConsent;
use super::{base, container_spec, proxies_and_ca};
use crate::config::{Config, DesktopRun};
use crate::engine::{
    ClassicBuild, Docker, EngineImage, EngineProgress, IMAGE_LABEL, ImageBuild, ImageBuilder,
};
use crate::error::{Error, Result};
use crate::image::{
    Body, BodyReadLimit, CompanionBinary, DockerfileDialect, GROUND_ARG, GROUND_STAGE,
    IMAGE_DIGEST_LABEL, ImageRecipe, PermittedDockerfile, binary_image_context, ground_name,
    permit_dockerfile, set_ground,
};
use crate::protocol::evolve::{EvolveLimits, ROLLED_BACK_TAG};
use crate::protocol::spec::{BUILD_LABEL, BUILD_LABEL_PREFIX};
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;

/// The name of the keeper's image; its tag is the digest of its contents.
pub(super) const KEEPER_IMAGE_NAME: &str = "os-keeper";

/// The image, and whether it was built just now.
#[derive(Debug)]
pub(crate) struct BuiltImage {
    pub(crate) image: EngineImage,
    pub(crate) is_new: bool,
    /// The warning about the Dockerfile and the packages.
    pub(crate) note: Option<String>,
}

/// The recipe of this project's image.
///
/// # Errors
/// When the body or the companion binary is not usable.
pub(crate) fn load_recipe(docker: &Docker, config: &Config, project: &Path) -> Result<ImageRecipe> {
    // Apply the keeper's limits now, so that the keeper does not refuse the body later.
    let body = Body::from_project_within(
        project,
        &config.body,
        BodyReadLimit::with_max_bytes(EvolveLimits::default().context),
    )?;
    let companion = CompanionBinary::load(config.companion.as_deref(), docker.architecture())?;
    Ok(ImageRecipe {
        body,
        companion,
        certificates: proxies_and_ca::extra_certificates(),
        args: build_arguments(config),
    })
}

/// The build arguments that affect the image.
pub(crate) fn build_arguments(config: &Config) -> BTreeMap<String, String> {
    let switch = |name: &str, is_on| (name.to_owned(), u8::from(is_on).to_string());
    let ground = config.published_image().unwrap_or(GROUND_STAGE);
    BTreeMap::from([
        ("BASE".to_owned(), config.base.clone()),
        switch("BUILD_TOOLS", config.build_tools),
        switch("DESKTOP", config.desktop.run != DesktopRun::Off),
        (GROUND_ARG.to_owned(), ground.to_owned()),
    ])
}

/// Whether the person has disabled BuildKit, with the variable that the Docker client reads.
pub(crate) fn is_buildkit_disabled() -> bool {
    env::var("DOCKER_BUILDKIT").is_ok_and(|v| v == "0")
}

/// Whether images are built with BuildKit: the engine has it, and the person has not disabled it.
pub(super) fn can_use_buildkit(docker: &Docker) -> bool {
    docker.has_buildkit() && !is_buildkit_disabled()
}

/// The name of the image that holds only the binary; built if the engine lacks it.
///
/// # Errors
/// When the image cannot be built.
pub(super) async fn ensure_keeper_image(
    docker: &Docker,
    companion: &CompanionBinary,
    progress: &dyn EngineProgress,
) -> Result<String> {
    let (digest, context) = binary_image_context(companion)?;
    let tag = format!("{KEEPER_IMAGE_NAME}:{}", &digest[..16]);
    if docker.find_image(&tag).await?.is_some() {
        return Ok(tag);
    }
    progress.report_step("building the keeper's image");
    let build = ImageBuild {
        tag: tag.clone(),
        context,
        args: BTreeMap::new(),
        labels: BTreeMap::from([
            ("osctl.version".into(), env!("CARGO_PKG_VERSION").into()),
            (IMAGE_LABEL.into(), KEEPER_NAME.into()),
        ]),
        builder: match can_use_buildkit(docker) {
            true => ImageBuilder::BuildKit,
            // The Dockerfile has no step to run.
            false => ImageBuilder::Classic(ClassicBuild::default()),
        },
    };
    docker.build_image(&build, progress).await?;
    Ok(tag)
}

/// Builds the image when its digest differs from the recipe's, or when `force`d.
///
/// # Errors
/// When the base is not available or the build fails.
pub(crate) async fn ensure_image(
    docker: &Docker,
    config: &Config,
    instance: &Instance,
    recipe: &ImageRecipe,
    options: ImageBuildOptions<'_>,
    progress: &dyn EngineProgress,
) -> Result<BuiltImage> {
    let tag = format!("{}:latest", instance.image_name());
    let digest = recipe.digest();
    let old = docker.find_image(&tag).await?;
    if old
        .as_ref()
        .is_some_and(|old| !old.labels.contains_key(IMAGE_DIGEST_LABEL))
    {
        return Err(Error::ForeignObject {
            what: "image",
            name: tag,
        }
        .into());
    }
    if let Some(image) = &old
        && !options.force
        && image.labels.get(IMAGE_DIGEST_LABEL) == Some(&digest)
    {
        return Ok(BuiltImage {
            image: image.clone(),
            is_new: false,
            note: None,
        });
    }
    let (dialect, builder) = match can_use_buildkit(docker) {
        true => (DockerfileDialect::BuildKit, ImageBuilder::BuildKit),
        false => {
            let limits = container_spec::container_limits(config);
            let network = Some(instance.network_name());
            let classic = ClassicBuild::new(build_scope(instance), &limits, network);
            (DockerfileDialect::Classic, ImageBuilder::Classic(classic))
        }
    };
    let dockerfile = check_dockerfile(&recipe.body, instance, dialect)?;
    let held = base::lock_images_shared(options.folders, progress).await?;
    let binary_image = match dialect {
        DockerfileDialect::BuildKit if docker.can_build_on_local_images().await? => {
            Some(ensure_keeper_image(docker, &recipe.companion, progress).await?)
        }
        _ => None,
    };
    let mut published = dockerfile.published_image(&recipe.args);
    if let Some(reference) = published
        && let Some(why) = base::pull_published_image(docker, reference, progress).await?
    {
        progress.warn(&format!(
            "can't pull the published image `{reference}`, building every stage locally: {why}"
        ));
        published = None;
    }
    let base = match published {
        // Another stage of the Dockerfile may still use the base.
        Some(_) => base::find_base_image(docker, &config.base).await?,
        None => {
            let ImageBuildOptions {
                folders,
                install_consent: may_install,
                ..
            } = options;
            Some(
                base::ensure_base_image(docker, &config.base, folders, may_install, progress)
                    .await?,
            )
        }
    };
    let mut args = recipe.args.clone();
    args.extend(base.map(|base| ("BASE".into(), base)));
    // The build needs proxies, which are not part of the image.
    args.extend(options.proxies.clone());
    progress.report_step("building the image");
    // Each instance has its own image, also with the same body: each removes only its own names. With a shared image,
    // removing the last name would remove an image that another instance still needs without a name.
    let mut labels = recipe.labels();
    labels.insert(IMAGE_LABEL.into(), instance.name.clone());
    set_ground(published, &mut args, &mut labels);
    let build = ImageBuild {
        tag: tag.clone(),
        context: recipe.to_context_archive(&dockerfile.text, binary_image.as_deref())?,
        args,
        labels,
        builder,
    };
    let restore_images = async || -> Result<bool> {
        let mut is_restored = false;
        if let Some(tag) = &binary_image
            && docker.find_image(tag).await?.is_none()
        {
            ensure_keeper_image(docker, &recipe.companion, progress).await?;
            is_restored = true;
        }
        if let Some(reference) = published
            && docker.find_image(&ground_name(reference)).await?.is_none()
        {
            if let Some(why) = base::pull_published_image(docker, reference, progress).await? {
                let message = format!("can't pull the published image `{reference}` again: {why}");
                return Err(Error::precondition(message, "`osctl build` tries again").into());
            }
            is_restored = true;
        }
        Ok(is_restored)
    };
    let try_build = async || {
        let built = build_watched(docker, &build, progress).await;
        built.map_err(|error| dockerfile.locate_failure(error))
    };
    build_or_retry(try_build, restore_images).await?;
    let image = docker
        .find_image(&tag)
        .await?
        .filter(|image| image.labels.get(IMAGE_DIGEST_LABEL) == Some(&digest))
        .context("the new image no longer exists")?;
    if let Some(old) = old.filter(|old| old.id != image.id) {
        remove_untagged_image(docker, &old.id).await?;
    }
    drop(held);
    let retained = config.published_image().map(ground_name);
    base::remove_unused_ground_images(docker, options.folders, retained).await?;
    Ok(BuiltImage {
        image,
        is_new: true,
        note: build_warning(&recipe.body, &dockerfile),
    })
}

/// The warning about the Dockerfile and the packages.
fn build_warning(body: &Body, dockerfile: &PermittedDockerfile) -> Option<String> {
    let warnings = [
        dockerfile.removed_labels_warning(),
        body.unlocked_packages_warning(),
    ];
    let warnings: Vec<String> = warnings.into_iter().flatten().collect();
    (!warnings.is_empty()).then(|| warnings.join("\nwarning: "))
}

/// Builds the image, and builds once more if an image that it needs was missing and `restore_images` has restored it.
///
/// The lock on images holds for the instances of one user: another user of the engine may remove the keeper's image or
/// the published image before the build reads it.
async fn build_or_retry(
    try_build: impl AsyncFn() -> Result<()>,
    restore_images: impl AsyncFnOnce() -> Result<bool>,
) -> Result<()> {
    let built = try_build().await;
    // The next evolve also needs the images of a build that succeeded.
    match restore_images().await? {
        true if built.is_err() => try_build().await,
        _ => built,
    }
}

/// Builds the image; ends the build when it leaves too little of this machine.
async fn build_watched(
    docker: &Docker,
    build: &ImageBuild,
    progress: &dyn EngineProgress,
) -> Result<()> {
    tokio::select! {
        built = docker.build_image(build, progress) => built,
        short = watch_build_resources(docker) => Err(short),
    }
}

/// Waits until a build leaves too little disk space, memory or processes on this machine, and returns the error. Never
/// returns if the engine is on another machine, whose resources are unknown.
#[cfg(target_os = "linux")]
async fn watch_build_resources(docker: &Docker) -> anyhow::Error {
    use crate::image::resource_watch;
    match docker.local_data_root().await {
        Ok(Some(root)) => {
            let short = resource_watch::wait_for_shortage(&root).await;
            let hint = "a step of the Dockerfile uses too much, or too little was free before; `docker system df` shows the engine's disk usage";
            Error::precondition(format!("osctl stopped the build: {short:#}"), hint).into()
        }
        Ok(None) => std::future::pending().await,
        Err(error) => error,
    }
}

#[cfg(not(target_os = "linux"))]
async fn watch_build_resources(_docker: &Docker) -> anyhow::Error {
    std::future::pending().await
}

/// The label value of the caches and steps of an instance's builds.
fn build_scope(instance: &Instance) -> String {
    format!("{BUILD_LABEL_PREFIX}{}", instance.name)
}

/// Checks the Dockerfile by the keeper's rules, which also apply here because an agent may have written it.
fn check_dockerfile(
    body: &Body,
    instance: &Instance,
    dialect: DockerfileDialect,
) -> Result<PermittedDockerfile> {
    permit_dockerfile(body, &build_scope(instance), dialect).map_err(|refusal| {
        let place = body.folder.as_deref().unwrap_or(Path::new("body"));
        let hint = format!("fix that line of `{}`", place.join("Dockerfile").display());
        Error::precondition(format!("the image could not be built: {refusal}"), hint).into()
    })
}

/// The image that a rollback has restored, and that stays until an evolve run succeeds.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn find_rolled_back_image(
    docker: &Docker,
    instance: &Instance,
) -> Result<Option<EngineImage>> {
    let tag = format!("{}:{ROLLED_BACK_TAG}", instance.image_name());
    let found = docker.find_image(&tag).await?;
    Ok(found.filter(|image| image.labels.contains_key(IMAGE_DIGEST_LABEL)))
}

/// Lets the next `up` build the image from the body.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn remove_rollback_tag(docker: &Docker, instance: &Instance) -> Result<()> {
    match find_rolled_back_image(docker, instance).await? {
        Some(_) => {
            let tag = format!("{}:{ROLLED_BACK_TAG}", instance.image_name());
            docker.remove_image(&tag).await
        }
        None => Ok(()),
    }
}

/// Whether the image was built from the recipe.
pub(crate) fn is_built_from(image: &EngineImage, recipe: &ImageRecipe) -> bool {
    image.labels.get(IMAGE_DIGEST_LABEL) == Some(&recipe.digest())
}

/// Removes the instance's images that osctl built.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn remove_instance_images(
    docker: &Docker,
    instance: &Instance,
    folders: &Folders,
) -> Result<()> {
    for tag in docker.list_tags(&instance.image_name()).await? {
        match docker.find_image(&tag).await? {
            Some(image) if image.labels.contains_key(IMAGE_DIGEST_LABEL) => {
                docker.remove_image(&tag).await?;
            }
            _ => {}
        }
    }
    remove_step_containers(docker, instance).await?;
    remove_dangling_images(docker, instance).await?;
    base::remove_unused_ground_images(docker, folders, None).await
}

/// Removes the step containers that the classic builder left when its engine was killed. A step runs from an image
/// without a name; a container that a person starts runs from a named image.
async fn remove_step_containers(docker: &Docker, instance: &Instance) -> Result<()> {
    let label = format!("{BUILD_LABEL}={}", build_scope(instance));
    for name in docker.list_labelled_containers(&label).await? {
        let Some(found) = docker.inspect(&name).await? else {
            continue;
        };
        let image = docker.find_image(&found.image).await?;
        if !found.labels.contains_key(INSTANCE_LABEL)
            && image.is_none_or(|image| image.tags.is_empty())
        {
            docker.remove(&name).await?;
        }
    }
    Ok(())
}

/// Removes the instance's images without a name. A parent image is listed only after its child image is removed.
async fn remove_dangling_images(docker: &Docker, instance: &Instance) -> Result<()> {
    let scope = build_scope(instance);
    let is_ours = |image: &EngineImage| {
        let has = |label: &str, value: &str| image.labels.get(label).is_some_and(|v| v == value);
        has(IMAGE_LABEL, &instance.name) || has(BUILD_LABEL, &scope)
    };
    let mut tried = BTreeSet::new();
    loop {
        let images = docker.list_dangling_images().await?.into_iter();
        let ids = images.filter(is_ours).map(|image| image.id);
        let left: Vec<String> = ids.filter(|id| !tried.contains(id)).collect();
        if left.is_empty() {
            return Ok(());
        }
        for id in left {
            docker.remove_untagged_image(&id).await?;
            // An image that a container uses stays.
            tried.insert(id);
        }
    }
}

/// Whether the engine has an image of the instance, complete or not.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn has_images(docker: &Docker, instance: &Instance) -> Result<bool> {
    let scope = build_scope(instance);
    for (label, value) in [(IMAGE_LABEL, &instance.name), (BUILD_LABEL, &scope)] {
        if docker.has_labelled_image(label, value).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes an image that has no name; a container that still runs it keeps it.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn remove_untagged_image(docker: &Docker, id: &str) -> Result<()> {
    match docker.find_image(id).await? {
        Some(image) if image.tags.is_empty() => docker.remove_image(id).await,
        _ => Ok(()),
    }
}

/// The options of a build.
#[derive(Clone, Copy)]
pub(crate) struct ImageBuildOptions<'a> {
    pub(crate) folders: &'a Folders,
    /// Whether osctl may install missing packages of the host.
    pub(crate) install_consent: InstallConsent<'a>,
    /// Build even if nothing changed.
    pub(crate) force: bool,
    /// The proxies for the build steps.
    pub(crate) proxies: &'a BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::build_or_retry;
    use crate::error::Result;
    use std::cell::Cell;

    #[tokio::test]
    async fn a_build_is_repeated_once_and_only_after_its_missing_image_is_restored() {
        for (failures, is_gone, build_count, is_built) in [
            (0, true, 1, true),
            (1, true, 2, true),
            (2, true, 2, false),
            (1, false, 1, false),
        ] {
            let builds = Cell::new(0);
            let try_build = async || -> Result<()> {
                builds.set(builds.get() + 1);
                anyhow::ensure!(builds.get() > failures, "build {} failed", builds.get());
                Ok(())
            };
            let restore = async || -> Result<bool> { Ok(is_gone) };
            let built = build_or_retry(try_build, restore).await;
            assert_eq!((builds.get(), built.is_ok()), (build_count, is_built));
        }
    }
}
