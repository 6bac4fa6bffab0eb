//! Process checkpoints across a change of containers. Where checkpoints are possible, each session is checkpointed in
//! addition to its objects, and restored if the new body has the same kernel. With another kernel only the objects are
//! reloaded, because a restored process would continue with the old code.

use super::{EvolveHandle, EvolveParts};
use crate::companion::session_state::EvolveCheckpoints;
use crate::protocol::criu::{CheckpointRequest, RestoreRequest};
use crate::protocol::cryo::CryoStored;
use crate::protocol::evolve::container_reports::{RestoreMethod, SessionReceipt};
use crate::protocol::hex::hex;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

impl EvolveParts {
    /// Checkpoints each session that holds anything; its kernel continues. The receipt says which sessions could not be
    /// checkpointed; their objects are stored.
    pub(super) async fn checkpoint_sessions(
        &self,
        kernel: PathBuf,
        receipt: &mut [(SessionReceipt, Option<CryoStored>)],
    ) -> EvolveCheckpoints {
        let mut evolve_checkpoints = EvolveCheckpoints::default();
        if !self.criu.is_enabled() {
            return evolve_checkpoints;
        }
        // Without a digest the kernels can't be compared.
        let digest = spawn_blocking(move || hash_kernel_sources(&kernel)).await;
        let Ok(Some(digest)) = digest else {
            return evolve_checkpoints;
        };
        evolve_checkpoints.kernel_digest = digest;
        for (session_receipt, _) in receipt.iter_mut().filter(|(_, stored)| stored.is_some()) {
            let name = format!("evolve-{}", session_receipt.session);
            let request = CheckpointRequest {
                session: session_receipt.session.clone(),
                name: Some(name.clone()),
                leave_running: true,
            };
            match self.criu.checkpoint(request).await {
                Ok(_) => {
                    session_receipt.restored_by = RestoreMethod::Process;
                    evolve_checkpoints
                        .by_session
                        .insert(session_receipt.session.clone(), name);
                }
                Err(refusal) => {
                    let why = refusal.message();
                    tracing::info!(
                        session = session_receipt.session,
                        why,
                        "the process of the session could not be checkpointed"
                    );
                    let why = format!("its process could not be checkpointed: {why}");
                    let reasons = session_receipt.why.take().into_iter().chain([why]);
                    session_receipt.why = Some(reasons.collect::<Vec<_>>().join("; "));
                }
            }
        }
        evolve_checkpoints
    }

    /// Removes the checkpoints that were made for a change of containers.
    pub(super) async fn remove_checkpoints(&self, sessions: impl IntoIterator<Item = String>) {
        for session in sessions {
            // A session without a checkpoint needs no removal.
            let _ = self
                .criu
                .remove_checkpoint(format!("evolve-{session}"))
                .await;
        }
    }
}

impl EvolveHandle {
    /// Restores the checkpoints of the last container. Until then no request from outside is admitted, because its
    /// effects would be lost.
    pub(super) fn start_restore(&self, evolve_checkpoints: EvolveCheckpoints) {
        if evolve_checkpoints.by_session.is_empty() {
            return;
        }
        // `verify` waits for this lock.
        let Ok(rest) = self.quiesced.clone().try_lock_owned() else {
            return;
        };
        let evolve = self.clone();
        evolve.parts.admission.close_to_outside();
        tokio::spawn(async move {
            let _rest = rest;
            evolve.restore_sessions(evolve_checkpoints).await;
            evolve.parts.admission.open();
        });
    }

    async fn restore_sessions(&self, evolve_checkpoints: EvolveCheckpoints) {
        let kernel = self.settings.body_folder.join("kernel");
        let own = spawn_blocking(move || hash_kernel_sources(&kernel)).await;
        let EvolveCheckpoints {
            kernel_digest,
            by_session: checkpoints,
        } = evolve_checkpoints;
        let is_same = own.is_ok_and(|own| own.as_ref() == Some(&kernel_digest));
        if is_same && self.parts.criu.is_enabled() {
            let shells = self.parts.shells.retain_contexts();
            for (session, name) in &checkpoints {
                self.restore_session(session, name).await;
            }
            // A checkpoint also contains the shell's context, with the old container's environment.
            self.parts.shells.restore_contexts(shells);
        }
        self.parts.remove_checkpoints(checkpoints.into_keys()).await;
    }

    async fn restore_session(&self, session: &str, name: &str) {
        let Ok(kernel) = self.parts.sessions.find_kernel(session) else {
            return;
        };
        kernel.wait_ready().await;
        let request = RestoreRequest {
            session: session.to_owned(),
            name: Some(name.to_owned()),
            generation: None,
        };
        match self.parts.criu.restore(request).await {
            Ok(restored) if restored.notes.is_empty() => {
                tracing::info!(session, "the process of the session was restored");
                self.restored_sessions.lock().insert(session.to_owned());
            }
            Ok(restored) => tracing::info!(
                session,
                notes = restored.notes.join("; "),
                "the session was restored, with notes"
            ),
            Err(refusal) => {
                tracing::info!(
                    session,
                    why = refusal.message(),
                    "only the variables of the session were restored"
                );
            }
        }
    }

    /// How a session was restored.
    pub(super) fn kept_by(&self, session: &str) -> RestoreMethod {
        match self.restored_sessions.lock().contains(session) {
            true => RestoreMethod::Process,
            false => RestoreMethod::Objects,
        }
    }
}

/// The digest of the kernel's code without `extensions/`, which the kernel reloads after a change. `None` if the code
/// can't be read.
fn hash_kernel_sources(kernel: &Path) -> Option<String> {
    let mut files = BTreeMap::new();
    collect_python_files(kernel, &mut files)?;
    let mut all = Sha256::new();
    for (path, content) in files {
        let name = path.strip_prefix(kernel).ok()?;
        if name.starts_with("extensions") {
            continue;
        }
        all.update(name.as_os_str().as_encoded_bytes());
        all.update([0]);
        all.update(Sha256::digest(content));
    }
    Some(hex(all.finalize()))
}

fn collect_python_files(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Option<()> {
    for entry in fs::read_dir(folder).ok()? {
        let path = entry.ok()?.path();
        if path.is_dir() {
            collect_python_files(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "py") {
            let content = fs::read(&path).ok()?;
            files.insert(path, content);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::hash_kernel_sources;
    use std::fs;

    #[test]
    fn kernel_hash_depends_on_its_code() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("shell.py", "1");
        write("cryo/store.py", "1");
        let first = hash_kernel_sources(folder.path());
        write("extensions/mine.py", "1");
        write("__pycache__/shell.pyc", "1");
        assert_eq!(hash_kernel_sources(folder.path()), first);
        write("cryo/store.py", "2");
        assert!(first.is_some() && hash_kernel_sources(folder.path()) != first);
        assert_eq!(hash_kernel_sources(&folder.path().join("none")), None);
    }
}
