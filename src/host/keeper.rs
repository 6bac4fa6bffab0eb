//! The keeper from the host's side: its container, what it may do, and its words through the engine.
//!
//! It is asked by a command in its container, so that it answers also when `os-host` does not run.

use super::answer::{Lines, check_values};
use super::folders::Folders;
use super::instance::{Instance, KEEPER_NAME, LABEL, Record};
use super::passed_env::{PassedEnv, passing};
use super::{base, build, trust};
use crate::config::Config;
use crate::engine::{
    Build, Builder, ClassicBuild, Container, Docker, IMAGE_LABEL, Phase, Progress, identify,
};
use crate::error::{Error, Result};
use crate::image::{Body, Companion, bare};
use crate::protocol::evolve::{
    Ask, Authority, Bounds, CHARGE, Charge, KEEPER_IMAGE, Proxies, Reply, Status, built, refusal,
};
use crate::protocol::fault::Fault;
use crate::protocol::plain;
use crate::protocol::spec::{Environment, Limits, Mount, Restart, Spec, Volume, Workload};
use anyhow::Context;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What part of an instance a container is, where it is not the instance itself.
pub(super) const PART: &str = "osctl.part";
/// The image's name; its tag is what it is made of.
pub(super) const IMAGE: &str = "os-keeper";
/// Bytes: a body and its archive are in memory while an image is built.
const MEMORY: u64 = 2 << 30;
/// How long one that was just started may give no answer.
const READY: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(50);

/// One instance's keeper.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeper<'a> {
    pub(crate) docker: &'a Docker,
    pub(crate) instance: &'a Instance,
}

/// All that the keeper may do for this instance, whose container is `spec`.
///
/// # Errors
/// When the engine does not answer.
pub(crate) async fn charge(
    docker: &Docker,
    config: &Config,
    instance: &Instance,
    project: &Path,
    (spec, passed): (Spec, &PassedEnv),
) -> Result<Charge> {
    // An image that is up to date needs no base; the engine pulls what it has not, when it is built on.
    let base = base::known_base(docker, &config.base).await?;
    let certificates = trust::certificates().into_iter();
    Ok(Charge {
        instance: instance.name.clone(),
        above: above(project),
        passing: passing(&spec.env, config),
        spec,
        aside: instance.aside(),
        image: instance.image(),
        body: config.body.clone(),
        base: base.unwrap_or_else(|| config.base.clone()),
        args: build::arguments(config),
        proxies: Proxies(passed.proxies().clone()),
        certificates: certificates
            .map(|c| Authority {
                name: c.name,
                pem: c.pem,
            })
            .collect(),
        classic: build::is_classic(),
        bounds: Bounds {
            build: config.evolve.build,
            start: config.evolve.start,
            grace: config.evolve.grace,
            probation: config.evolve.probation,
            ..Bounds::default()
        },
    })
}

/// The name of the image that holds nothing but the binary; built where the engine has it not.
///
/// # Errors
/// When it can't be built.
pub(super) async fn image(
    docker: &Docker,
    companion: &Companion,
    progress: &dyn Progress,
) -> Result<String> {
    let (digest, context) = bare(companion)?;
    let tag = format!("{IMAGE}:{}", &digest[..16]);
    if docker.image(&tag).await?.is_some() {
        return Ok(tag);
    }
    progress.step("building the keeper's image");
    let build = Build {
        tag: tag.clone(),
        context,
        args: BTreeMap::new(),
        labels: BTreeMap::from([
            ("osctl.version".into(), env!("CARGO_PKG_VERSION").into()),
            (IMAGE_LABEL.into(), KEEPER_NAME.into()),
        ]),
        builder: match build::uses_buildkit(docker) {
            true => Builder::BuildKit,
            // It runs no step.
            false => Builder::Classic(ClassicBuild::default()),
        },
    };
    docker.build(&build, progress).await?;
    Ok(tag)
}

