//! Following a run and showing its events; shared by several verbs.

use super::CommandContext;
use super::answers::ExecAnswer;
use super::figures::FigureOutput;
use crate::engine::EngineProgress;
use crate::error::{EXIT_INTERRUPTED, EXIT_NEGATIVE, Error, Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::host::events::ClientRunEvents;
use crate::protocol::kernel::{
    DisplayData, ExecReply, KernelState, RunError, RunEvent, RunEventKind, RunStatus, RunSummary,
};
use crate::protocol::restored::RestoredFrom;
use crate::protocol::words::count_noun;
use futures_util::TryFutureExt;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Without output for this time, a spinner is shown.
const FOLLOW_SPINNER_DELAY: Duration = Duration::from_millis(500);

/// Interval and time limit of requests for the position of a queued run.
const QUEUE_POLL_INTERVAL: Duration = Duration::from_secs(2);
const QUEUE_QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// The exit code of shells for a program that Ctrl-C ended.
pub(super) const CTRL_C_EXIT_CODE: u8 = 130;

/// The type of the error with which code ends itself.
const SYSTEM_EXIT: &str = "SystemExit";

/// The warning for a run that could not be recorded on disk.
pub(super) const NOT_RECORDED_WARNING: &str = "the run is not recorded on disk and is lost if the companion ends; `osctl shell df -h /data` shows the free space";

/// The effect of Ctrl-C on the followed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CtrlCAction {
    /// Interrupt the run; a second Ctrl-C stops following. For the verb that started the run.
    Interrupt,
    /// Stop following the run.
    Detach,
}

/// Follows a run of code to its end and returns its outcome as that of the verb.
pub(super) async fn follow_code_run(
    client: &CompanionClient,
    id: &str,
    open_events: impl Future<Output = Result<ClientRunEvents>>,
    ctrl_c: CtrlCAction,
    view: &mut RunView<'_>,
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let reply = to_end(client, id, open_events, ctrl_c, view, cx).await?;
    if let Some(code) = reply.as_ref().and_then(find_exit_code) {
        return Ok(match code {
            0 => VerbOutcome::Done,
            code => VerbOutcome::Code(code),
        });
    }
    Ok(match reply.map(|reply| reply.status) {
        Some(RunStatus::Completed) => VerbOutcome::Done,
        Some(RunStatus::Failed | RunStatus::Lost) => VerbOutcome::Code(EXIT_NEGATIVE),
        None if ctrl_c == CtrlCAction::Detach => VerbOutcome::Code(CTRL_C_EXIT_CODE),
        Some(RunStatus::Interrupted | RunStatus::Running) | None => {
            VerbOutcome::Code(EXIT_INTERRUPTED)
        }
    })
}

/// The exit code of code that has ended itself, as with `sys.exit(3)`. A text is an error, which Python prints.
fn find_exit_code(reply: &ExecReply) -> Option<u8> {
    let error = reply.error.as_ref()?;
    (error.kind == SYSTEM_EXIT).then(|| exit_code_of(&error.message).unwrap_or(EXIT_NEGATIVE))
}

/// The lowest byte of a number, as the system passes it on.
fn exit_code_of(message: &str) -> Option<u8> {
    let code: i64 = message.parse().ok()?;
    u8::try_from(code & 0xff).ok()
}

/// Prints that the run continues, and how to stop it.
pub(super) fn say_detached(what: &str, id: &str, cx: &CommandContext) {
    let interrupt = cx.instance.osctl_command(&format!("interrupt {id}"));
    let attach = cx.instance.osctl_command(&format!("attach {id}"));
    cx.ui.print_message(format!(
        "detached from {what} `{id}`, which keeps running; `{interrupt}` interrupts it, `{attach}` follows it again"
    ));
}

/// The reply, or `None` if following stopped before the end of the run.
pub(super) async fn to_end(
    client: &CompanionClient,
    id: &str,
    open_events: impl Future<Output = Result<ClientRunEvents>>,
    ctrl_c: CtrlCAction,
    view: &mut RunView<'_>,
    cx: &CommandContext,
) -> Result<Option<ExecReply>> {
    let mut has_begun = false;
    let open_events = open_events.inspect_ok(|_| has_begun = true);
    let followed = follow_events(client, id, open_events, ctrl_c, view, cx).await;
    if followed.as_ref().is_err_and(is_possibly_running) {
        let attach = cx.instance.osctl_command(&format!("attach {id}"));
        cx.ui.print_message(match has_begun {
            true => format!("run `{id}` may still be running; `{attach}` follows it again"),
            false => {
                format!("osctl does not know whether run `{id}` has started; `{attach}` follows the run if it has")
            }
        });
    }
    followed
}

