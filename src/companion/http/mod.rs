//! The companion's HTTP server: it parses requests, calls handles and renders replies.
//!
//! TCP serves the public routes, behind [`auth`]; the private Unix socket also serves `/evolve/*` of the keeper. A
//! third listener, behind the same authentication, serves the routes of the hub (see `mcp`). This module makes no
//! decisions; `refusal_table` maps refusals to HTTP.

mod activity;
mod admission;
mod auth;
mod browser_page;
mod connections;
mod criu;
mod cryo;
mod desktop;
mod display;
mod environment;
mod evolve;
mod file_bodies;
mod files;
mod json_text;
mod kernel;
mod progress_stream;
mod pty;
mod pty_socket;
mod range;
mod run_response;
mod service;
mod session;
mod shell;
mod stream;

use super::CompanionSettings;
use super::activity::ActivityLog;
use super::admission::ListenerKind;
use super::criu::Criu;
use super::cryo::CryoService;
use super::desktop::{Desktop, OneTimeTokens};
use super::environment::EnvironmentHandle;
use super::evolve::EvolveHandle;
use super::files::FilesHandle;
use super::kernel::KernelSessions;
use super::listeners::CompanionListeners;
use super::pty::PtyTerminals;
use super::shell::Shells;
use crate::error::Result;
use crate::protocol;
use auth::HttpAuth;
use axum::extract::{DefaultBodyLimit, Request};
pub(super) use axum::http::Method;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use bytes::Bytes;
use connections::{REQUEST_HEAD_TIMEOUT, serve_connections, wait_for_shutdown};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use osctl_hub::Hub;
use osctl_support::api::{
    self, ApiRefusal, ExtractorTexts, FIELD_DOCS_HINT, MAX_REQUEST_BODY_BYTES,
};
use std::future::IntoFuture;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Time from the end of the last run to the end of idle connections.
const HTTP_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(OpenApi)]
#[openapi(info(
    title = "osctl companion",
    description = "API of the companion, which runs kernels, shells and a desktop in a container. Requests need `Authorization: Bearer TOKEN` or `X-API-Key: TOKEN`, except `GET /ping` and `GET /desktop/enter`."
))]
struct CompanionApiDoc;

/// The handles that the routes call.
#[derive(Debug, Clone)]
pub(super) struct HttpHandles {
    pub(super) sessions: KernelSessions,
    pub(super) shells: Shells,
    pub(super) terminals: PtyTerminals,
    pub(super) files: FilesHandle,
    pub(super) criu: Criu,
    pub(super) cryo: CryoService,
    pub(super) hub: Hub,
    pub(super) desktop: Desktop,
    pub(super) one_time_tokens: OneTimeTokens,
    pub(super) evolve: EvolveHandle,
    pub(super) environment: EnvironmentHandle,
    pub(super) activity: ActivityLog,
}

/// State of the handlers: the handles. Every route holds a clone, so the type is one pointer.
#[derive(Clone)]
struct HttpState(Arc<HttpStateInner>);

struct HttpStateInner {
    handles: HttpHandles,
    /// The OpenAPI document, serialized: as objects it takes ten times the memory.
    openapi_document: Bytes,
}

impl HttpState {
    fn openapi_document(&self) -> Bytes {
        self.0.openapi_document.clone()
    }
}

impl ExtractorTexts for HttpState {
    const BODY_NAME: &'static str = "request body";
    const LARGE_BODY_HINT: Option<&'static str> =
        Some("write the data to a file and read that file");
    const INVALID_QUERY_HINT: Option<&'static str> = Some(FIELD_DOCS_HINT);
}

impl Deref for HttpState {
    type Target = HttpHandles;

    fn deref(&self) -> &HttpHandles {
        &self.0.handles
    }
}

/// The running listeners.
#[derive(Debug)]
pub(super) struct HttpServer {
    listeners: Vec<JoinHandle<()>>,
    shutdown: watch::Sender<bool>,
}

