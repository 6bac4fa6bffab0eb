//! Cells, run one after the other in the session, and their events as messages to front ends.
//!
//! A cell is a run like any other: it queues behind runs of others, has an id by which it is found
//! again when the connection is lost, and stays in `osctl runs`.

use super::content::{ExecuteRequest, error_reply, error_to_run_error};
use super::iopub::{CellOutcome, CellPublisher};
use super::notebook_session::NotebookSession;
use super::sockets::{IopubSocket, ReplySocket};
use super::wire::{JupyterRequest, fresh_id};
use crate::error::Result;
use crate::protocol::kernel::{
    ExecReply, Execute, KernelReport, KernelState, RunError, RunEventKind,
};
use serde_json::{Map, Value, json};
use std::cell::{Cell, RefCell};
use tokio::sync::mpsc::UnboundedReceiver;

pub(super) struct CellRunner<'a> {
    pub(super) session: &'a NotebookSession<'a>,
    pub(super) iopub: &'a IopubSocket,
    pub(super) replies: ReplySocket,
    /// The id of the current run.
    running_id: RefCell<Option<String>>,
    /// The generation of the kernel that answered last.
    last_generation: Cell<Option<u64>>,
    /// The execution count of the last cell.
    execution_count: Cell<u64>,
    /// A change of the namespace that no cell has reported yet.
    pending_warning: RefCell<Option<String>>,
}

impl<'a> CellRunner<'a> {
    pub(super) fn new(
        attached: &'a NotebookSession<'a>,
        iopub: &'a IopubSocket,
        replies: ReplySocket,
    ) -> Self {
        Self {
            session: attached,
            iopub,
            replies,
            running_id: RefCell::default(),
            last_generation: Cell::default(),
            execution_count: Cell::default(),
            pending_warning: RefCell::default(),
        }
    }

    /// Runs queued cells in order.
    pub(super) async fn run_queued(
        &self,
        queue: &mut UnboundedReceiver<JupyterRequest>,
    ) -> Result<()> {
        while let Some(request) = queue.recv().await {
            let content: ExecuteRequest = match request.parse_content() {
                Ok(content) => content,
                Err(error) => {
                    let reply = error_reply(&error_to_run_error(&error));
                    self.replies.send(&request, &reply).await?;
                    continue;
                }
            };
            self.iopub.begin_cell(&request).await?;
            let ended = self.run_cell(&request, &content).await?;
            // Requests sent before the client learned of the failure are aborted, including those still in the socket;
            // the yield lets the socket task deliver them.
            let mut aborted = Vec::new();
            if ended.exception.is_some() && content.stop_on_error {
                tokio::task::yield_now().await;
                aborted.extend(std::iter::from_fn(|| queue.try_recv().ok()));
            }
            let reply = self.execute_reply(&content, ended).await;
            self.replies.send(&request, &reply).await?;
            self.iopub.end_cell(&request).await?;
            for request in aborted {
                self.iopub.publish_busy(&request).await?;
                let reply = json!({"status": "aborted"});
                self.replies.send(&request, &reply).await?;
                self.iopub.publish_idle(&request).await?;
            }
        }
        Ok(())
    }

    /// Interrupts the running cell, if any; other clients' runs continue.
    pub(super) async fn interrupt_running(&self) -> Result<()> {
        let running = self.running_id.borrow().clone();
        let Some(id) = running else {
            return Ok(());
        };
        let interrupt = self
            .session
            .with_client(async |client| client.interrupt_started_run(&id).await);
        interrupt.await.map(drop)
    }

    async fn run_cell(
        &self,
        request: &JupyterRequest,
        content: &ExecuteRequest,
    ) -> Result<CellOutcome> {
        if !content.silent {
            let input = json!({"code": content.code, "execution_count": self.next_count().await});
            self.iopub
                .publish(Some(request), "execute_input", &input)
                .await?;
        }
        let mut publisher = CellPublisher::new(
            request,
            self.iopub,
            content.silent,
            self.session.output_policy(),
        );
        let reply = self
            .execute_to_end(content.into(), async |happened| {
                publisher.publish_event(happened).await
            })
            .await;
        match reply {
            // The front end shows no output of silent code, so keep the report for a visible cell.
            Ok(reply) if content.silent => publisher.publish_end(reply, None).await,
            Ok(reply) => {
                publisher
                    .publish_end(reply, self.pending_warning.take())
                    .await
            }
            Err(error) => publisher.publish_failure(&error).await,
        }
    }

