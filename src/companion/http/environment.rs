//! Routes of the variables that the user sets for all sessions.

use super::HttpState;
use crate::protocol::environment::{EnvironmentNames, ReplaceEnvironment};
use crate::protocol::error::FailedReply;
use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use osctl_support::api::{ApiRefusal, ApiResult, JsonBody};

/// List the names of the user's variables
#[utoipa::path(get, path = "/environment", responses((status = 200, body = EnvironmentNames)))]
pub(super) async fn show(Shared(state): Shared<HttpState>) -> Json<EnvironmentNames> {
    let names = state.environment.current().names();
    Json(EnvironmentNames { names })
}

/// Replace the user's variables
///
/// New commands, terminals and MCP servers get the variables when they start, and a running kernel before its next
/// code. The variables are kept across containers.
#[utoipa::path(put, path = "/environment", request_body = ReplaceEnvironment, responses(
    (status = 200, body = EnvironmentNames),
    (status = 400, description = "A name is reserved, or a name or value is invalid; nothing has changed.", body = FailedReply),
    (status = 507, description = "The variables can't be written to disk; nothing has changed.", body = FailedReply),
))]
pub(super) async fn replace(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<ReplaceEnvironment>,
) -> ApiResult<Json<EnvironmentNames>> {
    let ReplaceEnvironment { variables } = request;
    variables.check().map_err(ApiRefusal::invalid_field)?;
    let is_changed = state
        .environment
        .replace(variables)
        .await
        .map_err(|error| {
            let message = format!("the variables can't be written: {error}");
            ApiRefusal::new(StatusCode::INSUFFICIENT_STORAGE, "not_written", message)
                .with_hint("free space on the disk of `/data`")
        })?;
    if is_changed {
        // The configuration of a server may refer to a variable.
        state.hub.reload_config();
    }
    Ok(show(Shared(state)).await)
}
