//! Answers about code, commands and terminals.

use super::{UtcTime, seconds_from_ms};
use crate::command::listed_runs::ListedRun;
use crate::protocol::kernel::{
    ExecReply, KernelReply, KernelReport, KernelState, MimeBundle, RunError, RunStatus, RunSummary,
    TruncatedOutput,
};
use crate::protocol::pty::{TerminalEnded, TerminalList, TerminalSummary};
use crate::protocol::restored::{LostVariable, RestoredFrom, SkippedGeneration};
use crate::protocol::shell::ShellReply;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a run executes Python code or a shell command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CodeOrCommand {
    Code,
    Command,
}

/// The end of a run of Python code.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExecAnswer {
    id: String,
    /// Always `code`.
    kind: CodeOrCommand,
    status: RunStatus,
    /// The output as text; bytes that are not UTF-8 are replaced by U+FFFD.
    stdout: String,
    stderr: String,
    /// `text/plain` of the last expression.
    result: Option<String>,
    /// The MIME bundles of all `display()` calls and of the result, in order. Binary types are base64.
    data: Vec<Arc<MimeBundle>>,
    error: Option<RunError>,
    execution_count: Option<u64>,
    duration_seconds: f64,
    kernel: KernelEntry,
    /// The parts of this answer from which the middle was left out.
    truncated: Vec<TruncatedPart>,
    /// Whether the run is recorded on disk.
    durable: Option<bool>,
}

impl From<ExecReply> for ExecAnswer {
    fn from(reply: ExecReply) -> Self {
        let ExecReply {
            id,
            status,
            stdout,
            stderr,
            result,
            data,
            error,
            execution_count,
            timing_ms,
            kernel,
            truncated,
            durable,
        } = reply;
        Self {
            id,
            kind: CodeOrCommand::Code,
            status,
            stdout,
            stderr,
            result,
            data,
            error,
            execution_count,
            duration_seconds: seconds_from_ms(timing_ms),
            kernel: kernel.into(),
            truncated: truncated_parts(truncated),
            durable,
        }
    }
}

/// The end of a shell command.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ShellAnswer {
    id: String,
    /// Always `command`.
    kind: CodeOrCommand,
    /// `completed` for any exit code; `interrupted` after a timeout or a stop.
    status: RunStatus,
    /// The output as text; bytes that are not UTF-8 are replaced by U+FFFD.
    stdout: String,
    stderr: String,
    /// The exit code, 128+n for signal n; -1 for a command that was ended from outside.
    returncode: Option<i32>,
    /// The working directory of the session's next command.
    cwd: String,
    /// Whether the command left background processes.
    background: bool,
    error: Option<RunError>,
    /// The process id of its bash.
    pid: Option<u64>,
    duration_seconds: f64,
    /// The parts of this answer from which the middle was left out.
    truncated: Vec<TruncatedPart>,
    /// Whether the command is recorded on disk.
    durable: Option<bool>,
}

impl From<ShellReply> for ShellAnswer {
    fn from(reply: ShellReply) -> Self {
        let ShellReply {
            id,
            status,
            stdout,
            stderr,
            returncode,
            cwd,
            background,
            error,
            pid,
            timing_ms,
            truncated,
            durable,
        } = reply;
        Self {
            id,
            kind: CodeOrCommand::Command,
            status,
            stdout,
            stderr,
            returncode,
            cwd,
            background,
            error,
            pid,
            duration_seconds: seconds_from_ms(timing_ms),
            truncated: truncated_parts(truncated),
            durable,
        }
    }
}

/// A part of an answer that holds only its head and its tail.
#[derive(Debug, Serialize, JsonSchema)]
struct TruncatedPart {
    /// `stdout`, `stderr`, or `data` for MIME bundles.
    part: String,
    total_bytes: u64,
    kept_bytes: u64,
    /// The file inside with the complete output.
    file: Option<String>,
}

