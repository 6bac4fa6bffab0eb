//! The keeper from the host's side: its container, its permissions, and requests to it through the engine.
//!
//! The host sends a request with a command in the keeper's container, so the keeper also answers when `os-host` does
//! not run.

use super::bounded_response::{ResponseLines, check_values};
use super::container_spec::LOG_FORMAT_VARIABLE;
use super::folders::Folders;
use super::instance::{INSTANCE_LABEL, Instance, InstanceRecord, KEEPER_NAME};
use super::passed_env::{PassedEnv, passed_variable_names};
use super::{base, build, proxies_and_ca};
use crate::config::Config;
use crate::engine::{
    Container, ContainerPhase, Docker, EngineProgress, IMAGE_LABEL, set_spec_digest,
};
use crate::error::{Error, Result};
use crate::image::{Body, CompanionBinary};
use crate::protocol::error::ApiError;
use crate::protocol::evolve::{
    AGENT_SOCKET_FOLDER, CertificateAuthority, DEPLOY_CONFIG_FILE, DeployConfig, EvolveLimits,
    EvolveStatus, KEEPER_IMAGE_VARIABLE, KeeperReply, KeeperRequest, ProxyVariables,
    built_body_name, refusal,
};
use crate::protocol::spec::{
    ContainerEnv, ContainerLimits, ContainerRestartPolicy, ContainerSpec, Mount, Volume, Workload,
};
use crate::protocol::text_sanitizer;
use anyhow::Context;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Label with the role of a container, if it is not the instance's own container.
pub(super) const KEEPER_PART_LABEL: &str = "osctl.part";
/// In bytes: a body and its archive are in memory while an image is built.
const KEEPER_CONTAINER_MEMORY_BYTES: u64 = 2 << 30;
/// Time limit for a started keeper to answer.
const KEEPER_CONTAINER_READY_TIMEOUT: Duration = Duration::from_secs(20);
const KEEPER_CONTAINER_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// One instance's keeper.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeeperContainer<'a> {
    pub(crate) docker: &'a Docker,
    pub(crate) instance: &'a Instance,
}

/// All permissions of the keeper for this instance, whose container is `spec`.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn make_deploy_config(
    docker: &Docker,
    config: &Config,
    instance: &Instance,
    project: &Path,
    (spec, passed): (ContainerSpec, &PassedEnv),
) -> Result<DeployConfig> {
    // A current image needs no base; the engine pulls a missing base when it builds.
    let base = base::find_base_image(docker, &config.base).await?;
    let certificates = proxies_and_ca::extra_certificates().into_iter();
    Ok(DeployConfig {
        instance: instance.name.clone(),
        repository_root: enclosing_repository(project),
        ignored_variables: passed_variable_names(&spec.env, config),
        spec,
        replaced_name: instance.replaced_container_name(),
        image: instance.image_name(),
        body: config.body.clone(),
        base: base.unwrap_or_else(|| config.base.clone()),
        args: build::build_arguments(config),
        proxies: ProxyVariables(passed.proxies().clone()),
        certificates: certificates
            .map(|c| CertificateAuthority {
                name: c.name,
                pem: c.pem,
            })
            .collect(),
        classic_builder: build::is_buildkit_disabled(),
        limits: EvolveLimits {
            build: config.evolve.build,
            start: config.evolve.start,
            grace: config.evolve.grace,
            watch_period: config.evolve.watch_period,
            ..EvolveLimits::default()
        },
    })
}

