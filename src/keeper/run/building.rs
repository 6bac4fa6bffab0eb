//! *building*: builds an image from the project's body, under the keeper's rules.

use super::RunExecutor;
use crate::engine::{ClassicBuild, EngineProgress, IMAGE_LABEL, ImageBuild, ImageBuilder};
use crate::error::Result;
use crate::image::resource_watch;
use crate::image::{
    Body, BodyReadLimit, CaCertificate, CompanionBinary, DockerfileDialect, GROUND_ARG,
    GROUND_STAGE, IMAGE_DIGEST_LABEL, ImageRecipe, PermittedDockerfile, permit_dockerfile,
    set_ground,
};
use crate::keeper::KeeperSettings;
use crate::protocol::evolve::{DeployConfig, EvolveRequest};
use crate::protocol::spec::BUILD_LABEL_PREFIX;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// When an evolve builds, and whether the keeper checks the syntax first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keeper) enum BuildPolicy {
    /// Replaces nothing if nothing has changed.
    IfChanged,
    /// Replaces the container even if nothing has changed.
    Always,
    /// As [`BuildPolicy::Always`], without the check of the syntax.
    Unchecked,
}

impl From<&EvolveRequest> for BuildPolicy {
    fn from(request: &EvolveRequest) -> Self {
        match (request.rebuild, request.replace) {
            (true, _) => Self::Unchecked,
            (false, true) => Self::Always,
            (false, false) => Self::IfChanged,
        }
    }
}

/// The input of a build, ready to send to the engine.
struct PreparedBuild {
    digest: String,
    build: ImageBuild,
    dockerfile: PermittedDockerfile,
    /// Lines for the log about the Dockerfile.
    notes: Vec<String>,
}

/// The capabilities of the engine that affect a build.
struct BuildCapabilities {
    has_buildkit: bool,
    has_published_image: bool,
    /// The image that holds the binary.
    binary_image: Option<String>,
}

impl RunExecutor {
    pub(super) async fn run_building(&mut self) -> Result<()> {
        self.log.report_step("reading the body");
        let (deploy_config, settings) = (self.target.config.clone(), self.settings.clone());
        let architecture = self.target.docker.architecture().to_owned();
        let tag = self.target.image_tag(&format!("run-{}", self.record.run));
        let (run_store, run) = (self.run_store.clone(), self.record.run.clone());
        let means = BuildCapabilities {
            has_buildkit: self.target.docker.has_buildkit(),
            has_published_image: self.has_published_image().await?,
            binary_image: self.find_binary_image().await?,
        };
        let limit = Duration::from_secs(self.target.config.limits.read);
        let deadline = Instant::now() + limit;
        let prepare = move || {
            let recipe = read_recipe(&settings, &deploy_config, &architecture, deadline)?;
            run_store.save_body(&run, &recipe.body.to_archive()?)?;
            prepare_build(&recipe, &deploy_config, tag, &means)
        };
        // A network disk may not answer. The thread that waits for the disk stops reading at its own deadline.
        let prepare = tokio::time::timeout(limit, tokio::task::spawn_blocking(prepare)).await;
        let Ok(prepared) = prepare else {
            bail!("the body could not be read within {} s", limit.as_secs());
        };
        let PreparedBuild {
            digest,
            build,
            dockerfile,
            notes,
        } = prepared??;
        for note in notes {
            self.log.log(&note);
        }
        self.record.body_digest = Some(digest.clone());
        let may_skip = self.build_policy == BuildPolicy::IfChanged && !self.record.dry_run;
        if may_skip && self.target.runs_body(&digest, &self.record.run).await? {
            self.log
                .report_step("nothing has changed: the container runs this body and is healthy");
            self.record.unchanged = true;
            return Ok(());
        }
        let docker = self.target.docker.clone();
        let latest = docker.find_image(&self.target.image_tag("latest")).await?;
        if let Some(image) = latest
            && image.labels.get(IMAGE_DIGEST_LABEL) == Some(&digest)
        {
            self.log
                .report_step("the image of this body is already built");
            docker.tag_image(&image.id, &build.tag).await?;
            self.set_image(image.id);
            return Ok(());
        }
        self.check_syntax().await?;
        self.log.report_step("building the image");
        let limit = Duration::from_secs(self.target.config.limits.build);
        tokio::select! {
            built = docker.build_image(&build, &self.log) => {
                built.map_err(|error| dockerfile.locate_failure(error))?;
            }
            () = tokio::time::sleep(limit) => bail!("the build took longer than {} s", limit.as_secs()),
            full = resource_watch::wait_for_shortage(&self.settings.state_folder) => return Err(full),
        }
        let image = docker.find_image(&build.tag).await?;
        let image = image.filter(|image| image.labels.get(IMAGE_DIGEST_LABEL) == Some(&digest));
        let image = image.context("the image that was just built no longer exists")?;
        self.set_image(image.id);
        Ok(())
    }

