//! Checkpoint markers: files that record which checkpoint holds which session, `.markers/SESSION.json` beside the
//! checkpoints. A marker of a former companion stays in the former folder until it is removed.
//!
//! The marker is written before the checkpoint gets its number and before the process ends. The owner of the session
//! (in `kernel`) removes the marker when the session has a kernel again. So every companion generation knows which
//! checkpoint holds which session. When the companion ended between the two steps, the next generation finds a marker
//! whose checkpoint is missing; the session's objects are stored nevertheless.

use super::manifest::CriuManifest;
use super::store::CriuStore;
use crate::atomic_write::{Durability, atomic_write, sync_folder};
use crate::companion::kernel::{KernelCheckpoint, is_session_name};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The version that this release writes; it reads every version up to this one.
const CRIU_MARKER_VERSION: u32 = 1;

/// No checkpoint name starts with a dot.
const CRIU_MARKER_FOLDER: &str = ".markers";

/// The folder of companions before 0.1.0.
const FORMER_CRIU_MARKER_FOLDER: &str = ".frozen";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CriuMarker {
    version: u32,
    pub(super) session: String,
    /// Name of the checkpoint.
    pub(super) name: String,
    pub(super) generation: u64,
    /// The reference that the object store returned for the objects stored with the checkpoint.
    pub(super) objects: Option<Value>,
}

impl CriuMarker {
    pub(super) fn from_manifest(manifest: &CriuManifest) -> Self {
        Self {
            version: CRIU_MARKER_VERSION,
            session: manifest.session.clone(),
            name: manifest.name.clone(),
            generation: manifest.generation,
            objects: manifest.objects.clone(),
        }
    }
}

/// The folder of all markers. Its methods block.
#[derive(Debug, Clone)]
pub(super) struct CriuMarkers {
    root: PathBuf,
}

/// A marker that was found on disk.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FoundCriuMarker {
    pub(super) marker: CriuMarker,
    pub(super) checkpoint: KernelCheckpoint,
    /// Why the checkpoint can't hold the session any more, if so.
    pub(super) problem: Option<String>,
}

impl CriuMarkers {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The place of a session's marker: the former folder if the marker is there, so that there are never two.
    pub(super) fn path(&self, session: &str) -> PathBuf {
        let in_folder = |folder| self.root.join(folder).join(format!("{session}.json"));
        let former = in_folder(FORMER_CRIU_MARKER_FOLDER);
        match former.exists() {
            true => former,
            false => in_folder(CRIU_MARKER_FOLDER),
        }
    }

    /// Writes the marker to the disk.
    ///
    /// # Errors
    /// When the write fails; an earlier marker stays untouched.
    pub(super) fn write(&self, marker: &CriuMarker) -> io::Result<PathBuf> {
        let path = self.path(&marker.session);
        let folder = path.parent().unwrap_or(&self.root);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let text = serde_json::to_vec(marker)?;
        atomic_write(&path, &text, Durability::FolderSynced)?;
        // The folder of the markers may be new.
        sync_folder(&self.root)?;
        Ok(path)
    }

    pub(super) fn read(&self, session: &str) -> Option<CriuMarker> {
        read_marker(&self.path(session)).ok()
    }

    /// Lists all markers, each with a quick check of its checkpoint.
    pub(super) fn list_all(&self, store: &CriuStore) -> Vec<FoundCriuMarker> {
        let folders = [FORMER_CRIU_MARKER_FOLDER, CRIU_MARKER_FOLDER];
        let entries = folders
            .into_iter()
            .filter_map(|folder| fs::read_dir(self.root.join(folder)).ok())
            .flatten();
        let paths = entries.flatten().map(|entry| entry.path());
        let markers = paths.filter(|path| path.extension().is_some_and(|e| e == "json"));
        let read = markers.filter_map(|path| match read_marker(&path) {
            Ok(marker) => Some((path, marker)),
            Err(why) => {
                tracing::error!(path = %path.display(), why, "a marker of a checkpoint is ignored");
                None
            }
        });
        let found = read.map(|(path, marker)| FoundCriuMarker {
            problem: store.find_problem(&marker.name, marker.generation, &marker.session),
            checkpoint: KernelCheckpoint {
                id: store
                    .generation_path(&marker.name, marker.generation)
                    .display()
                    .to_string(),
                marker: Some(path),
            },
            marker,
        });
        found.collect()
    }
}

