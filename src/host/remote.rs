//! An instance whose engine is on another machine: what the host shares with a container here, it puts
//! into volumes there.
//!
//! The project is copied once. From then on the copy is the project, which the agent changes: its body is
//! what the image is built from, and `osctl cp` brings files there and back.

use super::instance::{Instance, LABEL};
use super::landing::Landing;
use super::specification::{DATA, PROJECT};
use crate::archive::{Folder, Mark, Pack, packed};
use crate::engine::{Docker, Progress};
use crate::error::{Error, Result};
use crate::image::several;
use crate::protocol::spec::{Environment, Limits, Restart, Spec, Volume, Workload};
use anyhow::Context;
use bytes::Bytes;
use futures_util::stream;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// Bytes of a body's archive: more than any that is built.
const BODY: usize = 256 << 20;
/// How often it is told how far a copy is.
const TELL: std::time::Duration = std::time::Duration::from_millis(200);

/// The volumes of an instance.
#[derive(Clone, Copy)]
pub(crate) struct Volumes<'a> {
    pub(crate) docker: &'a Docker,
    pub(crate) instance: &'a Instance,
    pub(crate) progress: &'a dyn Progress,
}

impl Volumes<'_> {
    /// A folder with the body of the copy, at the same place as in the project; nothing when there is no
    /// image to look at it with.
    ///
    /// # Errors
    /// When the engine refuses, or the body is no folder.
    pub(crate) async fn body(&self, place: &Path) -> Result<Option<TempDir>> {
        let tag = format!("{}:latest", self.instance.image());
        let Some(image) = self.docker.image(&tag).await? else {
            return Ok(None);
        };
        let path = format!("{PROJECT}/{}", place.display());
        let [_, _, project] = self.instance.volumes();
        let name = self.open(&image.id, &[(project, PROJECT)]).await?;
        let fetched = self.docker.fetch(&name, &path, BODY).await;
        self.docker.remove(&name).await?;
        let folder = tempfile::tempdir()?;
        let Some(archive) = fetched? else {
            return Ok(Some(folder));
        };
        let parent = folder.path().join(place.parent().unwrap_or(Path::new("")));
        std::fs::create_dir_all(&parent)?;
        let landing = Landing::folder(&parent, false)?;
        // What it does not take, its end explains.
        let _ = landing.feed()?.give(Bytes::from(archive)).await;
        landing
            .end(Ok(()))
            .await
            .with_context(|| format!("unpacking `{path}`"))?;
        Ok(Some(folder))
    }

    /// Copies the project there, whatever was there before of the same name.
    ///
    /// # Errors
    /// When it can't be read, or the engine refuses.
    pub(crate) async fn copy_project(&self, image: &str, project: &Path) -> Result<()> {
        let [_, _, volume] = self.instance.volumes();
        let name = self.open(image, &[(volume, PROJECT)]).await?;
        let copied = self.copy(&name, project).await;
        self.docker.remove(&name).await?;
        copied
    }

    async fn copy(&self, name: &str, project: &Path) -> Result<()> {
        let doing = format!("copying `{}` there", project.display());
        self.progress.step(&doing);
        let folder =
            Folder::open(project).with_context(|| format!("opening `{}`", project.display()))?;
        let moved = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&moved);
        let moves = move |bytes| _ = sum.fetch_add(bytes, Ordering::Relaxed);
        let packed = packed(Pack::Folder(folder), Mark::default(), moves).await;
        let mut pieces =
            packed.map_err(|fault| Error::precondition(fault.to_string(), "run it again"))?;
        let pieces = stream::poll_fn(move |cx| pieces.poll_recv(cx));
        let put = self.docker.put_stream(name, PROJECT, pieces);
        tokio::pin!(put);
        loop {
            tokio::select! {
                done = &mut put => return done,
                () = tokio::time::sleep(TELL) => self.progress.amount(&doing, moved.load(Ordering::Relaxed), None),
            }
        }
    }

    /// Puts small files where the companion looks for them: their paths beneath its data, and their rights.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn hand_in(&self, image: &str, files: &[(&str, u32, &[u8])]) -> Result<()> {
        let [_, data, _] = self.instance.volumes();
        let name = self.open(image, &[(data, DATA)]).await?;
        let put = self.docker.put(&name, DATA, several(files)?).await;
        self.docker.remove(&name).await?;
        put
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
