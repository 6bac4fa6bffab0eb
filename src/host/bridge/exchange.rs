//! A request on its way: sent, answered, and found again when the connection was lost meanwhile.

use super::Bridge;
use super::fault::Fault;
use super::line::Line;
use super::link::{Failure, Session, agreed, is_events, stream, version};
use super::policy::{Lost, Next, is_harmless, next, without_stream};
use crate::host::answer::{EventStream, MAX_JSON_BYTES, ReadFailure, read_body};
use crate::protocol::fault::Failed;
use crate::protocol::mcp::{LOST, LOST_CODE};
use reqwest::{Response, StatusCode};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How often a request is sent that is lost each time, and the time between, which grows.
const TRIES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(100);
/// How long a request is sent again at least, as long as the replacement of a body takes on a busy machine.
const RESEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of an error of the hub's own at most, among which no id is long.
const SMALL: usize = 64 << 10;
/// Of a session that there is not.
const NO_SESSION: i64 = -32600;

/// What came of a connection.
enum Came {
    Answer,
    Lost(Lost),
    /// The hub does not know the session any more.
    Forgotten,
    Refused(Fault),
}

impl Bridge {
    /// Brings a request to its answer, or says why there is none.
    pub(super) async fn ask(self: Arc<Self>, line: Line) {
        let failed = self.exchange(&line).await.err();
        let asked = self.asked().remove(&line.id);
        let is_cancelled = asked.is_some_and(|asked| asked.is_cancelled);
        if let Some(fault) = failed.filter(|_| !is_cancelled) {
            tracing::error!("{fault}");
            self.fail(&line.id, &fault).await;
        }
    }

    async fn exchange(&self, line: &Line) -> Result<(), Fault> {
        let began = Instant::now();
        for attempt in 0.. {
            if attempt >= TRIES && began.elapsed() > RESEND_TIMEOUT {
                break;
            }
            if attempt > 1 {
                sleep(PAUSE * attempt.min(TRIES)).await;
            }
            let (round, session) = (self.link.round(), self.link.session());
            let came = match self.link.post(line).await {
                Ok(response) => self.take(response, line).await,
                Err(failure) => Came::Lost(failure.into()),
            };
            let lost = match came {
                Came::Answer => return Ok(()),
                Came::Refused(fault) => return Err(fault),
                Came::Forgotten => {
                    self.shake_again(session.as_ref()).await;
                    continue;
                }
                Came::Lost(lost) => lost,
            };
            if self.is_cancelled(&line.id) {
                return Ok(());
            }
            let is_harmless = self.is_harmless(line);
            let mut then = next(is_harmless, lost);
            while let Next::GoOn(event) = then {
                match self.go_on(line, &event).await? {
                    Came::Answer => return Ok(()),
                    Came::Lost(Lost::Telling(event)) => then = Next::GoOn(event),
                    _ => then = without_stream(is_harmless),
                }
            }
            match then {
                Next::GiveUp => return Err(Fault::lost(&line.method)),
                _ => self.link.mend(round).await?,
            }
        }
        Err(Fault::lost(&line.method))
    }

    fn is_harmless(&self, line: &Line) -> bool {
        is_harmless(&line.method, line.name.as_deref(), self.link.server())
    }

    /// Goes on behind an event, if the stream is still there.
    async fn go_on(&self, line: &Line, event: &str) -> Result<Came, Fault> {
        let stream_of = |event: &str| event.split_once('.').map(|(stream, _)| stream.to_owned());
        let wanted = stream_of(event);
        for _ in 0..TRIES {
            let round = self.link.round();
            match self.link.listen(Some(event)).await {
                Ok(response) if is_events(&response) && stream(&response) == wanted => {
                    return Ok(match self.follow(response, line).await {
                        // Nothing new was told, and what was is still known.
                        Came::Lost(Lost::Silent) => Came::Lost(Lost::Telling(event.into())),
                        came => came,
                    });
                }
                Ok(_) => return Ok(Came::Lost(Lost::Silent)),
                Err(_) => self.link.mend(round).await?,
            }
        }
        Ok(Came::Lost(Lost::Silent))
    }

