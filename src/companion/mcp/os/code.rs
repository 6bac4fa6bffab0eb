//! Tools of the kernel: executing code, finding it again, interrupting it, emptying the namespace.

use super::answer::{Answer, said};
use super::following::{Waited, follow, seconds};
use super::logging::{Weight, log};
use super::ran::{OUTPUT, Ran, Shown};
use super::refused::Refused;
use super::server::Server;
use crate::companion::kernel::{Answer as Asked, Question, Stop};
use crate::protocol::kernel::{DEFAULT_SESSION, Execute, KernelReport, KernelState, Page, Stream};
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bytes of one page of output.
const PAGE: u64 = 64 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExecuteArgs {
    /// Python as in a notebook: top-level `await`, `%magics` and `!commands` work, the last expression's
    /// value is the result, figures are shown.
    code: String,
    /// Whose variables it uses. It is made when there is none of that name; `default` is everybody's.
    session: Option<String>,
    /// Interrupt the code after so many seconds; it may take any time unless this is given.
    timeout: Option<f64>,
    /// Answer after so many seconds, whether it has ended or not; it goes on.
    wait: Option<f64>,
    /// Bytes of each stream in the answer.
    max_output: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunArgs {
    /// The run's id, as another tool's answer tells it.
    id: String,
    /// Answer after so many seconds, whether it has ended or not.
    wait: Option<f64>,
    /// Bytes of each stream in the answer.
    max_output: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutputArgs {
    /// The run's id, as another tool's answer tells it.
    id: String,
    /// Which of the two; `stdout` unless said otherwise.
    stream: Option<Stream>,
    /// The first byte.
    #[serde(default)]
    offset: u64,
    /// Bytes, a MiB at most.
    limit: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InterruptArgs {
    /// Only this run, of code or of a command; otherwise whatever the session runs.
    id: Option<String>,
    /// Whose code; `default` unless said otherwise.
    session: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ResetArgs {
    /// Whose variables; `default` unless said otherwise.
    session: Option<String>,
    /// End the process, too, whatever it does, and start another.
    #[serde(default)]
    restart: bool,
}

/// What became of a session.
#[derive(Debug, Serialize, JsonSchema)]
struct Became {
    session: String,
    kernel: KernelReport,
}

#[tool_router(router = code_tools, vis = "pub(super)")]
impl Server {
    /// Executes Python in a kernel that keeps its variables from call to call. Output comes as progress
    /// while it runs; figures and other pictures are images in the answer. A cancelled call interrupts the
    /// code, and its variables stay.
    #[tool(
        title = "Execute Python",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = false, open_world_hint = true),
        output_schema = schema_for_output::<Ran>()
    )]
    async fn execute_python_code(
        &self,
        Parameters(args): Parameters<ExecuteArgs>,
        cx: RequestContext<RoleServer>,
    ) -> Answer {
        let wait = seconds("wait", args.wait)?;
        if seconds("timeout", args.timeout)? == Some(Duration::ZERO) {
            return Err(Refused::new(
                "`timeout` is 0: give the seconds that the code may take",
            ));
        }
        let sessions = &self.os.0.handles.sessions;
        let session = self.session(args.session).await?;
        let run = sessions
            .execute(Execute {
                session: session.clone(),
                timeout: args.timeout,
                queue: true,
                ..Execute::new(args.code)
            })
            .await?;
        let waited = follow(self, &cx, &run, || sessions.report(&run), wait).await;
        if waited == Waited::TakenBack {
            return self.take_back(&cx, &run.id).await;
        }
        let reply = run.reply(sessions.report(&run));
        Shown::of_code(reply, &session, args.max_output.unwrap_or(OUTPUT)).answer()
    }

    /// Waits for code or a command that goes on, and tells how it ended or stands.
    #[tool(
        title = "Wait for a run",
        annotations(read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Ran>()
    )]
    async fn wait_for_run(
        &self,
        Parameters(args): Parameters<RunArgs>,
        cx: RequestContext<RoleServer>,
    ) -> Answer {
        let wait = seconds("wait", args.wait)?;
        let limit = args.max_output.unwrap_or(OUTPUT);
        let handles = &self.os.0.handles;
        // Whoever only waits interrupts nothing.
        if let Ok(run) = handles.sessions.run(&args.id) {
            follow(self, &cx, &run, || handles.sessions.report(&run), wait).await;
            let session = run.work.session.clone();
            let reply = run.reply(handles.sessions.report(&run));
            return Shown::of_code(reply, &session, limit).answer();
        }
        let run = handles.shells.run(&args.id)?;
        let session = run.work.session.clone();
        follow(self, &cx, &run, || handles.shells.report(&session), wait).await;
        let reply = run.reply(handles.shells.report(&session));
        Shown::of_command(reply, &session, limit).answer()
    }

    /// A page of what code or a command has written, from byte `offset` on.
    #[tool(
        title = "Read a run's output",
        annotations(read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Page>()
    )]
    async fn read_output(&self, Parameters(args): Parameters<OutputArgs>) -> Answer {
        let stream = args.stream.unwrap_or(Stream::Stdout);
        let limit = args.limit.unwrap_or(PAGE);
        let page = self.page(&args.id, stream, args.offset, limit).await?;
        let mut text = page.text.clone();
        if page.next < page.total {
            let left = page.total - page.next;
            text.push_str(&format!(
                "\n… {left} bytes follow: give `offset` {} …",
                page.next
            ));
        }
        said(page, text)
    }

    /// Interrupts what a session runs, or one run, as Ctrl-C does, and tells whether its variables are
    /// still there.
    #[tool(
        title = "Interrupt",
        annotations(read_only_hint = false, destructive_hint = false, idempotent_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Became>()
    )]
    async fn interrupt(&self, Parameters(args): Parameters<InterruptArgs>) -> Answer {
        let handles = &self.os.0.handles;
        let (session, kernel) = match args.id {
            Some(id) => match handles.sessions.interrupt(&id).await {
                Ok(run) => (run.work.session.clone(), handles.sessions.report(&run)),
                Err(_) => {
                    let run = handles.shells.interrupt(&id).await?;
                    let session = run.work.session.clone();
                    let kernel = handles.sessions.kernel(&session)?.view().report;
                    (session, kernel)
                }
            },
            None => {
                let session = args.session.unwrap_or_else(|| DEFAULT_SESSION.into());
                let kernel = handles.sessions.kernel(&session)?.interrupt().await?;
                (session, kernel)
            }
        };
        became(session, kernel)
    }

    /// Forgets a session's variables; its working directory and environment stay. With `restart` its process
    /// is ended, whatever it does.
    #[tool(
        title = "Reset",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Became>()
    )]
    async fn reset(&self, Parameters(args): Parameters<ResetArgs>) -> Answer {
        let session = args.session.unwrap_or_else(|| DEFAULT_SESSION.into());
        let kernel = self.os.0.handles.sessions.kernel(&session)?;
        let Asked { value, report } = match args.restart {
            true => kernel.restart(Stop::Restart).await?,
            false => kernel.ask(Question::Reset).await?,
        };
        value.map_err(|raised| Refused(format!("{}: {}", raised.kind, raised.message)))?;
        became(session, report)
    }
}

