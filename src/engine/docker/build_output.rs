//! Steps and log of a build, parsed from the builder's output.

use super::step_output::StepOutput;
use super::{explain_api_error, root_cause};
use crate::engine::EngineProgress;
use crate::error::Error;
use bollard::moby::buildkit::v1::StatusResponse;
use bollard::models::{BuildInfo, BuildInfoAux};
use std::collections::{HashMap, HashSet};

/// The starts of lines that the classic builder itself writes into the output of a step.
const CLASSIC_NOTES: [&str; 2] = [" ---> ", "Removing intermediate container "];

/// The end of BuildKit's error for a step that it has canceled.
const CANCELED_STEP_SUFFIX: &str = "context canceled";

/// Steps that must have been executed before their average time is an estimate of the others'.
const MIN_EXECUTED_STEPS: usize = 3;

/// The builder's output as steps, each with its own output.
#[derive(Debug, Default)]
pub(super) struct BuildOutput {
    /// The output of the steps that run, by digest, and of those that failed. Of the classic builder, which has one
    /// step at a time, the key is empty.
    outputs: HashMap<String, StepOutput>,
    /// The current step of the classic builder.
    classic_step: Option<String>,
    /// The digests of BuildKit's steps of the Dockerfile, and of all steps that have ended.
    steps: HashSet<String>,
    completed_steps: HashSet<String>,
    /// Completed steps that were not in the cache, and the start of the first in seconds since 1970.
    executed_steps: usize,
    first_start: Option<i64>,
    failed: Option<FailedStep>,
}

/// A step that failed.
#[derive(Debug)]
struct FailedStep {
    digest: String,
    name: String,
    error: String,
}

