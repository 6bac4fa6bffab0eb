//! Restoring with criu: from a checkpoint to a running kernel of its session.

use super::error_text::{CriuFailure, CriuFailureKind};
use super::manifest::CriuManifest;
use super::markers::CriuMarker;
use super::objects::ReloadedObjects;
use super::refusal::{StateAfterFailedRestore, lookup_refusal};
use super::store::FoundCheckpoint;
use super::{Criu, CriuRefusal, pid_reservation, resolve_checkpoint_name};
use crate::companion::kernel::{self, KernelCheckpoint, KernelHandle, StopReason};
use crate::companion::shell::PackedContext;
use crate::protocol::criu::{CriuRestored, RestoreRequest};
use crate::protocol::kernel::KernelReport;
use crate::supervise::descendants;
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;
use tokio::task::spawn_blocking;

/// Maximum number of processes with IDs in use in a message.
const MAX_LISTED_CRIU_PIDS: usize = 5;

impl Criu {
    pub(super) async fn restore_kernel(
        &self,
        request: RestoreRequest,
    ) -> Result<CriuRestored, CriuRefusal> {
        let started = Instant::now();
        let RestoreRequest {
            session,
            name,
            generation,
        } = request;
        let name = resolve_checkpoint_name(name, &session)?;
        let progress = self.start_progress(&session);
        let (store, owned) = (self.store.clone(), name.clone());
        let found =
            spawn_blocking(move || store.find_verified(&owned, generation, &progress)).await;
        let found = found.map_err(|_| kernel::KernelRefusal::ShuttingDown)?;
        let found = found.map_err(|why| lookup_refusal(why, &name, generation))?;
        let (_, kernel) = self
            .sessions
            .create_session(Some(found.manifest.session.clone()))
            .await?;
        let mut notes = Vec::new();
        let report = match self.restore_process(&found, &kernel).await {
            Ok(report) => {
                notes.extend(found.manifest.describe_clock_lag());
                report
            }
            Err(refusal) => {
                self.fall_back_to_objects(&found.manifest, &kernel, refusal, &mut notes)
                    .await?
            }
        };
        if let Some(why) = self.restore_shell(&found.manifest) {
            notes.push(why);
        }
        Ok(CriuRestored {
            status: "completed".into(),
            checkpoint_path: found.path.display().to_string(),
            checkpoint_size_bytes: found.manifest.total_image_bytes(),
            timing_ms: started.elapsed().as_secs_f64() * 1000.0,
            name: found.manifest.name,
            generation: found.manifest.generation,
            session: found.manifest.session,
            kernel: report,
            notes,
        })
    }

