//! Events of one running cell, as messages of Jupyter's iopub channel.

use super::content::{JUPYTER_INTERRUPTED_KIND, error_content, error_to_run_error};
use super::outputs::OutputPolicy;
use super::sockets::IopubSocket;
use super::wire::JupyterRequest;
use crate::error::Result;
use crate::protocol::kernel::{DisplayData, ExecReply, RunError, RunEventKind, RunStatus};
use serde_json::{Value, json};

/// How a cell ended.
pub(super) struct CellOutcome {
    pub(super) execution_count: Option<u64>,
    pub(super) exception: Option<RunError>,
}

/// Publishes one cell's events to the front ends.
pub(super) struct CellPublisher<'a> {
    request: &'a JupyterRequest,
    iopub: &'a IopubSocket,
    silent: bool,
    outputs: OutputPolicy,
    /// Held until the end, which provides its execution count.
    result: Option<DisplayData>,
    /// Held until the end, which may add details.
    exception: Option<RunError>,
}

impl<'a> CellPublisher<'a> {
    pub(super) fn new(
        request: &'a JupyterRequest,
        iopub: &'a IopubSocket,
        silent: bool,
        outputs: OutputPolicy,
    ) -> Self {
        Self {
            request,
            iopub,
            silent,
            outputs,
            result: None,
            exception: None,
        }
    }

    pub(super) async fn publish_event(&mut self, happened: RunEventKind) -> Result<()> {
        match happened {
            RunEventKind::Result(shown) => self.result = Some(shown),
            RunEventKind::Error { error } => self.hold_exception(error).await?,
            other => {
                if let Some((kind, content)) = event_to_message(&other, self.outputs) {
                    self.publish(kind, &content).await?;
                }
            }
        }
        Ok(())
    }

    /// Publishes the end of the cell; `news` is the change of the namespace.
    pub(super) async fn publish_end(
        mut self,
        reply: ExecReply,
        news: Option<String>,
    ) -> Result<CellOutcome> {
        let count = reply.execution_count;
        if let Some(shown) = self.result.take().filter(|_| !self.silent) {
            let (data, metadata) = self.outputs.filter_bundle(&shown.data, &shown.metadata);
            let content = json!({
                "execution_count": count, "data": data, "metadata": metadata,
            });
            self.publish("execute_result", &content).await?;
        }
        if let Some(text) = news {
            let content = json!({"name": "stderr", "text": text});
            self.publish("stream", &content).await?;
        }
        if reply.status == RunStatus::Completed {
            // The code has displayed an exception and continued.
            self.publish_exception().await?;
            let error = None;
            return Ok(CellOutcome {
                execution_count: count,
                exception: error,
            });
        }
        let error = reply.error.or_else(|| self.exception.take());
        self.exception = Some(with_final_traceback(error.unwrap_or_else(|| RunError {
            kind: JUPYTER_INTERRUPTED_KIND.into(),
            message: "the run was interrupted".into(),
            traceback: Vec::new(),
        })));
        self.publish_exception().await?;
        Ok(CellOutcome {
            execution_count: count,
            exception: self.exception,
        })
    }

    /// Publishes that the cell cannot be run or followed.
    pub(super) async fn publish_failure(mut self, error: &anyhow::Error) -> Result<CellOutcome> {
        self.hold_exception(error_to_run_error(error)).await?;
        self.publish_exception().await?;
        Ok(CellOutcome {
            execution_count: None,
            exception: self.exception,
        })
    }

    /// Holds an exception; an interrupt arrives twice, as Python's exception and as the interrupter's message.
    async fn hold_exception(&mut self, error: RunError) -> Result<()> {
        if (self.exception.as_ref()).is_some_and(|before| before.traceback != error.traceback) {
            self.publish_exception().await?;
        }
        self.exception = Some(error);
        Ok(())
    }

    async fn publish_exception(&self) -> Result<()> {
        match &self.exception {
            Some(error) if !self.silent => self.publish("error", &error_content(error)).await,
            _ => Ok(()),
        }
    }

    async fn publish(&self, kind: &str, content: &Value) -> Result<()> {
        self.iopub.publish(Some(self.request), kind, content).await
    }
}

/// Front ends show only the traceback, which ends with the code's exception; the reason of the run's end is appended.
fn with_final_traceback(mut error: RunError) -> RunError {
    if error.traceback.is_empty() || error.kind == JUPYTER_INTERRUPTED_KIND {
        let RunError { kind, message, .. } = &error;
        error.traceback.push(format!("{kind}: {message}"));
    }
    error
}

/// The iopub message for an event that needs no other event.
fn event_to_message(
    happened: &RunEventKind,
    outputs: OutputPolicy,
) -> Option<(&'static str, Value)> {
    Some(match happened {
        RunEventKind::Stdout { text, .. } => ("stream", json!({"name": "stdout", "text": text})),
        RunEventKind::Stderr { text, .. } => ("stream", json!({"name": "stderr", "text": text})),
        RunEventKind::Display(shown) => {
            let transient = shown.display_id.as_ref();
            let transient = transient.map_or(json!({}), |id| json!({"display_id": id}));
            let (data, metadata) = outputs.filter_bundle(&shown.data, &shown.metadata);
            let content = json!({"data": data, "metadata": metadata, "transient": transient});
            let kind = match shown.update {
                true => "update_display_data",
                false => "display_data",
            };
            (kind, content)
        }
        RunEventKind::Clear { wait } => ("clear_output", json!({"wait": wait})),
        RunEventKind::Result(_)
        | RunEventKind::Error { .. }
        | RunEventKind::Heartbeat
        | RunEventKind::Done { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{OutputPolicy, event_to_message};
    use serde_json::{Value, json};

    fn to_message(event: Value) -> Option<(&'static str, Value)> {
        event_to_message(
            &serde_json::from_value(event).unwrap(),
            OutputPolicy::Sanitized,
        )
    }

    #[test]
    fn events_are_sent_as_messages_of_jupyter() {
        let (kind, content) = to_message(json!({"type": "stderr", "text": "x\n"})).unwrap();
        assert_eq!(
            (kind, content),
            ("stream", json!({"name": "stderr", "text": "x\n"}))
        );
        let (kind, content) = to_message(json!({"type": "clear", "wait": true})).unwrap();
        assert_eq!((kind, content), ("clear_output", json!({"wait": true})));
        let shown = json!({"type": "display", "data": {"text/plain": "x"}});
        let (kind, content) = to_message(shown).unwrap();
        assert_eq!(kind, "display_data");
        assert_eq!(
            content,
            json!({"data": {"text/plain": "x"}, "metadata": {}, "transient": {}})
        );
        let shown = json!({"type": "display", "data": {}, "display_id": "7", "update": true});
        let (kind, content) = to_message(shown).unwrap();
        assert_eq!(kind, "update_display_data");
        assert_eq!(content["transient"], json!({"display_id": "7"}));
    }

    #[test]
    fn a_heartbeat_sends_nothing() {
        assert!(to_message(json!({"type": "heartbeat"})).is_none());
    }
}