    async fn take(&self, response: Response, line: &Line) -> Came {
        if is_events(&response) {
            return self.follow(response, line).await;
        }
        let status = response.status();
        let session = agreed(&response);
        let text = match read_body(response, MAX_JSON_BYTES).await {
            Ok(text) => text,
            Err(ReadFailure::Cut(_)) => return Came::Lost(Lost::Silent),
            Err(failure) => return refused(&failure),
        };
        let answer = Answer::read(&text);
        if says_lost(&answer) {
            return Came::Lost(Lost::Silent);
        }
        let error = &answer.error;
        let is_rpc = answer.result.is_some() || error["code"].is_i64();
        if status == StatusCode::NOT_FOUND
            && error["code"] == NO_SESSION
            && self.link.has_session()
            && line.version.is_none()
        {
            return Came::Forgotten;
        }
        // What the hub itself refuses has a type.
        if let (true, Some(why)) = (
            error["data"]["type"].is_string(),
            error["message"].as_str().filter(|_| !status.is_success()),
        ) {
            tracing::error!("{why}");
        }
        if is_rpc && answer.id.is_some() || line.is_answered_by(&text) {
            if line.method == "initialize" && answer.result.is_some() {
                let version = version(&text);
                let session = session.map(|session| session.of(version));
                self.link.agree(line, session);
            }
            self.say(&text).await;
            return Came::Answer;
        }
        // The hub's own refusals have no id, because they came before it was read.
        if let Some(why) = error["message"].as_str() {
            let hint = serde_json::from_slice::<Failed>(&text).ok();
            let hint = hint.and_then(|failed| failed.error.hint);
            return Came::Refused(Fault::refused(why.into(), hint));
        }
        match status {
            // It was given up.
            StatusCode::ACCEPTED => Came::Lost(Lost::Silent),
            status => Came::Refused(Fault::refused(format!("the hub answered {status}"), None)),
        }
    }

    /// Hands on what a stream tells, to the answer.
    async fn follow(&self, response: Response, line: &Line) -> Came {
        let mut stream = EventStream::new(response);
        let mut last = None;
        loop {
            let events = match stream.next().await {
                Ok(Some(events)) => events,
                Ok(None) => break,
                Err(failure) => return refused(&failure),
            };
            for event in events {
                last = event.id.or(last);
                if event.data.is_empty() {
                    continue;
                }
                let is_answer = line.is_answered_by(&event.data);
                if is_answer && is_lost(&event.data) {
                    return Came::Lost(Lost::Silent);
                }
                self.say(&event.data).await;
                if is_answer {
                    return Came::Answer;
                }
            }
        }
        Came::Lost(last.map_or(Lost::Silent, Lost::Telling))
    }

    /// A notification, or an answer; what can't be told is let go.
    pub(super) async fn tell(&self, line: &Line) {
        if line.method == "notifications/initialized" {
            self.link.is_ready(line);
        }
        for _ in 0..TRIES {
            let (round, session) = (self.link.round(), self.link.session());
            match self.link.post(line).await {
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    self.shake_again(session.as_ref()).await;
                }
                Ok(_) => return,
                // A server that went away in the middle knows nothing of what this is about.
                Err(Failure::Cut) => return,
                Err(Failure::Unsent) => {
                    if self.link.mend(round).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Opens another session, whose lists may be others.
    pub(super) async fn shake_again(&self, lost: Option<&Session>) {
        if !matches!(self.link.renew(lost).await, Ok(true)) {
            return;
        }
        for kind in ["tools", "prompts", "resources"] {
            let told =
                format!(r#"{{"jsonrpc":"2.0","method":"notifications/{kind}/list_changed"}}"#);
            self.say(told.as_bytes()).await;
        }
    }

    fn is_cancelled(&self, id: &str) -> bool {
        self.asked().get(id).is_some_and(|asked| asked.is_cancelled)
    }
}

/// What the client itself can't be handed.
fn refused(failure: &ReadFailure) -> Came {
    Came::Refused(Fault::refused(
        format!("the hub does not answer as it should: {failure}"),
        None,
    ))
}

/// An answer as far as it is looked at: what is in a result passes as it is, and takes no memory beside its text.
#[derive(Debug, Default, Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "small")]
    error: Value,
}

impl<'a> Answer<'a> {
    /// Nothing, when it is none.
    fn read(text: &'a [u8]) -> Self {
        serde_json::from_slice(text).unwrap_or_default()
    }
}

/// An error, unless that is longer than one of the hub's.
fn small<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?.get();
    let is_small = raw.len() <= SMALL;
    Ok(is_small
        .then(|| serde_json::from_str(raw).ok())
        .flatten()
        .unwrap_or_default())
}

/// Whether an answer says that nobody knows the end of what was asked, because the hub was stopped.
fn is_lost(answer: &[u8]) -> bool {
    answer.len() <= SMALL && says_lost(&Answer::read(answer))
}

fn says_lost(answer: &Answer<'_>) -> bool {
    let error = &answer.error;
    error["code"] == LOST_CODE && error["data"]["type"] == LOST
}

impl From<Failure> for Lost {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsent => Self::Unsent,
            Failure::Cut => Self::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_lost;

    #[test]
    fn a_lost_call_is_told_from_an_error_of_a_server() {
        let error = |code: i64, kind: &str| {
            let error = format!(r#"{{"code":{code},"message":"x","data":{{"type":"{kind}"}}}}"#);
            is_lost(format!(r#"{{"id":1,"error":{error}}}"#).as_bytes())
        };
        assert!(error(-32000, "lost"));
        assert!(!error(-32603, "lost") && !error(-32000, "other"));
    }
}
