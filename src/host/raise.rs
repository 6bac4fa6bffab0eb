//! The way from an engine to a healthy container of the instance, whatever is there already.

use super::build::{self, Options};
use super::client::Client;
use super::folders::{Folders, ensure_private_folder};
use super::handover::{Handover, Wish};
use super::health::Watch;
use super::instance::{Instance, LABEL, Record};
use super::keeper::{self, Keeper};
use super::ports::Whose;
use super::provision::{self, Leave};
use super::remote::Volumes;
use super::specification::{INHERITED_LABEL, Surroundings, keep_inherited, specification};
use super::succession::Succession;
use super::{mcp, ports};
use crate::config::{Config, Ports, Resolved, Source};
use crate::engine::{Container, DIGEST_LABEL, Docker, Embedded, Engine, Phase, Progress};
use crate::error::{Error, Result};
use crate::image::{Body, Companion};
use crate::protocol::spec::Spec;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// How often ports are chosen again that somebody takes meanwhile.
const OTHER_PORTS: u32 = 5;

/// What had to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Nothing,
    /// And the calling shell's API keys or proxies are not those of the container.
    NothingWithOtherKeys,
    Started,
    Created,
    Replaced,
    /// By the keeper's gates, with what the kernel knew.
    HandedOver,
}

/// What now runs.
#[derive(Debug)]
pub(crate) struct Raised {
    pub(crate) record: Record,
    /// What had to be done for it.
    pub(crate) done: Done,
    /// Why the keeper does not run beside it, where there should be one.
    pub(crate) without_keeper: Option<anyhow::Error>,
}

/// Everything on the way from an engine to a healthy container.
#[derive(Clone, Copy)]
pub(crate) struct Raise<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) folders: &'a Folders,
    pub(crate) engine: &'a Engine,
    pub(crate) resolved: &'a Resolved,
    /// Whether missing packages may be installed.
    pub(crate) may_install: Leave<'a>,
    /// Whether code that does not end is interrupted where the container is replaced.
    pub(crate) force: bool,
    pub(crate) progress: &'a dyn Progress,
}

