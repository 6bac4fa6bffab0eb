//! The ports that the containers of the fake engine publish: listeners of this machine, for the host's client.
//!
//! A listener exists while its container runs. It is closed with its connections before the engine answers the call
//! that ends the container, as with a real engine.

use super::{FakeEngineCore, FakeEngineObjects};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A response of a container: status, headers, text.
pub(crate) type FakeHttpReply = (u16, Vec<(&'static str, String)>, String);
/// Answers a request for this path in the container of this ID.
pub(crate) type FakeHttpAnswer =
    Box<dyn Fn(&mut FakeEngineObjects, &str, &str) -> FakeHttpReply + Send + Sync>;

/// The listeners by port, with the ID of the container.
type FakeListeners = BTreeMap<u16, (String, JoinHandle<()>)>;

pub(super) struct FakePorts {
    pub(super) address: IpAddr,
    pub(super) answer: FakeHttpAnswer,
    pub(super) listeners: tokio::sync::Mutex<FakeListeners>,
}

impl FakeEngineCore {
    /// Opens and closes listeners, so that each running container has its ports.
    pub(super) async fn publish_ports(self: &Arc<Self>) {
        let Some(ports) = self.ports.get() else {
            return;
        };
        let mut listeners = ports.listeners.lock().await;
        let wanted = self.state.lock().objects.published_ports();
        let is_closed = |(port, (container, _)): (&u16, &(String, JoinHandle<()>))| {
            (wanted.get(port) != Some(container)).then_some(*port)
        };
        let closed: Vec<u16> = listeners.iter().filter_map(is_closed).collect();
        for port in closed {
            if let Some((_, task)) = listeners.remove(&port) {
                task.abort();
                // The listener is closed when the task has ended.
                let _ = task.await;
            }
        }
        for (port, container) in wanted {
            if listeners.contains_key(&port) {
                continue;
            }
            let listener = TcpListener::bind((ports.address, port)).await;
            let listener = listener.expect("the port of a container is free");
            let served = serve_container(Arc::clone(self), listener, container.clone());
            listeners.insert(port, (container, tokio::spawn(served)));
        }
    }
}

async fn serve_container(core: Arc<FakeEngineCore>, listener: TcpListener, container: String) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve_connection(
            Arc::clone(&core),
            stream,
            container.clone(),
        ));
    }
}

async fn serve_connection(core: Arc<FakeEngineCore>, stream: TcpStream, container: String) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answered = core.answer_http(&container, &request);
        async move { Ok::<_, Infallible>(answered) }
    });
    // A client that is gone needs no answer.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl FakeEngineCore {
    fn answer_http(&self, container: &str, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path_and_query();
        let path = path.map_or("/", |path| path.as_str());
        let ports = self.ports.get().expect("a listener exists");
        let (status, headers, text) =
            (ports.answer)(&mut self.state.lock().objects, container, path);
        let mut reply = Response::builder().status(status);
        for (name, value) in headers {
            reply = reply.header(name, value);
        }
        reply.body(Full::new(text.into())).expect("a valid reply")
    }
}
