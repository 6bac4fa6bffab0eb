//! Tools that list and end what runs: sessions with their runs, and background processes.

use super::server::OsServer;
use super::tool_result::{ToolResult, text_result};
use crate::protocol::kernel::{RunStatus, RunSummary};
use crate::protocol::shell::JobInfo;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListSessionsArgs {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EndSessionArgs {
    /// Session to end; `default` can't end, `reset` empties it.
    session: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EndJobArgs {
    /// Process id of the job, from `list_sessions`.
    pid: i32,
}

#[derive(Debug, Serialize)]
struct ToolSessionList {
    sessions: Vec<ToolSessionEntry>,
}

#[derive(Debug, Serialize)]
struct ToolSessionEntry {
    name: String,
    /// Seconds since the last request or answer.
    idle_seconds: u64,
    /// Runs that have not ended.
    runs: Vec<RunSummary>,
    /// Processes that commands left in the background.
    jobs: Vec<JobInfo>,
}

#[derive(Debug, Serialize)]
struct EndedSession {
    session: String,
}

#[tool_router(router = session_tools, vis = "pub(super)")]
impl OsServer {
    /// List the sessions with their unfinished runs and the background processes (jobs) of their commands.
    #[tool(
        title = "Sessions and jobs",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_sessions(&self, _: Parameters<ListSessionsArgs>) -> ToolResult {
        let handles = &self.factory.0.handles;
        let code = handles.sessions.list_runs();
        let commands = handles.shells.list_runs();
        let code = code.iter().map(|run| run.summary());
        let mut runs: Vec<RunSummary> = code
            .chain(commands.iter().map(|run| run.summary()))
            .filter(|run| run.status == RunStatus::Running)
            .collect();
        let mut jobs = handles.shells.list_jobs().await;
        let sessions = handles.sessions.list_sessions().into_iter();
        let sessions = sessions.map(|(name, view)| ToolSessionEntry {
            idle_seconds: view.last_used.elapsed().as_secs(),
            runs: runs.extract_if(.., |run| run.session == name).collect(),
            jobs: jobs.extract_if(.., |job| job.session == name).collect(),
            name,
        });
        let list = ToolSessionList {
            sessions: sessions.collect(),
        };
        let text = list.summary_text();
        text_result(list, text)
    }

    /// End a session with its variables, runs and background processes.
    #[tool(
        title = "End a session",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn end_session(
        &self,
        Parameters(EndSessionArgs { session }): Parameters<EndSessionArgs>,
    ) -> ToolResult {
        let sessions = &self.factory.0.handles.sessions;
        sessions.delete_session(&session).await?;
        let text = format!("the session `{session}` has ended");
        text_result(EndedSession { session }, text)
    }

    /// End a background process of a command, and all processes that it started.
    #[tool(
        title = "End a job",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn end_job(&self, Parameters(EndJobArgs { pid }): Parameters<EndJobArgs>) -> ToolResult {
        let ended = self.factory.0.handles.shells.end_job(pid).await?;
        let text = format!("the job {pid} has ended: `{}`", ended.command);
        text_result(ended, text)
    }
}

impl ToolSessionList {
    fn summary_text(&self) -> String {
        let mut lines = Vec::new();
        for session in &self.sessions {
            let ToolSessionEntry {
                name,
                idle_seconds,
                runs,
                jobs,
            } = session;
            let state = match runs.is_empty() {
                true => format!("idle for {idle_seconds} s"),
                false => "busy".into(),
            };
            lines.push(format!("`{name}`: {state}"));
            lines.extend(runs.iter().map(|run| {
                let state = match run.status.is_queued(run.timing_ms) {
                    true => "queued".into(),
                    false => format!("running for {:.0} s", run.timing_ms / 1000.0),
                };
                format!("  run `{}`, {state}: {}", run.id, run.code)
            }));
            lines.extend(
                jobs.iter()
                    .map(|job| format!("  job {}: {}", job.pid, job.command)),
            );
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::{ToolSessionEntry, ToolSessionList};
    use crate::protocol::kernel::{RunStatus, RunSummary};
    use crate::protocol::shell::JobInfo;

    #[test]
    fn a_list_tells_queued_runs_from_running_ones() {
        let run = |id: &str, timing_ms: f64| RunSummary {
            id: id.into(),
            session: "a".into(),
            status: RunStatus::Running,
            code: "work()".into(),
            execution_count: None,
            created: 0.0,
            timing_ms,
            stdout_bytes: 0,
            stderr_bytes: 0,
        };
        let job = JobInfo {
            pid: 7,
            session: "a".into(),
            run: "c".into(),
            command: "server &".into(),
            processes: Vec::new(),
            output: String::new(),
        };
        let entry = |name: &str, runs, jobs| ToolSessionEntry {
            name: name.into(),
            idle_seconds: 3,
            runs,
            jobs,
        };
        let list = ToolSessionList {
            sessions: vec![
                entry("default", vec![], vec![]),
                entry("a", vec![run("1", 2000.0), run("2", 0.0)], vec![job]),
            ],
        };
        assert_eq!(
            list.summary_text(),
            "`default`: idle for 3 s\n`a`: busy\n  run `1`, running for 2 s: work()\n  run `2`, queued: work()\n  job 7: server &"
        );
    }
}