fn truncated_parts(parts: Option<BTreeMap<String, TruncatedOutput>>) -> Vec<TruncatedPart> {
    let parts = parts.unwrap_or_default().into_iter();
    let parts = parts.map(
        |(part, TruncatedOutput { total, kept, file })| TruncatedPart {
            part,
            total_bytes: total,
            kept_bytes: kept,
            file,
        },
    );
    parts.collect()
}

/// The kernel that answered, and the state of its namespace.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KernelEntry {
    /// The number of the namespace's generation; it only increases.
    generation: u64,
    state: KernelState,
    /// The source of the variables, with the state `restored`; `null` if the whole process was restored.
    restored_from: Option<RestoredEntry>,
}

impl From<KernelReport> for KernelEntry {
    fn from(report: KernelReport) -> Self {
        let from = report.restored_from;
        Self {
            generation: report.generation,
            state: report.state,
            restored_from: from.map(|from| Arc::unwrap_or_clone(from).into()),
        }
    }
}

/// The stored generation from which a namespace was restored.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RestoredEntry {
    /// The name under which the generation was stored.
    name: String,
    /// The generation's number under that name; not the generation of the kernel.
    generation: u64,
    /// Time of the store.
    created_at: UtcTime,
    /// Runs of the session that started after the store: their changes are missing. `null` if the runs were not
    /// counted.
    runs_after: Option<u64>,
    /// Whether there may have been more runs: the machine stopped before the count was written to the disk.
    runs_after_is_estimate: bool,
    /// Variables that were restored.
    variable_count: u64,
    /// Variables that were lost, or that came back with a difference that the receipt of the store does not name.
    lost_count: u64,
    /// Variables of `lost_count` whose verdict in the store was not `lost`. A variable that came back different is
    /// counted; `why` names the difference.
    unexpected_loss_count: u64,
    /// The first 50 lost variables; those counted in `unexpected_loss_count` come first.
    lost: Vec<LostVariable>,
    /// Newer generations that could not be reloaded.
    skipped: Vec<SkippedGeneration>,
    /// What differs although it is not lost: variables that the store called altered, then files of imported modules
    /// that have changed since. The first 50.
    warnings: Vec<String>,
}

impl From<RestoredFrom> for RestoredEntry {
    fn from(from: RestoredFrom) -> Self {
        let RestoredFrom {
            name,
            generation,
            created,
            runs_after,
            runs_after_is_estimate,
            variables,
            lost_count,
            lost_unexpectedly,
            lost,
            skipped,
            warnings,
        } = from;
        Self {
            name,
            generation,
            created_at: UtcTime::from_seconds(created),
            runs_after,
            runs_after_is_estimate,
            variable_count: variables,
            lost_count,
            unexpected_loss_count: lost_unexpectedly,
            lost,
            skipped,
            warnings,
        }
    }
}

/// A run that was started and is not followed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StartedAnswer {
    /// The run's id, for `osctl attach`.
    pub(crate) id: String,
}

/// The retained runs of code and of commands, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunsAnswer {
    runs: Vec<RunEntry>,
}

/// The status of a run in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ListedRunStatus {
    /// Waits for other work.
    Queued,
    /// Has started.
    Running,
    /// Ended without an exception.
    Completed,
    /// Ended by an exception, or because its kernel exited.
    Failed,
    /// Ended by a timeout or an interrupt request.
    Interrupted,
    /// The companion ended before the run did.
    Lost,
}

impl ListedRunStatus {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
        }
    }
}

impl From<&RunSummary> for ListedRunStatus {
    fn from(run: &RunSummary) -> Self {
        match run.status {
            status if status.is_queued(run.timing_ms) => Self::Queued,
            RunStatus::Running => Self::Running,
            RunStatus::Completed => Self::Completed,
            RunStatus::Failed => Self::Failed,
            RunStatus::Interrupted => Self::Interrupted,
            RunStatus::Lost => Self::Lost,
        }
    }
}

/// A run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunEntry {
    id: String,
    kind: CodeOrCommand,
    session: String,
    status: ListedRunStatus,
    /// The first line of the code or of the command, shortened; `-f NAME` for the file of a program.
    code: String,
    execution_count: Option<u64>,
    /// Time of the request.
    created_at: UtcTime,
    duration_seconds: f64,
    /// Bytes written to stdout.
    stdout_bytes: u64,
    stderr_bytes: u64,
}

