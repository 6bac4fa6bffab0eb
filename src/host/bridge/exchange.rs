//! A request and its answer: sends the request, forwards the answer, and resumes after a lost connection.

use super::StdioBridge;
use super::connection::{
    BridgeSendError, BridgeSession, bridge_stream_number, is_events, negotiated_version,
    session_from_response,
};
use super::error::BridgeError;
use super::message::BridgeMessage;
use super::resend_policy::{
    RequestLoss, RetryDecision, decide_resend, decide_without_stream, is_retry_safe,
};
use crate::backoff::Backoff;
use crate::host::bounded_response::{EventStream, MAX_JSON_BYTES, ReadFailure, read_body};
use crate::protocol::error::FailedReply;
use crate::protocol::mcp::{CALL_LOST_CODE, CALL_LOST_TYPE};
use reqwest::{Response, StatusCode};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How often a request is sent that is lost each time, and the delays between attempts.
const MAX_BRIDGE_SEND_ATTEMPTS: u32 = 8;
const BRIDGE_RESEND_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    max: Duration::from_millis(800),
};
/// Minimum time of retries: the replacement of a container on a busy machine may take this long.
const BRIDGE_RESEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of an error that the hub itself produces, in bytes; no id in such an error is long.
const MAX_HUB_ERROR_BYTES: usize = 64 << 10;
/// Code of the error for an unknown session.
const NO_SESSION_CODE: i64 = -32600;

/// The outcome of one attempt.
enum ExchangeOutcome {
    Answer,
    Lost(RequestLoss),
    /// The hub no longer knows the session.
    UnknownSession,
    Refused(BridgeError),
}

impl StdioBridge {
    /// Sends a request until it is answered, or answers it with an error.
    pub(super) async fn handle_request(self: Arc<Self>, line: BridgeMessage) {
        let failed = self.exchange_request(&line).await.err();
        let pending = self.pending_requests.lock().remove(&line.id);
        let is_cancelled = pending.is_some_and(|pending| pending.is_cancelled);
        if let Some(fault) = failed.filter(|_| !is_cancelled) {
            tracing::error!(error = fault.to_string(), "a request to the hub failed");
            self.send_error(&line.id, &fault).await;
        }
    }

    async fn exchange_request(&self, line: &BridgeMessage) -> Result<(), BridgeError> {
        let began = Instant::now();
        for attempt in 0.. {
            if attempt >= MAX_BRIDGE_SEND_ATTEMPTS && began.elapsed() > BRIDGE_RESEND_TIMEOUT {
                break;
            }
            if attempt > 1 {
                sleep(BRIDGE_RESEND_BACKOFF.delay_after(attempt - 1)).await;
            }
            let (round, session) = (
                self.connection.connection_number(),
                self.connection.session(),
            );
            let outcome = match self.connection.post(line).await {
                Ok(response) => self.handle_response(response, line).await,
                Err(failure) => ExchangeOutcome::Lost(failure.into()),
            };
            let loss = match outcome {
                ExchangeOutcome::Answer => return Ok(()),
                ExchangeOutcome::Refused(fault) => return Err(fault),
                ExchangeOutcome::UnknownSession => {
                    self.reinitialize(session.as_ref()).await;
                    continue;
                }
                ExchangeOutcome::Lost(loss) => loss,
            };
            if self.is_cancelled(&line.id) {
                return Ok(());
            }
            let is_harmless = self.is_retry_safe(line);
            let mut decision = decide_resend(is_harmless, loss);
            while let RetryDecision::ResumeAfter(event) = decision {
                match self.resume_stream(line, &event).await? {
                    ExchangeOutcome::Answer => return Ok(()),
                    ExchangeOutcome::Lost(RequestLoss::PartialResponse(event)) => {
                        decision = RetryDecision::ResumeAfter(event)
                    }
                    _ => decision = decide_without_stream(is_harmless),
                }
            }
            match decision {
                RetryDecision::GiveUp => return Err(BridgeError::lost(&line.method)),
                _ => self.connection.reconnect(round).await?,
            }
        }
        Err(BridgeError::lost(&line.method))
    }

