//! Waiting for a run as its caller does: output is told on the way, taking the call back interrupts it.

use super::logging::{Weight, log};
use super::ran::whole;
use super::refused::Refused;
use super::server::Server;
use crate::companion::runs::{Run, Work};
use crate::protocol::kernel::{Happened, Stream};
use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// Between two reports; more would cost a client more than they tell.
const PACE: Duration = Duration::from_millis(100);
/// After so long in silence a client is told that the run goes on, so that its own limits do not end it.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Bytes of output in one report; all of it is in the answer.
const PIECE: usize = 4096;
/// A week: beyond it, a time limit is certainly a mistake of units.
const LONGEST: f64 = 7.0 * 24.0 * 3600.0;

/// How the waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Ended,
    /// The run goes on, and may be asked for again.
    GoesOn,
    /// The caller wants no answer any more.
    TakenBack,
}

/// Whoever waits, and how they hear.
struct Caller<'a> {
    server: &'a Server,
    cx: &'a RequestContext<RoleServer>,
    begun: Instant,
    told: Instant,
    /// Not told yet.
    unsaid: [String; 2],
}

/// A time limit that makes sense, in seconds.
///
/// # Errors
/// When it is none.
pub(super) fn seconds(name: &str, given: Option<f64>) -> Result<Option<Duration>, Refused> {
    let Some(seconds) = given else {
        return Ok(None);
    };
    if !(0.0..=LONGEST).contains(&seconds) {
        let why = format!("`{name}` is {seconds}: give seconds from 0 to {LONGEST}");
        return Err(Refused::new(why));
    }
    Ok(Some(Duration::from_secs_f64(seconds)))
}

/// Waits for the end of a run, or for `wait`.
pub(super) async fn follow<W: Work>(
    server: &Server,
    cx: &RequestContext<RoleServer>,
    run: &Arc<Run<W>>,
    running: impl Fn() -> W::Report,
    wait: Option<Duration>,
) -> Waited {
    let begun = Instant::now();
    let mut caller = Caller {
        server,
        cx,
        begun,
        told: begun,
        unsaid: Default::default(),
    };
    let deadline = async {
        match wait {
            Some(wait) => sleep_until(begun + wait).await,
            None => std::future::pending().await,
        }
    };
    let told = async {
        match caller.hears() {
            true => caller.tell(run, running).await,
            false => run.finished().await,
        }
    };
    let waited = tokio::select! {
        biased;
        () = told => Waited::Ended,
        () = deadline => Waited::GoesOn,
        () = cx.ct.cancelled() => Waited::TakenBack,
    };
    if waited == Waited::GoesOn {
        run.acknowledged().await;
    }
    waited
}

impl Caller<'_> {
    fn hears(&self) -> bool {
        self.cx.meta.get_progress_token().is_some() || self.server.hears(Weight::Info)
    }

    /// Tells what the run writes, to its end.
    async fn tell<W: Work>(&mut self, run: &Arc<Run<W>>, running: impl Fn() -> W::Report) {
        let mut follower = run.follow(0);
        let mut tick = interval(PACE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                events = follower.next(&running) => {
                    if events.is_empty() {
                        return self.say().await;
                    }
                    for event in events {
                        match event.happened {
                            Happened::Stdout { text, .. } => self.add(Stream::Stdout, &text),
                            Happened::Stderr { text, .. } => self.add(Stream::Stderr, &text),
                            _ => {}
                        }
                    }
                }
                _ = tick.tick() => self.say().await,
            }
        }
    }

    /// Of a flood only its end is kept.
    fn add(&mut self, stream: Stream, text: &str) {
        let unsaid = &mut self.unsaid[stream as usize];
        unsaid.push_str(text);
        if unsaid.len() > 2 * PIECE {
            let start = whole(unsaid, unsaid.len() - PIECE, true);
            unsaid.replace_range(..start, "…");
        }
    }

    async fn say(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let text = std::mem::take(&mut self.unsaid[stream as usize]);
            if !text.is_empty() {
                self.report(stream, text).await;
            }
        }
        if self.told.elapsed() >= HEARTBEAT {
            let seconds = self.begun.elapsed().as_secs();
            self.progress(format!("it goes on for {seconds} s")).await;
        }
    }

    async fn report(&mut self, stream: Stream, text: String) {
        if self.cx.meta.get_progress_token().is_some() {
            return self.progress(text).await;
        }
        let (weight, logger) = match stream {
            Stream::Stdout => (Weight::Info, "stdout"),
            Stream::Stderr => (Weight::Warning, "stderr"),
        };
        if self.server.hears(weight) {
            log(self.cx, weight, logger, text).await;
        }
    }

    /// Seconds rise, whatever is told.
    async fn progress(&mut self, text: String) {
        let Some(token) = self.cx.meta.get_progress_token() else {
            return;
        };
        let so_far = self.begun.elapsed().as_secs_f64();
        // Two reports of one moment would not rise.
        let rising = so_far.max((self.told - self.begun).as_secs_f64() + 1e-6);
        self.told = self.begun + Duration::from_secs_f64(rising);
        let report = ProgressNotificationParam::new(token, rising).with_message(text);
        // A client that is gone hears nothing.
        let _ = self.cx.peer.notify_progress(report).await;
    }
}

#[cfg(test)]
mod tests {
    use super::seconds;
    use std::time::Duration;

    #[test]
    fn a_time_limit_is_seconds_and_no_mistake_of_units() {
        assert_eq!(seconds("wait", None), Ok(None));
        let half = Some(Duration::from_millis(500));
        assert_eq!(seconds("wait", Some(0.5)), Ok(half));
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(seconds("wait", Some(wrong)).is_err(), "{wrong}");
        }
    }
}
