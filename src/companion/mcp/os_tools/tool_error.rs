//! The texts of refusals for a model. Hints name tools, not HTTP endpoints.

use crate::companion::{cryo, desktop, display, evolve, files, kernel, shell};
use rmcp::model::{ContentBlock, IntoContents};

/// Why a tool did nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::companion) struct ToolError(pub(super) String);

impl ToolError {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

#[cfg(test)]
pub(in crate::companion) fn tool_error_text(refusal: impl Into<ToolError>) -> String {
    refusal.into().0
}

impl IntoContents for ToolError {
    fn into_contents(self) -> Vec<ContentBlock> {
        vec![ContentBlock::text(self.0)]
    }
}

impl From<kernel::KernelRefusal> for ToolError {
    fn from(refusal: kernel::KernelRefusal) -> Self {
        use kernel::KernelRefusal as R;
        Self(match refusal {
            R::Busy => "the session runs other code; `interrupt` stops that code".into(),
            R::QueueFull => "too many calls already wait for the session".into(),
            R::RunIdConflict(id) => format!("run `{id}` already exists and differs"),
            R::NoRun(id) => format!("there is no run `{id}`; old runs are deleted"),
            R::NotRecorded => "the disk is full; the code was not executed".into(),
            R::NoSession(name) => format!("there is no session `{name}`"),
            R::TooManySessions(count) => {
                format!("there are already {count} sessions, the maximum; use an existing session")
            }
            R::Invalid(why) => why,
            R::NoKernel(why) => format!("the kernel can't be started: {why}"),
            R::Checkpointed { checkpoint, .. } => format!(
                "the kernel is in the checkpoint `{checkpoint}`; a person restores it with `osctl criu restore`, and `reset` starts an empty kernel"
            ),
            R::ResourceHeld(why) => format!("the kernel did not release its live objects: {why}"),
            R::GenerationMismatch { seen, generation } => format!(
                "the kernel has generation {generation}, but the call names generation {seen}; nothing was stored"
            ),
            R::ShuttingDown => "the computer is stopping".into(),
        })
    }
}

impl From<shell::ShellRefusal> for ToolError {
    fn from(refusal: shell::ShellRefusal) -> Self {
        use shell::ShellRefusal as R;
        Self(match refusal {
            R::RunIdConflict(id) => format!("run `{id}` already exists and differs"),
            R::NoRun(id) => format!("there is no run `{id}`; old runs are deleted"),
            R::NotRecorded => "the disk is full; the command was not executed".into(),
            R::NoJob(pid) => format!("there is no job {pid}"),
            R::NoStdin(id) => format!("the stdin of command `{id}` is not open"),
            R::NoFolder { path, why } => format!("can't change to the directory `{path}`: {why}"),
            R::TooManyCommands => "the maximum number of commands is running".into(),
            R::NoSupervisor(why) => format!("the command can't be started: {why}"),
            R::ShuttingDown => "the computer is stopping".into(),
        })
    }
}

impl From<cryo::CryoRefusal> for ToolError {
    fn from(refusal: cryo::CryoRefusal) -> Self {
        use cryo::CryoRefusal as R;
        Self(match refusal {
            R::Kernel(refusal) => return refusal.into(),
            R::Invalid(why) | R::StrictLosses(why) | R::Failed(why) => why,
            R::NoName(name) => format!("nothing is stored as `{name}`"),
            R::NoGeneration {
                name,
                generation,
                newest,
            } => format!(
                "`{name}` has no generation {generation}; the newest generation is {newest}"
            ),
            R::Damaged {
                name,
                generation,
                why,
                previous,
            } => {
                let before = previous.map_or_else(String::new, |previous| {
                    format!("; the previous generation is {previous}")
                });
                format!("generation {generation} of `{name}` can't be used: {why}{before}")
            }
            R::DiskFull => "the disk is full; earlier stores are unchanged".into(),
            R::UserError(raised) => format!("{}: {}", raised.kind, raised.message),
        })
    }
}

impl From<evolve::EvolveRefusal> for ToolError {
    fn from(refusal: evolve::EvolveRefusal) -> Self {
        use evolve::EvolveRefusal as R;
        Self(match refusal {
            R::NoKeeper(why) => format!("no keeper is available: {why}"),
            R::NoReply(why) => format!("the keeper does not answer: {why}"),
            R::Busy(run) => format!(
                "evolve {} is in progress; `evolve_status` reports its progress",
                run.as_str()
            ),
            R::Invalid(why) => why,
            R::Keeper(fault) => fault.message,
        })
    }
}

impl From<files::FilesRefusal> for ToolError {
    fn from(refusal: files::FilesRefusal) -> Self {
        use files::FilesRefusal as R;
        Self(match refusal {
            R::Invalid(why) | R::Failed(why) => why,
            R::NotFound(path) => format!("there is no `{}`", path.display()),
            R::Denied { path, why } => format!("`{}` is not accessible: {why}", path.display()),
            R::NotAFile { path, kind } => {
                format!(
                    "`{}` is {}, not a file",
                    path.display(),
                    kind.with_article()
                )
            }
            R::NotAFolder(path) => format!("`{}` is not a folder", path.display()),
            R::NotEmpty(path) => format!("`{}` is not empty", path.display()),
            R::Busy(path) => format!("`{}` is in use", path.display()),
            R::StorageFull => "the disk is full; the old file is unchanged".into(),
            R::TooManyStreams(count) => format!("{count} transfers are in progress, the maximum"),
            R::Disconnected => "the file ended early".into(),
            R::Archive(fault) => fault.to_string(),
            // Refusals of resumable uploads, which no tool uses.
            R::OffsetMismatch(_) | R::InProgress(_) | R::NoUpload(_) | R::ContentChanged => {
                "the upload does not match".into()
            }
        })
    }
}

impl From<desktop::DesktopRefusal> for ToolError {
    fn from(refusal: desktop::DesktopRefusal) -> Self {
        use desktop::DesktopRefusal as R;
        use display::DisplayRefusal as D;
        Self(match refusal {
            R::Display(D::NoWindow(_)) => format!("{refusal}; `desktop_windows` lists them"),
            other => other.to_string(),
        })
    }
}
