//! An instance whose engine is on another machine: the host copies into volumes on that machine the files that it would
//! otherwise share with a local container.
//!
//! The project is copied once. From then on the copy is the project, and the agent changes it: the image is built from
//! the body in the copy, and `osctl cp` copies files in both directions.

use super::container_spec::{CONTAINER_DATA_PATH, CONTAINER_PROJECT_PATH};
use super::download::DownloadWriter;
use super::folders::write_private;
use super::instance::{INSTANCE_LABEL, Instance, InstanceRecord, RemoteEngine};
use super::{build, mcp};
use crate::archive::{ErrorReporting, Folder, PackSource, ResumePoint, pack_stream};
use crate::config::Config;
use crate::engine::{Docker, EngineProgress};
use crate::error::{Error, Result};
use crate::image;
use crate::protocol::desktop::VNC_PASSWORD_FILE;
use crate::protocol::environment::ENVIRONMENT_FILE;
use crate::protocol::packages::{
    LOCK_FILE, MAX_LOCK_FILE_BYTES, MAX_PROJECT_FILE_BYTES, PROJECT_FILE,
};
use crate::protocol::spec::{
    ContainerEnv, ContainerLimits, ContainerRestartPolicy, ContainerSpec, Volume, Workload,
};
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

/// Limit of a body's archive in bytes: more than any body that can be built.
const MAX_REMOTE_BODY_BYTES: usize = 256 << 20;
/// Interval of progress reports of a copy.
const COPY_PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of an archive besides its one file.
const TAR_OVERHEAD_BYTES: usize = 16 << 10;

/// The volumes of an instance.
#[derive(Clone, Copy)]
pub(crate) struct RemoteVolumes<'a> {
    pub(crate) docker: &'a Docker,
    pub(crate) instance: &'a Instance,
    pub(crate) progress: &'a dyn EngineProgress,
}

impl<'a> RemoteVolumes<'a> {
    /// `None` if the engine is on this machine.
    pub(crate) fn for_instance(
        docker: &'a Docker,
        instance: &'a Instance,
        progress: &'a dyn EngineProgress,
    ) -> Option<Self> {
        docker.address().remote_host()?;
        Some(Self {
            docker,
            instance,
            progress,
        })
    }

    /// The address of the engine, and whether the project has been copied there.
    ///
    /// # Errors
    /// When the engine's machine has a copy of another project, or the engine does not answer.
    pub(crate) async fn remote_engine(
        &self,
        recorded: Option<&InstanceRecord>,
        project: &Path,
    ) -> Result<RemoteEngine> {
        let [_, _, volume] = self.instance.volume_names();
        let was = recorded.and_then(|record| record.remote.as_ref());
        let was_copied = was.is_some_and(|remote| remote.copied);
        let copied = was_copied && self.docker.has_volume(&volume).await?;
        if let Some(record) = recorded.filter(|record| copied && record.project != project) {
            let (machine, purge) = (
                self.docker.address(),
                self.instance.osctl_command("down --purge"),
            );
            let message = format!(
                "`{machine}` already has a copy of `{}`",
                record.project.display()
            );
            let hint = format!("`{purge}` removes the copy; or use another `--instance`");
            return Err(Error::precondition(message, hint).into());
        }
        let address = self.docker.address().clone();
        Ok(RemoteEngine { address, copied })
    }

    /// A temporary folder with the body of the copied project, at the same relative path as in the project, and the
    /// files with its packages.
    ///
    /// # Errors
    /// When the engine refuses, or the body is not usable.
    pub(crate) async fn fetch_body(&self, config: &Config) -> Result<TempDir> {
        let image = self.find_helper_image(config).await?;
        let [_, _, project] = self.instance.volume_names();
        let place = config.body.as_path();
        // With `/.` the archive holds the contents of the folder, whatever its name.
        let path = format!("{CONTAINER_PROJECT_PATH}/{}/.", place.display());
        let name = self
            .create_helper_container(&image, &[(project, CONTAINER_PROJECT_PATH)])
            .await?;
        let fetched = self
            .docker
            .get_archive(&name, &path, MAX_REMOTE_BODY_BYTES)
            .await;
        let packages = self.fetch_package_files(&name).await;
        self.docker.remove(&name).await?;
        let folder = tempfile::tempdir()?;
        for (file, content) in packages? {
            write_private(&folder.path().join(file), &content)?;
        }
        let unfit = |error: anyhow::Error| Error::InvalidBody {
            body: format!(
                "{}:{CONTAINER_PROJECT_PATH}",
                self.instance.container_name()
            )
            .into(),
            why: format!("{error:#}"),
        };
        if let Some(archive) = fetched? {
            let mut body = Folder::open(folder.path())?;
            for part in place.components() {
                body = body.ensure_folder(part.as_os_str())?;
            }
            let download = DownloadWriter::to_folder(body, false, false)?;
            // If the receiver rejects a chunk, `finish` returns the reason.
            let _ = download
                .chunk_sender()?
                .send_chunk(Bytes::from(archive))
                .await;
            download.finish(Ok(())).await.map_err(unfit)?;
        }
        Ok(folder)
    }

