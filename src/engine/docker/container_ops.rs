//! Operations for replacing a container and rolling it back, and for the volumes that containers share.
//!
//! Every operation is idempotent: a state that is already reached is not an error.

use super::container::has_same_owner;
use super::{Docker, ENGINE_UPLOAD_TIMEOUT, explain_api_error, is_status, with_query_timeout};
use crate::error::{Error, Result};
use crate::protocol::spec::{ContainerSpec, Volume};
use anyhow::bail;
use bollard::models::{
    ContainerUpdateBody, RestartPolicy, RestartPolicyNameEnum, VolumeCreateRequest,
};
use bollard::query_parameters::{
    DownloadFromContainerOptionsBuilder, RemoveVolumeOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use std::io;
use std::pin::pin;

impl Docker {
    /// Pauses all processes of a container, which do not notice the pause.
    ///
    /// # Errors
    /// When the container does not exist or does not run.
    pub(crate) async fn pause(&self, name: &str) -> Result<()> {
        match self.api.pause_container(name).await {
            Err(e) if error_contains(&e, "already paused") => Ok(()),
            done => done.map_err(|e| explain_api_error("pausing the container", e)),
        }
    }

    /// Resumes the processes of a paused container.
    ///
    /// # Errors
    /// When the container does not exist, or the engine refuses.
    pub(crate) async fn unpause(&self, name: &str) -> Result<()> {
        match self.api.unpause_container(name).await {
            Err(e) if error_contains(&e, "not paused") => Ok(()),
            done => done.map_err(|e| explain_api_error("unpausing the container", e)),
        }
    }

    /// Sets whether the engine restarts the container when it ends, or when the engine itself restarts.
    ///
    /// # Errors
    /// When the container does not exist, or the engine refuses.
    pub(crate) async fn set_restart_policy(&self, name: &str, restarts: bool) -> Result<()> {
        let policy = match restarts {
            true => RestartPolicyNameEnum::ALWAYS,
            false => RestartPolicyNameEnum::NO,
        };
        let update = ContainerUpdateBody {
            restart_policy: Some(RestartPolicy {
                name: Some(policy),
                maximum_retry_count: None,
            }),
            ..Default::default()
        };
        match self.api.update_container(name, update).await {
            // Podman before 5 can't change the policy, but has no daemon that restarts containers.
            Err(e) if is_status(&e, 404) && !error_contains(&e, "container") => Ok(()),
            done => {
                done.map_err(|e| explain_api_error("changing the container's restart policy", e))
            }
        }
    }

    /// Extracts a tar archive into a folder of a container, running or not.
    ///
    /// # Errors
    /// When the container or folder does not exist.
    pub(crate) async fn put_archive(&self, name: &str, folder: &str, archive: Bytes) -> Result<()> {
        let options = UploadToContainerOptionsBuilder::new().path(folder).build();
        let body = bollard::body_full(archive);
        let done = self.api.upload_to_container(name, Some(options), body);
        done.await
            .map_err(|e| explain_api_error("copying files into the container", e))
    }

    /// Extracts a streamed archive into a folder of a container.
    ///
    /// # Errors
    /// As [`Docker::put_archive`], and when the stream ends with an error.
    pub(crate) async fn put_stream(
        &self,
        name: &str,
        folder: &str,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<()> {
        let options = UploadToContainerOptionsBuilder::new().path(folder).build();
        let body = bollard::body_try_stream(archive);
        let api = self.api.clone().with_timeout(ENGINE_UPLOAD_TIMEOUT);
        let done = api.upload_to_container(name, Some(options), body).await;
        done.map_err(|e| explain_api_error("copying files into the container", e))
    }

    /// Reads a file or folder of a container, running or not, as a tar archive of at most `limit` bytes; `None` if
    /// the path does not exist.
    ///
    /// # Errors
    /// When the archive is larger than `limit`, or the engine refuses.
    pub(crate) async fn get_archive(
        &self,
        name: &str,
        path: &str,
        limit: usize,
    ) -> Result<Option<Vec<u8>>> {
        let options = DownloadFromContainerOptionsBuilder::new()
            .path(path)
            .build();
        let mut pieces = pin!(self.api.download_from_container(name, Some(options)));
        let mut archive = Vec::new();
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) if archive.len() + piece.len() > limit => {
                    bail!("`{path}` in `{name}` is larger than {limit} bytes")
                }
                Ok(piece) => archive.extend_from_slice(&piece),
                Err(e) if is_status(&e, 404) => return Ok(None),
                Err(e) => return Err(explain_api_error("reading files of the container", e)),
            }
        }
        Ok(Some(archive))
    }

    /// Whether this volume exists.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn has_volume(&self, name: &str) -> Result<bool> {
        let action = "inspecting the volume";
        match with_query_timeout(action, self.api.inspect_volume(name)).await? {
            Ok(_) => Ok(true),
            Err(e) if is_status(&e, 404) => Ok(false),
            Err(e) => Err(explain_api_error(action, e)),
        }
    }

    pub(super) async fn ensure_volume(&self, volume: &Volume, spec: &ContainerSpec) -> Result<()> {
        let Some(name) = &volume.name else {
            return Ok(());
        };
        let action = "inspecting the volume";
        match with_query_timeout(action, self.api.inspect_volume(name)).await? {
            Ok(found) if has_same_owner(Some(&found.labels), &spec.labels) => return Ok(()),
            Ok(_) => {
                return Err(Error::ForeignObject {
                    what: "volume",
                    name: name.clone(),
                }
                .into());
            }
            Err(e) if is_status(&e, 404) => {}
            Err(e) => return Err(explain_api_error(action, e)),
        }
        let labels = spec.labels.iter();
        let owner = labels.filter(|(key, _)| *key == crate::engine::OWNER_LABEL);
        let request = VolumeCreateRequest {
            name: Some(name.clone()),
            labels: Some(owner.map(|(k, v)| (k.clone(), v.clone())).collect()),
            ..Default::default()
        };
        let made = self.api.create_volume(request).await;
        made.map_err(|e| explain_api_error("creating the volume", e))?;
        Ok(())
    }

    /// Removes a volume with this label. It is not an error if the volume does not exist, has another owner, or is in
    /// use.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn remove_volume(&self, name: &str, label: (&str, &str)) -> Result<()> {
        let action = "inspecting the volume";
        let ours = match with_query_timeout(action, self.api.inspect_volume(name)).await? {
            Ok(found) => found.labels.get(label.0).map(String::as_str) == Some(label.1),
            Err(_) => false,
        };
        if !ours {
            return Ok(());
        }
        let options = RemoveVolumeOptionsBuilder::new().build();
        match self.api.remove_volume(name, Some(options)).await {
            Ok(()) => Ok(()),
            Err(e) if is_status(&e, 404) || is_status(&e, 409) => Ok(()),
            Err(e) => Err(explain_api_error("removing the volume", e)),
        }
    }
}

/// Compares the message: older and newer engines use different status codes with the same message.
pub(super) fn error_contains(error: &bollard::errors::Error, words: &str) -> bool {
    super::root_cause(error).contains(words)
}