impl Keeper<'_> {
    /// A keeper of this version that runs, and has the charge.
    ///
    /// # Errors
    /// When its image can't be built, or the engine refuses.
    pub(crate) async fn appoint(
        &self,
        charge: &Charge,
        companion: &Companion,
        record: &Record,
        socket: Option<&Path>,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.employ(companion, record, socket, progress).await?;
        let name = self.instance.keeper();
        self.docker.put(&name, "/state", laid_down(charge)?).await
    }

    /// A keeper of this version that runs.
    pub(super) async fn employ(
        &self,
        companion: &Companion,
        record: &Record,
        socket: Option<&Path>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some(socket) = socket else {
            let message = "the engine listens at no socket that the keeper could be given";
            let hint = "`DOCKER_HOST=unix:///PATH osctl up` names one";
            return Err(Error::precondition(message, hint).into());
        };
        let name = image(self.docker, companion, progress).await?;
        let built = self.docker.image(&name).await?;
        let image = built.context("the keeper's image is gone")?.id;
        let socket = match record.remote {
            None => socket_within(socket),
            Some(_) => socket.into(),
        };
        let mut spec = self.specification(&image, record, &socket);
        spec.env.set(KEEPER_IMAGE, name);
        identify(&mut spec, &BTreeSet::new())?;
        let name = &spec.name;
        let found = self.find().await?;
        let digest = crate::engine::DIGEST_LABEL;
        match &found {
            Some(keeper) if keeper.labels.get(digest) == spec.labels.get(digest) => {
                if keeper.phase != Phase::Running {
                    self.docker.start(name).await?;
                }
            }
            _ => {
                progress.step(&format!("starting `{name}`"));
                self.docker.remove(name).await?;
                self.docker.create(&spec).await?;
                if let Some(former) = found.filter(|former| former.image != image) {
                    self.docker.remove_image(&former.image).await?;
                }
            }
        }
        Ok(())
    }

    /// Puts the body of the image that the host has built where the keeper finds it, which compares with it
    /// what replaces that.
    ///
    /// # Errors
    /// When the engine does not take it.
    pub(crate) async fn lay_down(&self, image: &str, body: &Body) -> Result<()> {
        let archive = crate::image::single(&built(image), 0o600, &body.archive()?)?;
        self.docker
            .put(&self.instance.keeper(), "/state", archive)
            .await
    }

    fn specification(&self, image: &str, record: &Record, socket: &Path) -> Spec {
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
            volume(instance.keeper_state(), "/state", false),
            volume(instance.keeper_door(), "/door", false),
        ];
        let [_, _, project] = instance.volumes();
        match record.remote {
            None => mounts.push(mount(&record.project, "/repo", true)),
            Some(_) => volumes.push(volume(project, "/repo", true)),
        }
        Spec {
            name: instance.keeper(),
            hostname: instance.keeper(),
            image: image.into(),
            network: None,
            mounts,
            volumes,
            ports: Vec::new(),
            env: Environment::default(),
            limits: Limits {
                // Every machine has one, and it is idle for most of the time.
                cpus: Some(1.0),
                memory: Some(MEMORY),
                pids: 64,
                shm: 1 << 20,
            },
            workload: Workload::ROOT,
            // A project that its person alone may read. Who has the engine's socket gains nothing by it.
            capabilities: vec!["DAC_READ_SEARCH".into()],
            security: vec!["no-new-privileges".into()],
            labels: BTreeMap::from([
                (LABEL.into(), instance.name.clone()),
                (PART.into(), "keeper".into()),
            ]),
            health_check: Vec::new(),
            stop_timeout: 5,
            read_only: true,
            // An engine that was killed finds it again.
            restart: Restart::Always,
        }
    }

    pub(super) async fn find(&self) -> Result<Option<Container>> {
        let name = self.instance.keeper();
        match self.docker.inspect(&name).await? {
            Some(found) if found.labels.get(LABEL) != Some(&self.instance.name) => {
                Err(Error::Foreign {
                    what: "container",
                    name,
                }
                .into())
            }
            found => Ok(found),
        }
    }

    /// Starts one that was stopped, so that it ends what it has begun before others replace the
    /// container. Waits for one that the engine is just starting.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) async fn wake(&self) -> Result<()> {
        match self.find().await?.map(|keeper| keeper.phase) {
            Some(Phase::Stopped) => {
                self.docker.start(&self.instance.keeper()).await?;
                self.until_ready().await
            }
            Some(Phase::Running | Phase::Restarting) => self.until_ready().await,
            _ => Ok(()),
        }
    }

    /// Waits until one that was just started answers.
    ///
    /// # Errors
    /// When it does not for long.
    pub(crate) async fn until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            match self.answer(&Ask::Status {}).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Removes its container; what it knows stays.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn dismiss(&self) -> Result<()> {
        match self.find().await? {
            Some(_) => self.docker.remove(&self.instance.keeper()).await,
            None => Ok(()),
        }
    }

    /// Removes what it knows, once it is dismissed, and its images that no instance needs.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn forget(&self, folders: &Folders) -> Result<()> {
        let label = (LABEL, self.instance.name.as_str());
        for volume in [self.instance.keeper_state(), self.instance.keeper_door()] {
            self.docker.remove_volume(&volume, label).await?;
        }
        if let Some(_turn) = base::images_to_remove(folders)? {
            for tag in self.docker.tags(IMAGE).await? {
                self.docker.remove_image(&tag).await?;
            }
            // Two instances may have built it at once.
            for image in self.docker.nameless().await? {
                if image.labels.get(IMAGE_LABEL).map(String::as_str) == Some(KEEPER_NAME) {
                    self.docker.remove_image(&image.id).await?;
                }
            }
        }
        Ok(())
    }

    /// Asks it, and hands each reply to `each`.
    ///
    /// # Errors
    /// When it does not run, does not answer, or refuses; and what `each` says.
    pub(crate) async fn ask(
        &self,
        question: &Ask,
        each: &mut (dyn FnMut(Reply) -> Result<()> + Send),
    ) -> Result<()> {
        let name = self.instance.keeper();
        let running = self
            .find()
            .await?
            .is_some_and(|k| k.phase == Phase::Running);
        if !running {
            return Err(Error::NotRunning {
                container: name,
                up: self.instance.command("up"),
            }
            .into());
        }
        let question = serde_json::to_string(question)?;
        let mut unread = Lines::default();
        let mut lines = |bytes: &[u8]| {
            unread.push(bytes).map_err(senseless)?;
            while let Some(line) = unread.next() {
                check_values(&line).map_err(senseless)?;
                match serde_json::from_slice(&line) {
                    Ok(Reply::Refused { error }) => return Err(refused(error)),
                    Ok(reply) => each(reply)?,
                    // The engine's own words come in the same place.
                    Err(error) => return Err(senseless(format!("{error}: {}", said(&line)))),
                }
            }
            Ok(())
        };
        let words = ["/osctl", "keeper", "ask", &question];
        let output = self.docker.exec(&name, &words, &mut lines).await?;
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

    /// The one reply to a question that has one.
    ///
    /// # Errors
    /// As [`Keeper::ask`].
    pub(crate) async fn answer(&self, question: &Ask) -> Result<Reply> {
        let mut answer = None;
        let mut each = |reply| {
            answer = Some(reply);
            Ok(())
        };
        self.ask(question, &mut each).await?;
        answer.ok_or_else(|| senseless("no reply"))
    }

    /// How it stands; nothing when there is no keeper that runs.
    ///
    /// # Errors
    /// When it runs and does not answer.
    pub(crate) async fn status(&self) -> Result<Option<Status>> {
        match self.answer(&Ask::Status {}).await {
            Ok(Reply::Status(status)) => Ok(Some(status)),
            Ok(other) => Err(unasked(&other)),
            Err(error) => match error.downcast_ref() {
                Some(Error::NotRunning { .. }) => Ok(None),
                _ => Err(error),
            },
        }
    }
}

