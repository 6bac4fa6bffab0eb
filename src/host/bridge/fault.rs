//! Why a request has no answer of the hub's, as JSON-RPC tells it.

use crate::error::Error;
use serde_json::json;
use std::fmt;

/// Of a server that can't be reached, as implementations choose their codes.
const UNREACHABLE: i64 = -32000;
const INTERNAL: i64 = -32603;
const NOT_JSON: i64 = -32700;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    code: i64,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    pub(super) fn parse(why: &str) -> Self {
        Self {
            code: NOT_JSON,
            message: format!("the line is no message: {why}"),
            hint: None,
        }
    }

    pub(super) fn unreachable(error: &anyhow::Error) -> Self {
        Self {
            code: UNREACHABLE,
            message: format!("{error:#}"),
            hint: error.downcast_ref::<Error>().and_then(Error::hint),
        }
    }

    /// The connection was lost, and nobody knows how far the server had come.
    pub(super) fn lost(method: &str) -> Self {
        Self {
            code: UNREACHABLE,
            message: format!(
                "the connection was lost while `{method}` ran, and whether it was done is not known"
            ),
            hint: Some("look what it has done before it is called again".into()),
        }
    }

    pub(super) fn refused(message: String, hint: Option<String>) -> Self {
        Self {
            code: INTERNAL,
            message,
            hint,
        }
    }

    /// The whole message.
    pub(super) fn answer(&self, id: &str) -> String {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(hint) = &self.hint {
            error["data"] = json!({"hint": hint});
        }
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
    }
}

impl fmt::Display for Fault {
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
    use super::Fault;

    #[test]
    fn a_fault_is_told_under_the_requests_own_id() {
        let fault = Fault::refused("no".into(), Some("try".into()));
        let expected = r#"{"jsonrpc":"2.0","id":1.0,"error":{"code":-32603,"data":{"hint":"try"},"message":"no"}}"#;
        assert_eq!(fault.answer("1.0"), expected);
    }
}
