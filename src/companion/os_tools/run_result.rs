//! The state or end of a run, as fields and as text: one form for code and for commands.

use super::svg_picture::draw_svg;
use super::terminal_codes::without_terminal_codes;
use super::tool_result::{ToolResult, structured_result};
use crate::protocol::kernel::{
    ExecReply, KernelReport, KernelState, MimeBundle, OutputStream, RunError, RunStatus,
};
use crate::protocol::mcp::{UNFINISHED_RUN_KEY, UnfinishedRun};
use crate::protocol::shell::ShellReply;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{ContentBlock, Resource};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The default for the most bytes of each stream in an answer.
pub(super) const DEFAULT_TOOL_OUTPUT_BYTES: usize = 16 << 10;

/// Current state of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ToolRunReport {
    /// Id of the run for `wait_for_run` and `read_output`.
    pub(super) id: String,
    pub(super) session: String,
    pub(super) status: RunStatus,
    /// Output of the run. The middle of long output is missing; see `omitted`.
    stdout: String,
    stderr: String,
    /// Value of the last expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    /// Exception of the code, or the reason for an early end.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_count: Option<u64>,
    /// Number of pictures in the content.
    images: usize,
    /// For a command: its exit code, 128+n for signal n, -1 if another process ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) returncode: Option<i32>,
    /// For a command: the directory where the session's next command starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    /// For a command: whether it left processes in the background.
    #[serde(skip_serializing_if = "Option::is_none")]
    background: Option<bool>,
    /// The process id of these processes' job.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<i32>,
    /// For code that its time limit interrupted: the limit in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<f64>,
    /// For queued code: the id of the run that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    timing_ms: f64,
    /// Whether the run can still be found after a crash of this computer's service or of the computer.
    durable: bool,
    /// For code: the kernel generation in which it ran, and whether its variables are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<KernelReport>,
    /// Streams that are not complete in this answer.
    omitted: Vec<Omitted>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Omitted {
    stream: OutputStream,
    /// Number of bytes written in total.
    total: u64,
    /// URI of the resource with the complete stream.
    uri: String,
}

/// The fields of the result, and the content for models.
pub(super) struct ToolRunContent {
    pub(super) report: ToolRunReport,
    content: Vec<ContentBlock>,
}

impl ToolRunContent {
    /// `waits_for`: the id of the run that queued code waits for. `timeout`: the time limit of the code in seconds.
    /// Drawing pictures can block the thread.
    pub(super) fn from_exec_reply(
        reply: ExecReply,
        session: &str,
        limit: usize,
        waits_for: Option<String>,
        timeout: Option<f64>,
    ) -> Self {
        let is_over = |timeout: &f64| {
            reply.status == RunStatus::Interrupted && reply.timing_ms >= timeout * 1000.0
        };
        let timeout = timeout.filter(is_over);
        let truncated = |stream: &str| reply.truncated.as_ref()?.get(stream).map(|t| t.total);
        let totals = [truncated("stdout"), truncated("stderr")];
        let result = reply.result;
        let (pictures, texts) = split_outputs(&reply.data, result.as_deref());
        let report = ToolRunReport {
            id: reply.id,
            session: session.into(),
            status: reply.status,
            stdout: reply.stdout,
            stderr: reply.stderr,
            result,
            error: reply.error,
            execution_count: reply.execution_count,
            images: pictures.len(),
            returncode: None,
            cwd: None,
            background: None,
            job: None,
            waits_for,
            timeout,
            timing_ms: reply.timing_ms,
            durable: reply.durable == Some(true),
            kernel: Some(reply.kernel),
            omitted: Vec::new(),
        };
        Self::new(report, totals, limit, texts, pictures)
    }

    /// `job`: the process id of the job that the command left in the background.
    pub(super) fn from_shell_reply(
        reply: ShellReply,
        session: &str,
        limit: usize,
        job: Option<i32>,
    ) -> Self {
        let truncated = |stream: &str| reply.truncated.as_ref()?.get(stream).map(|t| t.total);
        let totals = [truncated("stdout"), truncated("stderr")];
        let report = ToolRunReport {
            id: reply.id,
            session: session.into(),
            status: reply.status,
            stdout: reply.stdout,
            stderr: reply.stderr,
            result: None,
            error: reply.error,
            execution_count: None,
            images: 0,
            returncode: reply.returncode,
            cwd: Some(reply.cwd),
            background: Some(reply.background),
            job,
            waits_for: None,
            timeout: None,
            timing_ms: reply.timing_ms,
            durable: reply.durable == Some(true),
            kernel: None,
            omitted: Vec::new(),
        };
        Self::new(report, totals, limit, Vec::new(), Vec::new())
    }