    fn is_retry_safe(&self, line: &BridgeMessage) -> bool {
        is_retry_safe(
            &line.method,
            line.name.as_deref(),
            self.connection.server_name(),
        )
    }

    /// Resumes after an event, if the stream still exists.
    async fn resume_stream(
        &self,
        line: &BridgeMessage,
        event: &str,
    ) -> Result<ExchangeOutcome, BridgeError> {
        let stream_of = |event: &str| event.split_once('.').map(|(stream, _)| stream.to_owned());
        let wanted = stream_of(event);
        for _ in 0..MAX_BRIDGE_SEND_ATTEMPTS {
            let round = self.connection.connection_number();
            match self.connection.open_stream(Some(event)).await {
                Ok(response)
                    if is_events(&response) && bridge_stream_number(&response) == wanted =>
                {
                    return Ok(match self.forward_stream(response, line).await {
                        // No new event arrived, and the old position is still valid.
                        ExchangeOutcome::Lost(RequestLoss::NoResponse) => {
                            ExchangeOutcome::Lost(RequestLoss::PartialResponse(event.into()))
                        }
                        outcome => outcome,
                    });
                }
                Ok(_) => return Ok(ExchangeOutcome::Lost(RequestLoss::NoResponse)),
                Err(_) => self.connection.reconnect(round).await?,
            }
        }
        Ok(ExchangeOutcome::Lost(RequestLoss::NoResponse))
    }

    async fn handle_response(&self, response: Response, line: &BridgeMessage) -> ExchangeOutcome {
        if is_events(&response) {
            return self.forward_stream(response, line).await;
        }
        let status = response.status();
        let session = session_from_response(&response);
        let text = match read_body(response, MAX_JSON_BYTES).await {
            Ok(text) => text,
            Err(ReadFailure::Interrupted(_)) => {
                return ExchangeOutcome::Lost(RequestLoss::NoResponse);
            }
            Err(failure) => return unreadable_response(&failure),
        };
        let reply = BridgeReply::read(&text);
        if has_lost_call_error(&reply) {
            return ExchangeOutcome::Lost(RequestLoss::NoResponse);
        }
        let error = &reply.error;
        let is_rpc = reply.result.is_some() || error["code"].is_i64();
        if status == StatusCode::NOT_FOUND
            && error["code"] == NO_SESSION_CODE
            && self.connection.has_session()
            && line.version.is_none()
        {
            return ExchangeOutcome::UnknownSession;
        }
        // The hub's own errors have a type.
        if let (true, Some(why)) = (
            error["data"]["type"].is_string(),
            error["message"].as_str().filter(|_| !status.is_success()),
        ) {
            tracing::error!(why, "the hub refused a request");
        }
        if is_rpc && reply.id.is_some() || line.is_answered_by(&text) {
            if line.method == "initialize" && reply.result.is_some() {
                let version = negotiated_version(&text);
                let session = session.map(|session| session.with_version(version));
                self.connection.set_session(line, session);
            }
            self.send_to_client(&text).await;
            return ExchangeOutcome::Answer;
        }
        // The hub's own refusals have no id, because the hub refuses before it reads the message.
        if let Some(why) = error["message"].as_str() {
            let hint = serde_json::from_slice::<FailedReply>(&text).ok();
            let hint = hint.and_then(|failed| failed.error.hint);
            return ExchangeOutcome::Refused(BridgeError::refused(why.into(), hint));
        }
        match status {
            // The request was cancelled.
            StatusCode::ACCEPTED => ExchangeOutcome::Lost(RequestLoss::NoResponse),
            status => ExchangeOutcome::Refused(BridgeError::refused(
                format!("the hub responded with {status}"),
                None,
            )),
        }
    }

