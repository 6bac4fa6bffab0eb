//! Checkpointing of an idle kernel with criu: from the running process to a numbered checkpoint.

use super::criu_progress::CriuProgress;
use super::manifest::{
    CRIU_MANIFEST_VERSION, CriuKernelInfo, CriuManifest, CriuMappedFile, CriuVersions,
    monotonic_seconds,
};
use super::markers::CriuMarker;
use super::open_files::CriuOpenFile;
use super::store::CriuDraft;
use super::{Criu, CriuRefusal, resolve_checkpoint_name};
use crate::companion::cryo::folder_bytes;
use crate::companion::kernel::{DetachedKernel, KernelCheckpoint};
use crate::protocol::BODY_PROTOCOL_VERSION;
use crate::protocol::criu::{CheckpointReply, CheckpointRequest};
use crate::supervise::descendants;
use nix::sys::signal::{Signal, kill};
use nix::sys::utsname::uname;
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};
use tokio::task::spawn_blocking;

/// Maximum characters of a command line in a message.
const MAX_SHOWN_COMMAND_CHARS: usize = 80;

impl Criu {
    pub(super) async fn checkpoint_kernel(
        &self,
        request: CheckpointRequest,
    ) -> Result<CheckpointReply, CriuRefusal> {
        let started = Instant::now();
        let CheckpointRequest {
            session,
            name,
            leave_running,
        } = request;
        let name = resolve_checkpoint_name(name, &session)?;
        let version = self.ensure_available().await?;
        let kernel = self.sessions.find_kernel(&session)?;
        // Read the count before the kernel detaches, while it can still answer.
        let executed = kernel.view().counts.execution_count;
        let progress = self.start_progress(&session);
        let storing = self.object_store.store_objects(&session, &name);
        let objects = progress
            .sample_during(|| self.object_store.transferred_bytes(&session), storing)
            .await;
        let detached = match kernel.detach().await {
            Ok(detached) => detached,
            Err(refusal) => {
                self.prune_objects(&name).await;
                return Err(refusal.into());
            }
        };
        let mut left_out = self
            .describe_omissions(&session, &detached, leave_running)
            .await;
        if detached.counts.execution_count > executed {
            left_out.push(
                "in its stored objects: changes by code that ran after they were stored".into(),
            );
        }
        let objects = match objects {
            Ok(stored) => Some(stored),
            Err(why) => {
                left_out.push(format!("its stored objects: {why}"));
                None
            }
        };
        let dump = self.dump_process(&detached, &name, &progress).await;
        let dump = match dump {
            Ok(dump) => dump,
            Err(refusal) => {
                let refusal = reattach_after(detached, refusal).await;
                self.prune_objects(&name).await;
                return Err(refusal);
            }
        };
        let manifest =
            self.build_manifest(&detached, session, name.clone(), version, objects, &dump);
        let path = dump.draft.final_path().to_owned();
        let finished = match leave_running {
            // A disk failure now loses nothing, so the kernel resumes before the draft is on disk.
            true => {
                dump.stopped_processes.resume();
                let back = detached.reattach().await;
                let finished = finish_draft(dump.draft, manifest).await;
                if finished.is_err() {
                    self.prune_objects(&name).await;
                }
                let finished = finished?;
                back?;
                finished
            }
            false => match self.finish_with_marker(dump.draft, manifest).await {
                Ok((finished, checkpoint)) => {
                    // Without `forget`, the drop would resume the processes that have just ended.
                    detached.finish_checkpoint(checkpoint).await;
                    std::mem::forget(dump.stopped_processes);
                    finished
                }
                Err(refusal) => {
                    dump.stopped_processes.resume();
                    let refusal = reattach_after(detached, refusal).await;
                    self.prune_objects(&name).await;
                    return Err(refusal);
                }
            },
        };
        let sessions = self.sessions.list_sessions().into_iter();
        let checkpoints = sessions.filter_map(|(_, view)| view.checkpoint.map(PathBuf::from));
        self.store
            .prune_generations(&finished.name, &checkpoints.collect());
        self.prune_objects(&finished.name).await;
        Ok(CheckpointReply {
            status: "completed".into(),
            checkpoint_path: path.display().to_string(),
            checkpoint_size_bytes: finished.total_image_bytes(),
            name: finished.name,
            generation: finished.generation,
            session: finished.session,
            timing_ms: started.elapsed().as_secs_f64() * 1000.0,
            is_running: leave_running,
            left_out,
        })
    }

