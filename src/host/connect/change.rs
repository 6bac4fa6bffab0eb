//! A change of one file: shown first, then written to a file beside it and renamed, with a backup of the old contents.

use crate::atomic_write::{Durability, atomic_write_as};
use crate::error::{Error, Result};
use anyhow::Context;
use similar::{ChangeTag, DiffTag, TextDiff};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub(crate) struct ClientFileChange {
    pub(crate) file: PathBuf,
    /// The current contents; `None` if the file does not exist.
    pub(super) before: Option<String>,
    /// The new contents; `None` to remove the file.
    pub(super) after: Option<String>,
    pub(super) backup: BackupAction,
    /// Folders, the innermost first, that are removed with the file if they are empty.
    pub(super) folders: Vec<PathBuf>,
}

/// The action on the backup beside the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BackupAction {
    None,
    /// Create the backup from the current contents.
    Create(PathBuf),
    /// Remove the backup: the file is complete without the entry.
    Remove(PathBuf),
}

/// One line of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiffLine {
    pub(crate) is_new: bool,
    pub(crate) text: String,
}

impl ClientFileChange {
    pub(crate) fn is_unchanged(&self) -> bool {
        self.before == self.after && self.dropped_backup().is_none()
    }

    /// The backup to remove.
    pub(crate) fn dropped_backup(&self) -> Option<&Path> {
        match &self.backup {
            BackupAction::Remove(path) => Some(path),
            BackupAction::None | BackupAction::Create(_) => None,
        }
    }

    /// The path of the backup to create.
    pub(crate) fn backup_path(&self) -> Option<&Path> {
        match &self.backup {
            BackupAction::Create(path) => Some(path),
            BackupAction::None | BackupAction::Remove(_) => None,
        }
    }

    /// The removed and added lines, without context, which may be secret.
    pub(crate) fn diff_lines(&self) -> Vec<DiffLine> {
        let before = self.before.as_deref().unwrap_or_default();
        let after = self.after.as_deref().unwrap_or_default();
        let diff = TextDiff::from_lines(before, after);
        let mut lines = Vec::new();
        for change in diff.ops().iter().filter(|op| op.tag() != DiffTag::Equal) {
            let text = |of: ChangeTag| -> String {
                let parts = diff.iter_changes(change).filter(|part| part.tag() == of);
                parts.map(|part| part.value().to_owned()).collect()
            };
            let (old, new) = (text(ChangeTag::Delete), text(ChangeTag::Insert));
            let ((old, new), is_cut) = trim_common_ends(&old, &new);
            lines.extend(to_diff_lines(old, false, is_cut));
            lines.extend(to_diff_lines(new, true, is_cut));
        }
        lines
    }

    /// Writes the change.
    ///
    /// # Errors
    /// When the file has changed since the plan, or cannot be written. The file is then unchanged.
    pub(crate) fn apply(&self) -> Result<()> {
        let file = resolve_link(&self.file)?;
        if read_optional_file(&file)? != self.before {
            let message = format!("`{}` changed after osctl read it", file.display());
            return Err(Error::precondition(message, "run the command again").into());
        }
        self.write_files(&file).map_err(|error| {
            let message = format!("`{}` can't be written: {error:#}", file.display());
            Error::precondition(
                message,
                "check the file's permissions and the free disk space; the file was not changed",
            )
            .into()
        })
    }

    fn write_files(&self, file: &Path) -> Result<()> {
        let rights = fs::metadata(file).ok().map(|found| found.permissions());
        // Each temporary file is beside its target: the target of a link may be on another file system.
        let put = |path: &Path, text: &str| -> Result<()> {
            let folder = path.parent().context("the path has no parent folder")?;
            fs::create_dir_all(folder)?;
            let content = text.as_bytes();
            atomic_write_as(path, content, rights.clone(), Durability::DataSynced)?;
            Ok(())
        };
        if let (BackupAction::Create(backup), Some(before)) = (&self.backup, &self.before) {
            put(backup, before)?;
        }
        match &self.after {
            Some(_) if self.after == self.before => {}
            Some(after) => put(file, after)?,
            None => fs::remove_file(file)?,
        }
        if let BackupAction::Remove(backup) = &self.backup {
            fs::remove_file(backup)?;
        }
        if self.after.is_none() && !self.file.is_symlink() {
            // An empty folder would count as an installed client.
            let _ = self.folders.iter().try_for_each(fs::remove_dir);
        }
        Ok(())
    }
}

