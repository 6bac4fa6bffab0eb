//! Whole processes over a change of containers: where kernels can be frozen, each session is, beside
//! its objects, and comes back as it was when the new body has the same kernel. With another kernel
//! the objects come back: a process would go on with the code of the old one.

use super::{Evolve, Parts};
use crate::companion::mind::Frozen;
use crate::protocol::criu::{Checkpoint, Restore};
use crate::protocol::cryo::Stored;
use crate::protocol::evolve::inside::{Kept, KeptBy};
use crate::protocol::hex::hex;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

impl Parts {
    /// Freezes what holds anything and goes on. What can't be frozen has its objects, and is told.
    pub(super) async fn freeze(
        &self,
        kernel: PathBuf,
        receipt: &mut [(Kept, Option<Stored>)],
    ) -> Frozen {
        let mut frozen = Frozen::default();
        if !self.criu.is_wanted() {
            return frozen;
        }
        // What can't be read has no equal.
        let digest = spawn_blocking(move || digest(&kernel)).await;
        let Ok(Some(digest)) = digest else {
            return frozen;
        };
        frozen.kernel = digest;
        for (kept, _) in receipt.iter_mut().filter(|(_, stored)| stored.is_some()) {
            let name = format!("evolve-{}", kept.session);
            let request = Checkpoint {
                session: kept.session.clone(),
                name: Some(name.clone()),
                leave_running: true,
            };
            match self.criu.checkpoint(request).await {
                Ok(_) => {
                    kept.by = KeptBy::Process;
                    frozen.checkpoints.insert(kept.session.clone(), name);
                }
                Err(refusal) => {
                    let why = format!("its process is not frozen: {}", refusal.message());
                    tracing::info!(session = kept.session, "{why}");
                    let said = kept.why.take().into_iter().chain([why]);
                    kept.why = Some(said.collect::<Vec<_>>().join("; "));
                }
            }
        }
        frozen
    }

    /// Removes what was frozen for a change of containers.
    pub(super) async fn forget_frozen(&self, sessions: impl IntoIterator<Item = String>) {
        for session in sessions {
            // One that was never frozen is as good.
            let _ = self.criu.remove(format!("evolve-{session}")).await;
        }
    }
}

impl Evolve {
    /// Brings back what the last container has frozen. Nobody is let in until then: what was done
    /// meanwhile would be lost.
    pub(super) fn thaw(&self, frozen: Frozen) {
        if frozen.checkpoints.is_empty() {
            return;
        }
        // Whoever wants to look waits for it.
        let Ok(rest) = self.rest.clone().try_lock_owned() else {
            return;
        };
        let evolve = self.clone();
        evolve.parts.gate.close();
        tokio::spawn(async move {
            let _rest = rest;
            evolve.bring_back(frozen).await;
            evolve.parts.gate.open();
        });
    }

    async fn bring_back(&self, frozen: Frozen) {
        let kernel = self.settings.body.join("kernel");
        let own = spawn_blocking(move || digest(&kernel)).await;
        let Frozen {
            kernel,
            checkpoints,
        } = frozen;
        let is_same = own.is_ok_and(|own| own.as_ref() == Some(&kernel));
        if is_same && self.parts.criu.is_wanted() {
            let shells = self.parts.shells.keep();
            for (session, name) in &checkpoints {
                self.bring_back_one(session, name).await;
            }
            // A checkpoint has the shell's context, too, with the old container's environment.
            self.parts.shells.adopt(shells);
        }
        self.parts.forget_frozen(checkpoints.into_keys()).await;
    }

    async fn bring_back_one(&self, session: &str, name: &str) {
        let Ok(kernel) = self.parts.sessions.kernel(session) else {
            return;
        };
        kernel.ready().await;
        let request = Restore {
            session: session.to_owned(),
            name: Some(name.to_owned()),
            generation: None,
        };
        match self.parts.criu.restore(request).await {
            Ok(restored) if restored.notes.is_empty() => {
                tracing::info!(session, "its process goes on");
                self.thawed().insert(session.to_owned());
            }
            Ok(restored) => tracing::info!(session, "{}", restored.notes.join("; ")),
            Err(refusal) => {
                tracing::info!(session, "its objects are back: {}", refusal.message());
            }
        }
    }

    /// How a session came back.
    pub(super) fn kept_by(&self, session: &str) -> KeptBy {
        match self.thawed().contains(session) {
            true => KeptBy::Process,
            false => KeptBy::Objects,
        }
    }
}

/// What the code of a kernel is, but for operations, which are read when they are called. Nothing,
/// when it can't be read.
fn digest(kernel: &Path) -> Option<String> {
    let mut files = BTreeMap::new();
    collect(kernel, &mut files)?;
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

fn collect(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Option<()> {
    for entry in fs::read_dir(folder).ok()? {
        let path = entry.ok()?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "py") {
            let content = fs::read(&path).ok()?;
            files.insert(path, content);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::digest;
    use std::fs;

    #[test]
    fn a_kernel_is_another_one_when_its_code_is() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("shell.py", "1");
        write("cryo/store.py", "1");
        let first = digest(folder.path());
        write("extensions/mine.py", "1");
        write("__pycache__/shell.pyc", "1");
        assert_eq!(digest(folder.path()), first);
        write("cryo/store.py", "2");
        assert!(first.is_some() && digest(folder.path()) != first);
        assert_eq!(digest(&folder.path().join("none")), None);
    }
}