impl HttpServer {
    pub(super) fn start(
        listeners: CompanionListeners,
        settings: &CompanionSettings,
        handles: HttpHandles,
    ) -> Self {
        let hub = osctl_hub::hub_routes(handles.hub.clone());
        let guard = Arc::new(HttpAuth::new(settings, handles.one_time_tokens.clone()));
        let gate = handles.evolve.admission().clone();
        let log = handles.activity.clone();
        let recorded = |listener_kind: ListenerKind| {
            from_fn_with_state((log.clone(), listener_kind), activity::record_request)
        };
        let (routes, private) = build_routes(handles);
        let at = |listener_kind: ListenerKind| {
            from_fn_with_state((gate.clone(), listener_kind), admission::admit_request)
        };
        let guarded = |routes: Router| {
            routes
                .layer(recorded(ListenerKind::Outside))
                .layer(at(ListenerKind::Outside))
                .layer(from_fn_with_state(
                    guard.clone(),
                    auth::authenticate_request,
                ))
                .layer(from_fn(browser_page::answer_browser))
                .layer(from_fn(add_protocol_headers))
        };
        let (shutdown, closing) = watch::channel(false);
        let served_over_tcp = |listener: TcpListener, routes: Router| {
            // Without this, small replies wait for the client's acknowledgement of the headers.
            let listener = listener.tap_io(|stream| {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::warn!(%error, "the companion can't set TCP_NODELAY");
                }
            });
            let closing = closing.clone();
            serve_connections(listener, guarded(routes), REQUEST_HEAD_TIMEOUT, closing)
        };
        let first = served_over_tcp(listeners.tcp, routes.clone());
        let second = served_over_tcp(listeners.mcp, hub);
        let inside = routes
            .merge(private)
            .layer(recorded(ListenerKind::Inside))
            .layer(at(ListenerKind::Inside));
        let open = inside.layer(from_fn(add_protocol_headers));
        let third = axum::serve(listeners.unix, open)
            .with_graceful_shutdown(wait_for_shutdown(closing.clone()));
        let servers = vec![
            tokio::spawn(first),
            tokio::spawn(second),
            tokio::spawn(run_listener(third.into_future())),
        ];
        Self {
            listeners: servers,
            shutdown,
        }
    }

    /// Finishes pending replies, then closes; idle connections are cut.
    pub(super) async fn stop(self) {
        self.shutdown.send_replace(true);
        let ends = self
            .listeners
            .iter()
            .map(JoinHandle::abort_handle)
            .collect::<Vec<_>>();
        let all = futures_util::future::join_all(self.listeners);
        if tokio::time::timeout(HTTP_DRAIN_TIMEOUT, all).await.is_err() {
            ends.iter().for_each(tokio::task::AbortHandle::abort);
        }
    }
}

async fn run_listener(server: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = server.await {
        tracing::error!(%error, "an HTTP listener failed");
    }
}