/// The path to which a link leads, so that the link itself stays. A dangling link is followed, too, if the folder of
/// its target exists.
///
/// # Errors
/// When the target cannot be written.
fn resolve_link(file: &Path) -> Result<PathBuf> {
    if let Ok(found) = fs::canonicalize(file) {
        return Ok(found);
    }
    let Ok(next) = fs::read_link(file) else {
        return Ok(file.into());
    };
    let next = file.parent().unwrap_or(Path::new("")).join(next);
    let place = next
        .parent()
        .and_then(|folder| fs::canonicalize(folder).ok());
    match place.zip(next.file_name()) {
        // Reading the file has already refused circular links.
        Some((folder, name)) => resolve_link(&folder.join(name)),
        None => {
            let (link, next) = (file.display(), next.display());
            let message = format!("`{link}` is a link to `{next}`, whose folder does not exist");
            let hint = "restore the target or remove the link, then run the command again";
            Err(Error::precondition(message, hint).into())
        }
    }
}

/// Both texts without their common start and end, and whether this cuts a line.
fn trim_common_ends<'a>(old: &'a str, new: &'a str) -> ((&'a str, &'a str), bool) {
    let same = |(a, b): &(char, char)| a == b;
    let head: usize = { old.chars().zip(new.chars()) }
        .take_while(same)
        .map(|(c, _)| c.len_utf8())
        .sum();
    let (line, old, new) = (&old[..head], &old[head..], &new[head..]);
    let tail: usize = { old.chars().rev().zip(new.chars().rev()) }
        .take_while(same)
        .map(|(c, _)| c.len_utf8())
        .sum();
    let is_cut = line
        .rsplit('\n')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty());
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    ((old, new), is_cut)
}

/// The lines of a text, except those that only separate others.
fn to_diff_lines(text: &str, is_new: bool, is_cut: bool) -> impl Iterator<Item = DiffLine> {
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !["", ","].contains(&line.trim()));
    lines.map(move |(number, line)| {
        let ellipsis = if is_cut && number == 0 { "…" } else { "" };
        let text = format!("{ellipsis}{}", line.trim_end());
        DiffLine { is_new, text }
    })
}

/// The contents of a file; `None` if it does not exist.
///
/// # Errors
/// When the file cannot be read as text.
pub(super) fn read_optional_file(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("`{}` can't be read: {error}", file.display());
            Err(Error::precondition(message, "check the file's permissions and encoding").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BackupAction, ClientFileChange};

    fn lines(before: &str, after: &str) -> Vec<String> {
        let change = ClientFileChange {
            file: "x".into(),
            before: Some(before.into()),
            after: Some(after.into()),
            backup: BackupAction::None,
            folders: Vec::new(),
        };
        let lines = change.diff_lines().into_iter();
        lines
            .map(|line| format!("{}{}", if line.is_new { "+" } else { "-" }, line.text))
            .collect()
    }

    #[test]
    fn only_changed_text_is_shown() {
        let before = "{\n  \"key\": \"secret\"\n}\n";
        let after = "{\n  \"key\": \"secret\",\n  \"a\": {\n    \"b\": 1\n  }\n}\n";
        assert_eq!(
            lines(before, after),
            ["+  \"a\": {", "+    \"b\": 1", "+  }"]
        );
        assert_eq!(
            lines(after, before),
            ["-  \"a\": {", "-    \"b\": 1", "-  }"]
        );
        let small = lines("{\"key\":\"secret\"}", "{\"key\":\"secret\",\"a\":1}");
        assert_eq!(small, ["+…,\"a\":1"]);
    }
}