/// Whether the run may still be active despite the error.
fn is_possibly_running(error: &anyhow::Error) -> bool {
    let ended = matches!(
        error.downcast_ref(),
        Some(
            Error::Refused { .. }
                | Error::NotRunning { .. }
                | Error::ProtocolMismatch { .. }
                | Error::RunNotFound { .. }
                | Error::OutputClosed
        )
    );
    !ended
}

async fn follow_events(
    client: &CompanionClient,
    id: &str,
    open_events: impl Future<Output = Result<ClientRunEvents>>,
    ctrl_c: CtrlCAction,
    view: &mut RunView<'_>,
    cx: &CommandContext,
) -> Result<Option<ExecReply>> {
    let mut silent = std::pin::pin!(tokio::time::sleep(FOLLOW_SPINNER_DELAY));
    let mut open_events = std::pin::pin!(open_events);
    let mut events = None;
    let mut work = None;
    let mut stopping = false;
    let mut is_silent = true;
    // One listener for the whole time, so that no press is missed between two events.
    let mut presses = listen_for_ctrl_c()?;
    let reply = loop {
        let next = async {
            match &mut events {
                Some(events) => next_event(events).await.map(FollowStep::Event),
                None => open_events
                    .as_mut()
                    .await
                    .map(|opened| FollowStep::Begun(Box::new(opened))),
            }
        };
        tokio::select! {
            step = next => match step? {
                FollowStep::Begun(opened) => events = Some(*opened),
                FollowStep::Event(RunEvent { happened: RunEventKind::Done { reply }, .. }) => break *reply,
                FollowStep::Event(RunEvent { happened: RunEventKind::Heartbeat, .. }) => {}
                FollowStep::Event(event) => {
                    (work, is_silent) = (None, false);
                    view.show_event(event.happened)?;
                }
            },
            () = &mut silent, if is_silent && cx.ui.can_prompt() => {
                let queued = queued_text(client, id).await;
                // The text is up to date as long as the run waits.
                is_silent = queued.is_some();
                silent.set(tokio::time::sleep(QUEUE_POLL_INTERVAL));
                let text = queued.unwrap_or_else(|| "waiting for output".into());
                match &work {
                    None => work = Some(cx.ui.start_request(&text)),
                    Some(work) => work.report_step(&text),
                }
            }
            Some(()) = presses.recv() => {
                work = None;
                if ctrl_c == CtrlCAction::Detach {
                    view.end_line()?;
                    say_detached("run", id, cx);
                    return Ok(None);
                }
                if stopping {
                    let attach = cx.instance.osctl_command(&format!("attach {id}"));
                    cx.ui.print_message(format!(
                        "detached from run `{id}`, which is being interrupted; `{attach}` follows it again"
                    ));
                    return Ok(None);
                }
                (stopping, is_silent) = (true, false);
                cx.ui.print_message("interrupting the code; press Ctrl-C again to detach");
                let (client, id) = (client.clone(), id.to_owned());
                // The outcome arrives with the followed events.
                tokio::spawn(async move { client.interrupt_started_run(&id).await });
            }
        }
    };
    drop(work);
    view.show_end(&reply, ctrl_c)?;
    Ok(Some(reply))
}

/// `queued behind 2 runs`, if the run waits for others.
async fn queued_text(client: &CompanionClient, id: &str) -> Option<String> {
    let listed = tokio::time::timeout(QUEUE_QUERY_TIMEOUT, client.list_runs());
    let earlier = count_earlier_runs(&listed.await.ok()?.ok()?.runs, id)?;
    Some(format!("queued behind {}", count_noun(earlier, "run")))
}

/// The number of runs that a queued run of the same session waits for.
fn count_earlier_runs(runs: &[RunSummary], id: &str) -> Option<usize> {
    let own = runs.iter().find(|run| run.id == id)?;
    let is_earlier = |run: &&RunSummary| {
        run.session == own.session
            && run.status == RunStatus::Running
            && run.id != own.id
            && run.created <= own.created
    };
    let earlier = runs.iter().filter(is_earlier).count();
    (own.status.is_queued(own.timing_ms) && earlier > 0).then_some(earlier)
}

