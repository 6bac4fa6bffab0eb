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

/// The builder's output as steps and a log.
#[derive(Debug, Default)]
pub(super) struct BuildOutput {
    log: VecDeque<String>,
    /// The digests of BuildKit's steps of the Dockerfile, and of all steps that have ended.
    steps: HashSet<String>,
    completed_steps: HashSet<String>,
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
                progress.report_step(&format!(
                    "building {done}/{all}: {}",
                    shorten_step_name(name)
                ));
            }
            if vertex.completed.is_some() && self.completed_steps.insert(vertex.digest) {
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
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct BuildStepRecorder(Mutex<Vec<String>>);

    impl EngineProgress for BuildStepRecorder {
        fn report_step(&self, what: &str) {
            self.0.lock().unwrap().push(what.to_owned());
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
    fn a_step_says_how_many_are_done_of_how_many() {
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
        assert_eq!(*recorder.0.lock().unwrap(), expected);
    }
}
