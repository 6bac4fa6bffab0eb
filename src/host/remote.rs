//! An instance whose engine is on another machine: what the host shares with a container here, it puts
//! into volumes there.
//!
//! The project is copied once. From then on the copy is the project, which the agent changes: its body is
//! what the image is built from, and `osctl cp` brings files there and back.

use super::instance::{Instance, LABEL, Record, Remote};
use super::landing::Landing;
use super::secrets::write_private;
use super::specification::{DATA, PROJECT};
use super::{keeper, mcp};
use crate::archive::{Folder, Mark, Pack, Telling, packed};
use crate::config::Config;
use crate::engine::{Docker, Progress};
use crate::error::{Error, Result};
use crate::image;
use crate::protocol::desktop::VNC_PASSWORD;
use crate::protocol::spec::{Environment, Limits, Restart, Spec, Volume, Workload};
use anyhow::Context;
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Bytes of a body's archive: more than any that is built.
const BODY: usize = 256 << 20;
/// How often it is told how far a copy is.
const TELL: Duration = Duration::from_millis(200);
/// Bytes of an archive beside its one file.
const ROOM: usize = 16 << 10;

/// The volumes of an instance.
#[derive(Clone, Copy)]
pub(crate) struct Volumes<'a> {
    pub(crate) docker: &'a Docker,
    pub(crate) instance: &'a Instance,
    pub(crate) progress: &'a dyn Progress,
}

impl<'a> Volumes<'a> {
    /// Nothing where the engine is on this machine.
    pub(crate) fn of(
        docker: &'a Docker,
        instance: &'a Instance,
        progress: &'a dyn Progress,
    ) -> Option<Self> {
        docker.address().elsewhere()?;
        Some(Self {
            docker,
            instance,
            progress,
        })
    }

    /// Where the engine is, and whether the project is there.
    ///
    /// # Errors
    /// When another one is, or the engine does not answer.
    pub(crate) async fn remote(&self, recorded: Option<&Record>, project: &Path) -> Result<Remote> {
        let [_, _, volume] = self.instance.volumes();
        let was = recorded.and_then(|record| record.remote.as_ref());
        let was_copied = was.is_some_and(|remote| remote.copied);
        let copied = was_copied && self.docker.has_volume(&volume).await?;
        if let Some(record) = recorded.filter(|record| copied && record.project != project) {
            let (machine, purge) = (self.docker.address(), self.instance.command("down --purge"));
            let message = format!("`{machine}` has a copy of `{}`", record.project.display());
            let hint = format!("`{purge}` removes the copy; or another `--instance`");
            return Err(Error::precondition(message, hint).into());
        }
        let address = self.docker.address().clone();
        Ok(Remote { address, copied })
    }

    /// A folder with the body of the copy, at the same place as in the project.
    ///
    /// # Errors
    /// When the engine refuses, or the body can't be one.
    pub(crate) async fn body(&self, config: &Config) -> Result<TempDir> {
        let image = self.any_image(config).await?;
        let [_, _, project] = self.instance.volumes();
        let place = config.body.as_path();
        // So that the archive is of what is in it, whatever its name.
        let path = format!("{PROJECT}/{}/.", place.display());
        let name = self.open(&image, &[(project, PROJECT)]).await?;
        let fetched = self.docker.fetch(&name, &path, BODY).await;
        self.docker.remove(&name).await?;
        let folder = tempfile::tempdir()?;
        let unfit = |error: anyhow::Error| Error::UnfitBody {
            body: format!("{}:{PROJECT}", self.instance.container()).into(),
            why: format!("{error:#}"),
        };
        if let Some(archive) = fetched? {
            let mut body = Folder::open(folder.path())?;
            for part in place.components() {
                body = body.ensure_folder(part.as_os_str())?;
            }
            let landing = Landing::folder(body, false, false)?;
            // What it does not take, its end explains.
            let _ = landing.feed()?.give(Bytes::from(archive)).await;
            landing.end(Ok(())).await.map_err(unfit)?;
        }
        Ok(folder)
    }

    /// An image that is there, to look into volumes with: of it, nothing is run.
    async fn any_image(&self, config: &Config) -> Result<String> {
        let own = format!("{}:latest", self.instance.image());
        let keepers = self.docker.tags(keeper::IMAGE).await?;
        for tag in keepers.iter().chain([&own, &config.base]) {
            if let Some(image) = self.docker.image(tag).await? {
                return Ok(image.id);
            }
        }
        let message = "no image is left there to look at the project's copy with";
        let hint = format!("bring `{}` there, as by `docker pull`", config.base);
        Err(Error::precondition(message, hint).into())
    }

