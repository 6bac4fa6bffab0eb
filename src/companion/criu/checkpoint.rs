//! Freezing: from an idle kernel to a checkpoint with a number.

use super::gauge::Gauge;
use super::manifest::{Kernel, Manifest, Mapped, VERSION, Versions, running_for};
use super::marks::Mark;
use super::opened::Opened;
use super::store::Draft;
use super::{Criu, Refusal, named};
use crate::companion::cryo::weight;
use crate::companion::descendants;
use crate::companion::kernel::{Apart, Frozen};
use crate::protocol::BODY_VERSION;
use crate::protocol::criu::{Checkpoint, Checkpointed};
use nix::sys::signal::{Signal, kill};
use nix::sys::utsname::uname;
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};
use tokio::task::spawn_blocking;

/// Bytes of a command line that are told.
const SHOWN: usize = 80;

impl Criu {
    pub(super) async fn freeze(&self, request: Checkpoint) -> Result<Checkpointed, Refusal> {
        let begun = Instant::now();
        let Checkpoint {
            session,
            name,
            leave_running,
        } = request;
        let name = named(name, &session)?;
        let version = self.ensure_possible().await?;
        let kernel = self.sessions.kernel(&session)?;
        // Before the kernel lets go, as it has to answer.
        let executed = kernel.view().counts.execution_count;
        let gauge = self.gauge(&session);
        let storing = self.objects.store(&session, &name);
        let objects = gauge.during(|| self.objects.moved(&session), storing).await;
        let apart = match kernel.part().await {
            Ok(apart) => apart,
            Err(refusal) => {
                self.tidy(&name).await;
                return Err(refusal.into());
            }
        };
        let mut left_out = self.left_out(&session, &apart, leave_running).await;
        if apart.counts.execution_count > executed {
            left_out.push("of its objects, beside the process: what code did meanwhile".into());
        }
        let objects = match objects {
            Ok(stored) => Some(stored),
            Err(why) => {
                left_out.push(format!("its objects, beside the process: {why}"));
                None
            }
        };
        let taken = self.take(&apart, &name, &gauge).await;
        let taken = match taken {
            Ok(taken) => taken,
            Err(refusal) => {
                let refusal = go_on(apart, refusal).await;
                self.tidy(&name).await;
                return Err(refusal);
            }
        };
        let manifest = self.manifest(&apart, session, name.clone(), version, objects, &taken);
        let path = taken.draft.path().to_owned();
        let finished = match leave_running {
            // Nothing is lost when the disk fails now, so it need not wait for that.
            true => {
                taken.stopped.resume();
                let back = apart.rejoin().await;
                let finished = finish(taken.draft, manifest).await;
                if finished.is_err() {
                    self.tidy(&name).await;
                }
                let finished = finished?;
                back?;
                finished
            }
            false => match self.lay(taken.draft, manifest).await {
                Ok((finished, frozen)) => {
                    // Ended before they go on.
                    apart.freeze(frozen).await;
                    std::mem::forget(taken.stopped);
                    finished
                }
                Err(refusal) => {
                    taken.stopped.resume();
                    let refusal = go_on(apart, refusal).await;
                    self.tidy(&name).await;
                    return Err(refusal);
                }
            },
        };
        let sessions = self.sessions.all().into_iter();
        let frozen = sessions.filter_map(|(_, view)| view.checkpoint.map(PathBuf::from));
        self.store.thin(&finished.name, &frozen.collect());
        self.tidy(&finished.name).await;
        Ok(Checkpointed {
            status: "completed".into(),
            checkpoint_path: path.display().to_string(),
            checkpoint_size_bytes: finished.size(),
            name: finished.name,
            generation: finished.generation,
            session: finished.session,
            timing_ms: begun.elapsed().as_secs_f64() * 1000.0,
            is_running: leave_running,
            left_out,
        })
    }

    /// Finishes it, with the mark by which every later life knows that the session lies there.
    async fn lay(&self, draft: Draft, manifest: Manifest) -> Result<(Manifest, Frozen), Refusal> {
        let (marks, mark) = (self.marks.clone(), Mark::of(&manifest));
        let checkpoint = draft.path().display().to_string();
        let laid = spawn_blocking(move || {
            let mark = Some(marks.write(&mark)?);
            let frozen = Frozen { checkpoint, mark };
            match draft.finish(&manifest) {
                Ok(()) => Ok((manifest, frozen)),
                Err(error) => {
                    frozen.leave();
                    Err(error)
                }
            }
        });
        Ok(joined(laid.await)?)
    }

