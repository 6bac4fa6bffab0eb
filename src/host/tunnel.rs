//! The tunnel to a container whose engine is on another machine: local ports on loopback, each connection through the
//! engine. Nothing is published outside that machine, and all traffic uses the engine's own protected connection.

use crate::engine::{ContainerPhase, Docker, EngineAddress, EngineExecPipes};
use crate::error::{Error, Result};
use crate::protocol::relay::RELAY_CONNECTED;
use crate::protocol::text_sanitizer;
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

/// The binary in every body.
const CONTAINER_OSCTL_PATH: &str = "/opt/osctl/bin/osctl";
/// How long one that gives no answer is asked again: it may be about to be replaced.
const TUNNEL_RETRY_TIMEOUT: Duration = Duration::from_secs(3);
const TUNNEL_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long an engine may take to begin a connection.
const TUNNEL_DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Header of an answer in the companion's place: why there is no way to it.
pub(super) const TUNNEL_ERROR_HEADER: &str = "osctl-no-way";
pub(super) const TUNNEL_NOT_RUNNING: &str = "not running";
pub(super) const TUNNEL_NO_ENGINE: &str = "no engine";

/// Ports of a container, until it is dropped; connections go on.
#[derive(Debug)]
pub(crate) struct Tunnel {
    way: Arc<TunnelTarget>,
    listening: Vec<AbortHandle>,
    /// Where the ports are here, in the order in which they were asked for.
    pub(crate) addresses: [SocketAddr; 2],
}

#[derive(Debug)]
struct TunnelTarget {
    engine: EngineAddress,
    /// The connection that the last one went through.
    docker: Mutex<Option<Docker>>,
    container: String,
}

impl Tunnel {
    /// Nothing is asked of the engine yet.
    ///
    /// # Errors
    /// When this machine has no port left.
    pub(crate) fn open(
        engine: &EngineAddress,
        container: String,
        ports: &[u16; 2],
    ) -> Result<Self> {
        let way = Arc::new(TunnelTarget {
            engine: engine.clone(),
            docker: Mutex::new(None),
            container,
        });
        let mut listening = Vec::new();
        let mut listen = |port| {
            let (listener, address) = bind_loopback()?;
            listening.push(
                tokio::spawn(accept_tunnel_connections(listener, Arc::clone(&way), port))
                    .abort_handle(),
            );
            Ok::<_, io::Error>(address)
        };
        let addresses = [listen(ports[0])?, listen(ports[1])?];
        Ok(Self {
            way,
            listening,
            addresses,
        })
    }

    pub(crate) fn engine(&self) -> &EngineAddress {
        &self.way.engine
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for listening in &self.listening {
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

async fn accept_tunnel_connections(listener: TcpListener, way: Arc<TunnelTarget>, port: u16) {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                let way = Arc::clone(&way);
                tokio::spawn(async move { way.relay_connection(connection, port).await });
            }
            // Too many files are open, which passes.
            Err(_) => tokio::time::sleep(TUNNEL_RETRY_DELAY).await,
        }
    }
}

/// A connection to a port of the container.
struct TunnelStream {
    to: Pin<Box<dyn AsyncWrite + Send>>,
    from: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
}

impl TunnelTarget {
    /// Until one of the two ends it. One that leads nowhere is told as much before anything is read of
    /// it, so that whoever asks knows that nothing has begun.
    async fn relay_connection(&self, mut connection: TcpStream, port: u16) {
        let TunnelStream { mut to, from } = match self.dial_with_retry(port).await {
            Ok(line) => line,
            Err(error) => {
                // Who has gone needs no answer.
                let _ = timeout(
                    TUNNEL_DIAL_TIMEOUT,
                    refuse_connection(connection, &self.no_way(&error).await),
                )
                .await;
                return;
            }
        };
        // A loss of latency, and nothing else.
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
        // Whoever has said all may still be told something.
        let _ = tokio::select! {
            ended = &mut down => ended,
            _ = up => down.await,
        };
    }

    async fn dial_with_retry(&self, port: u16) -> Result<TunnelStream> {
        let begin = Instant::now();
        loop {
            let dialled = match timeout(TUNNEL_DIAL_TIMEOUT, self.dial(port)).await {
                Ok(dialled) => dialled,
                Err(_) => Err(Error::EngineUnreachable {
                    address: self.engine.url.clone(),
                    why: format!("no answer within {} s", TUNNEL_DIAL_TIMEOUT.as_secs()),
                }
                .into()),
            };
            match dialled {
                Ok(line) => return Ok(line),
                Err(error) => {
                    // The connection to the engine may be what is lost.
                    *self.docker.lock().await = None;
                    if begin.elapsed() > TUNNEL_RETRY_TIMEOUT {
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
            bail!("nobody listens at port {port} there");
        };
        if first.split_to(1.min(first.len())) != [RELAY_CONNECTED][..] {
            bail!(
                "the container answers what it was not asked; `osctl up` replaces it by this version"
            );
        }
        Ok(TunnelStream {
            to: stdin,
            from: Box::pin(stream::iter([Ok(first)]).chain(stdout)),
        })
    }

    async fn no_way(&self, error: &anyhow::Error) -> String {
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

/// Answers in the companion's place.
async fn refuse_connection(mut connection: TcpStream, why: &str) -> io::Result<()> {
    // An answer to what was not asked yet would be taken for noise.
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
    // What is still sent is taken, so that the answer is not thrown away with it.
    tokio::io::copy(&mut connection, &mut tokio::io::sink()).await?;
    Ok(())
}
