//! JSON-RPC errors for requests that the hub did not answer.

use crate::error::Error;
use serde_json::json;
use std::fmt;

/// Code of the error for an unreachable server, from the range for implementations.
const BRIDGE_UNREACHABLE_CODE: i64 = -32000;
const BRIDGE_INTERNAL_CODE: i64 = -32603;
const BRIDGE_PARSE_CODE: i64 = -32700;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BridgeError {
    code: i64,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl BridgeError {
    pub(super) fn parse(why: &str) -> Self {
        Self {
            code: BRIDGE_PARSE_CODE,
            message: format!("the line is not a JSON-RPC message: {why}"),
            hint: None,
        }
    }

    pub(super) fn unreachable(error: &anyhow::Error) -> Self {
        Self {
            code: BRIDGE_UNREACHABLE_CODE,
            message: format!("{error:#}"),
            hint: error.downcast_ref::<Error>().and_then(Error::hint),
        }
    }

    /// The connection was lost, and the progress of the server is unknown.
    pub(super) fn lost(method: &str) -> Self {
        Self {
            code: BRIDGE_UNREACHABLE_CODE,
            message: format!("the connection was lost while `{method}` ran; its result is unknown"),
            hint: Some("check the effects of the first call before you repeat it".into()),
        }
    }

    pub(super) fn refused(message: String, hint: Option<String>) -> Self {
        Self {
            code: BRIDGE_INTERNAL_CODE,
            message,
            hint,
        }
    }

    /// The complete message.
    pub(super) fn to_response(&self, id: &str) -> String {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(hint) = &self.hint {
            error["data"] = json!({"hint": hint});
        }
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
    }
}

impl fmt::Display for BridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; hint: {hint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BridgeError;

    #[test]
    fn an_error_has_the_id_of_its_request() {
        let fault = BridgeError::refused("no".into(), Some("try".into()));
        let expected = r#"{"jsonrpc":"2.0","id":1.0,"error":{"code":-32603,"data":{"hint":"try"},"message":"no"}}"#;
        assert_eq!(fault.to_response("1.0"), expected);
    }
}