    /// Finishes the draft and writes the marker by which later companion generations know that this checkpoint holds
    /// the session.
    async fn finish_with_marker(
        &self,
        draft: CriuDraft,
        manifest: CriuManifest,
    ) -> Result<(CriuManifest, KernelCheckpoint), CriuRefusal> {
        let (markers, marker) = (self.markers.clone(), CriuMarker::from_manifest(&manifest));
        let checkpoint = draft.final_path().display().to_string();
        let finished = spawn_blocking(move || {
            let marker = Some(markers.write(&marker)?);
            let checkpoint = KernelCheckpoint {
                id: checkpoint,
                marker,
            };
            match draft.finish(&manifest) {
                Ok(()) => Ok((manifest, checkpoint)),
                Err(error) => {
                    checkpoint.remove_marker();
                    Err(error)
                }
            }
        });
        Ok(flatten_join(finished.await)?)
    }

    /// Dumps the process to a draft. The process stays stopped until the draft is finished, so that its open files stay
    /// as the checkpoint records them.
    async fn dump_process(
        &self,
        detached: &DetachedKernel,
        name: &str,
        progress: &CriuProgress,
    ) -> Result<CriuDump, CriuRefusal> {
        let (store, owned) = (self.store.clone(), name.to_owned());
        let draft = spawn_blocking(move || store.begin_draft(&owned)).await;
        let draft = flatten_join(draft)?;
        let stopped_before = list_stopped_pids(detached.pid);
        let images = draft.images_folder();
        let dump = self.tool.dump(detached.pid, &images);
        progress
            .sample_during(|| folder_bytes(&images), dump)
            .await?;
        let stopped_processes = StoppedProcesses {
            root_pid: detached.pid,
            stopped_before,
        };
        let pids = list_tree_pids(detached.pid);
        let recorded = spawn_blocking(move || {
            let ids = pids.iter().flat_map(|pid| list_thread_ids(*pid)).collect();
            let open_files = CriuOpenFile::list_for_pids(&pids);
            Ok((
                draft.sync_images()?,
                CriuMappedFile::list_for_pids(&pids)?,
                open_files,
                ids,
                draft,
            ))
        });
        match flatten_join(recorded.await) {
            Ok((images, mapped_files, open_files, ids, draft)) => Ok(CriuDump {
                draft,
                stopped_processes,
                images,
                mapped_files,
                open_files,
                ids,
            }),
            // The stopped processes resume when they are dropped.
            Err(error) => Err(error.into()),
        }
    }

    fn build_manifest(
        &self,
        detached: &DetachedKernel,
        session: String,
        name: String,
        criu: String,
        objects: Option<serde_json::Value>,
        dump: &CriuDump,
    ) -> CriuManifest {
        let created = SystemTime::now().duration_since(UNIX_EPOCH);
        let linux = uname().map(|names| names.release().to_string_lossy().into_owned());
        let shell = self.shells.pack_context(&session);
        CriuManifest {
            version: CRIU_MANIFEST_VERSION,
            name,
            generation: dump.draft.generation,
            created: created.map_or(0, |since| since.as_secs()),
            kernel: CriuKernelInfo {
                generation: detached.generation,
                execution_count: detached.counts.execution_count,
                globals_count: detached.counts.globals_count,
                protocol: BODY_PROTOCOL_VERSION,
                python: detached.python.clone(),
                body: detached.body_version.clone(),
            },
            versions: CriuVersions {
                osctl: env!("CARGO_PKG_VERSION").into(),
                criu,
                linux: linux.unwrap_or_default(),
            },
            running_for: monotonic_seconds(),
            ids: dump.ids.clone(),
            socket: detached.socket.clone(),
            mapped: dump.mapped_files.clone(),
            opened: dump.open_files.clone(),
            images: dump.images.clone(),
            // A value that serializes can be turned into a JSON value.
            shell: shell.and_then(|packed| serde_json::to_value(packed).ok()),
            objects,
            session,
        }
    }