enum FollowStep {
    Begun(Box<ClientRunEvents>),
    Event(RunEvent),
}

async fn next_event(events: &mut ClientRunEvents) -> Result<RunEvent> {
    let event = events.next().await?;
    event.ok_or_else(|| anyhow::anyhow!("the events of the run stopped before the run ended"))
}

#[cfg(unix)]
pub(super) use tokio::signal::unix::Signal as Presses;
#[cfg(windows)]
pub(super) use tokio::signal::windows::CtrlC as Presses;

#[cfg(unix)]
pub(super) fn listen_for_ctrl_c() -> std::io::Result<Presses> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
}

#[cfg(windows)]
pub(super) fn listen_for_ctrl_c() -> std::io::Result<Presses> {
    tokio::signal::windows::ctrl_c()
}

/// `Out[1]: `, as IPython writes it before a result: lines begin below it.
fn result_label(cell: u64, text: &str) -> String {
    match text.contains('\n') {
        true => format!("Out[{cell}]:\n"),
        false => format!("Out[{cell}]: "),
    }
}

/// Displays a run to the user.
#[derive(Debug)]
pub(super) struct RunView<'a> {
    cx: &'a CommandContext,
    figures: FigureOutput<'a>,
    /// Whether the output so far ends within a line.
    within_line: bool,
    /// The number of the cell, which precedes its result.
    cell: Option<u64>,
}

