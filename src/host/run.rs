//! A run of the keeper's, followed to its end, also where the keeper itself is started again meanwhile.

use super::keeper::Keeper;
use crate::engine::Progress;
use crate::error::Result;
use crate::protocol::evolve::{Ask, Record, Reply, Run};
use std::time::{Duration, Instant};

/// How long a keeper may give no answer, as when its engine is started anew.
const SILENCE: Duration = Duration::from_secs(120);
const AGAIN: Duration = Duration::from_millis(300);

/// How following came to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// The run's own, whatever that is.
    Reached(Box<Record>),
    /// The person lets go of it, and it goes on.
    LetGo,
}

/// Follows the run until it has ended, or a person interrupts.
///
/// # Errors
/// When the keeper gives no answer for long.
pub(crate) async fn follow(keeper: &Keeper<'_>, run: &Run, progress: &dyn Progress) -> Result<End> {
    tokio::select! {
        record = end_of(keeper, run, progress) => Ok(End::Reached(record?)),
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            Ok(End::LetGo)
        }
    }
}

/// Follows the run until it has ended.
///
/// # Errors
/// When the keeper gives no answer for long.
pub(crate) async fn end_of(
    keeper: &Keeper<'_>,
    run: &Run,
    progress: &dyn Progress,
) -> Result<Box<Record>> {
    let mut offset = 0;
    let mut told = Told::default();
    let mut heard = Instant::now();
    loop {
        let mut ended = None;
        let question = Ask::Log {
            run: run.clone(),
            offset,
            follow: true,
        };
        let mut each = |reply| {
            heard = Instant::now();
            match reply {
                Reply::Log { text, next, .. } => {
                    offset = next;
                    told.hear(&text, progress);
                }
                Reply::Record(record) => ended = record.status.has_ended().then_some(record),
                _ => {}
            }
            Ok(())
        };
        let asked = keeper.ask(&question, &mut each).await;
        match (ended, asked) {
            (Some(record), _) => return Ok(record),
            (None, Err(error)) if heard.elapsed() > SILENCE => return Err(error),
            (None, _) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Of a line of the log that is not whole.
const MAX_LINE_BYTES: usize = 1 << 20;

/// What of a log is told already.
#[derive(Debug, Default)]
struct Told {
    unfinished: String,
    stage: String,
}

impl Told {
    fn hear(&mut self, text: &str, progress: &dyn Progress) {
        // No line of a stage is so long.
        if self.unfinished.len() > MAX_LINE_BYTES {
            self.unfinished.clear();
        }
        self.unfinished.push_str(text);
        while let Some(end) = self.unfinished.find('\n') {
            let line: String = self.unfinished.drain(..=end).collect();
            self.line(line.trim_end(), progress);
        }
    }

    /// A line of the log, which tells each stage's beginning itself.
    fn line(&mut self, line: &str, progress: &dyn Progress) {
        if let Some(begun) = line.strip_prefix("== ") {
            begun.clone_into(&mut self.stage);
            progress.step(begun);
        } else if let Some(step) = line.strip_prefix("-- ") {
            progress.step(&format!("{}: {step}", self.stage));
        } else {
            progress.log(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Told;
    use crate::engine::Progress;
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Progress for Heard {
        fn step(&self, what: &str) {
            self.0.lock().unwrap().push(format!("step {what}"));
        }

        fn amount(&self, _: &str, _: u64, _: Option<u64>) {}

        fn log(&self, line: &str) {
            self.0.lock().unwrap().push(format!("log {line}"));
        }
    }

    #[test]
    fn a_log_in_pieces_is_told_in_lines() {
        let (mut told, heard) = (Told::default(), Heard::default());
        for piece in [
            "== buil",
            "ding\n-- reading\n",
            "a line\n -- not",
            " ours\n-- x",
        ] {
            told.hear(piece, &heard);
        }
        let lines = [
            "step building",
            "step building: reading",
            "log a line",
            "log  -- not ours",
        ];
        assert_eq!(*heard.0.lock().unwrap(), lines);
    }
}
