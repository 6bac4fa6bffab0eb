//! Routes that describe the companion: ping, status, health and the API.

use super::session::describe_session;
use super::{HttpState, json_response};
use crate::protocol;
use crate::protocol::service::{
    ApiDescription, CompanionStatus, Health, HealthStatus, Ping, PingQuery, ServiceStatus,
};
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Check that the companion answers
///
/// The request needs no token.
#[utoipa::path(get, path = "/ping", params(PingQuery), responses((status = 200, body = Ping)))]
pub(super) async fn ping() -> Response {
    // Authentication answers a nonce, for both ports.
    ping_response(None)
}

pub(super) fn ping_response(proof: Option<String>) -> Response {
    let status = "ok".into();
    json_response(StatusCode::OK, Ping { status, proof })
}

/// Show the sessions, their kernels and running code
#[utoipa::path(get, path = "/status", responses((status = 200, body = CompanionStatus)))]
pub(super) async fn status(Shared(state): Shared<HttpState>) -> Response {
    let view = state.sessions.default_view();
    let sessions = state.sessions.list_sessions().into_iter();
    json_response(
        StatusCode::OK,
        CompanionStatus {
            status: "ok".into(),
            exec_count: view.counts.execution_count,
            globals_count: view.counts.globals_count,
            resources_count: view.counts.resources_count,
            busy: view.busy,
            restored_from: view.report.origin.as_deref().cloned(),
            kernel: view.report,
            // `GET /sessions` measures the memory of sessions; this reply does not.
            sessions: sessions
                .map(|(name, view)| describe_session(name, view, None))
                .collect(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
    )
}

/// Check whether all services are ready
#[utoipa::path(get, path = "/health", responses(
    (status = 200, description = "All services are ready.", body = Health),
    (status = 503, description = "A service is not ready.", body = Health),
))]
pub(super) async fn health(Shared(state): Shared<HttpState>) -> Response {
    let view = state.sessions.default_view();
    let (others, are_well) = state.desktop.health();
    let (code, status) = match view.ready && are_well {
        true => (StatusCode::OK, HealthStatus::Healthy),
        false => (StatusCode::SERVICE_UNAVAILABLE, HealthStatus::Starting),
    };
    let failure = view.start_failure.as_deref().map(|why| {
        // The first line says how the process ended; the last one is the exception.
        let mut lines = why.lines();
        let how = lines.next().unwrap_or_default();
        let last = lines.next_back().map(|last| format!(": {last}"));
        format!("the kernel can't start: {how}{}", last.unwrap_or_default())
    });
    let kernel = ServiceStatus {
        name: "kernel".into(),
        ready: view.ready,
        idle: false,
        detail: view.detail,
    };
    let services = std::iter::once(kernel).chain(others).collect();
    json_response(
        code,
        Health {
            status,
            evolving: !state.evolve.admission().is_open(),
            version: env!("CARGO_PKG_VERSION").into(),
            services,
            failure,
        },
    )
}

/// List the endpoints
#[utoipa::path(get, path = "/", responses((status = 200, body = ApiDescription)))]
pub(super) async fn describe(Shared(state): Shared<HttpState>) -> Response {
    let document = serde_json::from_slice::<OpenApiPaths>(&state.openapi_document());
    let document = document.expect("the companion wrote it");
    let mut endpoints = BTreeMap::new();
    for (path, operations) in document.paths {
        for (method, operation) in operations {
            let name = format!("{} {path}", method.to_uppercase());
            endpoints.insert(name, operation.summary);
        }
    }
    let (name, version) = ("osctl companion".into(), env!("CARGO_PKG_VERSION").into());
    json_response(
        StatusCode::OK,
        ApiDescription {
            name,
            version,
            protocol: protocol::PROTOCOL_VERSION,
            endpoints,
        },
    )
}

/// The part of the OpenAPI document that [`describe`] lists: methods and their summaries by path.
#[derive(Deserialize)]
struct OpenApiPaths {
    paths: BTreeMap<String, BTreeMap<String, OpenApiOperation>>,
}

#[derive(Deserialize)]
struct OpenApiOperation {
    #[serde(default)]
    summary: String,
}

/// Get the OpenAPI document
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "The document.")))]
pub(super) async fn openapi(Shared(state): Shared<HttpState>) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        state.openapi_document(),
    )
        .into_response()
}