impl<'a> RunView<'a> {
    /// `out`: the folder for figures.
    pub(super) fn new(cx: &'a CommandContext, out: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            cx,
            figures: FigureOutput::new(cx, out)?,
            within_line: false,
            cell: None,
        })
    }

    /// Prints the result as that of the cell with this number.
    pub(super) fn number_result(&mut self, cell: u64) {
        self.cell = Some(cell);
    }

    fn show_event(&mut self, happened: RunEventKind) -> Result<()> {
        let ui = self.cx.ui;
        if ui.json {
            if let RunEventKind::Display(shown) | RunEventKind::Result(shown) = happened {
                self.figures.save_figure(&shown)?;
            }
            return Ok(());
        }
        match happened {
            RunEventKind::Stdout { text, .. } => {
                self.within_line = !text.ends_with('\n');
                ui.print_data(&text)?;
            }
            RunEventKind::Stderr { text, .. } => ui.print_stderr(&text)?,
            RunEventKind::Display(shown) => self.show_value(&shown, false)?,
            RunEventKind::Result(shown) => self.show_value(&shown, true)?,
            RunEventKind::Error { error } => self.show_error(&error)?,
            RunEventKind::Clear { .. } | RunEventKind::Heartbeat | RunEventKind::Done { .. } => {}
        }
        Ok(())
    }

    fn show_value(&mut self, shown: &DisplayData, is_result: bool) -> Result<()> {
        self.end_line()?;
        let has_figure = self.figures.show_figure(shown)?;
        let text = shown.data.get("text/plain").and_then(Value::as_str);
        // `<Figure size 640x480 with 1 Axes>` adds nothing to the figure.
        if let Some(text) = text.filter(|_| is_result || !has_figure) {
            let label = self.cell.filter(|_| is_result);
            let label = label.map_or_else(String::new, |cell| result_label(cell, text));
            self.cx.ui.print_data(&format!("{label}{text}\n"))?;
        }
        Ok(())
    }

    fn show_error(&mut self, error: &RunError) -> Result<()> {
        self.end_line()?;
        let ui = self.cx.ui;
        if error.kind == SYSTEM_EXIT {
            return match exit_code_of(&error.message) {
                Some(_) => Ok(()),
                None => ui.print_stderr(&format!("{}\n", error.message)),
            };
        }
        for line in &error.traceback {
            ui.print_traceback_line(line.trim_end_matches('\n'))?;
        }
        // A traceback ends with the exception of the code; the status of the run is reported separately.
        if error.traceback.is_empty() {
            ui.print_stderr(&format!("{}: {}\n", error.kind, error.message))?;
        }
        Ok(())
    }

    /// Ends the current line, so that further output starts on a new line.
    pub(super) fn end_line(&mut self) -> Result<()> {
        if std::mem::take(&mut self.within_line) {
            self.cx.ui.print_data("\n")?;
        }
        Ok(())
    }

    fn show_end(&mut self, reply: &ExecReply, ctrl_c: CtrlCAction) -> Result<()> {
        let ui = self.cx.ui;
        self.figures.report_saved();
        if ui.json {
            return ui.print_json(&ExecAnswer::from(reply.clone()));
        }
        if let Some(error) = &reply.error
            && reply.status == RunStatus::Interrupted
            && !error.traceback.is_empty()
        {
            ui.print_stderr(&format!("{}: {}\n", error.kind, error.message))?;
        }
        for (what, cut) in reply.truncated.iter().flatten() {
            if what == "data" {
                ui.print_warning(format!(
                    "{what} was truncated: {} of {} bytes are kept",
                    cut.kept, cut.total
                ));
            }
        }
        if reply.durable == Some(false) {
            ui.print_warning(NOT_RECORDED_WARNING);
        }
        let generation = reply.kernel.generation;
        match reply.kernel.state {
            KernelState::Kept => {}
            // The error of a run that the kernel did not survive already says this.
            KernelState::Lost if reply.error.as_ref().is_some_and(|e| e.traceback.is_empty()) => {}
            KernelState::Lost => {
                ui.print_warning(format!(
                    "the kernel restarted (kernel generation {generation}); variables were lost"
                ));
                let reload = self.cx.instance.osctl_command("cryo reload");
                ui.print_message(format!("hint: `{reload}` restores the last stored state"));
            }
            KernelState::Restored => {
                let from = reply.kernel.restored_from.as_deref();
                let source = from.map(|from| format!(" from {}", from.describe()));
                let text = format!(
                    "variables were restored{} (kernel generation {generation})",
                    source.unwrap_or_default()
                );
                match from.is_none_or(RestoredFrom::is_complete) {
                    false => ui.print_warning(text),
                    // `attach` shows the same reply each time.
                    true if ctrl_c == CtrlCAction::Detach => {}
                    true => ui.print_message(text),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{count_earlier_runs, exit_code_of, is_possibly_running};
    use crate::error::Error;
    use crate::protocol::kernel::{RunStatus, RunSummary};

    #[test]
    fn a_queued_run_waits_for_earlier_runs_of_its_session() {
        let run = |id: &str, session: &str, status, created, timing_ms| RunSummary {
            id: id.into(),
            session: session.into(),
            status,
            code: String::new(),
            execution_count: None,
            created,
            timing_ms,
            stdout_bytes: 0,
            stderr_bytes: 0,
        };
        let runs = [
            run("ended", "a", RunStatus::Completed, 1.0, 5.0),
            run("first", "a", RunStatus::Running, 2.0, 5.0),
            run("other", "b", RunStatus::Running, 3.0, 5.0),
            run("second", "a", RunStatus::Running, 4.0, 0.0),
            run("third", "a", RunStatus::Running, 5.0, 0.0),
        ];
        let counts = ["first", "second", "third", "ended", "missing"];
        let counts = counts.map(|id| count_earlier_runs(&runs, id));
        assert_eq!(counts, [None, Some(1), Some(2), None, None]);
    }

    #[test]
    fn the_exit_code_of_code_is_the_lowest_byte_of_its_number() {
        for (message, code) in [
            ("3", Some(3)),
            ("0", Some(0)),
            ("-1", Some(255)),
            ("257", Some(1)),
            ("no file", None),
            ("", None),
        ] {
            assert_eq!(exit_code_of(message), code, "{message}");
        }
    }

    #[test]
    fn a_run_is_possibly_running_unless_it_is_missing_or_output_is_closed() {
        let unreachable = Error::Unreachable {
            container: "c".into(),
            address: "a".into(),
            why: "reset".into(),
        };
        assert!(is_possibly_running(&unreachable.into()));
        assert!(is_possibly_running(
            &Error::precondition("`f.png` can't be written", "").into()
        ));
        assert!(is_possibly_running(
            &std::io::Error::other("no folder").into()
        ));
        assert!(!is_possibly_running(
            &Error::RunNotFound { run: "r".into() }.into()
        ));
        assert!(!is_possibly_running(&Error::OutputClosed.into()));
    }
}
