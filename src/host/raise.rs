//! The way from an engine to a healthy container of the instance, whatever is there already.

use super::build::{self, Options};
use super::client::Client;
use super::folders::Folders;
use super::health::Watch;
use super::instance::{Instance, LABEL, Record};
use super::specification::{DIGEST_LABEL, INHERITED_LABEL, specification};
use super::{ports, provision};
use crate::config::{Config, Ports, Resolved, Source};
use crate::engine::{Container, Docker, Embedded, Engine, Phase, Progress};
use crate::error::{Error, Result};
use crate::image::Body;
use crate::protocol::spec::Spec;
use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};

/// What had to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Nothing,
    /// And the calling shell's API keys or proxies are not those of the container.
    NothingWithOtherKeys,
    Started,
    Created,
    Replaced,
}

/// Everything on the way from an engine to a healthy container.
#[derive(Clone, Copy)]
pub(crate) struct Raise<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) folders: &'a Folders,
    pub(crate) engine: &'a Engine,
    pub(crate) resolved: &'a Resolved,
    /// Whether missing packages may be installed.
    pub(crate) may_install: bool,
    pub(crate) progress: &'a dyn Progress,
}

impl Raise<'_> {
    /// The record of what now runs, and what had to be done for it.
    ///
    /// # Errors
    /// When something on the way fails; what ran before runs again then.
    pub(crate) async fn run(
        &self,
        recorded: Option<Record>,
        project: PathBuf,
        socket: Option<&Path>,
    ) -> Result<(Record, Done)> {
        let instance = self.instance;
        let config = &self.resolved.config;
        self.clean_leftovers().await?;
        let existing = self.own_container().await?;
        // A container of ours holds its own ports, and gives them up when it is replaced.
        let is_held =
            |c: &Container| matches!(c.phase, Phase::Running | Phase::Paused | Phase::Restarting);
        let held = recorded
            .as_ref()
            .filter(|_| existing.as_ref().is_some_and(is_held));
        let (wanted, auto) = (self.wanted_ports(recorded.as_ref()), config.auto_ports);
        let ports = ports::choose(
            wanted,
            held.map(|r| r.ports),
            config.bind,
            auto,
            self.engine,
        )
        .await?;
        let image = self.image(&project).await?;
        let record = Record {
            project,
            engine: config.engine,
            ports,
        };
        let token = instance.ensure_token()?;
        for folder in [instance.files(), instance.data()] {
            fs::create_dir_all(&folder)
                .with_context(|| format!("making `{}`", folder.display()))?;
        }
        let spec = specification(config, instance, &record, &token, &image, socket)?;
        instance.save(&record)?;
        let client = Client::new(instance, &record, config.bind)?;
        let done = self.place(&spec, existing, &client).await?;
        self.watch(&client, &spec.name).until_healthy().await?;
        Ok((record, done))
    }

    /// What an interrupted `up` left: containers of this instance that never ran, and the one
    /// that was to be replaced.
    async fn clean_leftovers(&self) -> Result<()> {
        let Engine::Docker(docker) = self.engine else {
            return Ok(());
        };
        let instance = self.instance;
        for name in docker
            .labelled(&format!("{LABEL}={}", instance.name))
            .await?
        {
            let found = self.engine.inspect(&name).await?;
            if found.is_some_and(|c| c.phase == Phase::Created) {
                self.progress.log(&format!(
                    "removing `{name}`, which an interrupted `up` left"
                ));
                self.engine.remove(&name).await?;
            }
        }
        let (name, aside) = (instance.container(), aside(&instance.container()));
        let old = self.engine.inspect(&aside).await?;
        if old.is_none_or(|old| old.labels.get(LABEL) != Some(&instance.name)) {
            return Ok(());
        }
        match self.engine.inspect(&name).await? {
            Some(new) if new.phase == Phase::Running => self.engine.remove(&aside).await,
            _ => {
                self.engine.remove(&name).await?;
                docker.rename(&aside, &name).await
            }
        }
    }

    async fn own_container(&self) -> Result<Option<Container>> {
        let name = self.instance.container();
        let found = self.engine.inspect(&name).await?;
        match &found {
            Some(container) if container.labels.get(LABEL) != Some(&self.instance.name) => {
                Err(Error::Foreign {
                    what: "container",
                    name,
                }
                .into())
            }
            _ => Ok(found),
        }
    }

    /// The image's id, or what takes its place.
    async fn image(&self, project: &Path) -> Result<String> {
        let config = &self.resolved.config;
        match self.engine {
            Engine::Docker(docker) => self.docker_image(docker, config, project).await,
            Engine::Embedded(embedded) => self.embedded_body(embedded, config, project).await,
        }
    }

    async fn docker_image(
        &self,
        docker: &Docker,
        config: &Config,
        project: &Path,
    ) -> Result<String> {
        let recipe = build::recipe(docker, config, project)?;
        let options = Options {
            folders: self.folders,
            may_install: self.may_install,
            force: false,
        };
        Ok(build::ensure(
            docker,
            config,
            self.instance,
            &recipe,
            options,
            self.progress,
        )
        .await?
        .image
        .id)
    }

    async fn embedded_body(
        &self,
        embedded: &Embedded,
        config: &Config,
        project: &Path,
    ) -> Result<String> {
        let body = Body::of_project(&project.join(&config.body))?;
        if self.may_install && !Embedded::has_python().await {
            self.progress.step("installing Python");
            provision::install(&["python3", "python3-venv"], self.progress).await?;
        }
        embedded.prepare(&body.files, self.progress).await
    }

    /// Ports that were said aloud win over the recorded ones, which win over the usual ones.
    fn wanted_ports(&self, recorded: Option<&Record>) -> Ports {
        let said = |key: &str| {
            self.resolved
                .values
                .get(key)
                .is_some_and(|(_, source)| *source != Source::Default)
        };
        let config = self.resolved.config.ports;
        let Some(Record { ports, .. }) = recorded else {
            return config;
        };
        Ports {
            kernel: if said("ports.kernel") {
                config.kernel
            } else {
                ports.kernel
            },
            mcp: if said("ports.mcp") {
                config.mcp
            } else {
                ports.mcp
            },
            vnc: if said("ports.vnc") {
                config.vnc
            } else {
                ports.vnc
            },
        }
    }

    async fn place(
        &self,
        spec: &Spec,
        existing: Option<Container>,
        client: &Client,
    ) -> Result<Done> {
        let name = &spec.name;
        let Some(container) = existing else {
            self.progress.step(&format!("creating `{name}`"));
            self.engine.create(spec).await?;
            return Ok(Done::Created);
        };
        let same = container.labels.get(DIGEST_LABEL) == spec.labels.get(DIGEST_LABEL);
        if same && container.phase == Phase::Running {
            if container.labels.get(INHERITED_LABEL) != spec.labels.get(INHERITED_LABEL) {
                return Ok(Done::NothingWithOtherKeys);
            }
            return Ok(Done::Nothing);
        }
        if same && container.phase == Phase::Stopped {
            self.progress.step(&format!("starting `{name}`"));
            self.engine.start(name).await?;
            return Ok(Done::Started);
        }
        self.progress.step(&format!("replacing `{name}`"));
        match self.engine {
            Engine::Docker(docker) => self.replace(docker, spec, &container, client).await?,
            Engine::Embedded(_) => {
                self.engine.remove(name).await?;
                self.engine.create(spec).await?;
            }
        }
        Ok(Done::Replaced)
    }

    /// The old container goes only when the new one is healthy, and comes back otherwise.
    async fn replace(
        &self,
        docker: &Docker,
        spec: &Spec,
        old: &Container,
        client: &Client,
    ) -> Result<()> {
        let (name, aside) = (&spec.name, aside(&spec.name));
        self.engine.stop(name).await?;
        docker.rename(name, &aside).await?;
        let raised = async {
            self.engine.create(spec).await?;
            self.watch(client, name).until_healthy().await
        };
        if let Err(error) = raised.await {
            self.progress
                .step(&format!("bringing the old `{name}` back"));
            self.engine.remove(name).await?;
            docker.rename(&aside, name).await?;
            self.engine.start(name).await?;
            return Err(error);
        }
        self.engine.remove(&aside).await?;
        if old.image != spec.image {
            build::remove_nameless(docker, &old.image).await?;
        }
        Ok(())
    }

    fn watch<'b>(&'b self, client: &'b Client, name: &'b str) -> Watch<'b> {
        Watch {
            instance: self.instance,
            engine: self.engine,
            client,
            name,
            progress: self.progress,
        }
    }
}

/// Where a container waits while its successor proves itself.
fn aside(name: &str) -> String {
    format!("{name}-old")
}
