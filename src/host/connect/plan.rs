//! What connecting and disconnecting change.

use super::call::{self, Call};
use super::change::{self, Backup, Change};
use super::client::{Client, Form};
use super::edit;
use super::places::Places;
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A client's file, as it is now.
#[derive(Debug)]
struct Found {
    file: PathBuf,
    text: Option<String>,
    form: Form,
    entry: Option<Value>,
}

/// Puts an entry of that name into the client's file, beside what is there.
///
/// # Errors
/// When the file can't be read, or the name is somebody else's.
pub(crate) fn connect(client: Client, name: &str, call: &Call, places: &Places) -> Result<Change> {
    let found = find(client, name, places)?;
    let entry = client.entry(name, call);
    let is_there = found.entry.is_some();
    if found.entry == Some(entry.value()) {
        return Ok(found.unchanged(Backup::None));
    }
    let text = found.text.as_deref().unwrap_or_default();
    let after = edit::insert(found.form, text, name, &entry);
    let after = after.map_err(|why| unfit(&found.file, &why))?;
    let backup = backup(&found.file, name);
    // With an entry in it, it is not what was there before osctl.
    let is_kept = found.text.is_none() || is_there;
    Ok(Change {
        backup: match is_kept {
            true => Backup::None,
            false => Backup::Make(backup),
        },
        file: found.file,
        before: found.text,
        after: Some(after),
    })
}

/// Takes the entry out again. Where nothing else has changed, the file is what it was, to the byte.
///
/// # Errors
/// When the file can't be read, or the entry is somebody else's.
pub(crate) fn disconnect(client: Client, name: &str, places: &Places) -> Result<Change> {
    let found = find(client, name, places)?;
    let backup = backup(&found.file, name);
    let kept = change::read(&backup)?;
    let dropped = match kept {
        Some(_) => Backup::Drop(backup),
        None => Backup::None,
    };
    let Some(text) = &found.text else {
        // Where the file is gone, the copy may be all that there is.
        return Ok(found.unchanged(Backup::None));
    };
    let Some(entry) = &found.entry else {
        return Ok(found.unchanged(dropped));
    };
    let written = call::of(entry).map(|call| client.entry(name, &call));
    let was = |original: &str| {
        let written = written.as_ref()?;
        let form = form(client, original).ok()?;
        edit::insert(form, original, name, written).ok()
    };
    if let Some(original) = &kept
        && was(original).as_ref() == Some(text)
    {
        return Ok(Change {
            file: found.file,
            before: found.text,
            after: kept,
            backup: dropped,
        });
    }
    let is_alone = kept.is_none() && was("").as_ref() == Some(text);
    let holder_stays = kept.as_deref().is_some_and(|kept| has_holder(client, kept));
    let after = match is_alone {
        true => None,
        false => {
            let after = edit::remove(found.form, text, name, holder_stays);
            Some(after.map_err(|why| unfit(&found.file, &why))?)
        }
    };
    Ok(Change {
        file: found.file,
        before: found.text.clone(),
        // Nothing of anybody's is left in a file that was ours.
        after: after.filter(|after| !after.trim().is_empty() || kept.is_some()),
        backup: dropped,
    })
}

fn find(client: Client, name: &str, places: &Places) -> Result<Found> {
    let file = client.file(places, name);
    let text = change::read(&file)?;
    let read = text.as_deref().unwrap_or_default();
    let form = form(client, read).map_err(|why| unfit(&file, &why))?;
    let said = edit::read(form, read).map_err(|why| unfit(&file, &why))?;
    let entry = edit::find(form, &said, name).cloned();
    if entry.as_ref().is_some_and(|entry| !call::is_ours(entry)) {
        let message = format!(
            "the server `{name}` in `{}` is not osctl's; it was not touched",
            file.display()
        );
        let hint = "give it another name there, or remove it yourself";
        return Err(Error::precondition(message, hint).into());
    }
    Ok(Found {
        file,
        text,
        form,
        entry,
    })
}

impl Found {
    fn unchanged(self, backup: Backup) -> Change {
        Change {
            file: self.file,
            after: self.text.clone(),
            before: self.text,
            backup,
        }
    }
}

/// The form of a client's file, which for some depends on what stands in it.
fn form(client: Client, text: &str) -> Result<Form, edit::Unfit> {
    let usual = client.form(&Value::Null);
    Ok(client.form(&edit::read(usual, text)?))
}

/// Whether a text has the servers' place, be it empty.
fn has_holder(client: Client, text: &str) -> bool {
    let form = form(client, text);
    let said = form.and_then(|form| Ok((form, edit::read(form, text)?)));
    said.is_ok_and(|(form, said)| edit::holder(form, &said).is_some())
}

/// Beside the file, by what was put in.
fn backup(file: &Path, name: &str) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(format!(".before-{name}"));
    path.into()
}

fn unfit(file: &Path, why: &str) -> anyhow::Error {
    let message = format!("`{}` is left as it is: {why}", file.display());
    Error::precondition(
        message,
        "mend it and run it again, or add `osctl mcp stdio` to it by hand",
    )
    .into()
}
