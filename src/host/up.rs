//! The path from an engine to a healthy container of the instance, from any initial state.

mod changes;
mod image;
mod placement;
mod result;

pub(crate) use result::{UpOutcome, UpResult};

use self::changes::describe_changed_variables;
use self::image::ChosenImage;
use super::applied_settings::{AppliedSettings, SettingChanges};
use super::client::CompanionClient;
use super::container_spec::{
    EngineContext, PASSED_ENV_DIGEST_LABEL, keep_running_variables, make_container_spec,
};
use super::folders::{Folders, ensure_private_folder};
use super::follow_evolve::InterruptWait;
use super::health::HealthWatch;
use super::instance::{Instance, InstanceRecord};
use super::keeper::{self, KeeperContainer};
use super::passed_env::{EnvArgs, PassedEnv};
use super::ports::PortMachine;
use super::provision::InstallConsent;
use super::remote::RemoteVolumes;
use super::replace::ContainerReplacer;
use super::replace_via_keeper::{KeeperReplacement, ReplaceTarget};
use super::{mcp, ports};
use crate::config::ResolvedConfig;
use crate::engine::{Container, ContainerPhase, Docker, Engine, EngineProgress, SPEC_DIGEST_LABEL};
use crate::error::{Error, Result};
use crate::image::{Body, CompanionBinary};
use crate::protocol::spec::ContainerSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// How often `up` chooses ports again after another program took them.
const MAX_UP_PORT_ATTEMPTS: u32 = 5;

/// Decides whether to replace a container with these changes; an error means no.
pub(crate) type ReplaceConsent<'a> = &'a (dyn Fn(&SettingChanges) -> Result<()> + Sync);

/// Everything from an engine to a healthy container.
#[derive(Clone, Copy)]
pub(crate) struct UpRunner<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) folders: &'a Folders,
    pub(crate) engine: &'a Engine,
    pub(crate) resolved: &'a ResolvedConfig,
    /// Whether osctl may install missing packages.
    pub(crate) install_consent: InstallConsent<'a>,
    /// Whether to interrupt code that does not end when the container is replaced.
    pub(crate) force: bool,
    /// Whether to build the image from `body/` also after a rollback.
    pub(crate) build: bool,
    /// The ports of other instances, which `auto_ports` does not choose: these instances may be down.
    pub(crate) ports_of_others: &'a [u16],
    /// The configuration file, if it is not the default one.
    pub(crate) config_file: Option<&'a Path>,
    pub(crate) env_args: EnvArgs<'a>,
    pub(crate) replace_consent: ReplaceConsent<'a>,
    /// Ends the wait for the keeper, which then continues.
    pub(crate) wait_for_interrupt: InterruptWait<'a>,
    pub(crate) progress: &'a dyn EngineProgress,
}