    /// Runs code to its end.
    async fn execute_to_end(
        &self,
        cell: Execute,
        mut on_event: impl AsyncFnMut(RunEventKind) -> Result<()>,
    ) -> Result<ExecReply> {
        let id = fresh_id()?;
        let execute = Execute {
            id: Some(id.clone()),
            session: self.session.session_name(),
            queue: true,
            seen: self.last_generation.get(),
            ..cell
        };
        self.running_id.replace(Some(id));
        let followed = self.session.with_client(async |client| {
            // An idle session may have been removed.
            self.session.ensure_session(client).await?;
            let mut events = client.execute(&execute).await?;
            while let Some(event) = events.next().await? {
                match event.happened {
                    RunEventKind::Done { reply } => return Ok(*reply),
                    happened => on_event(happened).await?,
                }
            }
            Err(anyhow::anyhow!("the run's events ended without a result"))
        });
        let followed = followed.await;
        self.running_id.take();
        if let Ok(reply) = &followed {
            self.last_generation.set(Some(reply.kernel.generation));
            if let Some(text) = state_warning(&reply.kernel) {
                self.pending_warning.replace(Some(text));
            }
        }
        followed
    }

    /// The execution count of the next cell, if no other run comes first.
    async fn next_count(&self) -> u64 {
        let name = self.session.session_name();
        let sessions = self
            .session
            .with_client(async |client| client.list_sessions().await);
        let sessions = sessions.await.map(|found| found.sessions);
        let mut found = sessions.into_iter().flatten().filter(|s| s.name == name);
        let count = found
            .next()
            .map_or(self.execution_count.get(), |s| s.exec_count);
        count.saturating_add(1)
    }

    async fn execute_reply(&self, content: &ExecuteRequest, ended: CellOutcome) -> Value {
        let count = ended.execution_count.unwrap_or(self.execution_count.get());
        self.execution_count.set(count);
        let mut reply = match ended.exception {
            Some(error) => error_reply(&error),
            None => {
                let values = self
                    .evaluate_expressions(content.user_expressions.as_ref())
                    .await;
                json!({"status": "ok", "user_expressions": values, "payload": []})
            }
        };
        reply["execution_count"] = count.into();
        reply
    }

    /// The values of a front end's user expressions, each displayed by a silent run, which leaves no trace.
    async fn evaluate_expressions(
        &self,
        expressions: Option<&Map<String, Value>>,
    ) -> Map<String, Value> {
        let mut values = Map::new();
        for (name, expression) in expressions.into_iter().flatten() {
            let code = format!("display(eval({expression}))");
            let cell = Execute {
                silent: true,
                ..Execute::new(code)
            };
            let mut shown = None;
            let evaluated = self
                .execute_to_end(cell, async |happened| {
                    if let RunEventKind::Display(found) = happened {
                        shown = Some(found);
                    }
                    Ok(())
                })
                .await;
            let value = match (evaluated.map(|reply| reply.error), shown) {
                (Ok(None), Some(shown)) => {
                    let outputs = self.session.output_policy();
                    let (data, metadata) = outputs.filter_bundle(&shown.data, &shown.metadata);
                    json!({"status": "ok", "data": data, "metadata": metadata})
                }
                (Ok(raised), _) => error_reply(&raised.unwrap_or_else(|| no_value_error(name))),
                (Err(error), _) => error_reply(&error_to_run_error(&error)),
            };
            values.insert(name.clone(), value);
        }
        values
    }
}

fn no_value_error(name: &str) -> RunError {
    RunError {
        kind: "ValueError".into(),
        message: format!("`{name}` displayed nothing"),
        traceback: Vec::new(),
    }
}

/// The warning about a changed namespace.
fn state_warning(kernel: &KernelReport) -> Option<String> {
    let became = match (kernel.state, &kernel.restored_from) {
        (KernelState::Kept, _) => return None,
        (KernelState::Lost, _) => "lost".into(),
        (KernelState::Restored, None) => "restored".into(),
        (KernelState::Restored, Some(from)) => format!("restored from {}", from.describe()),
    };
    let generation = kernel.generation;
    Some(format!(
        "warning: the kernel was restarted (generation {generation}); its variables were {became}\n"
    ))
}