fn became(session: String, kernel: KernelReport) -> Answer {
    let variables = match kernel.state {
        KernelState::Kept => "its kernel is the same one",
        KernelState::Lost => "its kernel is a new one, and empty",
        KernelState::Restored => "its kernel is a new one, with the variables that were stored",
    };
    let text = format!("session `{session}`: {variables}");
    said(Became { session, kernel }, text)
}

impl Server {
    /// The session of that name, made now unless it exists.
    pub(super) async fn session(&self, name: Option<String>) -> Result<String, Refused> {
        match name {
            None => Ok(DEFAULT_SESSION.into()),
            Some(name) => Ok(self.os.0.handles.sessions.create(Some(name)).await?.0),
        }
    }

    /// A page of what a run has written.
    pub(super) async fn page(
        &self,
        id: &str,
        stream: Stream,
        offset: u64,
        limit: u64,
    ) -> Result<Page, Refused> {
        let handles = &self.os.0.handles;
        let page = match handles.sessions.run(id) {
            Ok(run) => run.page(stream, offset, Some(limit)).await,
            Err(_) => {
                handles
                    .shells
                    .run(id)?
                    .page(stream, offset, Some(limit))
                    .await
            }
        };
        page.map_err(|error| Refused(format!("the output can't be read: {error}")))
    }

    /// Interrupts the code of a call that was taken back; a client that has just gone wants it to go on.
    async fn take_back(&self, cx: &RequestContext<RoleServer>, id: &str) -> Answer {
        if !self.is_over() {
            let sessions = &self.os.0.handles.sessions;
            let run = sessions.interrupt(id).await?;
            let state = match sessions.report(&run).state {
                KernelState::Kept => "kept",
                KernelState::Lost => "lost",
                KernelState::Restored => "restored",
            };
            let text = format!("the run `{id}` was interrupted; its variables are {state}");
            if self.hears(Weight::Notice) {
                log(cx, Weight::Notice, "kernel", text).await;
            }
        }
        Err(Refused::new("the call was taken back"))
    }
}