    fn new(
        mut report: ToolRunReport,
        totals: [Option<u64>; 2],
        limit: usize,
        texts: Vec<String>,
        pictures: Vec<ContentBlock>,
    ) -> Self {
        let streams = [
            (OutputStream::Stdout, "stdout"),
            (OutputStream::Stderr, "stderr"),
        ];
        for ((stream, name), total) in streams.into_iter().zip(totals) {
            let text = match stream {
                OutputStream::Stdout => &mut report.stdout,
                OutputStream::Stderr => &mut report.stderr,
            };
            if total.is_none() && text.len() <= limit {
                continue;
            }
            let total = total.unwrap_or(text.len() as u64);
            *text = shorten_text(text, limit, total);
            report.omitted.push(Omitted {
                stream,
                total,
                uri: format!("os://runs/{}/{name}", report.id),
            });
        }
        let mut content = vec![ContentBlock::text(report.summary_text(&texts))];
        content.extend(pictures);
        content.extend(report.omitted.iter().map(Omitted::resource_link));
        Self { report, content }
    }

    /// Converts the run to a tool result; a run that did not complete is an error.
    pub(super) fn into_tool_result(self) -> ToolResult {
        let is_error = matches!(
            self.report.status,
            RunStatus::Failed | RunStatus::Interrupted | RunStatus::Lost
        );
        let id = self.report.id.clone();
        let (status, code) = (self.report.status, self.report.returncode);
        let reported = match status {
            RunStatus::Completed if code.is_some_and(|code| code != 0) => Some(RunStatus::Failed),
            RunStatus::Completed | RunStatus::Failed => None,
            _ => Some(status),
        };
        let mut result = structured_result(self.report, self.content)?;
        result.is_error = Some(is_error);
        if let Some(status) = reported {
            let run = json!(UnfinishedRun { id, status });
            result
                .meta
                .get_or_insert_default()
                .insert(UNFINISHED_RUN_KEY.into(), run);
        }
        Ok(result)
    }
}

impl Omitted {
    fn resource_link(&self) -> ContentBlock {
        let name = self.uri.rsplit('/').next().unwrap_or_default();
        let link = Resource::new(self.uri.clone(), name)
            .with_description("The complete output of the run")
            .with_mime_type("text/plain")
            .with_size(self.total);
        ContentBlock::resource_link(link)
    }
}

impl ToolRunReport {
    fn summary_text(&self, texts: &[String]) -> String {
        let mut parts = Vec::new();
        let mut add = |text: &str| {
            if !text.trim().is_empty() {
                parts.push(text.trim_end().to_owned());
            }
        };
        add(&without_terminal_codes(&self.stdout));
        if !self.stderr.trim().is_empty() {
            add(&format!(
                "stderr:\n{}",
                without_terminal_codes(&self.stderr)
            ));
        }
        texts.iter().for_each(|text| add(text));
        add(self.result.as_deref().unwrap_or_default());
        if let Some(error) = &self.error {
            match error.traceback.is_empty() {
                true => add(&format!("{}: {}", error.kind, error.message)),
                false => add(&error.traceback.join("\n")),
            }
        }
        if let Some(code) = self.returncode.filter(|code| *code != 0) {
            add(&format!("(exit code {code})"));
        }
        match self.status {
            status if status.is_queued(self.timing_ms) => {
                let other = self.waits_for.as_ref();
                let other =
                    other.map_or_else(|| "other work".into(), |id| format!("the run `{id}`"));
                add(&format!(
                    "(queued, not started: it waits for {other}, which `interrupt` stops; `wait_for_run` with the id `{}` returns the result)",
                    self.id
                ));
            }
            RunStatus::Running => add(&format!(
                "(not finished: call `wait_for_run` with the id `{}`)",
                self.id
            )),
            RunStatus::Interrupted => add(&match self.timeout {
                Some(seconds) => format!("(interrupted after its `timeout` of {seconds} s)"),
                None => "(interrupted)".into(),
            }),
            RunStatus::Completed | RunStatus::Failed | RunStatus::Lost => {}
        }
        if self.background == Some(true) {
            let job = self
                .job
                .map(|pid| format!(" as job {pid}; `end_job` ends them"));
            let job = job.unwrap_or_default();
            add(&format!("(processes continue in the background{job})"));
        }
        let kernel = self.kernel.as_ref();
        match kernel.map(|kernel| (kernel.state, &kernel.restored_from)) {
            Some((KernelState::Lost, _)) => {
                add("(the kernel is new: earlier variables are lost)");
            }
            Some((KernelState::Restored, None)) => {
                add("(the kernel is new and has the stored variables)");
            }
            Some((KernelState::Restored, Some(from))) => add(&format!(
                "(the kernel is new and has the variables of {})",
                from.describe()
            )),
            Some((KernelState::Kept, _)) | None => {}
        }
        if parts.is_empty() {
            return "(no output)".into();
        }
        parts.join("\n")
    }
}