impl Raise<'_> {
    /// What now runs, healthy.
    ///
    /// # Errors
    /// When something on the way fails; what ran before runs again then.
    pub(crate) async fn run(&self, project: PathBuf, socket: Option<&Path>) -> Result<Raised> {
        let mut left = OTHER_PORTS;
        let mut taken = Vec::new();
        loop {
            match self.once(project.clone(), socket, &taken).await {
                // It was free when it was chosen, or could not be asked about.
                Err(error) if left > 0 && self.resolved.config.auto_ports && is_taken(&error) => {
                    left -= 1;
                    taken.extend(taken_port(&error));
                    self.progress.log(&format!("{error}; taking another"));
                }
                raised => return raised,
            }
        }
    }

    async fn once(&self, project: PathBuf, socket: Option<&Path>, taken: &[u16]) -> Result<Raised> {
        let instance = self.instance;
        let config = &self.resolved.config;
        self.clean_leftovers().await?;
        let recorded = instance.record()?;
        let existing = self.own_container().await?;
        // A container of ours holds its own ports, and gives them up when it is replaced.
        let held = recorded
            .as_ref()
            .filter(|_| existing.as_ref().is_some_and(stands));
        let (wanted, auto) = (self.wanted_ports(recorded.as_ref()), config.auto_ports);
        let volumes = self.volumes();
        let remote = match &volumes {
            Some(volumes) => Some(volumes.remote(recorded.as_ref(), &project).await?),
            None => None,
        };
        let choose = |wanted| {
            let held = held.map(|r| r.ports);
            let whose = Whose::of(self.engine, config.bind);
            ports::choose(wanted, held, whose, auto.then_some(taken), self.engine)
        };
        // A taken one is told before anything is built; what is free may be taken by when that is done.
        let ports = choose(wanted).await?;
        let copy = match (&volumes, &remote) {
            (Some(volumes), Some(remote)) if remote.copied => Some(volumes.body(config).await?),
            _ => None,
        };
        let (image, body) = self
            .image(copy.as_ref().map_or(&project, TempDir::path))
            .await?;
        let ports = match auto {
            true => choose(ports).await?,
            false => ports,
        };
        let mut record = Record {
            project,
            engine: config.engine,
            ports,
            criu: config.criu,
            remote,
        };
        self.hand_in(&mut record, &image).await?;
        let mut spec = self.specify(&record, &image, socket).await?;
        if let (Engine::Docker(docker), Some(socket), Some(container)) =
            (self.engine, socket, existing.as_ref().filter(|c| stands(c)))
            && !is_as(container, &spec)
        {
            self.hand_over(docker, socket, spec, &record, recorded)
                .await?;
            let client = Client::new(instance, &record, config.bind)?;
            let name = instance.container();
            let watch = self.watch(&client, &name);
            watch.until_healthy().await?;
            watch.until_open().await;
            return Ok(Raised {
                record,
                done: Done::HandedOver,
                without_keeper: None,
            });
        }
        let label = existing
            .as_ref()
            .and_then(|c| c.labels.get(INHERITED_LABEL).cloned());
        let done = self.place(&spec, &record, existing).await?;
        if let (Done::NothingWithOtherKeys, Engine::Docker(docker)) = (&done, self.engine) {
            let running = docker.environment(&spec.name).await?;
            keep_inherited(&mut spec, config, &running, label.as_ref());
        }
        let client = Client::new(instance, &record, config.bind)?;
        let name = spec.name.clone();
        self.watch(&client, &name).until_healthy().await?;
        let kept = match self.engine {
            Engine::Docker(docker) => self.keep(docker, spec, &body, &record, socket).await,
            Engine::Embedded(_) => Ok(()),
        };
        self.watch(&client, &name).until_open().await;
        Ok(Raised {
            record,
            done,
            without_keeper: kept.err(),
        })
    }

    /// What is put where the container finds it.
    async fn hand_in(&self, record: &mut Record, image: &str) -> Result<()> {
        let (instance, servers) = (self.instance, &self.resolved.config.servers);
        let password = instance.ensure_vnc_password()?;
        if let Some(volumes) = self.volumes() {
            return volumes.hand_in(record, image, servers, &password).await;
        }
        for folder in [instance.files(), instance.data()] {
            ensure_private_folder(&folder)?;
        }
        mcp::hand_in(servers, &instance.data())?;
        instance.hand_in_vnc_password(&password)
    }

    /// What takes the place of this machine's folders, where the engine is on another one.
    fn volumes(&self) -> Option<Volumes<'_>> {
        match self.engine {
            Engine::Docker(docker) => Volumes::of(docker, self.instance, self.progress),
            Engine::Embedded(_) => None,
        }
    }

    /// The container as the configuration wants it, with the ports, the project and the right to freeze
    /// that are recorded.
    async fn specify(&self, record: &Record, image: &str, socket: Option<&Path>) -> Result<Spec> {
        let instance = self.instance;
        let token = instance.ensure_token()?;
        let mut config = self.resolved.config.clone();
        config.criu = record.criu;
        let apparmor = match self.engine {
            Engine::Docker(docker) if config.criu => docker.has_apparmor().await?,
            _ => false,
        };
        let engine = Surroundings { socket, apparmor };
        specification(&config, instance, record, &token, image, engine)
    }

    /// What runs gives way by the keeper's gates.
    async fn hand_over(
        &self,
        docker: &Docker,
        socket: &Path,
        spec: Spec,
        record: &Record,
        recorded: Option<Record>,
    ) -> Result<()> {
        let config = &self.resolved.config;
        let former = match recorded {
            // A right that is taken back now is not had later.
            Some(former) => Record {
                criu: former.criu && record.criu,
                ..former
            },
            None => record.clone(),
        };
        let before = self.specify(&former, &spec.image, Some(socket)).await?;
        let wish = async |spec: Spec, record: Record| -> Result<Wish> {
            let project = &record.project;
            let charge = keeper::charge(docker, config, self.instance, project, spec).await?;
            Ok(Wish { charge, record })
        };
        let (wished, otherwise) = (
            wish(spec, record.clone()).await?,
            wish(before, former).await?,
        );
        let handover = Handover {
            keeper: Keeper {
                docker,
                instance: self.instance,
            },
            companion: &Companion::load(config.companion.as_deref(), docker.architecture())?,
            socket,
            force: self.force,
            progress: self.progress,
        };
        handover.to(&wished, &otherwise).await
    }

    /// The keeper beside it, with what it may do now.
    async fn keep(
        &self,
        docker: &Docker,
        spec: Spec,
        body: &Body,
        record: &Record,
        socket: Option<&Path>,
    ) -> Result<()> {
        let (config, image) = (&self.resolved.config, spec.image.clone());
        let companion = Companion::load(config.companion.as_deref(), docker.architecture())?;
        let project = &record.project;
        let charge = keeper::charge(docker, config, self.instance, project, spec).await?;
        let keeper = Keeper {
            docker,
            instance: self.instance,
        };
        keeper
            .appoint(&charge, &companion, record, socket, self.progress)
            .await?;
        // Only what a run has changed can't be told without it.
        if let Err(error) = keeper.lay_down(&image, body).await {
            self.progress.log(&format!("{error:#}"));
        }
        Ok(())
    }

    /// What an interrupted `up` left: containers of this instance that never ran, and a
    /// replacement that is half done.
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
        self.succession(docker).settle().await
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

    /// The image's id, or what takes its place, and the body that it is made of.
    async fn image(&self, project: &Path) -> Result<(String, Body)> {
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
    ) -> Result<(String, Body)> {
        let recipe = build::recipe(docker, config, project)?;
        let options = Options {
            folders: self.folders,
            may_install: self.may_install,
            force: false,
        };
        let built = build::ensure(
            docker,
            config,
            self.instance,
            &recipe,
            options,
            self.progress,
        )
        .await?;
        Ok((built.image.id, recipe.body))
    }

    async fn embedded_body(
        &self,
        embedded: &Embedded,
        config: &Config,
        project: &Path,
    ) -> Result<(String, Body)> {
        let body = Body::of_project(project, &config.body)?;
        let question = "Python's environments, which the kernel needs, are missing. Install them?";
        if !Embedded::has_python().await
            && provision::can_install()
            && (self.may_install)(question)?
        {
            self.progress.step("installing Python");
            provision::install(&["python3", "python3-venv"], self.progress).await?;
        }
        let prepared = embedded.prepare(&body.files, self.progress).await?;
        Ok((prepared, body))
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
        record: &Record,
        existing: Option<Container>,
    ) -> Result<Done> {
        let name = &spec.name;
        let changes = existing
            .as_ref()
            .is_none_or(|c| !is_as(c, spec) || c.phase != Phase::Running);
        if let (true, Engine::Docker(docker)) = (changes, self.engine) {
            // What it was allowed before is allowed no more, and nobody else replaces meanwhile.
            let instance = self.instance;
            Keeper { docker, instance }.dismiss().await?;
        }
        let Some(container) = existing else {
            self.progress.step(&format!("creating `{name}`"));
            self.instance.save(record)?;
            self.engine.create(spec).await?;
            return Ok(Done::Created);
        };
        let same = is_as(&container, spec);
        if same {
            self.instance.save(record)?;
        }
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
            Engine::Docker(docker) => {
                let succession = self.succession(docker);
                succession.replace(spec, record, &container).await?;
            }
            Engine::Embedded(_) => {
                self.engine.remove(name).await?;
                self.instance.save(record)?;
                self.engine.create(spec).await?;
            }
        }
        Ok(Done::Replaced)
    }

    fn succession<'b>(&'b self, docker: &'b Docker) -> Succession<'b> {
        Succession {
            instance: self.instance,
            engine: self.engine,
            docker,
            bind: self.resolved.config.bind,
            progress: self.progress,
        }
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

/// Whether it has a place that another one could take.
fn stands(container: &Container) -> bool {
    matches!(
        container.phase,
        Phase::Running | Phase::Paused | Phase::Restarting
    )
}

fn is_taken(error: &anyhow::Error) -> bool {
    taken_port(error).is_some()
}

fn taken_port(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref()? {
        Error::PortTaken { port, .. } => Some(*port),
        _ => None,
    }
}

/// Whether it was made as is wanted.
fn is_as(container: &Container, spec: &Spec) -> bool {
    container.labels.get(DIGEST_LABEL) == spec.labels.get(DIGEST_LABEL)
}
