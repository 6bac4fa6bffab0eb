//! Steps and log of a build, parsed from the builder's output.

use super::{explain_api_error, root_cause};
use crate::engine::EngineProgress;
use crate::error::Error;
use bollard::moby::buildkit::v1::StatusResponse;
use bollard::models::{BuildInfo, BuildInfoAux};
use std::collections::{HashSet, VecDeque};

/// Lines of a failed build's output that the error includes.
const MAX_BUILD_LOG_LINES: usize = 20;

/// The end of BuildKit's error for a step that it has canceled.
const CANCELED_STEP_SUFFIX: &str = "context canceled";

/// Steps that must have been executed before their average time is an estimate of the others'.
const MIN_EXECUTED_STEPS: usize = 3;

/// The builder's output as steps and a log.
#[derive(Debug, Default)]
pub(super) struct BuildOutput {
    log: VecDeque<String>,
    /// The digests of BuildKit's steps of the Dockerfile, and of all steps that have ended.
    steps: HashSet<String>,
    completed_steps: HashSet<String>,
    /// Completed steps that were not in the cache, and the start of the first in seconds since 1970.
    executed_steps: usize,
    first_start: Option<i64>,
    error: Option<String>,
}

impl BuildOutput {
    pub(super) fn record_info(&mut self, info: BuildInfo, progress: &dyn EngineProgress) {
        if let Some(text) = info.stream {
            self.record_lines(&text, progress);
        }
        if let Some(BuildInfoAux::BuildKit(status)) = info.aux {
            self.record_buildkit_status(status, progress);
        }
    }

    fn record_buildkit_status(&mut self, status: StatusResponse, progress: &dyn EngineProgress) {
        for vertex in status.vertexes {
            let name = vertex.name.as_str();
            if is_step(name) {
                self.steps.insert(vertex.digest.clone());
            }
            if vertex.started.is_some()
                && vertex.completed.is_none()
                && !name.starts_with("[internal]")
            {
                let (done, all) = (
                    self.steps.intersection(&self.completed_steps).count(),
                    self.steps.len(),
                );
                let now = vertex.started.as_ref().map(|time| time.seconds);
                progress.report_step(&format!(
                    "building {done}/{all}{}: {}",
                    self.estimate_remaining(now, all - done),
                    shorten_step_name(name)
                ));
            }
            if vertex.completed.is_some() && self.completed_steps.insert(vertex.digest) {
                if !vertex.cached && is_step(name) {
                    self.executed_steps += 1;
                    let start = vertex.started.as_ref().map(|time| time.seconds);
                    self.first_start = self.first_start.or(start);
                }
                progress.log(&format!(
                    "{}{}",
                    if vertex.cached { "cached " } else { "" },
                    shorten_step_name(name)
                ));
            }
            // A failed step cancels the steps that run beside it. The reason is the first failure that is not a
            // cancellation.
            let has_reason = self
                .error
                .as_ref()
                .is_some_and(|why| !why.ends_with(CANCELED_STEP_SUFFIX));
            if !vertex.error.is_empty() && !has_reason {
                self.error = Some(format!("{}: {}", shorten_step_name(name), vertex.error));
            }
        }
        for log in status.logs {
            self.record_lines(&String::from_utf8_lossy(&log.msg), progress);
        }
    }

    /// `, about 40 s left` by the average time of an executed step; empty while too few were executed. A later step may
    /// be cached, or take much longer.
    fn estimate_remaining(&self, now: Option<i64>, remaining_steps: usize) -> String {
        let (Some(now), Some(start)) = (now, self.first_start) else {
            return String::new();
        };
        if self.executed_steps < MIN_EXECUTED_STEPS || remaining_steps == 0 {
            return String::new();
        }
        let elapsed = u64::try_from(now - start).unwrap_or_default();
        let seconds = elapsed * remaining_steps as u64 / self.executed_steps as u64;
        match seconds {
            0..60 => format!(", about {} s left", seconds.div_ceil(10).max(1) * 10),
            _ => format!(", about {} min left", seconds.div_ceil(60)),
        }
    }

    fn record_lines(&mut self, text: &str, progress: &dyn EngineProgress) {
        for line in text.lines().map(str::trim_end).filter(|l| !l.is_empty()) {
            if let Some(step) = line.strip_prefix("Step ") {
                progress.report_step(&format!("building: {}", shorten_step_name(step)));
            }
            progress.log(line);
            if self.log.len() == MAX_BUILD_LOG_LINES {
                self.log.pop_front();
            }
            self.log.push_back(line.to_owned());
        }
    }

