//! The tunnel to a container whose engine is on another machine: local ports on loopback, each connection through the
//! engine. Nothing is published outside that machine, and all traffic uses the engine's own protected connection.

use crate::engine::{ContainerPhase, Docker, EngineAddress, EngineExecPipes};
use crate::error::{Error, Result};
use crate::protocol::relay_handshake::RELAY_CONNECTED;
use crate::protocol::text_sanitizer;
use crate::replacement::CONTAINER_OSCTL_PATH;
use anyhow::bail;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::io::StreamReader;

/// Time limit for retries to a container that does not answer: it may be about to be replaced.
const TUNNEL_RETRY_TIMEOUT: Duration = Duration::from_secs(3);
const TUNNEL_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time limit for the engine to open a connection.
const TUNNEL_DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Header of a response that the tunnel sends instead of the companion: the reason why the container is unreachable.
pub(super) const TUNNEL_ERROR_HEADER: &str = "osctl-no-way";
pub(super) const TUNNEL_NOT_RUNNING: &str = "not running";
pub(super) const TUNNEL_NO_ENGINE: &str = "no engine";

/// Forwarded ports of a container, until dropped; open connections stay.
#[derive(Debug)]
pub(crate) struct Tunnel {
    target: Arc<TunnelTarget>,
    accept_tasks: Vec<AbortHandle>,
    /// The local addresses of the ports, in the order in which they were requested.
    pub(crate) addresses: [SocketAddr; 2],
}

#[derive(Debug)]
struct TunnelTarget {
    engine: EngineAddress,
    /// The engine client that the last connection used.
    docker: Mutex<Option<Docker>>,
    container: String,
}

impl Tunnel {
    /// Binds the local ports; sends nothing to the engine yet.
    ///
    /// # Errors
    /// When this machine has no free port.
    pub(crate) fn open(
        engine: &EngineAddress,
        container: String,
        ports: &[u16; 2],
    ) -> Result<Self> {
        let target = Arc::new(TunnelTarget {
            engine: engine.clone(),
            docker: Mutex::new(None),
            container,
        });
        let mut listening = Vec::new();
        let mut listen = |port| {
            let (listener, address) = bind_loopback()?;
            listening.push(
                tokio::spawn(accept_tunnel_connections(
                    listener,
                    Arc::clone(&target),
                    port,
                ))
                .abort_handle(),
            );
            Ok::<_, io::Error>(address)
        };
        let addresses = [listen(ports[0])?, listen(ports[1])?];
        Ok(Self {
            target,
            accept_tasks: listening,
            addresses,
        })
    }

    pub(crate) fn engine(&self) -> &EngineAddress {
        &self.target.engine
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for listening in &self.accept_tasks {
            listening.abort();
        }
    }
}

fn bind_loopback() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}

async fn accept_tunnel_connections(listener: TcpListener, target: Arc<TunnelTarget>, port: u16) {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                let target = Arc::clone(&target);
                tokio::spawn(async move { target.relay_connection(connection, port).await });
            }
            // Too many open files, a temporary condition.
            Err(_) => tokio::time::sleep(TUNNEL_RETRY_DELAY).await,
        }
    }
}

/// A connection to a port of the container.
struct TunnelStream {
    writer: Pin<Box<dyn AsyncWrite + Send>>,
    reader: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
}

