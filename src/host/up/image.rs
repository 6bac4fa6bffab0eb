//! The image of the container that `up` creates: built from `body/`, or the image that a rollback has restored.

use super::UpRunner;
use crate::config::Config;
use crate::engine::{Docker, EmbeddedEngine, Engine};
use crate::error::Result;
use crate::host::build::{self, ImageBuildOptions};
use crate::host::passed_env::PassedEnv;
use crate::host::provision;
use crate::image::Body;
use std::path::Path;

/// The image for the container.
#[derive(Debug)]
pub(super) struct ChosenImage {
    /// Its id, or a substitute for the id.
    pub(super) image: String,
    /// The body from which it is built; `None` if a rollback keeps an image that differs from `body/`.
    pub(super) body: Option<Body>,
    /// The warning about its Dockerfile.
    pub(super) note: Option<String>,
}

impl UpRunner<'_> {
    pub(super) async fn choose_image(
        &self,
        project: &Path,
        passed: &PassedEnv,
    ) -> Result<ChosenImage> {
        let config = &self.resolved.config;
        match self.engine {
            Engine::Docker(docker) => self.docker_image(docker, (project, passed)).await,
            Engine::Embedded(embedded) => self.embedded_body(embedded, config, project).await,
        }
    }

    async fn docker_image(
        &self,
        docker: &Docker,
        (project, passed): (&Path, &PassedEnv),
    ) -> Result<ChosenImage> {
        let config = &self.resolved.config;
        let recipe = build::load_recipe(docker, config, project);
        if self.build {
            build::remove_rollback_tag(docker, self.instance).await?;
        } else if let Some(rolled_back) =
            build::find_rolled_back_image(docker, self.instance).await?
        {
            // An unusable body counts as different.
            let same = recipe
                .ok()
                .filter(|recipe| build::is_built_from(&rolled_back, recipe));
            return Ok(ChosenImage {
                image: rolled_back.id,
                body: same.map(|recipe| recipe.body),
                note: None,
            });
        }
        let recipe = recipe?;
        let options = ImageBuildOptions {
            folders: self.folders,
            install_consent: self.install_consent,
            force: false,
            proxies: passed.proxies(),
        };
        let built = build::ensure_image(
            docker,
            config,
            self.instance,
            &recipe,
            options,
            self.progress,
        )
        .await?;
        Ok(ChosenImage {
            image: built.image.id,
            body: Some(recipe.body),
            note: built.note,
        })
    }

    async fn embedded_body(
        &self,
        embedded: &EmbeddedEngine,
        config: &Config,
        project: &Path,
    ) -> Result<ChosenImage> {
        let body = Body::from_project(project, &config.body)?;
        let consent_question = "The kernel needs Python and its module venv. Install them?";
        if !EmbeddedEngine::has_python().await
            && provision::can_install()
            && (self.install_consent)(consent_question)?
        {
            self.progress.report_step("installing Python");
            provision::install_packages(&["python3", "python3-venv"], self.progress).await?;
        }
        let prepared = embedded.prepare_body(&body.files, self.progress).await?;
        let note = "the embedded engine does not install `packages` of `osctl.yaml`";
        Ok(ChosenImage {
            image: prepared,
            note: body.has_packages().then(|| note.into()),
            body: Some(body),
        })
    }
}