    /// Writes the process to a draft. Until that is finished it stays stopped, so that the files that
    /// it has open stay as the checkpoint knows them.
    async fn take(&self, apart: &Apart, name: &str, gauge: &Gauge) -> Result<Taken, Refusal> {
        let (store, owned) = (self.store.clone(), name.to_owned());
        let draft = spawn_blocking(move || store.begin(&owned)).await;
        let draft = joined(draft)?;
        let sleepers = sleepers(apart.pid);
        let images = draft.images();
        let dump = self.tool.dump(apart.pid, &images);
        gauge.during(|| weight(&images), dump).await?;
        let stopped = Stopped {
            root: apart.pid,
            sleepers,
        };
        let pids = family(apart.pid);
        let looked = spawn_blocking(move || {
            let ids = pids.iter().flat_map(|pid| threads(*pid)).collect();
            let opened = Opened::all(&pids);
            Ok((draft.settle()?, Mapped::all(&pids)?, opened, ids, draft))
        });
        match joined(looked.await) {
            Ok((images, mapped, opened, ids, draft)) => Ok(Taken {
                draft,
                stopped,
                images,
                mapped,
                opened,
                ids,
            }),
            // Dropped, they go on.
            Err(error) => Err(error.into()),
        }
    }

    fn manifest(
        &self,
        apart: &Apart,
        session: String,
        name: String,
        criu: String,
        objects: Option<serde_json::Value>,
        taken: &Taken,
    ) -> Manifest {
        let created = SystemTime::now().duration_since(UNIX_EPOCH);
        let linux = uname().map(|told| told.release().to_string_lossy().into_owned());
        let shell = self.shells.pack(&session);
        Manifest {
            version: VERSION,
            name,
            generation: taken.draft.generation,
            created: created.map_or(0, |since| since.as_secs()),
            kernel: Kernel {
                generation: apart.generation,
                execution_count: apart.counts.execution_count,
                globals_count: apart.counts.globals_count,
                protocol: BODY_VERSION,
                python: apart.python.clone(),
                body: apart.body_version.clone(),
            },
            versions: Versions {
                osctl: env!("CARGO_PKG_VERSION").into(),
                criu,
                linux: linux.unwrap_or_default(),
            },
            running_for: running_for(),
            ids: taken.ids.clone(),
            socket: apart.socket.clone(),
            mapped: taken.mapped.clone(),
            opened: taken.opened.clone(),
            images: taken.images.clone(),
            // What can be written can be turned into a value.
            shell: shell.and_then(|packed| serde_json::to_value(packed).ok()),
            objects,
            session,
        }
    }

    /// What belongs to the session and is not below the kernel.
    async fn left_out(&self, session: &str, apart: &Apart, leave_running: bool) -> Vec<String> {
        let own = family(apart.pid);
        let fate = match leave_running {
            true => "which goes on",
            false => "which is ended",
        };
        let orphans = descendants::of(Pid::from_raw(apart.root)).into_iter();
        let orphans = orphans.map(|d| d.pid.as_raw()).filter(|p| !own.contains(p));
        let mut left: Vec<String> = orphans
            .map(|pid| {
                let command = command(pid);
                format!("`{command}` ({pid}), whose parent in the kernel has ended, {fate}")
            })
            .collect();
        let jobs = self.shells.jobs().await.into_iter();
        left.extend(jobs.filter(|job| job.session == session).map(|job| {
            format!(
                "the job `{}` ({}) of the shell, which goes on",
                job.command, job.pid
            )
        }));
        left
    }
}

/// A process that lies in a draft, and is stopped.
#[derive(Debug)]
struct Taken {
    draft: Draft,
    stopped: Stopped,
    images: Vec<super::manifest::Image>,
    mapped: Vec<Mapped>,
    opened: BTreeSet<Opened>,
    ids: BTreeSet<i32>,
}

/// A process and its descendants, which go on when this is dropped.
#[derive(Debug)]
struct Stopped {
    root: i32,
    /// Those that somebody else had stopped.
    sleepers: BTreeSet<i32>,
}

impl Stopped {
    fn resume(self) {
        drop(self);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in family(self.root).difference(&self.sleepers) {
            // Gone already is as good.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
        }
    }
}

/// Has a kernel go on that was not frozen.
async fn go_on(apart: Apart, refusal: Refusal) -> Refusal {
    match apart.rejoin().await {
        Ok(_) => refusal,
        Err(_) => refusal.and_lost(),
    }
}

async fn finish(draft: Draft, manifest: Manifest) -> Result<Manifest, Refusal> {
    let finished = spawn_blocking(move || draft.finish(&manifest).map(|()| manifest)).await;
    Ok(joined(finished)?)
}

fn joined<T>(done: Result<io::Result<T>, tokio::task::JoinError>) -> io::Result<T> {
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// A process with all below it.
fn family(root: i32) -> BTreeSet<i32> {
    let below = descendants::of(Pid::from_raw(root)).into_iter();
    below.map(|d| d.pid.as_raw()).chain([root]).collect()
}

/// Those that are stopped already.
fn sleepers(root: i32) -> BTreeSet<i32> {
    let is_stopped = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything.
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        state.is_some_and(|state| state.starts_with('T'))
    };
    family(root).into_iter().filter(is_stopped).collect()
}

/// The ids of a process's threads, its own among them.
pub(super) fn threads(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let ids = tasks.into_iter().flatten().flatten();
    ids.filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

fn command(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    text.trim_end().chars().take(SHOWN).collect()
}
