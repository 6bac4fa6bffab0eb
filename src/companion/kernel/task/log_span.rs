//! The span of a session's log lines: the session, the generation, and the run that the kernel executes.

use tracing::Span;
use tracing::field::display;

/// A span lasts as long as its values, so that a request creates one span and not one for each event.
#[derive(Debug)]
pub(super) struct KernelLogSpan {
    span: Span,
    generation: u64,
    run: Option<String>,
}

impl KernelLogSpan {
    pub(super) fn new(session: &str, generation: u64, run: Option<&str>) -> Self {
        let (session, shown_run) = (display(session), run.map(display));
        Self {
            span: tracing::info_span!("kernel", session, generation, run = shown_run),
            generation,
            run: run.map(str::to_owned),
        }
    }

    /// The span of these values.
    pub(super) fn refresh(&mut self, session: &str, generation: u64, run: Option<&str>) -> Span {
        if (self.generation, self.run.as_deref()) != (generation, run) {
            *self = Self::new(session, generation, run);
        }
        self.span.clone()
    }
}
