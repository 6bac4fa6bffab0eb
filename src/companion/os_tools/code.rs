//! Kernel tools: execute code, find, wait for and interrupt runs, reset the namespace.

use super::logging::{LogSeverity, send_log_message};
use super::run_result::{DEFAULT_TOOL_OUTPUT_BYTES, ToolRunContent};
use super::run_wait::{RunWaitEnd, parse_seconds, wait_with_progress};
use super::server::OsServer;
use super::tool_error::ToolError;
use super::tool_result::{ToolResult, text_result};
use crate::companion::kernel::{KernelAnswer as Asked, KernelQuery, KernelRun, StopReason};
use crate::protocol::kernel::{
    DEFAULT_SESSION, Execute, KernelReport, KernelState, OutputPage, OutputStream, RunStatus,
    RunSummary,
};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// The default size of one page of output in bytes.
const TOOL_OUTPUT_PAGE_BYTES: u64 = 64 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExecuteArgs {
    /// Python as in a notebook: top-level `await`, `%magics` and `!commands` work, the value of the last expression
    /// is the result, figures are shown.
    code: String,
    /// Session whose variables the code uses, created if missing. If omitted, `default`, which all clients share.
    session: Option<String>,
    /// Interrupt the code after this many seconds; no limit if omitted.
    timeout: Option<f64>,
    /// Answer after this many seconds at the latest; a run that has not ended continues.
    wait: Option<f64>,
    /// Maximum bytes of each stream in the answer.
    max_output: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunArgs {
    /// Id of the run, from another tool's answer.
    id: String,
    /// Answer after this many seconds at the latest, even if the run has not ended.
    wait: Option<f64>,
    /// Maximum bytes of each stream in the answer.
    max_output: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutputArgs {
    /// Id of the run, from another tool's answer.
    id: String,
    /// Stream to read; `stdout` if omitted.
    stream: Option<OutputStream>,
    /// Offset of the first byte.
    #[serde(default)]
    offset: u64,
    /// Number of bytes, at most 1 MiB.
    limit: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InterruptToolArgs {
    /// Run to interrupt, of code or of a command; if omitted, the running code of the session.
    id: Option<String>,
    /// Session to interrupt; `default` if omitted.
    session: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ResetToolArgs {
    /// Session whose variables to delete; `default` if omitted.
    session: Option<String>,
    /// Also end the kernel process, even if it is busy, and start a new one.
    #[serde(default)]
    restart: bool,
}

/// The state of a session's kernel after an operation.
#[derive(Debug, Serialize)]
struct SessionKernelReport {
    session: String,
    kernel: KernelReport,
}

#[tool_router(router = code_tools, vis = "pub(super)")]
impl OsServer {
    /// Execute Python in a kernel that keeps its variables from call to call. Output is sent as progress while the
    /// code runs; figures and other pictures are images in the answer. Cancelling the call interrupts the code; the
    /// variables stay.
    #[tool(
        title = "Execute Python",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = false,
            open_world_hint = true
        )
    )]
    async fn execute_python_code(
        &self,
        Parameters(args): Parameters<ExecuteArgs>,
        cx: RequestContext<RoleServer>,
    ) -> ToolResult {
        let wait = parse_seconds("wait", args.wait)?;
        if parse_seconds("timeout", args.timeout)? == Some(Duration::ZERO) {
            return Err(ToolError::new(
                "`timeout` is 0: give the maximum run time of the code in seconds",
            ));
        }
        let sessions = &self.factory.0.handles.sessions;
        let session = self.ensure_session(args.session).await?;
        let run = sessions
            .execute(Execute {
                session: session.clone(),
                timeout: args.timeout,
                queue: true,
                ..Execute::new(args.code)
            })
            .await?;
        let waited =
            wait_with_progress(self, &cx, &run, || sessions.kernel_report(&run), wait).await;
        if waited == RunWaitEnd::Cancelled {
            return self.interrupt_cancelled_run(&cx, &run.id).await;
        }
        let limit = args.max_output.unwrap_or(DEFAULT_TOOL_OUTPUT_BYTES);
        self.code_result(&run, limit).await
    }

    /// Wait for running code or a running command, and report its result or its current state.
    #[tool(
        title = "Wait for a run",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn wait_for_run(
        &self,
        Parameters(args): Parameters<RunArgs>,
        cx: RequestContext<RoleServer>,
    ) -> ToolResult {
        let wait = parse_seconds("wait", args.wait)?;
        let limit = args.max_output.unwrap_or(DEFAULT_TOOL_OUTPUT_BYTES);
        let handles = &self.factory.0.handles;
        // Cancelling a wait does not interrupt the run.
        if let Ok(run) = handles.sessions.find_run(&args.id) {
            wait_with_progress(
                self,
                &cx,
                &run,
                || handles.sessions.kernel_report(&run),
                wait,
            )
            .await;
            return self.code_result(&run, limit).await;
        }
        let run = handles.shells.find_run(&args.id)?;
        let session = run.request.session.clone();
        wait_with_progress(
            self,
            &cx,
            &run,
            || handles.shells.command_report(&session),
            wait,
        )
        .await;
        self.command_content(&run, limit).await.into_tool_result()
    }

    /// Read a page of the output of code or of a command, starting at `offset`.
    #[tool(
        title = "Read a run's output",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn read_output(&self, Parameters(args): Parameters<OutputArgs>) -> ToolResult {
        let stream = args.stream.unwrap_or(OutputStream::Stdout);
        let limit = args.limit.unwrap_or(TOOL_OUTPUT_PAGE_BYTES);
        let page = self
            .output_page(&args.id, stream, args.offset, limit)
            .await?;
        let mut text = page.text.clone();
        if page.next < page.total {
            let left = page.total - page.next;
            text.push_str(&format!(
                "\n… {left} more bytes: pass `offset` {} …",
                page.next
            ));
        }
        text_result(page, text)
    }

    /// Interrupt a session's running code, or one run, as Ctrl-C does, and report whether the variables are kept.
    #[tool(
        title = "Interrupt",
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn interrupt(&self, Parameters(args): Parameters<InterruptToolArgs>) -> ToolResult {
        let handles = &self.factory.0.handles;
        let (session, kernel) = match args.id {
            Some(id) => match handles.sessions.interrupt_run(&id).await {
                Ok(run) => (
                    run.request.session.clone(),
                    handles.sessions.kernel_report(&run),
                ),
                Err(_) => {
                    let run = handles.shells.interrupt(&id).await?;
                    let session = run.request.session.clone();
                    let kernel = handles.sessions.find_kernel(&session)?.view().report;
                    (session, kernel)
                }
            },
            None => {
                let session = args.session.unwrap_or_else(|| DEFAULT_SESSION.into());
                let kernel = handles.sessions.find_kernel(&session)?.interrupt().await?;
                (session, kernel)
            }
        };
        session_kernel_result(session, kernel)
    }

    /// Delete a session's variables; its working directory and environment stay. `restart` also ends the session's
    /// process, even if busy.
    #[tool(
        title = "Reset",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn reset(&self, Parameters(args): Parameters<ResetToolArgs>) -> ToolResult {
        let session = args.session.unwrap_or_else(|| DEFAULT_SESSION.into());
        let kernel = self.factory.0.handles.sessions.find_kernel(&session)?;
        let Asked { value, report } = match args.restart {
            true => kernel.restart(StopReason::Restart).await?,
            false => kernel.query(KernelQuery::Reset).await?,
        };
        value.map_err(|raised| ToolError(format!("{}: {}", raised.kind, raised.message)))?;
        session_kernel_result(session, report)
    }
}

fn session_kernel_result(session: String, kernel: KernelReport) -> ToolResult {
    let variables = match kernel.state {
        KernelState::Kept => "the kernel continues",
        KernelState::Lost => "the kernel is new and has no variables",
        KernelState::Restored => "the kernel is new and has the stored variables",
    };
    let text = format!("session `{session}`: {variables}");
    text_result(SessionKernelReport { session, kernel }, text)
}

impl OsServer {
    /// Returns the session's name; creates the session if it does not exist.
    pub(super) async fn ensure_session(&self, name: Option<String>) -> Result<String, ToolError> {
        match name {
            None => Ok(DEFAULT_SESSION.into()),
            Some(name) => Ok(self
                .factory
                .0
                .handles
                .sessions
                .create_session(Some(name))
                .await?
                .0),
        }
    }

    /// The state or result of code.
    async fn code_result(&self, run: &KernelRun, limit: usize) -> ToolResult {
        let sessions = &self.factory.0.handles.sessions;
        let session = run.request.session.clone();
        let reply = run.build_reply(sessions.kernel_report(run));
        let waits_for = match reply.status.is_queued(reply.timing_ms) {
            true => {
                let runs = sessions.list_runs().into_iter().map(|run| run.summary());
                let is_running = |run: &RunSummary| {
                    run.session == session
                        && run.status == RunStatus::Running
                        && !run.status.is_queued(run.timing_ms)
                };
                runs.into_iter().find(is_running).map(|run| run.id)
            }
            false => None,
        };
        let timeout = run.request.timeout;
        let content = spawn_blocking(move || {
            ToolRunContent::from_exec_reply(reply, &session, limit, waits_for, timeout)
        });
        let content = content.await;
        content
            .map_err(|e| ToolError(format!("the result can't be shown: {e}")))?
            .into_tool_result()
    }

    /// A page of a run's output.
    pub(super) async fn output_page(
        &self,
        id: &str,
        stream: OutputStream,
        offset: u64,
        limit: u64,
    ) -> Result<OutputPage, ToolError> {
        let handles = &self.factory.0.handles;
        let page = match handles.sessions.find_run(id) {
            Ok(run) => run.read_page(stream, offset, Some(limit)).await,
            Err(_) => {
                handles
                    .shells
                    .find_run(id)?
                    .read_page(stream, offset, Some(limit))
                    .await
            }
        };
        page.map_err(|error| ToolError(format!("the output can't be read: {error}")))
    }

    /// Interrupts the code of a cancelled call. If the client only disconnected, the code continues.
    async fn interrupt_cancelled_run(
        &self,
        cx: &RequestContext<RoleServer>,
        id: &str,
    ) -> ToolResult {
        if !self.is_disconnected() {
            let sessions = &self.factory.0.handles.sessions;
            let run = sessions.interrupt_run(id).await?;
            let state = match sessions.kernel_report(&run).state {
                KernelState::Kept => "kept",
                KernelState::Lost => "lost",
                KernelState::Restored => "restored",
            };
            let text = format!("the run `{id}` was interrupted; its variables are {state}");
            if self.is_log_enabled(LogSeverity::Notice) {
                send_log_message(cx, LogSeverity::Notice, "kernel", text).await;
            }
        }
        Err(ToolError::new("the call was cancelled"))
    }
}