impl TunnelTarget {
    /// Relays until either side closes the connection. If the container is unreachable, refuses the connection before
    /// reading from it, so that the caller knows that nothing was executed.
    async fn relay_connection(&self, mut connection: TcpStream, port: u16) {
        let TunnelStream {
            writer: mut to,
            reader: from,
        } = match self.dial_with_retry(port).await {
            Ok(line) => line,
            Err(error) => {
                // The client may be gone.
                let _ = timeout(
                    TUNNEL_DIAL_TIMEOUT,
                    refuse_connection(connection, &self.describe_failure(&error).await),
                )
                .await;
                return;
            }
        };
        // An error costs latency only.
        let _ = connection.set_nodelay(true);
        let (mut read, mut write) = connection.split();
        let mut from = StreamReader::new(from);
        let up = async {
            let sent = tokio::io::copy(&mut read, &mut to).await;
            to.shutdown().await.and(sent)
        };
        let down = async {
            let sent = tokio::io::copy_buf(&mut from, &mut write).await;
            write.shutdown().await.and(sent)
        };
        tokio::pin!(down);
        // After the client has closed its sending side, it may still receive data.
        let _ = tokio::select! {
            ended = &mut down => ended,
            _ = up => down.await,
        };
    }

    async fn dial_with_retry(&self, port: u16) -> Result<TunnelStream> {
        let started_at = Instant::now();
        loop {
            let dial_result = match timeout(TUNNEL_DIAL_TIMEOUT, self.dial(port)).await {
                Ok(dial_result) => dial_result,
                Err(_) => Err(Error::EngineUnreachable {
                    address: self.engine.url.clone(),
                    why: format!("no answer within {} s", TUNNEL_DIAL_TIMEOUT.as_secs()),
                }
                .into()),
            };
            match dial_result {
                Ok(line) => return Ok(line),
                Err(error) => {
                    // The connection to the engine may be the one that was lost.
                    *self.docker.lock().await = None;
                    if started_at.elapsed() > TUNNEL_RETRY_TIMEOUT {
                        return Err(error);
                    }
                    tokio::time::sleep(TUNNEL_RETRY_DELAY).await;
                }
            }
        }
    }

    async fn connect_engine(&self) -> Result<Docker> {
        let mut docker = self.docker.lock().await;
        match &*docker {
            Some(docker) => Ok(docker.clone()),
            None => Ok(docker
                .insert(Docker::connect_to(&self.engine).await?)
                .clone()),
        }
    }

    async fn dial(&self, port: u16) -> Result<TunnelStream> {
        let docker = self.connect_engine().await?;
        let command = [CONTAINER_OSCTL_PATH, "relay", &port.to_string()];
        let EngineExecPipes { stdin, mut stdout } =
            docker.exec_piped(&self.container, &command).await?;
        let Some(mut first) = stdout.next().await.transpose()? else {
            bail!("no process in the container listens on port {port}");
        };
        if first.split_to(1.min(first.len())) != [RELAY_CONNECTED][..] {
            bail!(
                "unexpected reply from the relay in the container; `osctl up` replaces it with this version"
            );
        }
        Ok(TunnelStream {
            writer: stdin,
            reader: Box::pin(stream::iter([Ok(first)]).chain(stdout)),
        })
    }

    async fn describe_failure(&self, error: &anyhow::Error) -> String {
        if let Some(Error::EngineUnreachable { why, .. }) = error.downcast_ref() {
            return format!("{TUNNEL_NO_ENGINE}: {why}");
        }
        let found = async { self.connect_engine().await?.inspect(&self.container).await };
        match found.await {
            Ok(None) => TUNNEL_NOT_RUNNING.into(),
            Ok(Some(found)) if found.phase == ContainerPhase::Stopped => TUNNEL_NOT_RUNNING.into(),
            _ => format!("lost: {error:#}"),
        }
    }
}

/// Sends a response instead of the companion.
async fn refuse_connection(mut connection: TcpStream, why: &str) -> io::Result<()> {
    // A client discards a response that arrives before its request.
    connection.readable().await?;
    let why: String = text_sanitizer::sanitize_line(why)
        .chars()
        .map(|c| if c.is_ascii() { c } else { '?' })
        .collect();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\n{TUNNEL_ERROR_HEADER}: {why}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    connection.write_all(answer.as_bytes()).await?;
    connection.shutdown().await?;
    // Read the rest of the request; closing early would discard the response.
    tokio::io::copy(&mut connection, &mut tokio::io::sink()).await?;
    Ok(())
}
