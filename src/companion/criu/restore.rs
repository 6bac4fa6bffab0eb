//! Thawing: from a checkpoint to the kernel in its session.

use super::manifest::Manifest;
use super::marks::Mark;
use super::objects::Back;
use super::refusal::{Present, absent};
use super::store::Found;
use super::words::{Kind, Reason};
use super::{Criu, Refusal, named, numbers};
use crate::companion::descendants;
use crate::companion::kernel::{self, Frozen, Kernel, Stop};
use crate::companion::shell::Packed;
use crate::protocol::criu::{Restore, Restored};
use crate::protocol::kernel::KernelReport;
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;
use tokio::task::spawn_blocking;

/// Who has taken ids, told at most.
const TOLD: usize = 5;

impl Criu {
    pub(super) async fn thaw(&self, request: Restore) -> Result<Restored, Refusal> {
        let begun = Instant::now();
        let Restore {
            session,
            name,
            generation,
        } = request;
        let name = named(name, &session)?;
        let gauge = self.gauge(&session);
        let (store, owned) = (self.store.clone(), name.clone());
        let found = spawn_blocking(move || store.find(&owned, generation, &gauge)).await;
        let found = found.map_err(|_| kernel::Refusal::Stopping)?;
        let found = found.map_err(|why| absent(why, &name, generation))?;
        let (_, kernel) = self
            .sessions
            .create(Some(found.manifest.session.clone()))
            .await?;
        let mut notes = Vec::new();
        let report = match self.bring_back(&found, &kernel).await {
            Ok(report) => {
                notes.extend(found.manifest.lag());
                report
            }
            Err(refusal) => {
                self.fall_back(&found.manifest, &kernel, refusal, &mut notes)
                    .await?
            }
        };
        if let Some(why) = self.give_shell(&found.manifest) {
            notes.push(why);
        }
        Ok(Restored {
            status: "completed".into(),
            checkpoint_path: found.path.display().to_string(),
            checkpoint_size_bytes: found.manifest.size(),
            timing_ms: begun.elapsed().as_secs_f64() * 1000.0,
            name: found.manifest.name,
            generation: found.manifest.generation,
            session: found.manifest.session,
            kernel: report,
            notes,
        })
    }