/// Returns the public routes, and the routes of the private socket.
fn build_routes(handles: HttpHandles) -> (Router, Router) {
    let (router, mut document) = OpenApiRouter::with_openapi(CompanionApiDoc::openapi())
        .routes(routes!(kernel::execute, kernel::list))
        .routes(routes!(kernel::find, kernel::interrupt))
        .routes(routes!(kernel::output))
        .routes(routes!(shell::execute, shell::locate))
        .routes(routes!(shell::change_folder))
        .routes(routes!(shell::change_variable))
        .routes(routes!(shell::list))
        .routes(routes!(shell::find, shell::interrupt))
        .routes(routes!(shell::output))
        .routes(routes!(shell::stdin))
        .routes(routes!(shell::jobs))
        .routes(routes!(shell::end_job))
        .routes(routes!(session::reset))
        .routes(routes!(session::interrupt))
        .routes(routes!(session::restart))
        .routes(routes!(session::list, session::create))
        .routes(routes!(session::delete))
        .routes(routes!(session::variables))
        .routes(routes!(session::complete))
        .routes(routes!(session::inspect))
        .routes(routes!(session::is_complete))
        .routes(routes!(session::history))
        .routes(routes!(session::call))
        .routes(routes!(criu::checkpoint))
        .routes(routes!(criu::restore))
        .routes(routes!(criu::list))
        .routes(routes!(criu::remove))
        .routes(routes!(criu::status))
        .routes(routes!(cryo::store))
        .routes(routes!(cryo::reload))
        .routes(routes!(cryo::snapshot))
        .routes(routes!(cryo::list))
        .routes(routes!(cryo::show, cryo::remove))
        .routes(routes!(pty::open))
        .routes(routes!(pty::end))
        .routes(routes!(files::get, files::put, files::delete))
        .routes(routes!(display::screenshot))
        .routes(routes!(display::input))
        .routes(routes!(display::read_clipboard, display::write_clipboard))
        .routes(routes!(display::windows))
        .routes(routes!(display::focus))
        .routes(routes!(display::resolution, display::resize))
        .routes(routes!(
            display::browser,
            display::browse,
            display::close_browser
        ))
        .routes(routes!(desktop::link))
        .routes(routes!(desktop::enter))
        .routes(routes!(desktop::page))
        .routes(routes!(desktop::socket))
        .routes(routes!(activity::list))
        .routes(routes!(environment::show, environment::replace))
        .routes(routes!(evolve::begin))
        .routes(routes!(evolve::status))
        .routes(routes!(evolve::list))
        .routes(routes!(evolve::find))
        .routes(routes!(evolve::rollback))
        .routes(routes!(service::describe))
        .routes(routes!(service::ping))
        .routes(routes!(service::status))
        .routes(routes!(service::health))
        .routes(routes!(service::openapi))
        .split_for_parts();
    files::rename_document_path(&mut document);
    // An OpenAPI document consists of numbers, strings, lists and maps, which always serialize.
    let document = serde_json::to_vec(&document).expect("an OpenAPI document is JSON");
    let state = HttpState(Arc::new(HttpStateInner {
        handles,
        openapi_document: document.into(),
    }));
    // The wildcard does not match the empty path, which is the root.
    let root = get(files::get).put(files::put).delete(files::delete);
    let private = evolve::private_routes().with_state(state.clone());
    let open = router
        .route("/files/", root.clone())
        .route("/files", root)
        .route("/desktop", get(desktop::redirect_to_page))
        .route("/desktop/{*file}", get(desktop::serve_asset))
        .fallback(reject_unknown_path)
        .method_not_allowed_fallback(api::reject_wrong_method)
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BODY_BYTES))
        .with_state(state);
    (open, private)
}

async fn reject_unknown_path(request: Request) -> ApiRefusal {
    let message = format!("`{}` is not an endpoint", request.uri().path());
    ApiRefusal::new(StatusCode::NOT_FOUND, "unknown_path", message)
        .with_hint("`GET /` lists the endpoints")
}

/// States the protocol version in every reply, so that a peer of another version does not misread it.
async fn add_protocol_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(
        HeaderName::from_static(protocol::PROTOCOL_VERSION_HEADER),
        HeaderValue::from(protocol::PROTOCOL_VERSION),
    );
    headers.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    response
}

/// Sends one request over a connection to the private socket; returns whether the request succeeded, and the reply.
pub(super) async fn send_private_request(
    stream: UnixStream,
    method: Method,
    path: &str,
    body: Option<&serde_json::Value>,
) -> Result<(bool, Bytes)> {
    let (mut client, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let text = body.map(ToString::to_string).unwrap_or_default();
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(text)))?;
    let response = client.send_request(request).await?;
    let is_fine = response.status() == StatusCode::OK;
    let body = response.into_body().collect().await?.to_bytes();
    driver.abort();
    Ok((is_fine, body))
}

fn json_response(status: StatusCode, value: impl serde::Serialize) -> Response {
    (status, Json(value)).into_response()
}