impl BuildOutput {
    pub(super) fn record_info(&mut self, info: BuildInfo, progress: &dyn EngineProgress) {
        if let Some(text) = info.stream {
            self.record_classic_output(&text, progress);
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
                // The builder copies what it was sent, before it knows the steps.
                && !self.steps.is_empty()
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
            if vertex.completed.is_some() && self.completed_steps.insert(vertex.digest.clone()) {
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
                .failed
                .as_ref()
                .is_some_and(|failed| !failed.error.ends_with(CANCELED_STEP_SUFFIX));
            if !vertex.error.is_empty() && !has_reason {
                self.failed = Some(FailedStep {
                    digest: vertex.digest,
                    name: vertex.name,
                    error: vertex.error,
                });
            } else if vertex.completed.is_some()
                && let Some(mut output) = self.outputs.remove(&vertex.digest)
            {
                output.finish(&mut |line| progress.log(line));
            }
        }
        for log in status.logs {
            self.record_output(&log.vertex, &log.msg, progress);
        }
    }

    /// Output of the classic builder: text, and lines that begin a step.
    fn record_classic_output(&mut self, text: &str, progress: &dyn EngineProgress) {
        for line in text.split_inclusive('\n') {
            if let Some(step) = line.strip_prefix("Step ") {
                progress.report_step(&format!("building: {}", shorten_step_name(step)));
                self.classic_step = Some(step.trim_end().to_owned());
                self.outputs.clear();
                progress.log(line.trim_end());
            } else if CLASSIC_NOTES.iter().any(|note| line.starts_with(note)) {
                progress.log(line.trim_end());
            } else {
                self.record_output("", line.as_bytes(), progress);
            }
        }
    }

    fn record_output(&mut self, step: &str, chunk: &[u8], progress: &dyn EngineProgress) {
        let output = self.outputs.entry(step.to_owned()).or_default();
        output.push(chunk, &mut |line| progress.log(line));
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

    pub(super) fn into_build_error(
        mut self,
        error: bollard::errors::Error,
        progress: &dyn EngineProgress,
    ) -> anyhow::Error {
        let reason = root_cause(&error);
        let classic = self.classic_step.take().map(|name| FailedStep {
            digest: String::new(),
            name,
            error: reason.clone(),
        });
        let failed = self.failed.take().or(classic);
        let output = failed
            .as_ref()
            .and_then(|step| self.outputs.remove(&step.digest));
        let mut output = output.unwrap_or_default();
        output.finish(&mut |line| progress.log(line));
        let error_of_step = failed.as_ref().map(|step| &*step.error);
        let is_disk_full = output.lines().any(is_about_disk_space)
            || error_of_step.is_some_and(is_about_disk_space);
        match error {
            _ if is_disk_full => Error::DiskFull { why: reason }.into(),
            bollard::errors::Error::DockerStreamError { .. }
            | bollard::errors::Error::DockerResponseServerError { .. }
                if !reason.contains("no space left") =>
            {
                let why = match (&failed, output.find_cause()) {
                    (Some(step), cause) => step.describe_failure(cause),
                    (None, _) => reason,
                };
                Error::BuildFailed {
                    why,
                    step: failed.map(|step| step.name),
                    log: output.into_lines(),
                }
                .into()
            }
            _ => explain_api_error("building the image", error),
        }
    }
}

impl FailedStep {
    /// The cause first, then the step, whose command may be long.
    fn describe_failure(&self, cause: Option<String>) -> String {
        let name = shorten_step_name(&self.name);
        let code = exit_code_of(&self.error);
        match (cause, code) {
            (Some(cause), Some(code)) => format!("{cause}: exit code {code} of {name}"),
            (Some(cause), None) => format!("{cause}: {name}: {}", self.error),
            (None, _) => format!("{name}: {}", self.error),
        }
    }
}

/// The exit code at the end of a builder's error, which repeats the command before it.
fn exit_code_of(error: &str) -> Option<u32> {
    let (_, code) = error.rsplit_once("code: ")?;
    code.trim_end().parse().ok()
}

fn is_about_disk_space(line: &str) -> bool {
    line.to_lowercase().contains("no space left on device")
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
    use crate::error::Error;
    use bollard::moby::buildkit::v1::{Vertex, VertexLog};
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

    fn vertex(name: &str, error: &str) -> Vertex {
        Vertex {
            digest: name.to_owned(),
            name: name.to_owned(),
            error: error.to_owned(),
            ..Default::default()
        }
    }

    fn output(step: &str, text: &str) -> VertexLog {
        VertexLog {
            vertex: step.to_owned(),
            msg: text.as_bytes().into(),
            ..Default::default()
        }
    }

    fn build_failed(trace: BuildOutput, message: &str) -> (String, Option<String>, Vec<String>) {
        let error = bollard::errors::Error::DockerStreamError {
            error: message.to_owned(),
        };
        let error = trace.into_build_error(error, &BuildStepRecorder::default());
        match error.downcast().unwrap() {
            Error::BuildFailed { why, step, log } => (why, step, log),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_failed_step_and_its_cause_are_named_and_no_step_that_was_canceled() {
        let (mut trace, recorder) = (BuildOutput::default(), BuildStepRecorder::default());
        let cancelled = "exit code: 137: context canceled: context canceled";
        let step = "[b 2/3] RUN echo context canceled";
        trace.record_buildkit_status(
            StatusResponse {
                vertexes: vec![
                    vertex("[a 2/2] RUN x", cancelled),
                    vertex(
                        step,
                        "process \"bash -c echo\" did not complete: exit code: 7",
                    ),
                    vertex("[c 2/2] RUN z", "exit code: 137: context canceled"),
                ],
                logs: vec![
                    output("[a 2/2] RUN x", "error: of the other step\n"),
                    output(step, "E: \x1b[0mUnable to locate "),
                    output(step, "package rigrep\nlast"),
                ],
                ..Default::default()
            },
            &recorder,
        );
        let (why, named, log) = build_failed(trace, "it failed");
        assert_eq!(
            why,
            format!(
                "E: Unable to locate package rigrep; check the name; the image has no package lists: `install-debs NAME` fetches them: exit code 7 of {step}"
            )
        );
        assert_eq!(named.as_deref(), Some(step));
        assert_eq!(log, ["E: Unable to locate package rigrep", "last"]);
    }

    #[test]
    fn the_last_step_of_the_classic_builder_is_the_failed_one() {
        let (mut trace, recorder) = (BuildOutput::default(), BuildStepRecorder::default());
        let text = "Step 1/2 : FROM x\n ---> 1\nStep 2/2 : RUN y\nerror: no y\n";
        trace.record_classic_output(text, &recorder);
        let message = "The command '/bin/sh -c y' returned a non-zero code: 1";
        let (why, step, log) = build_failed(trace, message);
        assert_eq!(why, "error: no y: exit code 1 of 2/2 : RUN y");
        assert_eq!(step.as_deref(), Some("2/2 : RUN y"));
        assert_eq!(log, ["error: no y"]);
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
