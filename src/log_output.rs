//! The lines of the log: their formats, and the reader of JSON lines.
//!
//! An owner (a kernel, a command, a terminal, a service, an MCP server, an evolve run) writes its lines within a span
//! with its name and its IDs. The text format has the values of the spans before the message and those of the line
//! after the message:
//!
//! ```text
//! 2026-11-20T21:00:00.123456Z  INFO osctl::companion::kernel::task session=default generation=1: the kernel is ready python=3.13
//! ```
//!
//! The JSON format has one object per line, as `tracing_subscriber` writes it, with the same values in `spans` and
//! `fields`.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt::{self, Write};
use tracing::{Event, Subscriber};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::FormattedFields;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::registry::LookupSpan;

/// Starts the log on stderr. `filter` counts without `RUST_LOG`. A separate thread writes the lines and drops them when
/// stderr is not read, so that the log never blocks a service.
pub(crate) fn start_log(filter: &str, is_json: bool) -> WorkerGuard {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(filter));
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(4096)
        .finish(std::io::stderr());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false);
    match is_json {
        true => log.json().with_current_span(false).init(),
        false => log.event_format(TextLogFormat).init(),
    }
    guard
}

/// The text format.
#[derive(Debug, Clone, Copy)]
struct TextLogFormat;

impl<S, N> FormatEvent<S, N> for TextLogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        SystemTime.format_time(&mut writer)?;
        let metadata = event.metadata();
        write!(writer, " {:>5} {}", metadata.level(), metadata.target())?;
        let spans = context.event_scope().into_iter();
        for span in spans.flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
                write!(writer, " {fields}")?;
            }
        }
        writer.write_str(": ")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// A line in the JSON format.
#[derive(Debug, Deserialize)]
struct JsonLogLine {
    timestamp: String,
    level: String,
    target: String,
    fields: Map<String, Value>,
    #[serde(default)]
    spans: Vec<Map<String, Value>>,
}

/// Converts a line in the JSON format to the text format. Other lines stay as they are.
pub(crate) fn read_log_line(line: &str) -> Cow<'_, str> {
    let parsed = line.starts_with('{').then(|| serde_json::from_str(line));
    match parsed {
        Some(Ok(parsed)) => Cow::Owned(format_json_line(&parsed)),
        _ => Cow::Borrowed(line),
    }
}

fn format_json_line(line: &JsonLogLine) -> String {
    let JsonLogLine {
        timestamp,
        level,
        target,
        fields,
        spans,
    } = line;
    let mut text = format!("{timestamp} {level:>5} {target}");
    for (name, value) in spans.iter().flatten().filter(|(name, _)| *name != "name") {
        push_value(&mut text, name, value);
    }
    text.push_str(": ");
    if let Some(Value::String(message)) = fields.get("message") {
        text.push_str(&message.replace('\n', "\\n"));
    }
    for (name, value) in fields.iter().filter(|(name, _)| *name != "message") {
        push_value(&mut text, name, value);
    }
    text
}

fn push_value(text: &mut String, name: &str, value: &Value) {
    let is_word = |word: &str| !word.contains(|c: char| c.is_whitespace() || c.is_control());
    // Writing to a string never fails.
    let _ = match value {
        Value::String(word) if is_word(word) => write!(text, " {name}={word}"),
        other => write!(text, " {name}={other}"),
    };
}

#[cfg(test)]
mod tests {
    use super::{TextLogFormat, read_log_line};
    use parking_lot::Mutex;
    use std::io::{self, Write};
    use std::sync::Arc;
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct MemoryLog(Arc<Mutex<Vec<u8>>>);

    impl Write for MemoryLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for MemoryLog {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    fn write_log() {
        tracing::info!("the companion starts");
        let span = tracing::info_span!("kernel", session = %"a", generation = 2);
        let _within = span.enter();
        let inner = tracing::info_span!("run", run = %"k-1");
        inner.in_scope(|| tracing::warn!(code = 3, why = %"two words", "the kernel ended"));
    }

    /// The lines without their times.
    fn lines(log: &MemoryLog) -> Vec<String> {
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn without_time(line: &str) -> &str {
        line.split_once(' ').unwrap().1
    }

    #[test]
    fn values_of_spans_come_before_the_message_and_others_after_it() {
        let log = MemoryLog::default();
        let writer = tracing_subscriber::fmt()
            .with_writer(log.clone())
            .with_ansi(false);
        let subscriber = writer.event_format(TextLogFormat).finish();
        tracing::subscriber::with_default(subscriber, write_log);
        let lines = lines(&log);
        let target = "osctl::log_output::tests";
        assert_eq!(
            without_time(&lines[0]),
            format!(" INFO {target}: the companion starts")
        );
        let expected = format!(
            " WARN {target} session=a generation=2 run=k-1: the kernel ended code=3 why=two words"
        );
        assert_eq!(without_time(&lines[1]), expected);
    }

    #[test]
    fn a_json_line_is_one_object_and_reads_as_text() {
        let log = MemoryLog::default();
        let writer = tracing_subscriber::fmt().with_writer(log.clone()).json();
        let subscriber = writer.with_current_span(false).finish();
        tracing::subscriber::with_default(subscriber, write_log);
        let lines = lines(&log);
        assert_eq!(lines.len(), 2);
        for line in &lines {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(
                object.is_object() && object["fields"]["message"].is_string(),
                "{line}"
            );
        }
        let target = "osctl::log_output::tests";
        let (first, second) = (read_log_line(&lines[0]), read_log_line(&lines[1]));
        assert_eq!(
            without_time(&first),
            format!(" INFO {target}: the companion starts")
        );
        let expected = format!(
            " WARN {target} generation=2 session=a run=k-1: the kernel ended code=3 why=\"two words\""
        );
        assert_eq!(without_time(&second), expected);
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        for line in [
            "",
            "plain",
            "{",
            r#"{"a": 1}"#,
            r#"{"timestamp": 1, "level": "INFO", "target": "t", "fields": {}}"#,
            "2026-11-20T21:00:00Z  INFO osctl::companion: it starts",
        ] {
            assert_eq!(read_log_line(line), line);
        }
        let line =
            r#"{"timestamp":"T","level":"INFO","target":"t","fields":{"message":"a\nb\u001b[1m"}}"#;
        assert_eq!(read_log_line(line), "T  INFO t: a\\nb\u{1b}[1m");
    }
}