/// The folder above the project where the git repository begins that it is in.
fn above(project: &Path) -> Option<PathBuf> {
    let is_there = |folder: &Path| folder.join(".git").symlink_metadata().is_ok();
    if is_there(project) {
        return None;
    }
    let mut folders = project.ancestors().skip(1);
    folders.find(|folder| is_there(folder)).map(Path::to_owned)
}

/// A refusal of the keeper's, with its number in HTTP.
fn refused(fault: Fault) -> anyhow::Error {
    let status = match fault.kind.as_str() {
        refusal::BAD_REQUEST => 400,
        refusal::NO_SUCH_RUN => 404,
        refusal::TOO_OFTEN => 429,
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

/// An answer of the keeper's that can't be one.
fn senseless(why: impl fmt::Display) -> anyhow::Error {
    Error::Refused {
        status: 502,
        kind: "senseless_answer".into(),
        message: format!("the keeper does not answer as it should: {why}"),
        hint: Some("`osctl up` replaces the keeper of another version".into()),
    }
    .into()
}

/// A reply to another question than the one that was asked.
pub(crate) fn unasked(reply: &Reply) -> anyhow::Error {
    let reply = serde_json::to_vec(reply).unwrap_or_default();
    senseless(format!(
        "the keeper answers another question: {}",
        said(&reply)
    ))
}

/// The charge as an archive of one file, for root alone.
fn laid_down(charge: &Charge) -> Result<Bytes> {
    crate::image::single(CHARGE, 0o600, &serde_json::to_vec(charge)?)
}

/// The socket as the engine finds it: in a virtual machine, its own.
fn socket_within(socket: &Path) -> PathBuf {
    match cfg!(target_os = "linux") {
        true => socket.into(),
        false => "/var/run/docker.sock".into(),
    }
}

/// What is no answer, as far as it can be shown.
fn said(line: &[u8]) -> String {
    let line = &line[..line.len().min(4 << 10)];
    let text = String::from_utf8_lossy(line);
    plain::line(text.trim()).chars().take(300).collect()
}
