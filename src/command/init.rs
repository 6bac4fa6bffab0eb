//! `osctl init`: creates `body/` in the project, with the files that people edit or with all files of the image.

use super::CommandContext;
use super::answers::{InitAnswer, InitFile};
use crate::archive::Folder;
use crate::error::{Error, Result, VerbOutcome};
use crate::host::agent_folders::canonicalize_existing;
use crate::host::path_resolver::ResolvedPath;
use crate::host::project::missing_project_error;
use crate::image::{Body, BodyFileUpdate};
use crate::protocol::quote::quote_word;
use crate::protocol::words::count_noun;
use clap::Args;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The files that people edit, below `body/`, and their purpose.
const EDITED_FILES: [(&str, &str); 3] = [
    ("Dockerfile", "steps after those of osctl"),
    ("mcp.json", "MCP servers"),
    ("selftest.d/README", "checks of a new image"),
];

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Folder of the project [default: the current folder]
    #[arg(value_name = "PATH")]
    project: Option<PathBuf>,
    /// Write all files of the image, also the kernel's source
    #[arg(long)]
    full: bool,
    /// Update body/ to this version of osctl; edited files are kept
    #[arg(long)]
    update: bool,
}

#[derive(Debug)]
struct InitPlan {
    project: PathBuf,
    full: bool,
    update: bool,
}

impl From<InitArgs> for InitPlan {
    fn from(args: InitArgs) -> Self {
        let InitArgs {
            project,
            full,
            update,
        } = args;
        Self {
            project: project.unwrap_or_else(|| ".".into()),
            full,
            update,
        }
    }
}

pub(crate) fn run(args: InitArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let plan = InitPlan::from(args);
    let folder = plan.project.join("body");
    let unmade = |e: io::Error| -> anyhow::Error {
        if e.kind() == ErrorKind::NotFound {
            return missing_project_error(&plan.project).into();
        }
        let message = format!("cannot create `{}`: {e}", folder.display());
        Error::usage(
            message,
            "name the folder of your project: `osctl init PATH`",
        )
        .into()
    };
    let project = match cx.path_resolver()?.resolve(&plan.project) {
        Ok(ResolvedPath::Folder(project)) => project,
        Ok(ResolvedPath::Name(name)) => {
            return Err(unmade(match name.stat {
                Some(_) => ErrorKind::NotADirectory.into(),
                None => ErrorKind::NotFound.into(),
            }));
        }
        Err(unresolved) => return Err(unresolved.into_error(unmade)),
    };
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
    let is_whole = plan.full || (has_body && Body::is_whole(&opened));
    let body = match is_whole {
        true => Body::embedded(),
        false => Body::extension_template(),
    };
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
            body_folder: folder,
            files: files
                .map(|(path, update)| InitFile { path, update })
                .collect(),
        })?;
        return Ok(VerbOutcome::Done);
    }
    // All files of a new body are added.
    if has_body || cx.ui.is_verbose() {
        for line in update_lines(&done, cx.ui.is_verbose()) {
            cx.ui.print_message(line);
        }
    }
    cx.ui.print_line(format!(
        "{} files in {}",
        body.files.len(),
        folder.display()
    ));
    if !has_body {
        cx.ui.print_message("files to edit:");
        for (path, purpose) in EDITED_FILES {
            let path = folder.join(path);
            cx.ui
                .print_message(format!("  {}: {purpose}", path.display()));
        }
    }
    let [apply, add] = next_commands(&plan.project, cx);
    cx.ui.print_message(format!(
        "next: edit `{}`, then `{apply}`; packages need no file: `{add}`",
        folder.join("Dockerfile").display(),
    ));
    Ok(VerbOutcome::Done)
}

/// The commands that apply the body and add packages. The chosen instance may be the only one, of another project.
fn next_commands(project: &Path, cx: &CommandContext) -> [String; 2] {
    let record = cx.instance.read_record().ok().flatten();
    let folder = canonicalize_existing(&absolute_or_same(project));
    match record.map(|record| canonicalize_existing(&record.project)) {
        Some(own) if folder == own => {
            ["evolve", "add NAME"].map(|verb| cx.instance.osctl_command(verb))
        }
        Some(_) if project == Path::new(".") => ["osctl up", "osctl add NAME"].map(str::to_owned),
        Some(_) => {
            let name = quote_word(project.as_os_str().as_encoded_bytes(), false);
            [
                format!("osctl up --project {name}"),
                "osctl add NAME".into(),
            ]
        }
        None => ["up", "add NAME"].map(|verb| cx.instance.osctl_command(verb)),
    }
}

fn absolute_or_same(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The changes: all files, or their numbers. Conflicts are always listed, because they need an edit by hand.
fn update_lines(done: &BTreeMap<String, BodyFileUpdate>, is_verbose: bool) -> Vec<String> {
    let what = |update: BodyFileUpdate| match update {
        BodyFileUpdate::Added => "added",
        BodyFileUpdate::Updated => "updated",
        BodyFileUpdate::Kept => "kept your edits of",
        BodyFileUpdate::Conflict => "changed on both sides, new version written as .new:",
    };
    let listed = |update: BodyFileUpdate| is_verbose || update == BodyFileUpdate::Conflict;
    let files = done.iter().filter(|(_, update)| listed(**update));
    let files = files.map(|(path, update)| format!("{} {path}", what(*update)));
    let counts = [
        BodyFileUpdate::Added,
        BodyFileUpdate::Updated,
        BodyFileUpdate::Kept,
    ];
    let counts = counts.into_iter().filter(|update| !listed(*update));
    let counts = counts.filter_map(|update| {
        let count = done.values().filter(|found| **found == update).count();
        (count > 0).then(|| format!("{} {}", what(update), count_noun(count, "file")))
    });
    files.chain(counts).collect()
}

#[cfg(test)]
mod tests {
    use super::{EDITED_FILES, update_lines};
    use crate::image::{Body, BodyFileUpdate};
    use std::collections::BTreeMap;

    #[test]
    fn the_files_to_edit_are_in_the_body() {
        for body in [Body::embedded(), Body::extension_template()] {
            for (path, _) in EDITED_FILES {
                assert!(body.files.contains_key(path), "{path}");
            }
        }
    }

    #[test]
    fn changes_are_counted_and_conflicts_are_listed() {
        let done = BTreeMap::from([
            ("a".to_owned(), BodyFileUpdate::Added),
            ("b".to_owned(), BodyFileUpdate::Added),
            ("c".to_owned(), BodyFileUpdate::Conflict),
            ("d".to_owned(), BodyFileUpdate::Kept),
        ]);
        let conflict = "changed on both sides, new version written as .new: c";
        assert_eq!(
            update_lines(&done, false),
            [conflict, "added 2 files", "kept your edits of 1 file"]
        );
        assert_eq!(
            update_lines(&done, true),
            ["added a", "added b", conflict, "kept your edits of d"]
        );
    }
}