    /// Puts there what the host would share with a container here, and, the first time, the project.
    ///
    /// # Errors
    /// When something can't be read, or the engine refuses.
    pub(crate) async fn hand_in(
        &self,
        record: &mut Record,
        image: &str,
        servers: &BTreeMap<String, Value>,
        password: &str,
    ) -> Result<()> {
        let servers = mcp::document(servers)?;
        let [_, data, _] = self.instance.volumes();
        let name = self.open(image, &[(data, DATA)]).await?;
        let put = async {
            for (path, content) in [
                (mcp::SERVERS, servers.as_slice()),
                (VNC_PASSWORD, password.as_bytes()),
            ] {
                let archive = image::single(path, 0o600, content)?;
                if !self.holds(&name, path, content).await? {
                    self.docker.put(&name, DATA, archive).await?;
                }
            }
            Ok(())
        };
        let put = put.await;
        self.docker.remove(&name).await?;
        match &mut record.remote {
            Some(remote) if !remote.copied => {
                put?;
                self.copy_project(image, &record.project).await?;
                remote.copied = true;
                Ok(())
            }
            _ => put,
        }
    }

    /// Whether a file is what it should be: one that is read meanwhile is not written.
    async fn holds(&self, name: &str, path: &str, content: &[u8]) -> Result<bool> {
        let limit = content.len() + ROOM;
        let Ok(Some(archive)) = self
            .docker
            .fetch(name, &format!("{DATA}/{path}"), limit)
            .await
        else {
            return Ok(false);
        };
        Ok(image::content(&archive)? == content)
    }

    /// A copy that was not finished is made again; one that somebody else has made is left alone.
    async fn copy_project(&self, image: &str, project: &Path) -> Result<()> {
        let [_, _, volume] = self.instance.volumes();
        let begun = self.instance.copying();
        if !begun.exists() && self.docker.has_volume(&volume).await? {
            let message = format!(
                "the volume `{volume}` at `{}` is another one's copy of a project, or of an instance that this machine has forgotten",
                self.docker.address()
            );
            let hint = format!(
                "another `--instance` has a volume of its own; `docker volume rm {volume}` removes this one with all that is in it"
            );
            return Err(Error::precondition(message, hint).into());
        }
        write_private(&begun, b"")?;
        let name = self.open(image, &[(volume, PROJECT)]).await?;
        let copied = self.copy(&name, project).await;
        self.docker.remove(&name).await?;
        copied?;
        std::fs::remove_file(begun)?;
        Ok(())
    }

    async fn copy(&self, name: &str, project: &Path) -> Result<()> {
        let doing = format!("copying `{}` there", project.display());
        self.progress.step(&doing);
        let opened = Folder::open(project);
        let folder = opened.with_context(|| format!("opening `{}`", project.display()))?;
        let moved = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&moved);
        let moves = move |bytes| _ = sum.fetch_add(bytes, Ordering::Relaxed);
        let packed = packed(
            Pack::Folder(folder),
            Mark::default(),
            Telling::Stream,
            moves,
        )
        .await;
        let unread = |why: String| {
            let message = format!("`{}` can't be copied: {why}", project.display());
            Error::precondition(message, "mend that, and run it again: it begins anew")
        };
        let mut pieces = packed.map_err(|fault| unread(fault.to_string()))?;
        // The engine only sees that the archive ends.
        let (fault, mut faults) = mpsc::unbounded_channel();
        let pieces = stream::poll_fn(move |cx| {
            let next = pieces.poll_recv(cx);
            if let Poll::Ready(Some(Err(error))) = &next {
                // Whoever listens is told once all has ended.
                let _ = fault.send(error.to_string());
            }
            next
        });
        let put = self.docker.put_stream(name, PROJECT, pieces);
        tokio::pin!(put);
        loop {
            tokio::select! {
                done = &mut put => {
                    return match faults.try_recv() {
                        Ok(why) => Err(unread(why).into()),
                        Err(_) => done,
                    };
                }
                () = tokio::time::sleep(TELL) => {
                    self.progress.amount(&doing, moved.load(Ordering::Relaxed), None);
                }
            }
        }
    }

    /// A container that never runs, to look into volumes and put something there.
    async fn open(&self, image: &str, volumes: &[(String, &str)]) -> Result<String> {
        let name = format!("{}.volumes", self.instance.container());
        let volumes = volumes.iter().map(|(name, place)| Volume {
            name: Some(name.clone()),
            container: (*place).into(),
            read_only: false,
        });
        let spec = Spec {
            name: name.clone(),
            hostname: self.instance.container(),
            image: image.into(),
            network: None,
            mounts: Vec::new(),
            volumes: volumes.collect(),
            ports: Vec::new(),
            env: Environment::default(),
            limits: Limits {
                cpus: None,
                memory: None,
                pids: 1,
                shm: 1 << 20,
            },
            workload: Workload::ROOT,
            capabilities: Vec::new(),
            security: Vec::new(),
            labels: BTreeMap::from([(LABEL.into(), self.instance.name.clone())]),
            health_check: Vec::new(),
            stop_timeout: 1,
            read_only: true,
            restart: Restart::Never,
        };
        // One that an interrupted command left.
        self.docker.remove(&name).await?;
        self.docker.make(&spec).await?;
        Ok(name)
    }

    /// Removes them, with all that is in them but the person's files.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn forget(&self) -> Result<()> {
        let [_, data, project] = self.instance.volumes();
        for volume in [data, project] {
            let label = (LABEL, self.instance.name.as_str());
            self.docker.remove_volume(&volume, label).await?;
        }
        Ok(())
    }
}