    /// Forwards the messages of a stream, up to the response.
    async fn forward_stream(&self, response: Response, line: &BridgeMessage) -> ExchangeOutcome {
        let mut stream = EventStream::new(response);
        let mut last = None;
        loop {
            let events = match stream.next().await {
                Ok(Some(events)) => events,
                Ok(None) => break,
                Err(failure) => return unreadable_response(&failure),
            };
            for event in events {
                last = event.id.or(last);
                if event.data.is_empty() {
                    continue;
                }
                let is_answer = line.is_answered_by(&event.data);
                if is_answer && is_lost_call(&event.data) {
                    return ExchangeOutcome::Lost(RequestLoss::NoResponse);
                }
                self.send_to_client(&event.data).await;
                if is_answer {
                    return ExchangeOutcome::Answer;
                }
            }
        }
        ExchangeOutcome::Lost(last.map_or(RequestLoss::NoResponse, RequestLoss::PartialResponse))
    }

    /// Sends a notification or a response; drops it if it cannot be delivered.
    pub(super) async fn send_notification(&self, line: &BridgeMessage) {
        if line.method == "notifications/initialized" {
            self.connection.record_initialized(line);
        }
        for _ in 0..MAX_BRIDGE_SEND_ATTEMPTS {
            let (round, session) = (
                self.connection.connection_number(),
                self.connection.session(),
            );
            match self.connection.post(line).await {
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    self.reinitialize(session.as_ref()).await;
                }
                Ok(_) => return,
                // A server that restarted does not know the request of this message.
                Err(BridgeSendError::Interrupted) => return,
                Err(BridgeSendError::Unsent) => {
                    if self.connection.reconnect(round).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Opens another session, and reports that its lists may have changed.
    pub(super) async fn reinitialize(&self, lost_session: Option<&BridgeSession>) {
        if !matches!(self.connection.renew_session(lost_session).await, Ok(true)) {
            return;
        }
        for kind in ["tools", "prompts", "resources"] {
            let message =
                format!(r#"{{"jsonrpc":"2.0","method":"notifications/{kind}/list_changed"}}"#);
            self.send_to_client(message.as_bytes()).await;
        }
    }

    fn is_cancelled(&self, id: &str) -> bool {
        self.pending_requests
            .lock()
            .get(id)
            .is_some_and(|pending| pending.is_cancelled)
    }
}

/// The error for a response that cannot be passed to the client.
fn unreadable_response(failure: &ReadFailure) -> ExchangeOutcome {
    ExchangeOutcome::Refused(BridgeError::refused(
        format!("invalid response from the hub: {failure}"),
        None,
    ))
}

/// The inspected part of a response: the result passes unchanged, and takes no memory besides its text.
#[derive(Debug, Default, Deserialize)]
struct BridgeReply<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "small")]
    error: Value,
}

impl<'a> BridgeReply<'a> {
    /// An empty reply if the text is not a response.
    fn read(text: &'a [u8]) -> Self {
        serde_json::from_slice(text).unwrap_or_default()
    }
}

/// The error, unless it is longer than the hub's own errors.
fn small<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?.get();
    let is_small = raw.len() <= MAX_HUB_ERROR_BYTES;
    Ok(is_small
        .then(|| serde_json::from_str(raw).ok())
        .flatten()
        .unwrap_or_default())
}

/// Whether a response says that the result of the request is unknown, because the hub was stopped.
fn is_lost_call(reply: &[u8]) -> bool {
    reply.len() <= MAX_HUB_ERROR_BYTES && has_lost_call_error(&BridgeReply::read(reply))
}

fn has_lost_call_error(reply: &BridgeReply<'_>) -> bool {
    let error = &reply.error;
    error["code"] == CALL_LOST_CODE && error["data"]["type"] == CALL_LOST_TYPE
}

impl From<BridgeSendError> for RequestLoss {
    fn from(failure: BridgeSendError) -> Self {
        match failure {
            BridgeSendError::Unsent => Self::Unsent,
            BridgeSendError::Interrupted => Self::NoResponse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_lost_call;

    #[test]
    fn a_lost_call_differs_from_an_error_of_a_server() {
        let error = |code: i64, kind: &str| {
            let error = format!(r#"{{"code":{code},"message":"x","data":{{"type":"{kind}"}}}}"#);
            is_lost_call(format!(r#"{{"id":1,"error":{error}}}"#).as_bytes())
        };
        assert!(error(-32000, "lost"));
        assert!(!error(-32603, "lost") && !error(-32000, "other"));
    }
}
