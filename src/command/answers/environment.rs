//! The answer about the variables of an instance. No answer contains a value.

use schemars::JsonSchema;
use serde::Serialize;

/// The names of the variables that `osctl env` has set.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EnvironmentAnswer {
    names: Vec<String>,
    /// Whether the running container has the change; `false` if it gets the change at its next start, `null` for a
    /// list.
    is_applied: Option<bool>,
}

impl EnvironmentAnswer {
    pub(crate) fn new(names: Vec<String>, is_applied: Option<bool>) -> Self {
        Self { names, is_applied }
    }
}