    /// The keeper's own image, which holds the binary.
    async fn find_binary_image(&self) -> Result<Option<String>> {
        let Some(name) = &self.settings.keeper_image else {
            return Ok(None);
        };
        if !self.target.docker.can_build_on_local_images().await? {
            return Ok(None);
        }
        // If the image has lost its name, which any program may remove, the build context includes the binary.
        let found = self.target.docker.find_image(name).await?;
        Ok(found.map(|_| name.clone()))
    }

    /// Whether the engine has the published image that the host has chosen. The keeper pulls no images.
    async fn has_published_image(&self) -> Result<bool> {
        let ground = self.target.config.args.get(GROUND_ARG);
        match ground.filter(|ground| *ground != GROUND_STAGE) {
            Some(reference) => self.target.docker.has_image_by_digest(reference).await,
            None => Ok(false),
        }
    }

    fn set_image(&mut self, image: String) {
        self.record.image = Some(image.clone());
        self.journal_entry.image = Some(image);
    }
}

fn read_recipe(
    settings: &KeeperSettings,
    deploy_config: &DeployConfig,
    architecture: &str,
    deadline: Instant,
) -> Result<ImageRecipe> {
    let limit = BodyReadLimit {
        bytes: deploy_config.limits.context,
        deadline: Some(deadline),
    };
    let body = Body::from_project_within(&settings.project, &deploy_config.body, limit)?;
    let certificates = deploy_config.certificates.iter().cloned();
    Ok(ImageRecipe {
        body,
        companion: CompanionBinary::load(settings.binary.as_deref(), architecture)?,
        certificates: certificates
            .map(|a| CaCertificate {
                name: a.name,
                pem: a.pem,
            })
            .collect(),
        args: deploy_config.args.clone(),
    })
}

fn prepare_build(
    recipe: &ImageRecipe,
    deploy_config: &DeployConfig,
    tag: String,
    means: &BuildCapabilities,
) -> Result<PreparedBuild> {
    let scope = format!("{BUILD_LABEL_PREFIX}{}", deploy_config.instance);
    let (dialect, builder) = match means.has_buildkit && !deploy_config.classic_builder {
        true => (DockerfileDialect::BuildKit, ImageBuilder::BuildKit),
        false => {
            let spec = &deploy_config.spec;
            let network = spec.network.clone();
            let classic = ClassicBuild::new(scope.clone(), &spec.limits, network);
            (DockerfileDialect::Classic, ImageBuilder::Classic(classic))
        }
    };
    let binary_image = means.binary_image.as_deref();
    let binary_image = binary_image.filter(|_| dialect == DockerfileDialect::BuildKit);
    let dockerfile = permit_dockerfile(&recipe.body, &scope, dialect);
    let dockerfile = dockerfile.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    let mut args: BTreeMap<String, String> = recipe.args.clone();
    args.insert("BASE".into(), deploy_config.base.clone());
    let notes = [
        dockerfile.removed_labels_warning(),
        recipe.body.unlocked_packages_warning(),
    ];
    let mut notes: Vec<String> = notes.into_iter().flatten().collect();
    let mut published = dockerfile.published_image(&recipe.args);
    if let Some(reference) = published.filter(|_| !means.has_published_image) {
        notes.push(format!(
            "the engine does not have the published image `{reference}`, so the whole image is built"
        ));
        published = None;
    }
    args.extend(deploy_config.proxies.0.clone());
    let mut labels = recipe.labels();
    labels.insert(IMAGE_LABEL.into(), deploy_config.instance.clone());
    set_ground(published, &mut args, &mut labels);
    let build = ImageBuild {
        tag,
        context: recipe.to_context_archive(&dockerfile.text, binary_image)?,
        args,
        labels,
        builder,
    };
    Ok(PreparedBuild {
        digest: recipe.digest(),
        build,
        dockerfile,
        notes,
    })
}
