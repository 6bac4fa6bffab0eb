//! The companion's face: requests in, calls to handles, replies out.
//!
//! Two doors lead to the same routes: TCP, behind the [`guard`], and a private Unix socket.
//! Nothing is decided here; what a refusal means in HTTP stands in [`answer`] alone.

mod answer;
mod files;
mod guard;
mod kernel;
mod pty;
mod range;
mod service;
mod session;
mod shell;
mod socket;
mod stream;

use super::files::Files;
use super::kernel::Sessions;
use super::pty::Terminals;
use super::shell::Shells;
use super::{Listeners, Settings};
use crate::error::Result;
use crate::protocol;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use guard::Guard;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Bytes of a request's body; what is streamed has no limit.
const BODY_LIMIT: usize = 64 << 20;

/// From the last run's end to the end of idle connections.
const DRAIN: Duration = Duration::from_secs(2);

#[derive(OpenApi)]
#[openapi(info(
    title = "osctl companion",
    description = "The kernel of an `os-host`. Requests need `Authorization: Bearer TOKEN` or `X-API-Key: TOKEN`, but for `GET /ping`."
))]
struct Documented;

/// What the routes call.
#[derive(Debug, Clone)]
pub(super) struct Handles {
    pub(super) sessions: Sessions,
    pub(super) shells: Shells,
    pub(super) terminals: Terminals,
    pub(super) files: Files,
}

/// What handlers work with.
#[derive(Clone)]
struct State {
    sessions: Sessions,
    shells: Shells,
    terminals: Terminals,
    files: Files,
    document: Arc<utoipa::openapi::OpenApi>,
}

/// The two doors, open.
#[derive(Debug)]
pub(super) struct Server {
    doors: Vec<JoinHandle<()>>,
    close: watch::Sender<bool>,
}

impl Server {
    pub(super) fn start(listeners: Listeners, settings: &Settings, handles: Handles) -> Self {
        let routes = routes(handles);
        let guard = Arc::new(Guard::new(settings));
        let guarded = routes
            .clone()
            .layer(from_fn_with_state(guard, guard::check))
            .layer(from_fn(sign));
        let open = routes.layer(from_fn(sign));
        let (close, closing) = watch::channel(false);
        // Small answers must not wait for the client's acknowledgement of the headers.
        let tcp = listeners.tcp.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::warn!("TCP_NODELAY: {error}");
            }
        });
        let first = axum::serve(tcp, guarded).with_graceful_shutdown(closed(closing.clone()));
        let second = axum::serve(listeners.unix, open).with_graceful_shutdown(closed(closing));
        let doors = vec![
            tokio::spawn(served(first.into_future())),
            tokio::spawn(served(second.into_future())),
        ];
        Self { doors, close }
    }

    /// Answers what was asked, then closes; connections that stay silent are cut.
    pub(super) async fn stop(self) {
        self.close.send_replace(true);
        let ends = self
            .doors
            .iter()
            .map(JoinHandle::abort_handle)
            .collect::<Vec<_>>();
        let all = futures_util::future::join_all(self.doors);
        if tokio::time::timeout(DRAIN, all).await.is_err() {
            ends.iter().for_each(tokio::task::AbortHandle::abort);
        }
    }
}

async fn served(door: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = door.await {
        tracing::error!("serving ended: {error}");
    }
}

async fn closed(mut closing: watch::Receiver<bool>) {
    // A sender that is gone closes, too.
    let _ = closing.wait_for(|closing| *closing).await;
}

fn routes(handles: Handles) -> Router {
    let (router, mut document) = OpenApiRouter::with_openapi(Documented::openapi())
        .routes(routes!(kernel::execute, kernel::list))
        .routes(routes!(kernel::find, kernel::interrupt))
        .routes(routes!(kernel::output))
        .routes(routes!(shell::execute, shell::locate))
        .routes(routes!(shell::change_folder))
        .routes(routes!(shell::change_variable))
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
        .routes(routes!(pty::open))
        .routes(routes!(pty::end))
        .routes(routes!(files::get, files::put, files::delete))
        .routes(routes!(service::describe))
        .routes(routes!(service::ping))
        .routes(routes!(service::status))
        .routes(routes!(service::health))
        .routes(routes!(service::openapi))
        .split_for_parts();
    files::describe(&mut document);
    let Handles {
        sessions,
        shells,
        terminals,
        files,
    } = handles;
    let state = State {
        sessions,
        shells,
        terminals,
        files,
        document: Arc::new(document),
    };
    // The wildcard takes no empty path, which is the root.
    let root = get(files::get).put(files::put).delete(files::delete);
    router
        .route("/files/", root.clone())
        .route("/files", root)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(state)
}

async fn unknown_path(request: Request) -> Response {
    let message = format!("there is no `{}`", request.uri().path());
    answer::failed(
        StatusCode::NOT_FOUND,
        "unknown_path",
        message,
        Some("`GET /` lists the endpoints"),
    )
}

async fn wrong_method(method: Method, request: Request) -> Response {
    let message = format!("`{}` can't be asked with {method}", request.uri().path());
    answer::failed(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong_method",
        message,
        Some("`GET /` lists the endpoints"),
    )
}

/// States the protocol with every answer, so that no peer misreads another version.
async fn sign(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(
        HeaderName::from_static(protocol::VERSION_HEADER),
        HeaderValue::from(protocol::VERSION),
    );
    headers.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    response
}

/// One `GET /health` over a connection to the private socket.
pub(super) async fn is_healthy(stream: UnixStream) -> Result<bool> {
    let (mut client, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let request = hyper::Request::get("/health")
        .header("host", "localhost")
        .body(Empty::<bytes::Bytes>::new())?;
    let response = client.send_request(request).await?;
    let healthy = response.status() == StatusCode::OK;
    response.into_body().collect().await?;
    driver.abort();
    Ok(healthy)
}

fn json(status: StatusCode, value: impl serde::Serialize) -> Response {
    (status, Json(value)).into_response()
}
