//! A folder to which the body of a run, as the keeper stores it, is written.

use crate::error::Result;
use anyhow::{Context, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// A folder that was empty before.
#[derive(Debug)]
pub(super) struct GitBodyFolder {
    folder: PathBuf,
    started_files: BTreeSet<String>,
}

impl GitBodyFolder {
    pub(super) fn new(folder: PathBuf) -> Result<Self> {
        match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            started_files: BTreeSet::new(),
        })
    }

    /// Appends the next piece of a file. The project's packages, which the keeper stores too, are not in the folder.
    ///
    /// # Errors
    /// When the path leads out of the folder, or the write fails.
    pub(super) fn append_file(&mut self, path: &str, base64: &str) -> Result<()> {
        if path.starts_with(".osctl/") {
            return Ok(());
        }
        let location = Path::new(path);
        let plain = location
            .components()
            .all(|c| matches!(c, Component::Normal(_)));
        ensure!(
            plain && !path.is_empty(),
            "`{path}` is not a valid path in a body"
        );
        let content = BASE64_STANDARD.decode(base64).context("reading a body")?;
        let location = self.folder.join(location);
        if let Some(folder) = location.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut options = OpenOptions::new();
        match self.started_files.insert(path.to_owned()) {
            true => options.write(true).create_new(true),
            false => options.append(true),
        };
        // The image makes scripts executable, too.
        let mode = if content.starts_with(b"#!") {
            0o755
        } else {
            0o644
        };
        let mut file = options.mode(mode).open(location)?;
        Ok(file.write_all(&content)?)
    }
}

#[cfg(test)]
mod tests {
    use super::GitBodyFolder;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_comes_in_pieces_and_stays_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let location = folder.path().join("body");
        fs::create_dir(&location).unwrap();
        fs::write(location.join("of-another"), "x").unwrap();
        let mut body = GitBodyFolder::new(location.clone()).unwrap();
        body.append_file("deep/entry.sh", "IyEvYmluL3NoCg==")
            .unwrap();
        body.append_file("deep/entry.sh", "dHJ1ZQo=").unwrap();
        for bad in ["../x", "/etc/x", "a/../../x", ""] {
            assert!(body.append_file(bad, "").is_err(), "{bad}");
        }
        let script = location.join("deep/entry.sh");
        assert_eq!(fs::read(&script).unwrap(), b"#!/bin/sh\ntrue\n");
        let mode = fs::metadata(script).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111);
        assert!(!location.join("of-another").exists());
    }
}