    /// Lists what belongs to the session but runs outside the kernel's process tree, so the checkpoint omits it.
    async fn describe_omissions(
        &self,
        session: &str,
        detached: &DetachedKernel,
        leave_running: bool,
    ) -> Vec<String> {
        let own = list_tree_pids(detached.pid);
        let state = match leave_running {
            true => "which keeps running",
            false => "which the companion ends",
        };
        let orphans =
            descendants::list_descendants(Pid::from_raw(detached.supervisor_pid)).into_iter();
        let orphans = orphans.map(|d| d.pid.as_raw()).filter(|p| !own.contains(p));
        let mut left: Vec<String> = orphans
            .map(|pid| {
                let command = read_command_line(pid);
                format!("`{command}` ({pid}), whose parent in the kernel has ended, {state}")
            })
            .collect();
        let jobs = self.shells.list_jobs().await.into_iter();
        left.extend(jobs.filter(|job| job.session == session).map(|job| {
            format!(
                "the job `{}` ({}) of the shell, which keeps running",
                job.command, job.pid
            )
        }));
        left
    }
}

/// A process that was dumped to a draft and is still stopped.
#[derive(Debug)]
struct CriuDump {
    draft: CriuDraft,
    stopped_processes: StoppedProcesses,
    images: Vec<super::manifest::CriuImageFile>,
    mapped_files: Vec<CriuMappedFile>,
    open_files: BTreeSet<CriuOpenFile>,
    ids: BTreeSet<i32>,
}

/// A stopped process and its descendants; dropping this value resumes them.
#[derive(Debug)]
struct StoppedProcesses {
    root_pid: i32,
    /// Processes that another process had stopped before; they stay stopped.
    stopped_before: BTreeSet<i32>,
}

impl StoppedProcesses {
    fn resume(self) {
        drop(self);
    }
}

impl Drop for StoppedProcesses {
    fn drop(&mut self) {
        for pid in list_tree_pids(self.root_pid).difference(&self.stopped_before) {
            // A process that has already ended needs no signal.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
        }
    }
}

/// Reattaches a kernel that was not checkpointed.
async fn reattach_after(detached: DetachedKernel, refusal: CriuRefusal) -> CriuRefusal {
    match detached.reattach().await {
        Ok(_) => refusal,
        Err(_) => refusal.with_kernel_lost(),
    }
}

async fn finish_draft(
    draft: CriuDraft,
    manifest: CriuManifest,
) -> Result<CriuManifest, CriuRefusal> {
    let finished = spawn_blocking(move || draft.finish(&manifest).map(|()| manifest)).await;
    Ok(flatten_join(finished)?)
}

fn flatten_join<T>(done: Result<io::Result<T>, tokio::task::JoinError>) -> io::Result<T> {
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// The ids of a process and of all its descendants.
fn list_tree_pids(root: i32) -> BTreeSet<i32> {
    let below = descendants::list_descendants(Pid::from_raw(root)).into_iter();
    below.map(|d| d.pid.as_raw()).chain([root]).collect()
}

/// The ids of the processes of the tree that are already stopped.
fn list_stopped_pids(root: i32) -> BTreeSet<i32> {
    let is_stopped = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The process name, in parentheses, may contain any character.
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        state.is_some_and(|state| state.starts_with('T'))
    };
    list_tree_pids(root)
        .into_iter()
        .filter(is_stopped)
        .collect()
}

/// The ids of all threads of a process, the main thread included.
pub(super) fn list_thread_ids(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let ids = tasks.into_iter().flatten().flatten();
    ids.filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

fn read_command_line(pid: i32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&arguments).replace('\0', " ");
    text.trim_end()
        .chars()
        .take(MAX_SHOWN_COMMAND_CHARS)
        .collect()
}
