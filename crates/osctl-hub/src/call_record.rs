//! The record of a tool call in the activity log.

use super::message::{RpcMessage, find_raw, find_string, object_fields};
use super::settings::HubContext;
use osctl_protocol::activity::{ActivityKind, ActivityVerdict};
use osctl_protocol::activity_draft::ActivityDraft;
use osctl_protocol::activity_text::{client_name, url_text};
use osctl_protocol::mcp::{UNFINISHED_RUN_KEY, UnfinishedRun};
use osctl_protocol::text_sanitizer::sanitize_line;
use parking_lot::Mutex;
use std::sync::Arc;

/// The arguments of which a record shows the first line. Without one of them it shows the first short argument.
const SHOWN_ARGUMENTS: [&str; 6] = ["code", "command", "path", "file_path", "url", "query"];

/// Parts of the names of arguments that may be secret, and the names of arguments that may be typed text or are shown
/// elsewhere.
const SECRET_NAME_PARTS: [&str; 8] = [
    "auth",
    "cookie",
    "credential",
    "key",
    "pass",
    "pwd",
    "secret",
    "token",
];
const HIDDEN_ARGUMENTS: [&str; 7] = [
    "body", "content", "data", "session", "stdin", "text", "value",
];

/// Longer values are not shown.
const MAX_SHOWN_VALUE_CHARS: usize = 100;
/// The most names in a record that shows no value.
const MAX_SHOWN_NAMES: usize = 8;

/// Arguments of a larger call are not searched.
const MAX_SEARCHED_CALL_BYTES: usize = 1 << 20;

/// The client's name in the parameters of its `initialize`.
pub(super) fn initialized_client_name(params: &[u8]) -> Arc<str> {
    let text = std::str::from_utf8(params).unwrap_or_default();
    let name = find_string(text, &["clientInfo", "name"]);
    client_name(&name.unwrap_or_default()).into()
}

/// Records that a client has opened a session.
pub(super) fn record_sign_in(context: &dyn HubContext, client: Arc<str>) {
    let draft = ActivityDraft {
        text: "mcp".into(),
        ..ActivityDraft::begin(ActivityKind::SignIn, client)
    };
    context.record_activity(draft.finish(ActivityVerdict::Completed, 0));
}

/// An open call. Without an answer it is recorded as cancelled when it is dropped.
#[derive(Debug)]
pub(super) struct CallRecord {
    context: Arc<dyn HubContext>,
    draft: Mutex<Option<ActivityDraft>>,
}

impl CallRecord {
    /// Begins the record of a `tools/call`; `None` for another request. `server` is the server that the client talks
    /// to, if it does not talk to all.
    pub(super) fn begin(
        context: &Arc<dyn HubContext>,
        client: &Arc<str>,
        server: Option<&str>,
        message: &RpcMessage,
    ) -> Option<Arc<Self>> {
        if message.method != "tools/call" {
            return None;
        }
        let name = message.text_param(&["name"]).unwrap_or_default();
        let tool = match server {
            Some(server) => format!("{server}__{name}"),
            None => name,
        };
        let mut draft = ActivityDraft::begin(ActivityKind::Tool, client.clone());
        draft.tool = Some(client_name(&tool));
        if message.text().len() <= MAX_SEARCHED_CALL_BYTES {
            let argument = |name: &str| message.text_param(&["arguments", name]);
            draft.session = argument("session").map(|session| client_name(&session));
            let shown = SHOWN_ARGUMENTS
                .iter()
                .find_map(|name| Some((*name, argument(name)?)));
            draft.text = match shown {
                Some(("url", url)) => url_text(&url),
                Some((_, text)) => text,
                None => describe_arguments(message.raw_param(&["arguments"]).unwrap_or_default()),
            };
        }
        Some(Arc::new(Self {
            context: context.clone(),
            draft: Mutex::new(Some(draft)),
        }))
    }