    /// The files of the copied project with its packages; a missing file is left out.
    async fn fetch_package_files(&self, name: &str) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let mut files = Vec::new();
        for (file, limit) in [
            (PROJECT_FILE, MAX_PROJECT_FILE_BYTES),
            (LOCK_FILE, MAX_LOCK_FILE_BYTES),
        ] {
            let path = format!("{CONTAINER_PROJECT_PATH}/{file}");
            let limit = usize::try_from(limit)? + TAR_OVERHEAD_BYTES;
            if let Some(archive) = self.docker.get_archive(name, &path, limit).await? {
                files.push((file, image::single_file_content(&archive)?));
            }
        }
        Ok(files)
    }

    /// An existing image for helper containers that access volumes; nothing of the image runs.
    async fn find_helper_image(&self, config: &Config) -> Result<String> {
        let own = format!("{}:latest", self.instance.image_name());
        let keepers = self.docker.list_tags(build::KEEPER_IMAGE_NAME).await?;
        for tag in keepers.iter().chain([&own, &config.base]) {
            if let Some(image) = self.docker.find_image(tag).await? {
                return Ok(image.id);
            }
        }
        let message = "the engine has no image with which osctl can read the project's copy";
        let hint = format!(
            "load `{}` on that engine, for example with `docker pull`",
            config.base
        );
        Err(Error::precondition(message, hint).into())
    }

    /// Copies into the volumes the files that the host would otherwise share with a local container and, the first
    /// time, the project.
    ///
    /// # Errors
    /// When a file cannot be read, or the engine refuses.
    pub(crate) async fn upload_instance_files(
        &self,
        record: &mut InstanceRecord,
        image: &str,
        servers: &BTreeMap<String, Value>,
        password: &str,
    ) -> Result<()> {
        let servers = mcp::servers_document(servers)?;
        let environment = match self.instance.read_environment()? {
            Some(variables) => Some(serde_json::to_vec(&variables)?),
            None => None,
        };
        let [_, data, _] = self.instance.volume_names();
        let name = self
            .create_helper_container(image, &[(data, CONTAINER_DATA_PATH)])
            .await?;
        let put = async {
            let environment = environment.as_deref();
            let files = [
                (mcp::CONFIGURED_SERVERS_FILE, servers.as_slice()),
                (VNC_PASSWORD_FILE, password.as_bytes()),
            ];
            let environment = environment.map(|text| (ENVIRONMENT_FILE, text));
            for (path, content) in files.into_iter().chain(environment) {
                let archive = image::single_file_archive(path, 0o600, content)?;
                if !self.has_content(&name, path, content).await? {
                    self.docker
                        .put_archive(&name, CONTAINER_DATA_PATH, archive)
                        .await?;
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

    /// Whether a file has this content. An unchanged file is not written, because a process may be reading it.
    async fn has_content(&self, name: &str, path: &str, content: &[u8]) -> Result<bool> {
        let limit = content.len() + TAR_OVERHEAD_BYTES;
        let Ok(Some(archive)) = self
            .docker
            .get_archive(name, &format!("{CONTAINER_DATA_PATH}/{path}"), limit)
            .await
        else {
            return Ok(false);
        };
        Ok(image::single_file_content(&archive)? == content)
    }

    /// Copies the project. Repeats an incomplete copy; refuses, and leaves the volume unchanged, if this instance did
    /// not create it.
    async fn copy_project(&self, image: &str, project: &Path) -> Result<()> {
        let [_, _, volume] = self.instance.volume_names();
        let copy_marker = self.instance.project_copy_marker();
        if !copy_marker.exists() && self.docker.has_volume(&volume).await? {
            let message = format!(
                "the volume `{volume}` at `{}` belongs to another project, or to an instance without a record on this machine",
                self.docker.address()
            );
            let hint = format!(
                "another `--instance` has its own volume; `docker volume rm {volume}` removes this volume and its contents"
            );
            return Err(Error::precondition(message, hint).into());
        }
        write_private(&copy_marker, b"")?;
        let name = self
            .create_helper_container(image, &[(volume, CONTAINER_PROJECT_PATH)])
            .await?;
        let copied = self.stream_project(&name, project).await;
        self.docker.remove(&name).await?;
        copied?;
        std::fs::remove_file(copy_marker)?;
        Ok(())
    }

    async fn stream_project(&self, name: &str, project: &Path) -> Result<()> {
        let step = format!("copying `{}` to the engine", project.display());
        self.progress.report_step(&step);
        let opened = Folder::open(project);
        let folder = opened.with_context(|| format!("opening `{}`", project.display()))?;
        let moved = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&moved);
        let moves = move |bytes| _ = sum.fetch_add(bytes, Ordering::Relaxed);
        let packed = pack_stream(
            PackSource::Folder(folder),
            ResumePoint::default(),
            ErrorReporting::Stream,
            moves,
        )
        .await;
        let unread = |why: String| {
            let message = format!("`{}` can't be copied: {why}", project.display());
            Error::precondition(
                message,
                "fix the cause and run the command again; the copy restarts from the beginning",
            )
        };
        let mut pieces = packed.map_err(|error| unread(error.to_string()))?;
        // The engine only sees that the archive ends, so this channel carries the reason.
        let (error_sender, mut errors) = mpsc::unbounded_channel();
        let pieces = stream::poll_fn(move |cx| {
            let next = pieces.poll_recv(cx);
            if let Poll::Ready(Some(Err(error))) = &next {
                // The receiver reads the reason after the transfer has ended.
                let _ = error_sender.send(error.to_string());
            }
            next
        });
        let put = self.docker.put_stream(name, CONTAINER_PROJECT_PATH, pieces);
        tokio::pin!(put);
        loop {
            tokio::select! {
                done = &mut put => {
                    return match errors.try_recv() {
                        Ok(why) => Err(unread(why).into()),
                        Err(_) => done,
                    };
                }
                () = tokio::time::sleep(COPY_PROGRESS_INTERVAL) => {
                    self.progress.report_amount(&step, moved.load(Ordering::Relaxed), None);
                }
            }
        }
    }

    /// A container that never runs, for access to the volumes.
    async fn create_helper_container(
        &self,
        image: &str,
        volumes: &[(String, &str)],
    ) -> Result<String> {
        let name = format!("{}.volumes", self.instance.container_name());
        let volumes = volumes.iter().map(|(name, place)| Volume {
            name: Some(name.clone()),
            container: (*place).into(),
            read_only: false,
        });
        let spec = ContainerSpec {
            name: name.clone(),
            hostname: self.instance.container_name(),
            image: image.into(),
            network: None,
            mounts: Vec::new(),
            volumes: volumes.collect(),
            ports: Vec::new(),
            env: ContainerEnv::default(),
            limits: ContainerLimits {
                cpus: None,
                memory: None,
                pids: 1,
                shm: 1 << 20,
            },
            workload: Workload::ROOT_USER,
            capabilities: Vec::new(),
            security: Vec::new(),
            labels: BTreeMap::from([(INSTANCE_LABEL.into(), self.instance.name.clone())]),
            health_check: Vec::new(),
            stop_timeout: 1,
            read_only: true,
            restart: ContainerRestartPolicy::Never,
        };
        // Removes the container that an interrupted command left.
        self.docker.remove(&name).await?;
        self.docker.create_container(&spec).await?;
        Ok(name)
    }

    /// Removes the volumes with their contents, except the person's files.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn remove_volumes(&self) -> Result<()> {
        let [_, data, project] = self.instance.volume_names();
        for volume in [data, project] {
            let label = (INSTANCE_LABEL, self.instance.name.as_str());
            self.docker.remove_volume(&volume, label).await?;
        }
        Ok(())
    }
}