/// Keeps the head and tail of a text that exceeds `limit`.
fn shorten_text(text: &str, limit: usize, total: u64) -> String {
    if text.len() <= limit {
        return text.into();
    }
    let head = char_boundary(text, limit / 2, false);
    let tail = char_boundary(text, text.len() - (limit - limit / 2), true);
    let left_out = total.saturating_sub((head + text.len() - tail) as u64);
    let note = format!("\n… {left_out} bytes are omitted: `read_output` returns them …\n");
    [&text[..head], &note, &text[tail..]].concat()
}

/// The next position between two characters.
pub(super) fn char_boundary(text: &str, mut at: usize, forward: bool) -> usize {
    while !text.is_char_boundary(at) {
        at = if forward { at + 1 } else { at - 1 };
    }
    at
}

/// The pictures, and the text of outputs other than the result.
fn split_outputs(
    data: &[Arc<MimeBundle>],
    result: Option<&str>,
) -> (Vec<ContentBlock>, Vec<String>) {
    let (mut pictures, mut texts) = (Vec::new(), Vec::new());
    for bundle in data {
        if let Some(picture) = image_content(bundle) {
            pictures.push(picture);
            continue;
        }
        let text = ["text/markdown", "text/plain"]
            .iter()
            .find_map(|kind| bundle.get(*kind)?.as_str());
        texts.extend(text.map(str::to_owned));
    }
    // The result has its own field.
    if let Some(result) = result
        && texts.last().is_some_and(|last| last == result)
    {
        texts.pop();
    }
    (pictures, texts)
}

fn image_content(bundle: &MimeBundle) -> Option<ContentBlock> {
    let kinds = ["image/png", "image/jpeg", "image/gif", "image/webp"];
    let binary = kinds
        .iter()
        .find_map(|kind| Some((kind, bundle.get(*kind)?)));
    if let Some((kind, Value::String(data))) = binary {
        let data: String = data.split_ascii_whitespace().collect();
        return Some(ContentBlock::image(data, *kind));
    }
    let picture = draw_svg(bundle.get("image/svg+xml")?.as_str()?)?;
    Some(ContentBlock::image(STANDARD.encode(picture), "image/png"))
}

#[cfg(test)]
mod tests {
    use super::{shorten_text, split_outputs};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn a_long_text_keeps_head_and_tail_and_is_marked() {
        assert_eq!(shorten_text("abc", 3, 3), "abc");
        let text = "é".repeat(100);
        let short = shorten_text(&text, 20, 200);
        assert!(
            short.starts_with("ééééé\n… 180 bytes") && short.ends_with("…\nééééé"),
            "{short}"
        );
        // The count includes the bytes that were cut before.
        assert!(shorten_text(&text, 20, 1000).contains("980 bytes"));
    }

    #[test]
    fn pictures_are_shown_and_the_result_is_reported_once() {
        let bundle = |value: serde_json::Value| Arc::new(value.as_object().unwrap().clone());
        let data = [
            bundle(json!({"image/png": "AA\nBB", "text/plain": "<Figure>"})),
            bundle(json!({"text/markdown": "*a*", "text/plain": "a"})),
            bundle(
                json!({"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>"}),
            ),
            bundle(json!({"image/svg+xml": "<p>", "text/plain": "b"})),
            bundle(json!({"text/plain": "2"})),
        ];
        let (pictures, texts) = split_outputs(&data, Some("2"));
        assert_eq!(pictures[0].as_image().unwrap().data, "AABB");
        assert_eq!(pictures[1].as_image().unwrap().mime_type, "image/png");
        assert_eq!(texts, ["*a*", "b"]);
    }
}
