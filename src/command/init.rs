//! `osctl init`: copies the container's definition to `body/` in the project, for editing.

use super::CommandContext;
use super::answers::{InitAnswer, InitFile};
use crate::archive::Folder;
use crate::error::{Error, Result, VerbOutcome};
use crate::image::{Body, BodyFileUpdate};
use clap::Args;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Folder of the project [default: the current folder]
    #[arg(value_name = "PATH")]
    project: Option<PathBuf>,
    /// Update body/ to this version of osctl; edited files are kept
    #[arg(long)]
    update: bool,
}

#[derive(Debug)]
struct InitPlan {
    project: PathBuf,
    update: bool,
}

impl From<InitArgs> for InitPlan {
    fn from(args: InitArgs) -> Self {
        let InitArgs { project, update } = args;
        Self {
            project: project.unwrap_or_else(|| ".".into()),
            update,
        }
    }
}

pub(crate) fn run(args: InitArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = InitPlan::from(args);
    let folder = plan.project.join("body");
    let body = Body::embedded();
    let unmade = |e: io::Error| {
        let message = format!("cannot create `{}`: {e}", folder.display());
        Error::usage(message, "name a folder: `osctl init PATH`").into()
    };
    let project = cx.path_resolver()?.make_folder(&plan.project);
    let project = project.map_err(|unresolved| unresolved.into_error(unmade))?;
    // The user named the project, but a link of the name `body` in it is not followed: it is an error.
    let opened = project.ensure_folder(OsStr::new("body"));
    let opened = opened.map_err(|e| match Folder::is_link(&e) {
        true => {
            let message = format!("`{}` is a link or a file, not a folder", folder.display());
            Error::usage(message, "remove or rename it, then run `osctl init` again").into()
        }
        false => unmade(e),
    })?;
    let has_body = opened.stat(OsStr::new("Dockerfile")).is_ok();
    let done: BTreeMap<String, BodyFileUpdate> = match (has_body, plan.update) {
        (true, false) => {
            let message = format!("`{}` already exists", folder.display());
            return Err(Error::usage(
                message,
                "`osctl init --update` updates it and keeps your edits",
            )
            .into());
        }
        (false, _) => {
            body.write_to_folder(&opened, &folder)?;
            body.files
                .keys()
                .map(|path| (path.clone(), BodyFileUpdate::Added))
                .collect()
        }
        (true, true) => body.update_folder(&opened, &folder)?,
    };
    if cx.ui.json {
        let files = done.into_iter();
        cx.ui.print_json(&InitAnswer {
            body: folder,
            files: files
                .map(|(path, update)| InitFile { path, update })
                .collect(),
        })?;
        return Ok(VerbOutcome::Done);
    }
    for (path, update) in &done {
        let what = match update {
            BodyFileUpdate::Added => "added",
            BodyFileUpdate::Updated => "updated",
            BodyFileUpdate::Kept => "kept your edits of",
            BodyFileUpdate::Conflict => "changed on both sides, new version written as .new:",
        };
        cx.ui.print_message(format!("{what} {path}"));
    }
    cx.ui.print_line(format!(
        "{} files in {}",
        body.files.len(),
        folder.display()
    ));
    Ok(VerbOutcome::Done)
}
