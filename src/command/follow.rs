//! Showing a run while it goes on: shared by the verbs that follow one.

use super::Context;
use super::figures::Figures;
use crate::error::{INTERRUPTED, NO, Outcome, Result};
use crate::host::client::Client;
use crate::host::events::Events;
use crate::protocol::kernel::{Event, Happened, KernelState, Raised, Reply, RunStatus, Shown};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Nothing waits in silence for longer.
const SILENCE: Duration = Duration::from_millis(500);

/// How often an interrupt is tried.
const TRIES: u32 = 5;

/// Follows a run to its end, which is the verb's. Ctrl-C interrupts the code, a second one leaves it
/// alone.
pub(super) async fn run(
    client: &Client,
    id: &str,
    begin: impl Future<Output = Result<Events>>,
    view: &mut View<'_>,
    cx: &Context,
) -> Result<Outcome> {
    let status = to_end(client, id, begin, view, cx).await?.map(|r| r.status);
    Ok(match status {
        Some(RunStatus::Completed) => Outcome::Done,
        Some(RunStatus::Failed) => Outcome::Code(NO),
        Some(RunStatus::Interrupted | RunStatus::Running) | None => Outcome::Code(INTERRUPTED),
    })
}

/// The reply, or nothing when the run was left alone before its end.
pub(super) async fn to_end(
    client: &Client,
    id: &str,
    begin: impl Future<Output = Result<Events>>,
    view: &mut View<'_>,
    cx: &Context,
) -> Result<Option<Reply>> {
    let mut silent = std::pin::pin!(tokio::time::sleep(SILENCE));
    let mut begin = std::pin::pin!(begin);
    let mut events = None;
    let mut work = None;
    let mut stopping = false;
    let mut is_silent = true;
    // One listener for all of them, so that none is missed between two.
    let mut presses = ctrl_c()?;
    let reply = loop {
        let next = async {
            match &mut events {
                Some(events) => next(events).await.map(Step::Event),
                None => begin
                    .as_mut()
                    .await
                    .map(|begun| Step::Begun(Box::new(begun))),
            }
        };
        tokio::select! {
            step = next => match step? {
                Step::Begun(begun) => events = Some(*begun),
                Step::Event(Event { happened: Happened::Done { reply }, .. }) => break *reply,
                Step::Event(Event { happened: Happened::Heartbeat, .. }) => {}
                Step::Event(event) => {
                    (work, is_silent) = (None, false);
                    view.show(event.happened)?;
                }
            },
            () = &mut silent, if is_silent && work.is_none() && cx.ui.can_ask() => {
                is_silent = false;
                work = Some(cx.ui.work("running"));
            }
            Some(()) = presses.recv() => {
                work = None;
                if stopping {
                    let attach = cx.instance.command(&format!("attach {id}"));
                    cx.ui.say(format!(
                        "no longer following run `{id}`, which is being interrupted; `{attach}` follows it again"
                    ));
                    return Ok(None);
                }
                (stopping, is_silent) = (true, false);
                cx.ui.say("interrupting the code; Ctrl-C again stops following it");
                let (client, id) = (client.clone(), id.to_owned());
                // Its outcome comes with the events that are followed anyway. The run may not have
                // been heard of yet.
                tokio::spawn(async move {
                    for _ in 0..TRIES {
                        if client.interrupt(&id).await.is_ok() {
                            break;
                        }
                        tokio::time::sleep(SILENCE).await;
                    }
                });
            }
        }
    };
    drop(work);
    view.end(&reply)?;
    Ok(Some(reply))
}

enum Step {
    Begun(Box<Events>),
    Event(Event),
}

async fn next(events: &mut Events) -> Result<Event> {
    let event = events.next().await?;
    event.ok_or_else(|| anyhow::anyhow!("the run's events ended without an end"))
}

#[cfg(unix)]
pub(super) fn ctrl_c() -> std::io::Result<tokio::signal::unix::Signal> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
}

#[cfg(windows)]
pub(super) fn ctrl_c() -> std::io::Result<tokio::signal::windows::CtrlC> {
    tokio::signal::windows::ctrl_c()
}

/// What a person sees of a run.
#[derive(Debug)]
pub(super) struct View<'a> {
    cx: &'a Context,
    figures: Figures<'a>,
    /// Whether what was written so far ends within a line.
    within_line: bool,
}

impl<'a> View<'a> {
    /// `out`: where figures are saved.
    pub(super) fn new(cx: &'a Context, out: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            cx,
            figures: Figures::new(cx, out)?,
            within_line: false,
        })
    }

    fn show(&mut self, happened: Happened) -> Result<()> {
        let ui = self.cx.ui;
        if ui.json {
            if let Happened::Display(shown) | Happened::Result(shown) = happened {
                self.figures.save(&shown)?;
            }
            return Ok(());
        }
        match happened {
            Happened::Stdout { text, .. } => {
                self.within_line = !text.ends_with('\n');
                ui.data(&text);
            }
            Happened::Stderr { text, .. } => ui.side(&text),
            Happened::Display(shown) => self.value(&shown, false)?,
            Happened::Result(shown) => self.value(&shown, true)?,
            Happened::Error { error } => self.error(&error),
            Happened::Clear { .. } | Happened::Heartbeat | Happened::Done { .. } => {}
        }
        Ok(())
    }

    fn value(&mut self, shown: &Shown, is_result: bool) -> Result<()> {
        self.end_line();
        let has_figure = self.figures.show(shown)?;
        let text = shown.data.get("text/plain").and_then(Value::as_str);
        // `<Figure size 640x480 with 1 Axes>` says nothing beside the figure.
        if let Some(text) = text.filter(|_| is_result || !has_figure) {
            self.cx.ui.line(text);
        }
        Ok(())
    }

    fn error(&mut self, error: &Raised) {
        self.end_line();
        for line in &error.traceback {
            self.cx
                .ui
                .side(&format!("{}\n", line.trim_end_matches('\n')));
        }
        // A traceback ends with the code's exception; what became of the run is told besides.
        if error.traceback.is_empty() {
            self.cx
                .ui
                .side(&format!("{}: {}\n", error.kind, error.message));
        }
    }

    /// What follows begins a line of its own.
    pub(super) fn end_line(&mut self) {
        if std::mem::take(&mut self.within_line) {
            self.cx.ui.data("\n");
        }
    }

    fn end(&mut self, reply: &Reply) -> Result<()> {
        let ui = self.cx.ui;
        self.figures.tell();
        if ui.json {
            return ui.document(reply);
        }
        if let Some(error) = &reply.error
            && reply.status == RunStatus::Interrupted
            && !error.traceback.is_empty()
        {
            ui.side(&format!("{}: {}\n", error.kind, error.message));
        }
        for (what, cut) in reply.truncated.iter().flatten() {
            if what == "data" {
                ui.warn(format!(
                    "{what} was cut: {} of {} bytes are kept",
                    cut.kept, cut.total
                ));
            }
        }
        let generation = reply.kernel.generation;
        match reply.kernel.state {
            KernelState::Kept => {}
            KernelState::Lost => ui.warn(format!(
                "the kernel's state was lost; this is generation {generation}"
            )),
            KernelState::Restored => ui.warn(format!(
                "the kernel's state was restored; this is generation {generation}"
            )),
        }
        Ok(())
    }
}