    /// Records the answer, and the later end of a run that continues.
    pub(super) fn finish_with_answer(&self, answer: &[u8]) {
        let Some(draft) = self.draft.lock().take() else {
            return;
        };
        let client = draft.client.clone();
        let (verdict, run) = answer_verdict(answer);
        self.context
            .record_activity(draft.finish(verdict, answer.len() as u64));
        if verdict == ActivityVerdict::Running
            && let Some(run) = run
        {
            self.context.record_end_of_run(&run.id, client);
        }
    }

    /// Records the first end; later ones have no effect.
    pub(super) fn finish(&self, verdict: ActivityVerdict, bytes: u64) {
        if let Some(draft) = self.draft.lock().take() {
            self.context.record_activity(draft.finish(verdict, bytes));
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.finish(ActivityVerdict::Cancelled, 0);
    }
}

/// `NAME=VALUE` of the first short text or list of texts, else the names of the arguments.
fn describe_arguments(arguments: &str) -> String {
    let fields = object_fields(arguments).unwrap_or_default();
    let shown = fields.iter().find_map(|(name, value)| {
        let lower = name.to_lowercase();
        let is_hidden = HIDDEN_ARGUMENTS.contains(&&*lower)
            || SECRET_NAME_PARTS.iter().any(|part| lower.contains(part));
        let value = match is_hidden {
            true => None,
            false => short_text(value),
        };
        Some(format!("{name}={}", value?))
    });
    let names = || {
        let names = fields.iter().map(|(name, _)| name.as_str());
        names.take(MAX_SHOWN_NAMES).collect::<Vec<_>>().join(", ")
    };
    sanitize_line(&shown.unwrap_or_else(names))
}

/// A short text, or a short list of texts. A URL loses what may be secret.
fn short_text(value: &str) -> Option<String> {
    if value.len() > 4 * MAX_SHOWN_VALUE_CHARS {
        return None;
    }
    let texts = match value.starts_with('[') {
        true => serde_json::from_str::<Vec<String>>(value).ok()?,
        false => vec![serde_json::from_str::<String>(value).ok()?],
    };
    let texts = texts.iter().map(|text| match text.contains("://") {
        true => url_text(text),
        false => text.clone(),
    });
    let text = texts.collect::<Vec<_>>().join(" ");
    let is_short = !text.trim().is_empty() && text.chars().count() <= MAX_SHOWN_VALUE_CHARS;
    is_short.then_some(text)
}

/// The verdict of a call, read from its answer. The built-in tools report a run that did not succeed in `_meta`.
fn answer_verdict(answer: &[u8]) -> (ActivityVerdict, Option<UnfinishedRun>) {
    let text = std::str::from_utf8(answer).unwrap_or_default();
    let value = |path: &[&str]| find_raw(text, path);
    let run = value(&["result", "_meta", UNFINISHED_RUN_KEY]);
    let run = run.and_then(|run| serde_json::from_str::<UnfinishedRun>(run).ok());
    let is_failed = value(&["error"]).is_some() || value(&["result", "isError"]) == Some("true");
    let verdict = match &run {
        Some(run) => run.status.into(),
        None if is_failed => ActivityVerdict::Failed,
        None => ActivityVerdict::Completed,
    };
    (verdict, run)
}

#[cfg(test)]
mod tests {
    use super::{CallRecord, answer_verdict, describe_arguments};
    use crate::message::RpcMessage;
    use crate::settings::HubContext;
    use crate::test_context::TestContext;
    use osctl_protocol::activity::ActivityVerdict as V;
    use std::sync::Arc;