impl UpRunner<'_> {
    /// Brings up the container and waits until it is healthy.
    ///
    /// # Errors
    /// When a step fails; the earlier container then runs again.
    pub(crate) async fn run(&self, project: PathBuf, socket: Option<&Path>) -> Result<UpResult> {
        let mut retries = MAX_UP_PORT_ATTEMPTS;
        let mut taken = self.ports_of_others.to_vec();
        loop {
            match self.try_once(project.clone(), socket, &taken).await {
                // The port was free when it was chosen, or could not be checked.
                Err(error)
                    if retries > 0 && self.resolved.config.auto_ports && is_port_taken(&error) =>
                {
                    retries -= 1;
                    taken.extend(taken_port(&error));
                    self.progress.log(&format!("{error}; trying another port"));
                }
                result => return result,
            }
        }
    }

    async fn try_once(
        &self,
        project: PathBuf,
        socket: Option<&Path>,
        taken: &[u16],
    ) -> Result<UpResult> {
        let instance = self.instance;
        let config = &self.resolved.config;
        let was_paused = self.finish_interrupted(socket).await?;
        let recorded = instance.read_record()?;
        let existing = instance.find_container(self.engine).await?;
        // A container of this instance holds its own ports, and releases them when it is replaced.
        let held = recorded.as_ref().filter(|_| {
            existing
                .as_ref()
                .is_some_and(|c| is_active(c) && c.has_ports)
        });
        let (wanted, auto) = (
            ports::wanted_ports(self.resolved, recorded.as_ref()),
            config.auto_ports,
        );
        let volumes = self.remote_volumes();
        let remote = match &volumes {
            Some(volumes) => Some(volumes.remote_engine(recorded.as_ref(), &project).await?),
            None => None,
        };
        let choose = |wanted| {
            let held = held.map(|r| r.ports);
            let machine = PortMachine::from_engine(self.engine, config.bind);
            ports::choose_ports(wanted, held, machine, auto.then_some(taken), self.engine)
        };
        // Report a port in use before the build; a free port may be taken by the end of the build.
        let ports = choose(wanted).await?;
        let copy = match (&volumes, &remote) {
            (Some(volumes), Some(remote)) if remote.copied => {
                Some(volumes.fetch_body(config).await?)
            }
            _ => None,
        };
        let former = recorded.as_ref().map(|record| &record.applied);
        let held = match (self.engine, &existing) {
            (Engine::Docker(docker), Some(_)) => {
                docker
                    .container_environment(&instance.container_name())
                    .await?
            }
            _ => BTreeMap::new(),
        };
        let (applied, passed) = self.resolve_settings(former, &held)?;
        let ChosenImage { image, body, note } = self
            .choose_image(copy.as_ref().map_or(&project, TempDir::path), &passed)
            .await?;
        let ports = match auto {
            true => choose(ports).await?,
            false => ports,
        };
        let mut notes = passed.notes(config);
        let environment = instance.read_environment()?.unwrap_or_default().names();
        let warnings = passed.lost_value_warnings(instance, &environment);
        notes.extend(self.environment_note(&environment));
        notes.extend(note);
        notes.extend(body.is_none().then(|| {
            let evolve = instance.osctl_command("evolve");
            format!("the project's body/ or packages differ from the running image, which a rollback restored; `{evolve}` applies them")
        }));
        let mut record = InstanceRecord {
            project,
            engine: config.engine,
            ports,
            criu: config.criu,
            remote,
            applied,
        };
        let mut spec = self.make_spec(&record, &image, socket, &passed).await?;
        if let (Some(recorded), Some(container)) = (&recorded, &existing)
            && !self.has_current_spec(container, &spec)
        {
            let lost = match recorded.applied.is_unknown() {
                true => self.lost_variables(container, held, &spec).await?,
                false => BTreeSet::new(),
            };
            self.check_changes(recorded, &record, &lost, container.image != spec.image)?;
        }
        if self.write_instance_files(&mut record, &image).await? {
            notes.push(mcp::describe_changed_servers(&config.servers));
        }
        if let (Engine::Docker(docker), Some(socket), Some(container)) = (
            self.engine,
            socket,
            existing.as_ref().filter(|c| is_active(c)),
        ) && !self.has_current_spec(container, &spec)
        {
            let kept = body.is_none().then_some(&*image);
            self.replace_via_keeper(docker, socket, (spec, &passed), &record, recorded, kept)
                .await?;
            let client = CompanionClient::new(instance, &record, config.bind)?;
            let name = instance.container_name();
            let watch = self.health_watch(&client, &name);
            watch.wait_until_healthy().await?;
            watch.wait_until_open().await;
            notes.extend(self.update_environment(&client).await?);
            return Ok(UpResult {
                record,
                outcome: UpOutcome::ReplacedViaKeeper,
                keeper_error: None,
                notes,
                warnings,
            });
        }
        let label = existing
            .as_ref()
            .and_then(|c| c.labels.get(PASSED_ENV_DIGEST_LABEL).cloned());
        let done = self.place_container(&spec, &record, existing).await?;
        if let (UpOutcome::UnchangedWithOtherEnv, Engine::Docker(docker)) = (&done, self.engine) {
            let running = docker.container_environment(&spec.name).await?;
            let changed = keep_running_variables(&mut spec, config, &running, label.as_ref());
            notes.extend(describe_changed_variables(instance, &changed));
        }
        let client = CompanionClient::new(instance, &record, config.bind)?;
        let name = spec.name.clone();
        self.health_watch(&client, &name)
            .wait_until_healthy()
            .await?;
        let deployed = match self.engine {
            Engine::Docker(docker) => {
                self.deploy_keeper(docker, (spec, &passed), body.as_ref(), &record, socket)
                    .await
            }
            Engine::Embedded(_) => Ok(()),
        };
        self.health_watch(&client, &name).wait_until_open().await;
        notes.extend(self.update_environment(&client).await?);
        Ok(UpResult {
            record,
            outcome: match done {
                UpOutcome::Unchanged | UpOutcome::UnchangedWithOtherEnv if was_paused => {
                    UpOutcome::Continued
                }
                done => done,
            },
            keeper_error: deployed.err(),
            notes,
            warnings,
        })
    }

    /// The settings for the next container, and the variables that pass into it.
    ///
    /// `held` are the variables of the existing container.
    fn resolve_settings(
        &self,
        former: Option<&AppliedSettings>,
        held: &BTreeMap<String, String>,
    ) -> Result<(AppliedSettings, PassedEnv)> {
        let none = AppliedSettings::default();
        let retained = self
            .env_args
            .retained_names(&former.unwrap_or(&none).env_names);
        let passed = PassedEnv::new(&self.resolved.config, &retained, self.env_args, held)?;
        let file = self.config_file.map(Path::to_owned);
        let applied = AppliedSettings::new(self.resolved, file, retained, &passed.names);
        Ok((applied, passed))
    }

    /// Whether the container matches the specification. Variables count only if this command line names some.
    fn has_current_spec(&self, container: &Container, spec: &ContainerSpec) -> bool {
        let same = |label: &str| container.labels.get(label) == spec.labels.get(label);
        same(SPEC_DIGEST_LABEL) && (self.env_args.is_empty() || same(PASSED_ENV_DIGEST_LABEL))
    }

    /// Puts the files of the instance where the container reads them. Returns whether the configured MCP servers have
    /// changed.
    async fn write_instance_files(&self, record: &mut InstanceRecord, image: &str) -> Result<bool> {
        let (instance, servers) = (self.instance, &self.resolved.config.servers);
        let password = instance.ensure_vnc_password()?;
        if let Some(volumes) = self.remote_volumes() {
            volumes
                .upload_instance_files(record, image, servers, &password)
                .await?;
            return Ok(false);
        }
        for folder in [instance.files_folder(), instance.data_folder()] {
            ensure_private_folder(&folder)?;
        }
        let has_new_servers = mcp::write_configured_servers(servers, &instance.data_folder())?;
        if let Some(variables) = instance.read_environment()? {
            instance.write_companion_environment(&variables)?;
        }
        instance.write_vnc_password(&password)?;
        Ok(has_new_servers)
    }

    /// A note about the variables of `osctl env`.
    fn environment_note(&self, names: &[String]) -> Option<String> {
        (!names.is_empty()).then(|| {
            let env = self.instance.osctl_command("env");
            format!("set by `{env}`: {}", names.join(", "))
        })
    }

    /// Gives the running container the variables of `osctl env`. Returns a note for the user if that fails: the
    /// container is healthy.
    async fn update_environment(&self, client: &CompanionClient) -> Result<Option<String>> {
        let Some(variables) = self.instance.read_environment()? else {
            return Ok(None);
        };
        let replaced = client.replace_environment(&variables).await;
        Ok(replaced.err().map(|error| {
            let env = self.instance.osctl_command("env");
            format!("the container did not take over the variables of `{env}`: {error:#}")
        }))
    }

    /// The volumes that replace this machine's folders, if the engine is on another machine.
    fn remote_volumes(&self) -> Option<RemoteVolumes<'_>> {
        RemoteVolumes::for_instance(self.engine.docker()?, self.instance, self.progress)
    }

    /// The specification of the container from the configuration, with the recorded ports, project and checkpoint
    /// permission.
    async fn make_spec(
        &self,
        record: &InstanceRecord,
        image: &str,
        socket: Option<&Path>,
        passed: &PassedEnv,
    ) -> Result<ContainerSpec> {
        let instance = self.instance;
        let token = instance.ensure_token()?;
        let mut config = self.resolved.config.clone();
        config.criu = record.criu;
        let apparmor = match self.engine {
            Engine::Docker(docker) if config.criu => docker.has_apparmor().await?,
            _ => false,
        };
        let engine = EngineContext { socket, apparmor };
        make_container_spec(&config, instance, record, &token, image, engine, passed)
    }

    /// Replaces a running container through the stages of an evolve.
    async fn replace_via_keeper(
        &self,
        docker: &Docker,
        socket: &Path,
        (spec, passed): (ContainerSpec, &PassedEnv),
        record: &InstanceRecord,
        recorded: Option<InstanceRecord>,
        kept_image: Option<&str>,
    ) -> Result<()> {
        let config = &self.resolved.config;
        let former = match recorded {
            // A permission that is revoked now stays revoked after a rollback.
            Some(former) => InstanceRecord {
                criu: former.criu && record.criu,
                ..former
            },
            None => record.clone(),
        };
        let before = self
            .make_spec(&former, &spec.image, Some(socket), passed)
            .await?;
        let target = async |spec: ContainerSpec, record: InstanceRecord| -> Result<ReplaceTarget> {
            let project = &record.project;
            let deploy_config =
                keeper::make_deploy_config(docker, config, self.instance, project, (spec, passed))
                    .await?;
            Ok(ReplaceTarget {
                config: deploy_config,
                record,
            })
        };
        let (requested, previous) = (
            target(spec, record.clone()).await?,
            target(before, former).await?,
        );
        let replacement = KeeperReplacement {
            keeper: KeeperContainer {
                docker,
                instance: self.instance,
            },
            companion: &CompanionBinary::load(config.companion.as_deref(), docker.architecture())?,
            socket,
            rolled_back_image: kept_image,
            force: self.force,
            wait_for_interrupt: self.wait_for_interrupt,
            progress: self.progress,
        };
        replacement.replace_with(&requested, &previous).await
    }

    /// Deploys the keeper with its current permissions.
    async fn deploy_keeper(
        &self,
        docker: &Docker,
        spec: (ContainerSpec, &PassedEnv),
        body: Option<&Body>,
        record: &InstanceRecord,
        socket: Option<&Path>,
    ) -> Result<()> {
        let (config, image) = (&self.resolved.config, spec.0.image.clone());
        let companion = CompanionBinary::load(config.companion.as_deref(), docker.architecture())?;
        let project = &record.project;
        let deploy_config =
            keeper::make_deploy_config(docker, config, self.instance, project, spec).await?;
        let keeper = KeeperContainer {
            docker,
            instance: self.instance,
        };
        keeper
            .deploy(&deploy_config, &companion, record, socket, self.progress)
            .await?;
        // Without the upload, the keeper cannot report the changes of a run; it needs the body for nothing else.
        if let Some(body) = body
            && let Err(error) = keeper.upload_body(&image, body).await
        {
            self.progress.log(&format!("{error:#}"));
        }
        Ok(())
    }

    /// Finishes an interrupted `up` or run, and continues a paused container. Returns whether the container was paused.
    async fn finish_interrupted(&self, socket: Option<&Path>) -> Result<bool> {
        let instance = self.instance;
        if let (Engine::Docker(docker), Some(socket), Some(record)) =
            (self.engine, socket, instance.read_record()?)
        {
            let companion = self.resolved.config.companion.as_deref();
            let companion = CompanionBinary::load(companion, docker.architecture())?;
            let keeper = KeeperContainer { docker, instance };
            keeper
                .finish_interrupted_run(&companion, &record, socket, self.progress)
                .await?;
        }
        self.replacer().finish_interrupted().await
    }

    fn replacer(&self) -> ContainerReplacer<'_> {
        ContainerReplacer {
            instance: self.instance,
            engine: self.engine,
            bind: self.resolved.config.bind,
            progress: self.progress,
        }
    }

    fn health_watch<'b>(&'b self, client: &'b CompanionClient, name: &'b str) -> HealthWatch<'b> {
        HealthWatch {
            instance: self.instance,
            engine: self.engine,
            client,
            name,
            progress: self.progress,
        }
    }
}

/// Whether the container holds ports that another one could take.
fn is_active(container: &Container) -> bool {
    matches!(
        container.phase,
        ContainerPhase::Running | ContainerPhase::Paused | ContainerPhase::Restarting
    )
}

fn is_port_taken(error: &anyhow::Error) -> bool {
    taken_port(error).is_some()
}

fn taken_port(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref()? {
        Error::PortTaken { port, .. } => Some(*port),
        _ => None,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
