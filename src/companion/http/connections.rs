//! The connections of a TCP listener. A client that sends a part of a request's head and no more is disconnected.

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Maximum time from the opening of a connection, or from the end of a reply, to the complete head of the next request.
/// Bodies and replies have no such limit. osctl's client reuses a connection for at most 20 s (`CLIENT_IDLE_TIMEOUT`).
pub(super) const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves `routes` until `closing`, and finishes pending replies.
pub(super) async fn serve_connections(
    mut listener: impl Listener<Io = TcpStream>,
    routes: Router,
    head_timeout: Duration,
    closing: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(head_timeout);
    let service = TowerToHyperService::new(routes);
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = wait_for_shutdown(closing.clone()) => break,
        };
        let connection = http.serve_connection(TokioIo::new(stream), service.clone());
        let connection = connection.with_upgrades();
        let closing = closing.clone();
        connections.spawn(async move {
            let mut connection = pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = wait_for_shutdown(closing) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "an HTTP connection failed");
            }
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

pub(super) async fn wait_for_shutdown(mut closing: watch::Receiver<bool>) {
    // A dropped sender closes the server, too.
    let _ = closing.wait_for(|closing| *closing).await;
}

#[cfg(test)]
mod tests {
    use super::serve_connections;
    use axum::Router;
    use axum::body::{Body, Bytes};
    use axum::routing::{get, post};
    use futures_util::StreamExt;
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{Notify, watch};

    /// Opens a connection, and sends this text.
    async fn send(address: std::net::SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn read_until(stream: &mut TcpStream, end: &str) {
        let mut received = Vec::new();
        while !received.ends_with(end.as_bytes()) {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn half_sent_heads_are_closed_and_long_bodies_and_streams_continue() {
        let may_end = Arc::new(Notify::new());
        let streamed = may_end.clone();
        let stream_reply = || async move {
            let first = futures_util::stream::iter(["begin"]);
            let last = futures_util::stream::once(async move {
                streamed.notified().await;
                "end"
            });
            Body::from_stream(first.chain(last).map(Ok::<_, Infallible>))
        };
        let routes = Router::new()
            .route("/stream", get(stream_reply))
            .route("/upload", post(|body: Bytes| async move { body }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, closing) = watch::channel(false);
        let limit = Duration::from_millis(200);
        let server = tokio::spawn(serve_connections(listener, routes, limit, closing));

        let head =
            "POST /upload HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 6\r\n\r\n";
        let mut upload = send(address, &format!("{head}abc")).await;
        let mut stream = send(address, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").await;
        read_until(&mut stream, "begin\r\n").await;
        // The end of these connections shows that the time has passed for all.
        for half in ["", "GET / HTTP/1.1\r\nHost:", "POST /upload HTTP/1.1\r\n"] {
            let mut half_sent = send(address, half).await;
            let mut rest = Vec::new();
            half_sent.read_to_end(&mut rest).await.unwrap();
            assert!(!rest.starts_with(b"HTTP/1.1 200"), "{half}");
        }
        upload.write_all(b"def").await.unwrap();
        let mut reply = String::new();
        upload.read_to_string(&mut reply).await.unwrap();
        assert!(reply.ends_with("\r\n\r\nabcdef"), "{reply}");
        may_end.notify_one();
        read_until(&mut stream, "3\r\nend\r\n0\r\n\r\n").await;

        shutdown.send_replace(true);
        server.await.unwrap();
    }
}
