//! `osctl init`: the body as files of the project, to be changed there.

use super::Context;
use crate::archive::Folder;
use crate::error::{Error, Outcome, Result};
use crate::image::{Body, Update};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The project [default: the current folder]
    #[arg(value_name = "PATH")]
    project: Option<PathBuf>,
    /// Bring an earlier body up to date; edited files are kept
    #[arg(long)]
    update: bool,
}

#[derive(Debug)]
struct Plan {
    project: PathBuf,
    update: bool,
}

impl From<InitArgs> for Plan {
    fn from(args: InitArgs) -> Self {
        let InitArgs { project, update } = args;
        Self {
            project: project.unwrap_or_else(|| ".".into()),
            update,
        }
    }
}

pub(crate) fn run(args: InitArgs, cx: &Context) -> Result<Outcome> {
    let plan = Plan::from(args);
    let folder = plan.project.join("body");
    let body = Body::embedded();
    let unmade = |e: io::Error| {
        let message = format!("`{}` can't be made: {e}", folder.display());
        Error::usage(message, "name a folder: `osctl init PATH`").into()
    };
    let project = cx.path_resolver()?.make_folder(&plan.project);
    let project = project.map_err(|unresolved| unresolved.into_error(unmade))?;
    // The user named the project. The name in it is not followed: a body that is a link is no body.
    let opened = project.ensure_folder(OsStr::new("body"));
    let opened = opened.map_err(|e| match Folder::is_link(&e) {
        true => {
            let message = format!("`{}` is a link or a file, not a folder", folder.display());
            Error::usage(message, "remove or rename it, then run `osctl init` again").into()
        }
        false => unmade(e),
    })?;
    let has_body = opened.look(OsStr::new("Dockerfile")).is_ok();
    let done: BTreeMap<String, Update> = match (has_body, plan.update) {
        (true, false) => {
            let message = format!("`{}` is there already", folder.display());
            return Err(Error::usage(
                message,
                "`osctl init --update` brings it up to date and keeps your edits",
            )
            .into());
        }
        (false, _) => {
            body.write(&opened, &folder)?;
            body.files
                .keys()
                .map(|path| (path.clone(), Update::Added))
                .collect()
        }
        (true, true) => body.update(&opened, &folder)?,
    };
    if cx.ui.json {
        cx.ui.document(&json!({"body": folder, "files": done}))?;
        return Ok(Outcome::Done);
    }
    for (path, update) in &done {
        let what = match update {
            Update::Added => "added",
            Update::Updated => "updated",
            Update::Kept => "kept your edit of",
            Update::Conflict => "both changed, ours is beside it as .new:",
        };
        cx.ui.say(format!("{what} {path}"));
    }
    cx.ui.line(format!(
        "{} files in {}",
        body.files.len(),
        folder.display()
    ));
    Ok(Outcome::Done)
}