/// Reads a marker and checks that its file is named after its session.
fn read_marker(path: &Path) -> Result<CriuMarker, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    let marker: CriuMarker = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let is_its = path
        .file_stem()
        .is_some_and(|stem| *stem == *marker.session);
    match marker.version {
        ..=CRIU_MARKER_VERSION if is_its && is_session_name(&marker.session) => Ok(marker),
        ..=CRIU_MARKER_VERSION => Err(format!("it belongs to the session `{}`", marker.session)),
        other => Err(format!(
            "it has version {other}, and this osctl reads versions up to {CRIU_MARKER_VERSION}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{CRIU_MARKER_FOLDER, CriuMarker, CriuMarkers, FORMER_CRIU_MARKER_FOLDER};
    use crate::companion::criu::store::CriuStore;
    use crate::companion::criu::store::tests::write;
    use std::fs;

    /// A marker as version 1 wrote it.
    const CRIU_MARKER_V1_JSON: &str = r#"{"version":1,"session":"default","name":"a","generation":1,
        "objects":{"name":"criu-a","generation":4}}"#;

    #[test]
    fn the_first_version_stays_readable_and_a_later_one_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let (store, markers) = (
            CriuStore::open(root.path().into()),
            CriuMarkers::new(root.path().into()),
        );
        let marker: CriuMarker = serde_json::from_str(CRIU_MARKER_V1_JSON).unwrap();
        let path = markers.write(&marker).unwrap();
        fs::write(&path, CRIU_MARKER_V1_JSON).unwrap();
        assert_eq!(markers.read("default"), Some(marker));
        assert_eq!(markers.list_all(&store).len(), 1);
        // The marker of another session, one of a later version, and an unfinished file.
        fs::write(path.with_file_name("other.json"), CRIU_MARKER_V1_JSON).unwrap();
        let later = CRIU_MARKER_V1_JSON.replace("\"version\":1", "\"version\":9");
        fs::write(&path, later).unwrap();
        fs::write(path.with_file_name(".tmpabc"), "{").unwrap();
        assert_eq!(markers.list_all(&store), []);
    }

    #[test]
    fn a_marker_of_a_former_companion_stays_in_its_folder_until_it_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let (store, markers) = (
            CriuStore::open(root.path().into()),
            CriuMarkers::new(root.path().into()),
        );
        let former = root.path().join(FORMER_CRIU_MARKER_FOLDER);
        fs::create_dir(&former).unwrap();
        let former = former.join("default.json");
        fs::write(&former, CRIU_MARKER_V1_JSON).unwrap();
        let marker = markers.read("default").unwrap();
        assert_eq!(markers.write(&marker).unwrap(), former);
        let mut found = markers.list_all(&store);
        assert_eq!(found.len(), 1);
        found.remove(0).checkpoint.remove_marker();
        assert_eq!(markers.list_all(&store), []);
        let today = root.path().join(CRIU_MARKER_FOLDER).join("default.json");
        assert_eq!(markers.write(&marker).unwrap(), today);
        assert_eq!(markers.list_all(&store).len(), 1);
    }

    #[test]
    fn a_session_is_in_its_checkpoint_if_that_is_intact() {
        let root = tempfile::tempdir().unwrap();
        let (store, markers) = (
            CriuStore::open(root.path().into()),
            CriuMarkers::new(root.path().into()),
        );
        let marker: CriuMarker = serde_json::from_str(CRIU_MARKER_V1_JSON).unwrap();
        markers.write(&marker).unwrap();
        let problem = || markers.list_all(&store).remove(0).problem;
        assert_eq!(problem().as_deref(), Some("it is missing"));
        assert_eq!(write(&store, "a"), 1);
        assert_eq!(problem(), None);
        let found = markers.list_all(&store).remove(0);
        assert!(found.checkpoint.id.ends_with("/a/1"));
        assert_eq!(found.checkpoint.marker, Some(markers.path("default")));
        fs::write(root.path().join("a/1/images/pages-1.img"), "pag").unwrap();
        assert!(problem().unwrap().contains("3 bytes"));
        // The folder of markers is not listed as a checkpoint.
        assert_eq!(store.list_all().len(), 0);
        found.checkpoint.remove_marker();
        assert_eq!(markers.list_all(&store), []);
    }

    #[test]
    fn a_checkpoint_of_another_session_does_not_match_the_marker() {
        let root = tempfile::tempdir().unwrap();
        let (store, markers) = (
            CriuStore::open(root.path().into()),
            CriuMarkers::new(root.path().into()),
        );
        let mut marker: CriuMarker = serde_json::from_str(CRIU_MARKER_V1_JSON).unwrap();
        marker.session = "second".into();
        markers.write(&marker).unwrap();
        write(&store, "a");
        let problem = markers.list_all(&store).remove(0).problem;
        assert!(problem.unwrap().contains("session `default`"));
    }
}