impl KeeperContainer<'_> {
    /// Ensures that a keeper of this version runs, with this deploy config.
    ///
    /// # Errors
    /// When its image cannot be built, or the engine refuses.
    pub(crate) async fn deploy(
        &self,
        config: &DeployConfig,
        companion: &CompanionBinary,
        record: &InstanceRecord,
        socket: Option<&Path>,
        progress: &dyn EngineProgress,
    ) -> Result<()> {
        let log_format = config.spec.env.0.get(LOG_FORMAT_VARIABLE);
        self.ensure_running(companion, record, socket, log_format, progress)
            .await?;
        let name = self.instance.keeper_container_name();
        self.docker
            .put_archive(&name, "/state", deploy_config_archive(config)?)
            .await
    }

    /// Ensures that a keeper of this version runs.
    pub(super) async fn ensure_running(
        &self,
        companion: &CompanionBinary,
        record: &InstanceRecord,
        socket: Option<&Path>,
        log_format: Option<&String>,
        progress: &dyn EngineProgress,
    ) -> Result<()> {
        let Some(socket) = socket else {
            let message = "the engine has no socket that osctl can mount in the keeper";
            let hint = "name a socket: `DOCKER_HOST=unix:///PATH osctl up`";
            return Err(Error::precondition(message, hint).into());
        };
        let name = build::ensure_keeper_image(self.docker, companion, progress).await?;
        let built = self.docker.find_image(&name).await?;
        let image = built.context("the keeper's image no longer exists")?.id;
        let socket = match record.remote {
            None => engine_side_socket(socket),
            Some(_) => socket.into(),
        };
        let mut spec = self.container_spec(&image, record, &socket);
        spec.env.set(KEEPER_IMAGE_VARIABLE, name);
        if let Some(format) = log_format {
            spec.env.set(LOG_FORMAT_VARIABLE, format);
        }
        set_spec_digest(&mut spec, &BTreeSet::new())?;
        let name = &spec.name;
        let found = self.find_container().await?;
        let digest = crate::engine::SPEC_DIGEST_LABEL;
        match &found {
            Some(keeper) if keeper.labels.get(digest) == spec.labels.get(digest) => {
                if keeper.phase != ContainerPhase::Running {
                    self.docker.start(name).await?;
                }
            }
            _ => {
                progress.report_step(&format!("starting `{name}`"));
                self.docker.remove(name).await?;
                self.docker.create_and_start(&spec).await?;
                if let Some(former) = found.filter(|former| former.image != image) {
                    self.docker.remove_image(&former.image).await?;
                }
            }
        }
        Ok(())
    }

    /// Uploads the body of the image that the host has built to the keeper, which compares later bodies with it.
    ///
    /// # Errors
    /// When the engine refuses the upload.
    pub(crate) async fn upload_body(&self, image: &str, body: &Body) -> Result<()> {
        let archive =
            crate::image::single_file_archive(&built_body_name(image), 0o600, &body.to_archive()?)?;
        self.docker
            .put_archive(&self.instance.keeper_container_name(), "/state", archive)
            .await
    }

    fn container_spec(&self, image: &str, record: &InstanceRecord, socket: &Path) -> ContainerSpec {
        let mount = |host: &Path, container: &str, read_only| Mount {
            host: host.into(),
            container: container.into(),
            read_only,
        };
        let volume = |name: String, container: &str, read_only| Volume {
            name: Some(name),
            container: container.into(),
            read_only,
        };
        let instance = self.instance;
        let mut mounts = vec![mount(socket, "/var/run/docker.sock", false)];
        let mut volumes = vec![
            volume(instance.keeper_state_volume(), "/state", false),
            volume(instance.keeper_socket_volume(), AGENT_SOCKET_FOLDER, false),
        ];
        let [_, _, project] = instance.volume_names();
        match record.remote {
            None => mounts.push(mount(&record.project, "/repo", true)),
            Some(_) => volumes.push(volume(project, "/repo", true)),
        }
        ContainerSpec {
            name: instance.keeper_container_name(),
            hostname: instance.keeper_container_name(),
            image: image.into(),
            network: None,
            mounts,
            volumes,
            ports: Vec::new(),
            env: ContainerEnv::default(),
            limits: ContainerLimits {
                // Every machine has one CPU, and the keeper is idle most of the time.
                cpus: Some(1.0),
                memory: Some(KEEPER_CONTAINER_MEMORY_BYTES),
                pids: 64,
                shm: 1 << 20,
            },
            workload: Workload::ROOT_USER,
            // To read a project that only its owner may read. A process with the engine's socket gains no power from
            // this.
            capabilities: vec!["DAC_READ_SEARCH".into()],
            security: vec!["no-new-privileges".into()],
            labels: BTreeMap::from([
                (INSTANCE_LABEL.into(), instance.name.clone()),
                (KEEPER_PART_LABEL.into(), "keeper".into()),
            ]),
            health_check: Vec::new(),
            stop_timeout: 5,
            read_only: true,
            // A restarted engine starts the keeper again.
            restart: ContainerRestartPolicy::Always,
        }
    }

    pub(super) async fn find_container(&self) -> Result<Option<Container>> {
        let name = self.instance.keeper_container_name();
        let found = self.docker.inspect(&name).await?;
        self.instance.check_owner(&name, found)
    }

    /// Starts a stopped keeper, so that it finishes its run before the container is replaced. Waits for a keeper that
    /// the engine is starting.
    ///
    /// # Errors
    /// When the keeper does not answer.
    pub(crate) async fn start_stopped(&self) -> Result<()> {
        match self.find_container().await?.map(|keeper| keeper.phase) {
            Some(ContainerPhase::Stopped) => {
                self.docker
                    .start(&self.instance.keeper_container_name())
                    .await?;
                self.wait_until_ready().await
            }
            Some(ContainerPhase::Running | ContainerPhase::Restarting) => {
                self.wait_until_ready().await
            }
            _ => Ok(()),
        }
    }

    /// Waits until a started keeper answers.
    ///
    /// # Errors
    /// When the keeper does not answer within [`KEEPER_CONTAINER_READY_TIMEOUT`].
    pub(crate) async fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + KEEPER_CONTAINER_READY_TIMEOUT;
        loop {
            match self.request_reply(&KeeperRequest::Status {}).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(KEEPER_CONTAINER_POLL_INTERVAL).await,
            }
        }
    }

    /// Removes its container; its state stays.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn remove_container(&self) -> Result<()> {
        match self.find_container().await? {
            Some(_) => {
                self.docker
                    .remove(&self.instance.keeper_container_name())
                    .await
            }
            None => Ok(()),
        }
    }

    /// Removes the state of a removed keeper, and the keeper images that no instance needs.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn remove_state(&self, folders: &Folders) -> Result<()> {
        let label = (INSTANCE_LABEL, self.instance.name.as_str());
        for volume in self.instance.keeper_volumes() {
            self.docker.remove_volume(&volume, label).await?;
        }
        if let Some(_lock) = base::try_lock_images(folders)? {
            for tag in self.docker.list_tags(build::KEEPER_IMAGE_NAME).await? {
                self.docker.remove_image(&tag).await?;
            }
            // Two instances may have built the image at the same time.
            for image in self.docker.list_dangling_images().await? {
                if image.labels.get(IMAGE_LABEL).map(String::as_str) == Some(KEEPER_NAME) {
                    self.docker.remove_image(&image.id).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends a request, and passes each reply to `on_reply`.
    ///
    /// # Errors
    /// When the keeper does not run, does not answer, or refuses; and any error of `on_reply`.
    pub(crate) async fn send_request(
        &self,
        request: &KeeperRequest,
        on_reply: &mut (dyn FnMut(KeeperReply) -> Result<()> + Send),
    ) -> Result<()> {
        let name = self.instance.keeper_container_name();
        let running = self
            .find_container()
            .await?
            .is_some_and(|k| k.phase == ContainerPhase::Running);
        if !running {
            return Err(Error::NotRunning {
                container: name,
                up: self.instance.osctl_command("up"),
            }
            .into());
        }
        let request = serde_json::to_string(request)?;
        let mut unread = ResponseLines::default();
        let mut lines = |bytes: &[u8]| {
            unread.push(bytes).map_err(invalid_reply_error)?;
            while let Some(line) = unread.next() {
                check_values(&line).map_err(invalid_reply_error)?;
                match serde_json::from_slice(&line) {
                    Ok(KeeperReply::Refused { error }) => return Err(refusal_error(error)),
                    Ok(reply) => on_reply(reply)?,
                    // Messages of the engine arrive on the same stream.
                    Err(error) => {
                        return Err(invalid_reply_error(format!(
                            "{error}: {}",
                            printable_excerpt(&line)
                        )));
                    }
                }
            }
            Ok(())
        };
        let command = ["/osctl", "keeper", "ask", &request];
        let output = self.docker.exec(&name, &command, &mut lines).await?;
        match output.code {
            0 => Ok(()),
            _ => Err(Error::Unreachable {
                container: name,
                address: "its socket".into(),
                why: output.stderr.trim().into(),
            }
            .into()),
        }
    }

    /// Sends a request that has one reply, and returns it.
    ///
    /// # Errors
    /// As [`KeeperContainer::send_request`].
    pub(crate) async fn request_reply(&self, request: &KeeperRequest) -> Result<KeeperReply> {
        let mut answer = None;
        let mut on_reply = |reply| {
            answer = Some(reply);
            Ok(())
        };
        self.send_request(request, &mut on_reply).await?;
        answer.ok_or_else(|| invalid_reply_error("no reply"))
    }

    /// The keeper's status; `None` if no keeper runs.
    ///
    /// # Errors
    /// When the keeper runs and does not answer.
    pub(crate) async fn fetch_status(&self) -> Result<Option<EvolveStatus>> {
        match self.request_reply(&KeeperRequest::Status {}).await {
            Ok(KeeperReply::Status(status)) => Ok(Some(status)),
            Ok(other) => Err(unexpected_reply_error(&other)),
            Err(error) => match error.downcast_ref() {
                Some(Error::NotRunning { .. }) => Ok(None),
                _ => Err(error),
            },
        }
    }
}

/// The root of the git repository that contains the project, if it is above the project.
fn enclosing_repository(project: &Path) -> Option<PathBuf> {
    let is_there = |folder: &Path| folder.join(".git").symlink_metadata().is_ok();
    if is_there(project) {
        return None;
    }
    let mut folders = project.ancestors().skip(1);
    folders.find(|folder| is_there(folder)).map(Path::to_owned)
}

/// A refusal of the keeper, with its HTTP status.
fn refusal_error(fault: ApiError) -> anyhow::Error {
    let status = match fault.kind.as_str() {
        refusal::KEEPER_BAD_REQUEST => 400,
        refusal::KEEPER_FORBIDDEN => 403,
        refusal::KEEPER_NO_SUCH_RUN => 404,
        refusal::KEEPER_RATE_LIMITED | refusal::FORMER_KEEPER_RATE_LIMITED => 429,
        _ => 503,
    };
    Error::Refused {
        status,
        kind: fault.kind,
        message: fault.message,
        hint: fault.hint,
    }
    .into()
}

/// The error for a malformed reply of the keeper.
fn invalid_reply_error(why: impl fmt::Display) -> anyhow::Error {
    Error::Refused {
        status: 502,
        kind: "invalid_reply".into(),
        message: format!("unexpected reply from the keeper: {why}"),
        hint: Some("`osctl up` replaces a keeper of another version".into()),
    }
    .into()
}

/// The error for a reply that does not match the request.
pub(crate) fn unexpected_reply_error(reply: &KeeperReply) -> anyhow::Error {
    let reply = serde_json::to_vec(reply).unwrap_or_default();
    invalid_reply_error(format!(
        "it does not match the request: {}",
        printable_excerpt(&reply)
    ))
}

/// The deploy config as an archive of one file, readable by root alone.
fn deploy_config_archive(config: &DeployConfig) -> Result<Bytes> {
    crate::image::single_file_archive(DEPLOY_CONFIG_FILE, 0o600, &serde_json::to_vec(config)?)
}

/// The socket as the engine sees it: with a virtual machine, the engine's own socket.
fn engine_side_socket(socket: &Path) -> PathBuf {
    match cfg!(target_os = "linux") {
        true => socket.into(),
        false => "/var/run/docker.sock".into(),
    }
}

/// The printable part of a malformed reply.
fn printable_excerpt(line: &[u8]) -> String {
    let line = &line[..line.len().min(4 << 10)];
    let text = String::from_utf8_lossy(line);
    text_sanitizer::sanitize_line(text.trim())
        .chars()
        .take(300)
        .collect()
}