    pub(super) fn into_build_error(self, error: bollard::errors::Error) -> anyhow::Error {
        let full = self
            .log
            .iter()
            .chain(&self.error)
            .any(|line| line.to_lowercase().contains("no space left on device"));
        match error {
            _ if full => Error::DiskFull {
                why: root_cause(&error),
            }
            .into(),
            bollard::errors::Error::DockerStreamError { .. }
            | bollard::errors::Error::DockerResponseServerError { .. }
                if !root_cause(&error).contains("no space left") =>
            {
                let why = self.error.unwrap_or_else(|| root_cause(&error));
                Error::BuildFailed {
                    why,
                    log: self.log.into(),
                }
                .into()
            }
            _ => explain_api_error("building the image", error),
        }
    }
}

/// Whether this BuildKit name is a step of the Dockerfile: not `[internal] load …`, not `exporting …`.
fn is_step(name: &str) -> bool {
    name.starts_with('[') && !name.starts_with("[internal]")
}

/// Shortens a step's name to one line of a terminal.
fn shorten_step_name(name: &str) -> String {
    let line = name.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::{BuildOutput, EngineProgress, StatusResponse};
    use bollard::moby::buildkit::v1::Vertex;
    use parking_lot::Mutex;

    #[derive(Debug, Default)]
    struct BuildStepRecorder(Mutex<Vec<String>>);

    impl EngineProgress for BuildStepRecorder {
        fn report_step(&self, what: &str) {
            self.0.lock().push(what.to_owned());
        }
        fn report_amount(&self, _: &str, _: u64, _: Option<u64>) {}
        fn log(&self, _: &str) {}
    }

    #[test]
    fn the_step_that_failed_is_named_and_none_that_was_canceled() {
        let failed = |name: &str, error: &str| StatusResponse {
            vertexes: vec![Vertex {
                name: name.to_owned(),
                error: error.to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let (mut trace, recorder) = (BuildOutput::default(), BuildStepRecorder::default());
        for (name, error) in [
            (
                "[a] RUN x",
                "exit code: 137: context canceled: context canceled",
            ),
            ("[b] RUN echo context canceled", "exit code: 7"),
            ("[c] RUN z", "exit code: 137: context canceled"),
        ] {
            trace.record_buildkit_status(failed(name, error), &recorder);
        }
        assert_eq!(
            trace.error.as_deref(),
            Some("[b] RUN echo context canceled: exit code: 7")
        );
    }

    #[test]
    fn a_build_step_reports_its_number_and_the_total() {
        let vertex = |name: &str, started: bool, completed: bool| Vertex {
            digest: name.to_owned(),
            name: name.to_owned(),
            started: started.then(Default::default),
            completed: completed.then(Default::default),
            ..Default::default()
        };
        let (mut trace, recorder) = (BuildOutput::default(), BuildStepRecorder::default());
        let mut status = |vertexes: &[Vertex]| {
            let vertexes = vertexes.to_vec();
            trace.record_buildkit_status(
                StatusResponse {
                    vertexes,
                    ..Default::default()
                },
                &recorder,
            );
        };
        status(&[
            vertex("[internal] load build context", true, true),
            vertex("[a 1/2] FROM x", true, true),
            vertex("[a 2/2] RUN y", false, false),
        ]);
        status(&[vertex("[a 2/2] RUN y", true, false)]);
        status(&[vertex("[a 2/2] RUN y", true, true)]);
        status(&[vertex("exporting to image", true, false)]);
        let expected = [
            "building 1/2: [a 2/2] RUN y",
            "building 2/2: exporting to image",
        ];
        assert_eq!(*recorder.0.lock(), expected);
    }

    #[test]
    fn executed_steps_give_an_estimate_and_cached_ones_do_not() {
        let vertex = |number: i64, cached: bool, completed: bool| {
            let at = |seconds| {
                let mut time = Vertex::default().started.unwrap_or_default();
                time.seconds = seconds;
                Some(time)
            };
            Vertex {
                digest: number.to_string(),
                name: format!("[a {number}/9] RUN x"),
                started: at(number * 10),
                completed: completed.then(|| at(number * 10 + 9)).flatten(),
                cached,
                ..Default::default()
            }
        };
        let run = |cached: bool, remaining: i64| {
            let (mut trace, recorder) = (BuildOutput::default(), BuildStepRecorder::default());
            let done = (1..=3).map(|number| vertex(number, cached, true));
            let coming = (5..4 + remaining).map(|number| Vertex {
                started: None,
                ..vertex(number, false, false)
            });
            let vertexes = done
                .chain(coming)
                .chain([vertex(4, false, false)])
                .collect();
            trace.record_buildkit_status(
                StatusResponse {
                    vertexes,
                    ..Default::default()
                },
                &recorder,
            );
            recorder.0.into_inner().concat()
        };
        assert_eq!(run(true, 4), "building 3/7: [a 4/9] RUN x");
        assert_eq!(
            run(false, 4),
            "building 3/7, about 40 s left: [a 4/9] RUN x"
        );
        assert_eq!(
            run(false, 30),
            "building 3/33, about 5 min left: [a 4/9] RUN x"
        );
    }
}