    /// The process itself.
    async fn bring_back(&self, found: &Found, kernel: &Kernel) -> Result<KernelReport, Refusal> {
        self.ensure_possible().await?;
        let manifest = &found.manifest;
        if let Some(why) = manifest.misfit() {
            return Err(Refusal::OtherProtocol(why));
        }
        let owned = manifest.clone();
        let looked = spawn_blocking(move || (owned.strangers(), owned.unopenable())).await;
        let (strangers, unopenable) = looked.map_err(|_| kernel::Refusal::Stopping)?;
        if !strangers.is_empty() {
            return Err(Refusal::OtherFiles(strangers));
        }
        if let Some(reason) = unopenable {
            return Err(self
                .not_restored(reason, Room::Free, kernel, manifest)
                .await);
        }
        // No kernel may have been made in this life yet.
        if let Some(folder) = manifest.socket.parent()
            && let Err(error) = fs::create_dir_all(folder)
        {
            let reason = plain(format!("`{}`: {error}", folder.display()));
            return Err(self
                .not_restored(reason, Room::Free, kernel, manifest)
                .await);
        }
        let room = self.make_room(found, kernel).await?;
        let restored = self.tool.restore(&found.images()).await;
        let restored = restored.and_then(|thawed| {
            let socket = manifest.socket.clone();
            let connected = thawed.kernel(socket);
            connected.map_err(|error| plain(format!("it came back and can't be reached: {error}")))
        });
        let restored = match restored {
            Ok(restored) => restored,
            Err(reason) => {
                // Half of it may have been made.
                let _ = fs::remove_file(&manifest.socket);
                return Err(self.not_restored(reason, room, kernel, manifest).await);
            }
        };
        match kernel.thaw(restored).await {
            Ok(answer) => Ok(answer.report),
            Err(kernel::Refusal::NoKernel(why)) => {
                let reason = plain(format!("it came back and ended: {why}"));
                let room = match room {
                    // It has taken the present one's place.
                    Room::Free => Room::Made(None),
                    made => made,
                };
                Err(self.not_restored(reason, room, kernel, manifest).await)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Frees the ids that come back, where the session's own present kernel has them: what that holds
    /// is stored, and it is ended. Whatever can be known before must be known by then.
    async fn make_room(&self, found: &Found, kernel: &Kernel) -> Result<Room, Refusal> {
        let manifest = &found.manifest;
        let taken = numbers::in_use(&manifest.ids);
        if taken.is_empty() {
            return Ok(Room::Free);
        }
        let view = kernel.view();
        let own = view.root.map(below).unwrap_or_default();
        if let strangers @ [_, ..] = &others(&taken, &own)[..] {
            return Err(Refusal::TakenIds(strangers.to_vec()));
        }
        if view.busy {
            return Err(kernel::Refusal::Busy.into());
        }
        let held = match view.is_blank() {
            true => Held::Nothing,
            false => self.hold(&manifest.session).await?,
        };
        let apart = kernel.part().await?;
        if apart.counts.execution_count > view.counts.execution_count {
            // What code did meanwhile is not stored.
            apart.rejoin().await?;
            return Err(kernel::Refusal::Busy.into());
        }
        let checkpoint = found.path.display().to_string();
        let mark = None;
        apart.freeze(Frozen { checkpoint, mark }).await;
        let taken = numbers::in_use(&manifest.ids);
        let room = Room::Made(Some(held));
        match taken.is_empty() {
            true => Ok(room),
            false => {
                let who = others(&taken, &BTreeSet::new()).join(", ");
                let reason = Reason {
                    why: format!("ids of its processes are taken: {who}"),
                    hint: None,
                    kind: Kind::Ids,
                };
                Err(self.not_restored(reason, room, kernel, manifest).await)
            }
        }
    }

    async fn hold(&self, session: &str) -> Result<Held, Refusal> {
        let held = self.objects.hold(session).await;
        held.map(Held::Stored).map_err(|why| Refusal::NotRestored {
            reason: Reason {
                why: format!("the present one would have to end before, and its objects can't be stored: {why}"),
                hint: Some("`osctl reset --restart` gives the present one up"),
                kind: Kind::Other,
            },
            present: Present::GoesOn,
        })
    }

    async fn not_restored(
        &self,
        reason: Reason,
        room: Room,
        kernel: &Kernel,
        manifest: &Manifest,
    ) -> Refusal {
        let held = match room {
            Room::Free => {
                let present = match kernel.view().checkpoint {
                    Some(_) => Present::Frozen,
                    None => Present::GoesOn,
                };
                return Refusal::NotRestored { reason, present };
            }
            Room::Made(held) => held,
        };
        // Whoever waits for a kernel gets an empty one; the log tells why there is none, if so.
        let _ = kernel.restart(Stop::Restart).await;
        let present = match held {
            None => Present::Lost,
            Some(Held::Nothing) => Present::Back(Vec::new()),
            Some(Held::Stored(stored)) => {
                match self.objects.reload(&manifest.session, &stored).await {
                    Ok(Back { lost, .. }) => Present::Back(lost),
                    Err(why) => {
                        tracing::warn!("the present kernel's objects did not come back: {why}");
                        Present::Lost
                    }
                }
            }
        };
        Refusal::NotRestored { reason, present }
    }

    /// The objects, where they were stored beside and the process can't come back.
    async fn fall_back(
        &self,
        manifest: &Manifest,
        kernel: &Kernel,
        refusal: Refusal,
        notes: &mut Vec<String>,
    ) -> Result<KernelReport, Refusal> {
        let stored = match (&manifest.objects, &refusal) {
            (Some(stored), refusal) if refusal.is_final() => stored,
            _ => return Err(refusal),
        };
        match self.wake_with(&manifest.session, kernel, stored).await {
            Ok(Back { report, lost }) => {
                notes.push(format!(
                    "the objects came back and the process did not: {}",
                    refusal.message()
                ));
                if !lost.is_empty() {
                    notes.push(format!(
                        "of the objects these are lost: {}",
                        lost.join(", ")
                    ));
                }
                Ok(report)
            }
            Err(why) => {
                tracing::warn!("the objects did not come back, either: {why}");
                Err(refusal)
            }
        }
    }

    /// Objects into a session, which begins anew for that if it lies in a checkpoint, and lies there
    /// again if they do not come.
    async fn wake_with(
        &self,
        session: &str,
        kernel: &Kernel,
        stored: &Value,
    ) -> Result<Back, String> {
        let Some(checkpoint) = kernel.view().checkpoint else {
            return self.objects.reload(session, stored).await;
        };
        let mark = self.marks.read(session);
        if let Err(refusal) = kernel.restart(Stop::Restart).await {
            return Err(format!("no kernel starts for them: {refusal:?}"));
        }
        let back = self.objects.reload(session, stored).await;
        if let (Err(_), Some(mark)) = (&back, mark) {
            self.lay_again(kernel, checkpoint, mark).await;
        }
        back
    }

    /// Puts a session back into its checkpoint that has an empty kernel; not, when somebody uses that.
    async fn lay_again(&self, kernel: &Kernel, checkpoint: String, mark: Mark) {
        let apart = match kernel.part().await {
            Ok(apart) => apart,
            Err(refusal) => {
                return tracing::warn!("it does not lie in `{checkpoint}` any more: {refusal:?}");
            }
        };
        let marks = self.marks.clone();
        match spawn_blocking(move || marks.write(&mark)).await {
            Ok(Ok(mark)) => {
                let mark = Some(mark);
                apart.freeze(Frozen { checkpoint, mark }).await;
            }
            // Dropped, it goes on.
            failed => tracing::warn!("it does not lie in `{checkpoint}` any more: {failed:?}"),
        }
    }

    /// Why the shell's context did not come back, if so.
    fn give_shell(&self, manifest: &Manifest) -> Option<String> {
        let packed: Packed = match serde_json::from_value(manifest.shell.clone()?) {
            Ok(packed) => packed,
            Err(error) => return Some(format!("the shell's context can't be read: {error}")),
        };
        let given = self.shells.unpack(&manifest.session, packed);
        let why = given.err()?;
        Some(format!("the shell's context did not come back: {why}"))
    }
}

/// Whether ids had to be made free.
#[derive(Debug)]
enum Room {
    Free,
    /// The present kernel has ended; what of it is kept, where that was possible.
    Made(Option<Held>),
}

/// What a kernel held that has given way.
#[derive(Debug)]
enum Held {
    Nothing,
    /// What the keeper of objects said, which stored them.
    Stored(Value),
}

fn plain(why: String) -> Reason {
    Reason {
        why,
        hint: None,
        kind: Kind::Other,
    }
}

/// All processes of a session, and their threads.
fn below(root: i32) -> BTreeSet<i32> {
    let all = descendants::of(Pid::from_raw(root)).into_iter();
    let pids = all.map(|d| d.pid.as_raw()).chain([root]);
    pids.flat_map(super::checkpoint::threads).collect()
}

/// Those who have taken ids and do not belong to the session, in words.
fn others(taken: &BTreeSet<i32>, own: &BTreeSet<i32>) -> Vec<String> {
    let strangers = taken.difference(own).take(TOLD);
    strangers
        .map(|id| {
            let name = fs::read_to_string(format!("/proc/{id}/comm"));
            let name = name.unwrap_or_else(|_| "a group of processes".into());
            format!("{id} by `{}`", name.trim())
        })
        .collect()
}