    #[test]
    fn the_verdict_is_that_of_the_answer() {
        for (answer, expected) in [
            (r#"{"id":1,"result":{"content":[]}}"#, V::Completed),
            (r#"{"id":1,"result":{"isError":false}}"#, V::Completed),
            (r#"{"id":1,"result":{"isError":true}}"#, V::Failed),
            (r#"{"id":1,"error":{"code":1}}"#, V::Failed),
            (
                r#"{"id":1,"result":{"_meta":{"osctl/run":{"id":"a","status":"running"}}}}"#,
                V::Running,
            ),
            (
                r#"{"id":1,"result":{"isError":true,"_meta":{"osctl/run":{"id":"a","status":"interrupted"}}}}"#,
                V::Interrupted,
            ),
            (
                r#"{"id":1,"result":{"isError":true,"_meta":{"osctl/run":{"id":"a","status":"lost"}}}}"#,
                V::Lost,
            ),
            (
                r#"{"id":1,"result":{"isError":false,"_meta":{"osctl/run":{"id":"a","status":"failed"}}}}"#,
                V::Failed,
            ),
            // Another server may use the same key with another type of value.
            (
                r#"{"id":1,"result":{"structuredContent":{"status":"running"},"_meta":{"osctl/run":1}}}"#,
                V::Completed,
            ),
            ("no JSON", V::Completed),
        ] {
            assert_eq!(answer_verdict(answer.as_bytes()).0, expected, "{answer}");
        }
    }

    #[test]
    fn a_call_without_code_shows_a_short_argument_that_is_no_secret() {
        let long = "x".repeat(500);
        for (arguments, expected) in [
            (r#"{"timezone":"Europe/Berlin"}"#, "timezone=Europe/Berlin"),
            (r#"{"upgrade":true,"packages":["a","b"]}"#, "packages=a b"),
            (
                r#"{"api_key":"sk","Authorization":"B sk","passphrase":"sk","text":"sk","name":"a\nb\u001b"}"#,
                "name=a b\\u{1b}",
            ),
            (r#"{"at":"https://u:sk@a/b?token=sk"}"#, "at=https://a/b"),
            (r#"{"token":"sk","count":3}"#, "token, count"),
            (&format!(r#"{{"note":"{long}"}}"#), "note"),
            ("{}", ""),
            ("[]", ""),
        ] {
            assert_eq!(describe_arguments(arguments), expected, "{arguments}");
        }
    }

    #[test]
    fn a_call_is_recorded_once_and_a_dropped_call_is_cancelled() {
        let test_context = Arc::new(TestContext::default());
        let context: Arc<dyn HubContext> = test_context.clone();
        let client: Arc<str> = "claude-code".into();
        let begin = |server: Option<&str>, params: &str| {
            let text = format!(r#"{{"id":1,"method":"tools/call","params":{params}}}"#);
            let message = RpcMessage::parse(text.into()).unwrap();
            CallRecord::begin(&context, &client, server, &message)
        };
        let call = begin(
            Some("os"),
            r#"{"name":"run_shell","arguments":{"command":"ls\nrm","session":"b"}}"#,
        );
        let call = call.unwrap();
        call.finish_with_answer(br#"{"id":1,"result":{}}"#);
        drop(call);
        let call = begin(Some("os"), r#"{"name":"run_shell","arguments":{}}"#).unwrap();
        call.finish_with_answer(
            br#"{"id":1,"result":{"_meta":{"osctl/run":{"id":"run-7","status":"running"}}}}"#,
        );
        let url = r#"{"name":"web__open","arguments":{"password":"p","url":"http://a/b?c"}}"#;
        drop(begin(None, url));
        let list = RpcMessage::parse(r#"{"id":1,"method":"tools/list"}"#.into()).unwrap();
        assert!(CallRecord::begin(&context, &client, None, &list).is_none());
        let records = test_context.records();
        let found: Vec<_> = records
            .iter()
            .map(|r| {
                (
                    r.tool.as_deref().unwrap_or("later end"),
                    &*r.text,
                    r.verdict,
                    r.session.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("os__run_shell", "ls\nrm", V::Completed, Some("b")),
                ("os__run_shell", "", V::Running, None),
                ("later end", "run-7", V::Completed, None),
                ("web__open", "http://a/b", V::Cancelled, None),
            ]
        );
    }
}
