//! What comes from the process: output, frames, its end.

use super::Owner;
use super::apart::Birth;
use super::jobs::{Job, Outcome};
use crate::companion::kernel::Answer;
use crate::companion::kernel::Refusal;
use crate::companion::kernel::ending::raised;
use crate::companion::kernel::guard::Ended;
use crate::companion::kernel::policy::{Event, State};
use crate::companion::kernel::process::News;
use crate::companion::kernel::wire::{Counts, Frame, Hello};
use crate::companion::runs::Spill;
use crate::protocol::BODY_VERSION;
use crate::protocol::kernel::{Happened, KernelReport, RunStatus, Stream};
use tokio::time::Instant;

/// Bytes of output between two runs that are logged.
const STRAY: usize = 4 << 10;

impl Owner {
    pub(super) async fn read(&mut self, news: News) {
        match news {
            News::Output(stream, bytes) => self.output(stream, bytes).await,
            News::Frame(frame) => self.frame(frame).await,
            News::Broken(why) => {
                tracing::warn!("the kernel is ended: {why}");
                self.trouble.clone_from(&why);
                // One that is being ended has its reason already.
                if !matches!(self.state, State::Killed { .. }) {
                    self.broken = Some(why);
                }
                self.step(Event::Broken);
            }
            News::Ended(ended) => self.died(&ended).await,
        }
    }

    async fn output(&mut self, stream: Stream, mut bytes: Vec<u8>) {
        match &self.current {
            Some(Job::Run(run)) => {
                let run = run.clone();
                let rest = run.write(stream, &bytes);
                if rest > 0 {
                    bytes.drain(..bytes.len() - rest);
                    let folder = &self.settings.runs;
                    self.spill.write(folder, &run, stream, bytes).await;
                }
            }
            _ => self.stray(&bytes),
        }
    }

