//! Failures between the host and the companion, as errors with hints.

use super::CompanionClient;
use crate::error::{Error, Result};
use crate::host::bounded_response::{MAX_JSON_BYTES, ReadFailure, read_body};
use crate::host::instance::Instance;
use crate::host::ports::listening_process;
use crate::host::token_proof::ProofError;
use crate::host::tunnel::{TUNNEL_ERROR_HEADER, TUNNEL_NO_ENGINE, TUNNEL_NOT_RUNNING, Tunnel};
use crate::protocol::error::{ApiError, FailedReply};
use crate::protocol::{self, PROTOCOL_VERSION_HEADER};
use reqwest::{Response, Url};

impl CompanionClient {
    pub(super) fn check_protocol(&self, response: &Response) -> Result<()> {
        let tunnel_error = response
            .headers()
            .get(TUNNEL_ERROR_HEADER)
            .and_then(|v| v.to_str().ok());
        if let (Some(tunnel), Some(tunnel_error)) = (&self.tunnel, tunnel_error) {
            return Err(self.tunnel_error(tunnel, tunnel_error));
        }
        let companion_version = response
            .headers()
            .get(PROTOCOL_VERSION_HEADER)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("unknown");
        if companion_version == protocol::PROTOCOL_VERSION.to_string() {
            return Ok(());
        }
        let (container, ours) = (self.container.clone(), protocol::PROTOCOL_VERSION);
        Err(Error::ProtocolMismatch {
            container,
            theirs: companion_version.into(),
            ours,
        }
        .into())
    }

    /// The companion closed the connection before the end of a response.
    pub(in crate::host) fn ended_early_error(&self) -> anyhow::Error {
        self.connection_lost_error("the connection ended early".into())
    }

    pub(in crate::host) fn unreachable_error(&self, error: &reqwest::Error) -> anyhow::Error {
        match ProofError::find_in(error) {
            Some(ProofError::Invalid) => return self.unproven_error(error.url(), true).into(),
            Some(ProofError::Missing) => return self.unproven_error(error.url(), false).into(),
            Some(ProofError::ConnectionLost(why)) => {
                return self.connection_lost_error(why.clone());
            }
            None if error.is_connect() => return self.not_running_error(),
            None => {}
        }
        let mut why: &dyn std::error::Error = error;
        while let Some(source) = why.source() {
            why = source;
        }
        self.connection_lost_error(why.to_string())
    }

    fn not_running_error(&self) -> anyhow::Error {
        Error::NotRunning {
            container: self.container.clone(),
            up: self.up_command.clone(),
        }
        .into()
    }

    /// The port belongs to another listener, or to a companion that cannot prove itself.
    fn unproven_error(&self, url: Option<&Url>, has_proof: bool) -> Error {
        let port = url.and_then(Url::port_or_known_default).unwrap_or_default();
        let owner =
            listening_process(port).map_or(String::new(), |owner| format!(", but to {owner}"));
        Error::ListenerUnproven {
            container: self.container.clone(),
            port,
            owner,
            up: self.up_command.clone(),
            has_proof,
        }
    }

    /// The error that the tunnel reports instead of the companion.
    fn tunnel_error(&self, tunnel: &Tunnel, tunnel_error: &str) -> anyhow::Error {
        let address = tunnel.engine().to_string();
        match tunnel_error.split_once(": ") {
            None if tunnel_error == TUNNEL_NOT_RUNNING => self.not_running_error(),
            Some((TUNNEL_NO_ENGINE, why)) => Error::EngineUnreachable {
                address,
                why: why.into(),
            }
            .into(),
            other => Error::Unreachable {
                container: self.container.clone(),
                address,
                why: other.map_or(tunnel_error, |(_, why)| why).into(),
            }
            .into(),
        }
    }

    pub(super) fn connection_lost_error(&self, why: String) -> anyhow::Error {
        Error::Unreachable {
            container: self.container.clone(),
            address: self.address.clone(),
            why,
        }
        .into()
    }

    /// The error for an incomplete response.
    pub(in crate::host) fn read_error(&self, failure: &ReadFailure) -> anyhow::Error {
        match failure {
            ReadFailure::TooLong(_) | ReadFailure::TooManyValues(_) => Error::Refused {
                status: 502,
                kind: "answer_too_long".into(),
                message: format!("invalid response from the companion: {failure}"),
                hint: Some("`osctl logs` shows more".into()),
            }
            .into(),
            ReadFailure::Interrupted(error) => self.unreachable_error(error),
        }
    }
}

/// The error for an instance that is down or for which `up` never ran.
pub(crate) fn not_running_error(instance: &Instance) -> anyhow::Error {
    Error::NotRunning {
        container: instance.container_name(),
        up: instance.osctl_command("up"),
    }
    .into()
}

pub(super) async fn read_refusal(response: Response) -> anyhow::Error {
    let status = response.status();
    // A response to `HEAD` has a status and no body.
    let body = read_body(response, MAX_JSON_BYTES)
        .await
        .unwrap_or_default();
    let fault = match serde_json::from_slice(&body) {
        Ok(FailedReply { error, .. }) => error,
        Err(_) => {
            let message = format!("the companion responded with {status} and no reason");
            ApiError::new("refused", message).with_hint("`osctl logs` shows more")
        }
    };
    Error::Refused {
        status: status.as_u16(),
        kind: fault.kind,
        message: fault.message,
        hint: fault.hint.filter(|hint| !names_http_path(hint)),
    }
    .into()
}

/// Whether the hint is for programs that send requests: it names a request such as `POST /shell/cd`.
fn names_http_path(hint: &str) -> bool {
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    let parts = hint.split('`').skip(1).step_by(2);
    let mut requests = parts.filter_map(|part| part.split_once(' '));
    requests.any(|(method, path)| methods.contains(&method) && path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::names_http_path;

    #[test]
    fn a_hint_that_names_a_request_is_for_programs() {
        for hint in [
            "`GET /openapi.json` describes every field",
            "choose an existing folder with `POST /shell/cd`",
            "end one with `DELETE /shell/{id}`, or wait (`GET /status`)",
        ] {
            assert!(names_http_path(hint), "{hint}");
        }
        for hint in [
            "`osctl cryo ls` lists the stored states",
            "wait, or GET /status",
            "`GET` and `/status`",
        ] {
            assert!(!names_http_path(hint), "{hint}");
        }
    }
}
