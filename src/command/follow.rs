//! Showing a run while it goes on: shared by the verbs that follow one.

use super::Context;
use super::figures::Figures;
use crate::error::{Error, INTERRUPTED, NO, Outcome, Result};
use crate::host::client::Client;
use crate::host::events::Events;
use crate::protocol::kernel::{Event, Happened, KernelState, Raised, Reply, RunStatus, Shown};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Nothing waits in silence for longer.
const SILENCE: Duration = Duration::from_millis(500);

/// What a shell says of a program that Ctrl-C ended.
pub(super) const BY_CTRL_C: u8 = 130;

/// Said of a run that the disk did not take.
pub(super) const NOT_RECORDED: &str = "the run is not recorded on disk, and is not found again if the companion ends; `df -h /data` inside shows the room";

/// What Ctrl-C does to the run that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CtrlC {
    /// Interrupts it; a second one stops following. For the verb that began the run.
    Interrupt,
    /// Stops following it.
    Detach,
}

/// Follows a run to its end, which is the verb's.
pub(super) async fn run(
    client: &Client,
    id: &str,
    begin: impl Future<Output = Result<Events>>,
    ctrl_c: CtrlC,
    view: &mut View<'_>,
    cx: &Context,
) -> Result<Outcome> {
    let reply = to_end(client, id, begin, ctrl_c, view, cx).await?;
    Ok(match reply.map(|reply| reply.status) {
        Some(RunStatus::Completed) => Outcome::Done,
        Some(RunStatus::Failed | RunStatus::Lost) => Outcome::Code(NO),
        None if ctrl_c == CtrlC::Detach => Outcome::Code(BY_CTRL_C),
        Some(RunStatus::Interrupted | RunStatus::Running) | None => Outcome::Code(INTERRUPTED),
    })
}

/// Says that the run continues, and how to stop it.
pub(super) fn say_detached(what: &str, id: &str, cx: &Context) {
    let interrupt = cx.instance.command(&format!("interrupt {id}"));
    let attach = cx.instance.command(&format!("attach {id}"));
    cx.ui.say(format!(
        "no longer following {what} `{id}`, which goes on; `{interrupt}` stops it, `{attach}` follows it again"
    ));
}

/// The reply, or nothing when the run was left alone before its end.
pub(super) async fn to_end(
    client: &Client,
    id: &str,
    begin: impl Future<Output = Result<Events>>,
    ctrl_c: CtrlC,
    view: &mut View<'_>,
    cx: &Context,
) -> Result<Option<Reply>> {
    let followed = watched(client, id, begin, ctrl_c, view, cx).await;
    if followed.as_ref().is_err_and(goes_on) {
        let attach = cx.instance.command(&format!("attach {id}"));
        cx.ui
            .say(format!("run `{id}` may go on; `{attach}` follows it again"));
    }
    followed
}

/// Whether what went wrong is no reason for the run to have ended, or never to have begun.
fn goes_on(error: &anyhow::Error) -> bool {
    let ended = matches!(
        error.downcast_ref(),
        Some(
            Error::Refused { .. }
                | Error::NotRunning { .. }
                | Error::OtherProtocol { .. }
                | Error::RunGone { .. }
                | Error::Unread
        )
    );
    !ended
}

async fn watched(
    client: &Client,
    id: &str,
    begin: impl Future<Output = Result<Events>>,
    ctrl_c: CtrlC,
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
    let mut presses = listen_for_ctrl_c()?;
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
                work = Some(cx.ui.work("running, or waiting for its turn"));
            }
            Some(()) = presses.recv() => {
                work = None;
                if ctrl_c == CtrlC::Detach {
                    view.end_line()?;
                    say_detached("run", id, cx);
                    return Ok(None);
                }
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
                // Its outcome comes with the events that are followed anyway.
                tokio::spawn(async move { client.interrupt_begun(&id).await });
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
                ui.data(&text)?;
            }
            Happened::Stderr { text, .. } => ui.side(&text)?,
            Happened::Display(shown) => self.value(&shown, false)?,
            Happened::Result(shown) => self.value(&shown, true)?,
            Happened::Error { error } => self.error(&error)?,
            Happened::Clear { .. } | Happened::Heartbeat | Happened::Done { .. } => {}
        }
        Ok(())
    }

    fn value(&mut self, shown: &Shown, is_result: bool) -> Result<()> {
        self.end_line()?;
        let has_figure = self.figures.show(shown)?;
        let text = shown.data.get("text/plain").and_then(Value::as_str);
        // `<Figure size 640x480 with 1 Axes>` says nothing beside the figure.
        if let Some(text) = text.filter(|_| is_result || !has_figure) {
            self.cx.ui.data(&format!("{text}\n"))?;
        }
        Ok(())
    }

    fn error(&mut self, error: &Raised) -> Result<()> {
        self.end_line()?;
        let ui = self.cx.ui;
        for line in &error.traceback {
            ui.side(&format!("{}\n", line.trim_end_matches('\n')))?;
        }
        // A traceback ends with the code's exception; what became of the run is told besides.
        if error.traceback.is_empty() {
            ui.side(&format!("{}: {}\n", error.kind, error.message))?;
        }
        Ok(())
    }

    /// What follows begins a line of its own.
    pub(super) fn end_line(&mut self) -> Result<()> {
        if std::mem::take(&mut self.within_line) {
            self.cx.ui.data("\n")?;
        }
        Ok(())
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
            ui.side(&format!("{}: {}\n", error.kind, error.message))?;
        }
        for (what, cut) in reply.truncated.iter().flatten() {
            if what == "data" {
                ui.warn(format!(
                    "{what} was cut: {} of {} bytes are kept",
                    cut.kept, cut.total
                ));
            }
        }
        if reply.durable == Some(false) {
            ui.warn(NOT_RECORDED);
        }
        let generation = reply.kernel.generation;
        match reply.kernel.state {
            KernelState::Kept => {}
            // The error of a run that did not survive it says so.
            KernelState::Lost if reply.error.as_ref().is_some_and(|e| e.traceback.is_empty()) => {}
            KernelState::Lost => ui.warn(format!(
                "the kernel's state was lost; this is generation {generation}"
            )),
            KernelState::Restored => ui.warn(match &reply.kernel.restored_from {
                Some(from) => format!(
                    "the kernel's state was restored from {}; the kernel is generation {generation}",
                    from.words()
                ),
                None => format!("the kernel's state was restored; this is generation {generation}"),
            }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::goes_on;
    use crate::error::Error;

    #[test]
    fn a_run_goes_on_unless_it_was_refused_or_is_gone() {
        let lost = Error::Unreachable {
            container: "c".into(),
            address: "a".into(),
            why: "reset".into(),
        };
        assert!(goes_on(&lost.into()));
        assert!(goes_on(
            &Error::precondition("`f.png` can't be written", "").into()
        ));
        assert!(goes_on(&std::io::Error::other("no folder").into()));
        assert!(!goes_on(&Error::RunGone { run: "r".into() }.into()));
        assert!(!goes_on(&Error::Unread.into()));
    }
}