impl From<ListedRun> for RunEntry {
    fn from(run: ListedRun) -> Self {
        let kind = match run.is_command {
            true => CodeOrCommand::Command,
            false => CodeOrCommand::Code,
        };
        let status = ListedRunStatus::from(&run.summary);
        let RunSummary {
            id,
            session,
            status: _,
            code,
            execution_count,
            created,
            timing_ms,
            stdout_bytes,
            stderr_bytes,
        } = run.summary;
        Self {
            id,
            kind,
            session,
            status,
            code,
            execution_count,
            created_at: UtcTime::from_seconds(created),
            duration_seconds: seconds_from_ms(timing_ms),
            stdout_bytes,
            stderr_bytes,
        }
    }
}

impl From<Vec<ListedRun>> for RunsAnswer {
    fn from(runs: Vec<ListedRun>) -> Self {
        let runs = runs.into_iter().map(RunEntry::from);
        Self {
            runs: runs.collect(),
        }
    }
}

/// The interrupted run, and the state of the kernel after that.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct InterruptAnswer {
    /// The run, if `ID` named a run of code.
    run: Option<ExecAnswer>,
    /// The command, if `ID` named a shell command.
    command: Option<ShellAnswer>,
    /// The kernel, if no `ID` was given.
    kernel: Option<KernelEntry>,
}

impl From<ExecReply> for InterruptAnswer {
    fn from(reply: ExecReply) -> Self {
        Self {
            run: Some(reply.into()),
            ..Self::default()
        }
    }
}

impl From<ShellReply> for InterruptAnswer {
    fn from(reply: ShellReply) -> Self {
        Self {
            command: Some(reply.into()),
            ..Self::default()
        }
    }
}

impl From<KernelReply> for InterruptAnswer {
    fn from(reply: KernelReply) -> Self {
        Self {
            kernel: Some(reply.kernel.into()),
            ..Self::default()
        }
    }
}

/// The kernel with its empty namespace.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResetAnswer {
    /// Always `completed`.
    status: String,
    kernel: KernelEntry,
}

impl From<KernelReply> for ResetAnswer {
    fn from(reply: KernelReply) -> Self {
        Self {
            status: reply.status,
            kernel: reply.kernel.into(),
        }
    }
}

/// The terminals, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TerminalsAnswer {
    terminals: Vec<TerminalEntry>,
}

/// The terminal that was ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TerminalEndedAnswer {
    id: String,
    /// The shell's exit code, 128+n for signal n.
    returncode: u8,
}

impl From<TerminalEnded> for TerminalEndedAnswer {
    fn from(ended: TerminalEnded) -> Self {
        let TerminalEnded {
            status: _,
            id,
            code,
        } = ended;
        Self {
            id,
            returncode: code,
        }
    }
}

/// A terminal.
#[derive(Debug, Serialize, JsonSchema)]
struct TerminalEntry {
    id: String,
    /// The foreground program, such as `vim`; `null` after the end.
    program: Option<String>,
    /// The shell's exit code, after the end.
    returncode: Option<u8>,
    /// The number of connected clients.
    viewer_count: u64,
    /// Whether one of them is the writer.
    has_writer: bool,
    cols: u16,
    rows: u16,
    /// Output so far.
    output_bytes: u64,
    /// Time since the last input or output.
    idle_seconds: f64,
}

impl From<TerminalList> for TerminalsAnswer {
    fn from(list: TerminalList) -> Self {
        let terminals = list.terminals.into_iter().map(|terminal| {
            let TerminalSummary {
                id,
                program,
                exit,
                viewers,
                writer,
                cols,
                rows,
                offset,
                idle,
            } = terminal;
            TerminalEntry {
                id,
                program,
                returncode: exit,
                viewer_count: viewers,
                has_writer: writer,
                cols,
                rows,
                output_bytes: offset,
                idle_seconds: idle,
            }
        });
        Self {
            terminals: terminals.collect(),
        }
    }
}
