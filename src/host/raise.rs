//! The way from an engine to a healthy container of the instance, whatever is there already.

mod changes;
mod image;

use self::image::ChosenImage;
use super::applied_settings::{AppliedSettings, SettingChanges};
use super::client::Client;
use super::folders::{Folders, ensure_private_folder};
use super::handover::{Handover, Wish};
use super::health::Watch;
use super::instance::{Instance, LABEL, Record};
use super::keeper::{self, Keeper};
use super::passed_env::{EnvArgs, PassedEnv};
use super::ports::Whose;
use super::provision::Leave;
use super::remote::Volumes;
use super::specification::{INHERITED_LABEL, Surroundings, keep_inherited, specification};
use super::succession::Succession;
use super::{mcp, ports};
use crate::config::Resolved;
use crate::engine::{Container, DIGEST_LABEL, Docker, Engine, Phase, Progress};
use crate::error::{Error, Result};
use crate::image::{Body, Companion};
use crate::protocol::spec::Spec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// How often ports are chosen again that somebody takes meanwhile.
const OTHER_PORTS: u32 = 5;

/// What had to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Nothing,
    /// And the variables that the calling shell passes are not those of the container.
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
    /// Notes for the user about variables and the image.
    pub(crate) notes: Vec<String>,
}

/// Decides whether a container is replaced that differs so; an error is the answer no.
pub(crate) type ReplaceConsent<'a> = &'a (dyn Fn(&SettingChanges) -> Result<()> + Sync);

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
    /// Whether the image is made of `body/` also after a rollback.
    pub(crate) build: bool,
    /// The configuration file, unless it is the usual one.
    pub(crate) config_file: Option<&'a Path>,
    pub(crate) said: EnvArgs<'a>,
    pub(crate) may_replace: ReplaceConsent<'a>,
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
        self.clean_leftovers(socket).await?;
        let recorded = instance.record()?;
        let existing = self.own_container().await?;
        // A container of ours holds its own ports, and gives them up when it is replaced.
        let held = recorded
            .as_ref()
            .filter(|_| existing.as_ref().is_some_and(|c| stands(c) && c.has_ports));
        let (wanted, auto) = (
            ports::wanted(self.resolved, recorded.as_ref()),
            config.auto_ports,
        );
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
        let former = recorded.as_ref().map(|record| &record.applied);
        let held = match (self.engine, &existing) {
            (Engine::Docker(docker), Some(_)) => docker.environment(&instance.container()).await?,
            _ => BTreeMap::new(),
        };
        let (applied, passed) = self.applied(former, &held)?;
        let ChosenImage { image, body, note } = self
            .image(copy.as_ref().map_or(&project, TempDir::path), &passed)
            .await?;
        let ports = match auto {
            true => choose(ports).await?,
            false => ports,
        };
        let mut notes = passed.notes(config);
        notes.extend(note);
        notes.extend(body.is_none().then(|| {
            let evolve = instance.command("evolve");
            format!("body/ differs from the running image, which a rollback has brought back; `{evolve}` applies it")
        }));
        let mut record = Record {
            project,
            engine: config.engine,
            ports,
            criu: config.criu,
            remote,
            applied,
        };
        let mut spec = self.specify(&record, &image, socket, &passed).await?;
        if let (Some(recorded), Some(container)) = (&recorded, &existing)
            && !self.is_as(container, &spec)
        {
            let lost = match recorded.applied.is_unknown() {
                true => self.lost_variables(container, held, &spec).await?,
                false => BTreeSet::new(),
            };
            self.check_changes(recorded, &record, &lost, container.image != spec.image)?;
        }
        self.hand_in(&mut record, &image).await?;
        if let (Engine::Docker(docker), Some(socket), Some(container)) =
            (self.engine, socket, existing.as_ref().filter(|c| stands(c)))
            && !self.is_as(container, &spec)
        {
            let kept = body.is_none().then_some(&*image);
            self.hand_over(docker, socket, (spec, &passed), &record, recorded, kept)
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
                notes,
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
            Engine::Docker(docker) => {
                self.keep(docker, (spec, &passed), body.as_ref(), &record, socket)
                    .await
            }
            Engine::Embedded(_) => Ok(()),
        };
        self.watch(&client, &name).until_open().await;
        Ok(Raised {
            record,
            done,
            without_keeper: kept.err(),
            notes,
        })
    }

    /// What the container is going to be made with, and the variables that pass into it.
    ///
    /// `held` are the variables of the container that is there.
    fn applied(
        &self,
        former: Option<&AppliedSettings>,
        held: &BTreeMap<String, String>,
    ) -> Result<(AppliedSettings, PassedEnv)> {
        let none = AppliedSettings::default();
        let kept = self.said.kept(&former.unwrap_or(&none).env_names);
        let passed = PassedEnv::new(&self.resolved.config, &kept, self.said, held)?;
        let file = self.config_file.map(Path::to_owned);
        let applied = AppliedSettings::new(self.resolved, file, kept, &passed.names);
        Ok((applied, passed))
    }

    /// Whether it was made as is wanted. A variable of this command line is wanted now.
    fn is_as(&self, container: &Container, spec: &Spec) -> bool {
        let same = |label: &str| container.labels.get(label) == spec.labels.get(label);
        same(DIGEST_LABEL) && (self.said.is_empty() || same(INHERITED_LABEL))
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
    async fn specify(
        &self,
        record: &Record,
        image: &str,
        socket: Option<&Path>,
        passed: &PassedEnv,
    ) -> Result<Spec> {
        let instance = self.instance;
        let token = instance.ensure_token()?;
        let mut config = self.resolved.config.clone();
        config.criu = record.criu;
        let apparmor = match self.engine {
            Engine::Docker(docker) if config.criu => docker.has_apparmor().await?,
            _ => false,
        };
        let engine = Surroundings { socket, apparmor };
        specification(&config, instance, record, &token, image, engine, passed)
    }

    /// What runs gives way by the keeper's gates.
    async fn hand_over(
        &self,
        docker: &Docker,
        socket: &Path,
        (spec, passed): (Spec, &PassedEnv),
        record: &Record,
        recorded: Option<Record>,
        kept_image: Option<&str>,
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
        let before = self
            .specify(&former, &spec.image, Some(socket), passed)
            .await?;
        let wish = async |spec: Spec, record: Record| -> Result<Wish> {
            let project = &record.project;
            let charge =
                keeper::charge(docker, config, self.instance, project, (spec, passed)).await?;
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
            kept_image,
            force: self.force,
            progress: self.progress,
        };
        handover.to(&wished, &otherwise).await
    }

    /// The keeper beside it, with what it may do now.
    async fn keep(
        &self,
        docker: &Docker,
        spec: (Spec, &PassedEnv),
        body: Option<&Body>,
        record: &Record,
        socket: Option<&Path>,
    ) -> Result<()> {
        let (config, image) = (&self.resolved.config, spec.0.image.clone());
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
        if let Some(body) = body
            && let Err(error) = keeper.lay_down(&image, body).await
        {
            self.progress.log(&format!("{error:#}"));
        }
        Ok(())
    }

    /// What an interrupted `up` or a run has left.
    async fn clean_leftovers(&self, socket: Option<&Path>) -> Result<()> {
        let Engine::Docker(docker) = self.engine else {
            return Ok(());
        };
        let instance = self.instance;
        if let (Some(socket), Some(record)) = (socket, instance.record()?) {
            let companion = self.resolved.config.companion.as_deref();
            let companion = Companion::load(companion, docker.architecture())?;
            let keeper = Keeper { docker, instance };
            keeper
                .recover(&companion, &record, socket, self.progress)
                .await?;
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

    async fn place(
        &self,
        spec: &Spec,
        record: &Record,
        existing: Option<Container>,
    ) -> Result<Done> {
        let name = &spec.name;
        let changes = existing
            .as_ref()
            .is_none_or(|c| !self.is_as(c, spec) || c.phase != Phase::Running || !c.has_ports);
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
        let same = self.is_as(&container, spec);
        if same {
            self.instance.save(record)?;
        }
        if same && container.phase == Phase::Running && container.has_ports {
            if container.labels.get(INHERITED_LABEL) != spec.labels.get(INHERITED_LABEL) {
                return Ok(Done::NothingWithOtherKeys);
            }
            return Ok(Done::Nothing);
        }
        if same && matches!(container.phase, Phase::Stopped | Phase::Running) {
            self.progress.step(&format!("starting `{name}`"));
            let started = match self.engine {
                Engine::Docker(docker) => {
                    let succession = self.succession(docker);
                    succession.start_with_ports(&container).await
                }
                Engine::Embedded(_) => self.engine.start(name).await,
            };
            let Err(error) = started else {
                return Ok(Done::Started);
            };
            if !matches!(error.downcast_ref(), Some(Error::Precondition { .. })) {
                return Err(error);
            }
            // Another one may start, as after the processes of this one were killed while they were paused. Its state
            // is stored.
            self.progress.log(&format!("{error:#}"));
            self.engine.remove(name).await?;
            self.engine.create(spec).await?;
            return Ok(Done::Replaced);
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