    /// Restores the process.
    async fn restore_process(
        &self,
        found: &FoundCheckpoint,
        kernel: &KernelHandle,
    ) -> Result<KernelReport, CriuRefusal> {
        self.ensure_available().await?;
        let manifest = &found.manifest;
        if let Some(why) = manifest.describe_protocol_mismatch() {
            return Err(CriuRefusal::ProtocolMismatch(why));
        }
        let owned = manifest.clone();
        let found_files = spawn_blocking(move || {
            (
                owned.list_changed_mapped_files(),
                owned.find_changed_open_file(),
            )
        })
        .await;
        let (changed_files, unopenable) =
            found_files.map_err(|_| kernel::KernelRefusal::ShuttingDown)?;
        if !changed_files.is_empty() {
            return Err(CriuRefusal::FilesChanged(changed_files));
        }
        if let Some(reason) = unopenable {
            return Err(self
                .build_restore_refusal(reason, PidRelease::AlreadyFree, kernel, manifest)
                .await);
        }
        // The folder is missing if this companion generation has started no kernel yet.
        if let Some(folder) = manifest.socket.parent()
            && let Err(error) = fs::create_dir_all(folder)
        {
            let reason = restore_failure(format!(
                "the folder `{}` can't be created: {error}",
                folder.display()
            ));
            return Err(self
                .build_restore_refusal(reason, PidRelease::AlreadyFree, kernel, manifest)
                .await);
        }
        let pid_release = self.free_pids(found, kernel).await?;
        let restored = self.tool.restore(&found.images_folder()).await;
        let restored = restored.and_then(|process| {
            let socket = manifest.socket.clone();
            let connected = process.connect_kernel(socket);
            connected.map_err(|error| {
                restore_failure(format!("the restored kernel can't be reached: {error}"))
            })
        });
        let restored = match restored {
            Ok(restored) => restored,
            Err(reason) => {
                // The failed restore may have created the socket.
                let _ = fs::remove_file(&manifest.socket);
                return Err(self
                    .build_restore_refusal(reason, pid_release, kernel, manifest)
                    .await);
            }
        };
        match kernel.restore_process(restored).await {
            Ok(answer) => Ok(answer.report),
            Err(kernel::KernelRefusal::NoKernel(why)) => {
                let reason = restore_failure(format!("the restored kernel ended: {why}"));
                let pid_release = match pid_release {
                    // The restored kernel has replaced the current kernel.
                    PidRelease::AlreadyFree => PidRelease::KernelEnded(None),
                    release => release,
                };
                Err(self
                    .build_restore_refusal(reason, pid_release, kernel, manifest)
                    .await)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Frees the IDs that the restore needs if the session's current kernel uses them: stores the objects of this
    /// kernel and ends it. All checks that are possible before must have passed.
    async fn free_pids(
        &self,
        found: &FoundCheckpoint,
        kernel: &KernelHandle,
    ) -> Result<PidRelease, CriuRefusal> {
        let manifest = &found.manifest;
        let pids_in_use = pid_reservation::find_pids_in_use(&manifest.ids);
        if pids_in_use.is_empty() {
            return Ok(PidRelease::AlreadyFree);
        }
        let view = kernel.view();
        let own = view.root_pid.map(list_tree_thread_ids).unwrap_or_default();
        if let other_owners @ [_, ..] = &describe_pid_owners(&pids_in_use, &own)[..] {
            return Err(CriuRefusal::PidsInUse(other_owners.to_vec()));
        }
        if view.busy {
            return Err(kernel::KernelRefusal::Busy.into());
        }
        let displaced = match view.is_blank() {
            true => DisplacedObjects::NoObjects,
            false => self.back_up_current_objects(&manifest.session).await?,
        };
        let detached = kernel.detach().await?;
        if detached.counts.execution_count > view.counts.execution_count {
            // Code ran after the backup, so its results are not stored.
            detached.reattach().await?;
            return Err(kernel::KernelRefusal::Busy.into());
        }
        let checkpoint = found.path.display().to_string();
        let marker = None;
        detached
            .finish_checkpoint(KernelCheckpoint {
                id: checkpoint,
                marker,
            })
            .await;
        let pids_in_use = pid_reservation::find_pids_in_use(&manifest.ids);
        let pid_release = PidRelease::KernelEnded(Some(displaced));
        match pids_in_use.is_empty() {
            true => Ok(pid_release),
            false => {
                let owners = describe_pid_owners(&pids_in_use, &BTreeSet::new()).join(", ");
                let reason = CriuFailure {
                    why: format!("process IDs of the kernel are in use: {owners}"),
                    hint: None,
                    kind: CriuFailureKind::PidsInUse,
                };
                Err(self
                    .build_restore_refusal(reason, pid_release, kernel, manifest)
                    .await)
            }
        }
    }

    async fn back_up_current_objects(
        &self,
        session: &str,
    ) -> Result<DisplacedObjects, CriuRefusal> {
        let stored = self.object_store.back_up_objects(session).await;
        stored.map(DisplacedObjects::Stored).map_err(|why| CriuRefusal::NotRestored {
            reason: CriuFailure {
                why: format!("the restore must end the current kernel, and its objects can't be stored: {why}"),
                hint: Some("`osctl reset --restart` discards the current kernel"),
                kind: CriuFailureKind::Other,
            },
            current_kernel: StateAfterFailedRestore::Unchanged,
        })
    }

    async fn build_restore_refusal(
        &self,
        reason: CriuFailure,
        pid_release: PidRelease,
        kernel: &KernelHandle,
        manifest: &CriuManifest,
    ) -> CriuRefusal {
        let displaced = match pid_release {
            PidRelease::AlreadyFree => {
                let current_kernel = match kernel.view().checkpoint {
                    Some(_) => StateAfterFailedRestore::Checkpointed,
                    None => StateAfterFailedRestore::Unchanged,
                };
                return CriuRefusal::NotRestored {
                    reason,
                    current_kernel,
                };
            }
            PidRelease::KernelEnded(displaced) => displaced,
        };
        // Callers that wait for a kernel get an empty one. If it does not start, the log contains the reason.
        let _ = kernel.restart(StopReason::Restart).await;
        let current_kernel = match displaced {
            None => StateAfterFailedRestore::Lost,
            Some(DisplacedObjects::NoObjects) => StateAfterFailedRestore::Reloaded(Vec::new()),
            Some(DisplacedObjects::Stored(stored)) => {
                match self
                    .object_store
                    .reload_objects(&manifest.session, &stored)
                    .await
                {
                    Ok(ReloadedObjects { lost_objects, .. }) => {
                        StateAfterFailedRestore::Reloaded(lost_objects)
                    }
                    Err(why) => {
                        tracing::warn!(%why, "the current kernel's objects can't be reloaded");
                        StateAfterFailedRestore::Lost
                    }
                }
            }
        };
        CriuRefusal::NotRestored {
            reason,
            current_kernel,
        }
    }

    /// Reloads the objects that were stored with the checkpoint when the process can't be restored.
    async fn fall_back_to_objects(
        &self,
        manifest: &CriuManifest,
        kernel: &KernelHandle,
        refusal: CriuRefusal,
        notes: &mut Vec<String>,
    ) -> Result<KernelReport, CriuRefusal> {
        let stored = match (&manifest.objects, &refusal) {
            (Some(stored), refusal) if refusal.is_final() => stored,
            _ => return Err(refusal),
        };
        match self
            .start_with_objects(&manifest.session, kernel, stored)
            .await
        {
            Ok(ReloadedObjects {
                report,
                lost_objects,
            }) => {
                notes.push(format!(
                    "the objects were reloaded, because the process can't be restored: {}",
                    refusal.message()
                ));
                if !lost_objects.is_empty() {
                    notes.push(format!("lost objects: {}", lost_objects.join(", ")));
                }
                Ok(report)
            }
            Err(why) => {
                tracing::warn!(%why, "the objects can't be reloaded, either");
                Err(refusal)
            }
        }
    }

    /// Reloads objects into a session. A checkpointed session gets a new kernel first, and returns to its checkpoint if
    /// the reload fails.
    async fn start_with_objects(
        &self,
        session: &str,
        kernel: &KernelHandle,
        stored: &Value,
    ) -> Result<ReloadedObjects, String> {
        let Some(checkpoint) = kernel.view().checkpoint else {
            return self.object_store.reload_objects(session, stored).await;
        };
        let marker = self.markers.read(session);
        if let Err(refusal) = kernel.restart(StopReason::Restart).await {
            return Err(format!("no kernel starts for the objects: {refusal:?}"));
        }
        let back = self.object_store.reload_objects(session, stored).await;
        if let (Err(_), Some(marker)) = (&back, marker) {
            self.return_to_checkpoint(kernel, checkpoint, marker).await;
        }
        back
    }

    /// Returns a session with an empty kernel to its checkpoint, unless a client uses the kernel.
    async fn return_to_checkpoint(
        &self,
        kernel: &KernelHandle,
        checkpoint: String,
        marker: CriuMarker,
    ) {
        let detached = match kernel.detach().await {
            Ok(detached) => detached,
            Err(refusal) => {
                return tracing::warn!(
                    checkpoint,
                    ?refusal,
                    "the session is not in its checkpoint any more"
                );
            }
        };
        let markers = self.markers.clone();
        match spawn_blocking(move || markers.write(&marker)).await {
            Ok(Ok(marker)) => {
                let marker = Some(marker);
                detached
                    .finish_checkpoint(KernelCheckpoint {
                        id: checkpoint,
                        marker,
                    })
                    .await;
            }
            // The detached kernel reattaches when it is dropped.
            failed => tracing::warn!(
                checkpoint,
                error = ?failed,
                "the session is not in its checkpoint any more"
            ),
        }
    }

    /// Returns the reason why the shell's context was not restored, if any.
    fn restore_shell(&self, manifest: &CriuManifest) -> Option<String> {
        let packed: PackedContext = match serde_json::from_value(manifest.shell.clone()?) {
            Ok(packed) => packed,
            Err(error) => return Some(format!("the shell's context can't be read: {error}")),
        };
        let unpacked = self.shells.unpack_context(&manifest.session, packed);
        let why = unpacked.err()?;
        Some(format!("the shell's context can't be restored: {why}"))
    }
}

/// Whether IDs had to be freed.
#[derive(Debug)]
enum PidRelease {
    AlreadyFree,
    /// The current kernel has ended; its objects are stored if possible.
    KernelEnded(Option<DisplacedObjects>),
}

/// The objects of a kernel that was ended for the restore.
#[derive(Debug)]
enum DisplacedObjects {
    NoObjects,
    /// The reference that the object store returned.
    Stored(Value),
}

fn restore_failure(why: String) -> CriuFailure {
    CriuFailure {
        why,
        hint: None,
        kind: CriuFailureKind::Other,
    }
}

/// The IDs of all processes and threads of a session.
fn list_tree_thread_ids(root: i32) -> BTreeSet<i32> {
    let all = descendants::list_descendants(Pid::from_raw(root)).into_iter();
    let pids = all.map(|d| d.pid.as_raw()).chain([root]);
    pids.flat_map(super::checkpoint::list_thread_ids).collect()
}

/// Describes the processes outside the session that use the IDs.
fn describe_pid_owners(taken: &BTreeSet<i32>, own: &BTreeSet<i32>) -> Vec<String> {
    let other_owners = taken.difference(own).take(MAX_LISTED_CRIU_PIDS);
    other_owners
        .map(|id| {
            let name = fs::read_to_string(format!("/proc/{id}/comm"));
            let name = name.unwrap_or_else(|_| "a process group".into());
            format!("{id} by `{}`", name.trim())
        })
        .collect()
}
