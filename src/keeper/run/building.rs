//! *building*: an image from the project's body, under the keeper's rules.

use super::Work;
use crate::engine::{Build, Builder, ClassicBuild, IMAGE_LABEL, Progress};
use crate::error::Result;
use crate::image::resource_watch;
use crate::image::{
    Body, Certificate, Companion, DIGEST_LABEL, Dialect, GROUND_ARG, GROUND_STAGE, Limit, Recipe,
    permit, set_ground,
};
use crate::keeper::Settings;
use crate::protocol::evolve::Charge;
use crate::protocol::spec::BUILD_MARK;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What the engine is sent.
struct Prepared {
    digest: String,
    build: Build,
    /// What the log tells of the Dockerfile.
    notes: Vec<String>,
}

/// What the engine has to build with.
struct Means {
    buildkit: bool,
    published: bool,
    /// The image that holds the binary.
    binary_image: Option<String>,
}

impl Work {
    pub(super) async fn build(&mut self) -> Result<()> {
        self.log.step("reading the body");
        let (charge, settings) = (self.site.charge.clone(), self.settings.clone());
        let architecture = self.site.docker.architecture().to_owned();
        let tag = self.site.tag(&format!("run-{}", self.record.run));
        let (shelf, run) = (self.shelf.clone(), self.record.run.clone());
        let means = Means {
            buildkit: self.site.docker.has_buildkit(),
            published: self.has_published_image().await?,
            binary_image: self.binary_image().await?,
        };
        let limit = Duration::from_secs(self.site.charge.bounds.read);
        let deadline = Instant::now() + limit;
        let prepare = move || {
            let recipe = recipe(&settings, &charge, &architecture, deadline)?;
            shelf.save_body(&run, &recipe.body.archive()?)?;
            prepared(&recipe, &charge, tag, &means)
        };
        // A disk that is far away may not answer. The thread that waits for it reads nothing more then.
        let prepare = tokio::time::timeout(limit, tokio::task::spawn_blocking(prepare)).await;
        let Ok(prepared) = prepare else {
            bail!("the body could not be read within {} s", limit.as_secs());
        };
        let Prepared {
            digest,
            build,
            notes,
        } = prepared??;
        for note in notes {
            self.log.log(&note);
        }
        self.record.body = Some(digest.clone());
        let docker = self.site.docker.clone();
        let latest = docker.image(&self.site.tag("latest")).await?;
        if let Some(image) = latest
            && image.labels.get(DIGEST_LABEL) == Some(&digest)
        {
            self.log
                .step("nothing of it has changed since the present image was built");
            docker.tag(&image.id, &build.tag).await?;
            self.built(image.id);
            return Ok(());
        }
        self.log.step("building the image");
        let limit = Duration::from_secs(self.site.charge.bounds.build);
        tokio::select! {
            built = docker.build(&build, &self.log) => built?,
            () = tokio::time::sleep(limit) => bail!("it took longer than {} s", limit.as_secs()),
            full = resource_watch::runs_out(&self.settings.state) => return Err(full),
        }
        let image = docker.image(&build.tag).await?;
        let image = image.filter(|image| image.labels.get(DIGEST_LABEL) == Some(&digest));
        let image = image.context("the image that was just built is gone")?;
        self.built(image.id);
        Ok(())
    }

    /// The keeper's own image, which holds the binary.
    async fn binary_image(&self) -> Result<Option<String>> {
        let Some(name) = &self.settings.image else {
            return Ok(None);
        };
        if !self.site.docker.builds_on_own_images().await? {
            return Ok(None);
        }
        // Without its name, which anybody may remove, the binary is sent along.
        let found = self.site.docker.image(name).await?;
        Ok(found.map(|_| name.clone()))
    }

    /// Whether the engine has the published image that the host has chosen. The keeper pulls none.
    async fn has_published_image(&self) -> Result<bool> {
        let ground = self.site.charge.args.get(GROUND_ARG);
        match ground.filter(|ground| *ground != GROUND_STAGE) {
            Some(reference) => self.site.docker.has_by_digest(reference).await,
            None => Ok(false),
        }
    }

    fn built(&mut self, image: String) {
        self.record.image = Some(image.clone());
        self.entry.image = Some(image);
    }
}

fn recipe(
    settings: &Settings,
    charge: &Charge,
    architecture: &str,
    deadline: Instant,
) -> Result<Recipe> {
    let limit = Limit {
        bytes: charge.bounds.context,
        deadline: Some(deadline),
    };
    let body = Body::of_project_within(&settings.repo, &charge.body, limit)?;
    if let Some(path) = body.files.keys().find(|path| path.starts_with(".osctl/")) {
        bail!("`{path}` lies where osctl puts what is its own");
    }
    let certificates = charge.certificates.iter().cloned();
    Ok(Recipe {
        body,
        companion: Companion::load(None, architecture)?,
        certificates: certificates
            .map(|a| Certificate {
                name: a.name,
                pem: a.pem,
            })
            .collect(),
        args: charge.args.clone(),
    })
}

fn prepared(recipe: &Recipe, charge: &Charge, tag: String, means: &Means) -> Result<Prepared> {
    let scope = format!("{BUILD_MARK}{}", charge.instance);
    let (dialect, builder) = match means.buildkit && !charge.classic {
        true => (Dialect::BuildKit, Builder::BuildKit),
        false => {
            let spec = &charge.spec;
            let network = spec.network.clone();
            let classic = ClassicBuild::new(scope.clone(), &spec.limits, network);
            (Dialect::Classic, Builder::Classic(classic))
        }
    };
    let binary_image = means.binary_image.as_deref();
    let binary_image = binary_image.filter(|_| dialect == Dialect::BuildKit);
    let dockerfile = permit(&recipe.body, &scope, dialect);
    let dockerfile = dockerfile.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    let mut args: BTreeMap<String, String> = recipe.args.clone();
    args.insert("BASE".into(), charge.base.clone());
    let mut notes: Vec<String> = dockerfile.note().into_iter().collect();
    let mut published = dockerfile.published_image(&recipe.args);
    if let Some(reference) = published.filter(|_| !means.published) {
        notes.push(format!(
            "the engine does not have the published image `{reference}`, so all of the image is built"
        ));
        published = None;
    }
    args.extend(charge.proxies.0.clone());
    let mut labels = recipe.labels();
    labels.insert(IMAGE_LABEL.into(), charge.instance.clone());
    set_ground(published, &mut args, &mut labels);
    let build = Build {
        tag,
        context: recipe.archive(&dockerfile.text, binary_image)?,
        args,
        labels,
        builder,
    };
    Ok(Prepared {
        digest: recipe.digest(),
        build,
        notes,
    })
}