    /// Output of threads and processes that a run left behind: nobody waits for it, so the log
    /// gets its beginning.
    fn stray(&mut self, bytes: &[u8]) {
        let room = STRAY.saturating_sub(self.strayed);
        self.strayed += bytes.len();
        if room > 0 && !bytes.is_empty() {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(room)]).into_owned();
            let rest = if bytes.len() > room {
                " … and more, which is dropped"
            } else {
                ""
            };
            tracing::info!("output between runs: {}{rest}", text.trim_end());
        }
    }

    async fn frame(&mut self, frame: Frame) {
        match (frame, &self.current) {
            (Frame::Hello(hello), _) => self.greet(hello),
            (Frame::Display(shown), Some(Job::Run(run))) => run.add(Happened::Display(shown)),
            (Frame::Result(shown), Some(Job::Run(run))) => run.add(Happened::Result(shown)),
            (Frame::Clear { wait }, Some(Job::Run(run))) => run.add(Happened::Clear { wait }),
            // What interrupted code raises is told with the reason, once.
            (Frame::Error { error }, Some(Job::Run(_))) if self.stop.is_some() => {
                self.raised = Some(error);
            }
            (Frame::Error { error }, Some(Job::Run(run))) => run.add(Happened::Error { error }),
            (Frame::Done { status, counts }, Some(Job::Run(_))) if self.outcome.is_none() => {
                self.counts = counts;
                self.drain().await;
                self.finish(Outcome::Run(status));
            }
            (Frame::Reply { counts, .. }, _) if matches!(self.state, State::Starting { .. }) => {
                self.counts = counts;
                self.ready();
            }
            (Frame::Reply { .. }, None) if self.state == State::Probing => self.step(Event::Done),
            (
                Frame::Reply {
                    error: None,
                    counts,
                    ..
                },
                Some(Job::Part { .. }),
            ) if self.outcome.is_none() => {
                self.counts = counts;
                self.part().await;
            }
            (Frame::Reply { counts, .. }, Some(_)) if self.state == State::Probing => {
                self.counts = counts;
                self.drain().await;
                self.conclude();
            }
            (
                Frame::Reply {
                    value,
                    error,
                    counts,
                },
                Some(Job::Ask { .. } | Job::Part { .. }),
            ) => {
                self.counts = counts;
                self.finish(Outcome::Ask(error.map_or(Ok(value), Err)));
            }
            (Frame::Progress { bytes }, _) => self.moved = bytes,
            // A body from before it could be asked that: nothing is wrong with the kernel.
            (Frame::Refused { error }, Some(Job::Ask { question, .. }))
                if question.is_long() && self.outcome.is_none() =>
            {
                self.finish(Outcome::Ask(Err(error)));
            }
            (Frame::Refused { error }, _) => {
                tracing::error!("the kernel refused a request: {}", error.message);
                self.step(Event::Broken);
            }
            (late, _) => tracing::debug!("a frame that nobody waits for: {late:?}"),
        }
    }

    fn greet(&mut self, hello: Hello) {
        if hello.protocol != BODY_VERSION {
            self.trouble = format!(
                "the kernel speaks protocol {}, this companion {BODY_VERSION}",
                hello.protocol
            );
            tracing::error!("{}", self.trouble);
            return self.step(Event::Broken);
        }
        // It is ready when it has its packages, which may keep it from ever being.
        self.hello = Some(hello);
    }

    fn ready(&mut self) {
        let Some(hello) = &self.hello else { return };
        let birth = std::mem::replace(&mut self.birth, Birth::New);
        let is_new = birth == Birth::New;
        match birth {
            Birth::New => self.ledger.begin(),
            Birth::Same => {}
            Birth::Restored => self.ledger.restore(),
        }
        let (body, generation) = (&hello.body_version, self.ledger.generation());
        let session = &self.session;
        tracing::info!(
            session,
            python = hello.python,
            body,
            generation,
            "kernel is ready"
        );
        self.step(Event::Ready);
        self.leave_checkpoint();
        self.returned(Ok(self.ledger.view(generation, None)));
        if is_new {
            self.thaw_next();
        }
        for waiting in std::mem::take(&mut self.restarts) {
            let report = self.ledger.report(generation, None);
            // Whoever asked may have left.
            let _ = waiting.send(Ok(Answer::of(report)));
        }
    }

    pub(super) async fn drain(&mut self) {
        let Some(process) = &self.process else { return };
        for (stream, bytes) in process.drain() {
            self.output(stream, bytes).await;
        }
    }

    async fn died(&mut self, ended: &Ended) {
        self.drain().await;
        let last_words = self
            .process
            .take()
            .map(|p| p.last_words())
            .unwrap_or_default();
        self.deadline = None;
        (self.outcome, self.raised) = (None, None);
        self.answer_interrupts(&KernelReport::lost(self.ledger.generation()));
        let stop = self.stop.take();
        // The policy kills without another reason what does not stop.
        let did_not_stop = matches!(self.state, State::Killed { .. }) && self.broken.is_none();
        let how = match std::mem::take(&mut self.broken) {
            Some(why) => format!("it was ended because {why}"),
            None => self.deaths.cause(ended),
        };
        tracing::warn!("the kernel ended: {how}");
        if matches!(self.state, State::Starting { .. }) || self.trouble.is_empty() {
            self.trouble = [how.clone(), last_words].join("\n").trim_end().to_owned();
        }
        match self.current.take() {
            Some(Job::Run(run)) => {
                let (status, error) = match stop {
                    Some(stop) => {
                        let how = (!did_not_stop).then_some(how.as_str());
                        (RunStatus::Interrupted, stop.lost(how))
                    }
                    None => {
                        let message = format!(
                            "the kernel ended while it ran this code: {how}; its state is lost"
                        );
                        (RunStatus::Failed, raised("KernelDied", message))
                    }
                };
                run.add(Happened::Error { error });
                let generation = self.ledger.generation();
                self.ledger.report(generation, None);
                run.finish(status, KernelReport::lost(generation));
            }
            Some(job) => self.abandon(job, &Refusal::NoKernel(how)),
            None => {}
        }
        self.returned(Err(Refusal::NoKernel(self.trouble.clone())));
        self.birth = Birth::New;
        self.spill = Spill::default();
        self.hello = None;
        self.counts = Counts::default();
        self.emptied = 0;
        self.used = Instant::now();
        self.changed = self.used;
        self.step(Event::Died);
    }
}
