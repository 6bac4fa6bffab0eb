//! The way to a container whose engine is on another machine: its ports here, on loopback, each
//! connection through the engine. Nothing is published beyond that machine, and nothing goes over the
//! network that the engine's own connection does not guard.

use crate::engine::{Address, Docker, Phase, Piped};
use crate::error::{Error, Result};
use crate::protocol::relay::CONNECTED;
use anyhow::bail;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio_util::io::StreamReader;

/// The binary in every body.
const OSCTL: &str = "/opt/osctl/bin/osctl";
/// How long one that gives no answer is asked again: it may be about to be replaced.
const PATIENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(100);

/// Ports of a container, until it is dropped; connections go on.
#[derive(Debug)]
pub(crate) struct Tunnel {
    way: Arc<Way>,
    listening: Vec<AbortHandle>,
    /// Where the ports are here, in the order in which they were asked for.
    pub(crate) addresses: [SocketAddr; 2],
}

/// Why a connection led nowhere.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    NotRunning,
    Other(String),
}

#[derive(Debug)]
struct Way {
    engine: Address,
    docker: OnceCell<Docker>,
    container: String,
    /// Why the last connection led nowhere.
    failure: Mutex<Option<Failure>>,
}

impl Tunnel {
    /// Nothing is asked of the engine yet.
    ///
    /// # Errors
    /// When this machine has no port left.
    pub(crate) fn open(engine: &Address, container: String, ports: &[u16; 2]) -> Result<Self> {
        let way = Arc::new(Way {
            engine: engine.clone(),
            docker: OnceCell::new(),
            container,
            failure: Mutex::new(None),
        });
        let mut listening = Vec::new();
        let mut listen = |port| {
            let (listener, address) = bind()?;
            listening.push(tokio::spawn(accept(listener, Arc::clone(&way), port)).abort_handle());
            Ok::<_, io::Error>(address)
        };
        let addresses = [listen(ports[0])?, listen(ports[1])?];
        Ok(Self {
            way,
            listening,
            addresses,
        })
    }

    /// Why the last connection led nowhere, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let failure = self.way.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for listening in &self.listening {
            listening.abort();
        }
    }
}

fn bind() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}

async fn accept(listener: TcpListener, way: Arc<Way>, port: u16) {
    while let Ok((connection, _)) = listener.accept().await {
        let way = Arc::clone(&way);
        tokio::spawn(async move { way.carry(connection, port).await });
    }
}

/// A connection to a port of the container.
struct Line {
    to: Pin<Box<dyn AsyncWrite + Send>>,
    from: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
}

impl Way {
    /// Until one of the two ends it; one that leads nowhere is closed before anything is read of it.
    async fn carry(&self, mut connection: TcpStream, port: u16) {
        let dialled = self.patiently(port).await;
        let why = match &dialled {
            Ok(_) => None,
            Err(error) => Some(self.failure(error).await),
        };
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = why;
        let Ok(Line { mut to, from }) = dialled else {
            return;
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

    async fn patiently(&self, port: u16) -> Result<Line> {
        let begin = Instant::now();
        loop {
            match self.dial(port).await {
                Err(_) if begin.elapsed() < PATIENCE => tokio::time::sleep(AGAIN).await,
                dialled => return dialled,
            }
        }
    }

    async fn failure(&self, error: &anyhow::Error) -> Failure {
        let Some(docker) = self.docker.get() else {
            return Failure::Other(format!("{error:#}"));
        };
        match docker.inspect(&self.container).await {
            Ok(None) => Failure::NotRunning,
            Ok(Some(found)) if found.phase == Phase::Stopped => Failure::NotRunning,
            _ => Failure::Other(format!("{error:#}")),
        }
    }

    async fn dial(&self, port: u16) -> Result<Line> {
        let docker = self
            .docker
            .get_or_try_init(|| Docker::of(&self.engine))
            .await?;
        let command = [OSCTL, "relay", &port.to_string()];
        let Piped { stdin, mut stdout } = docker.pipe(&self.container, &command).await?;
        let Some(mut first) = stdout.next().await.transpose()? else {
            bail!("nobody listens at port {port} there");
        };
        if first.split_to(1.min(first.len())) != [CONNECTED][..] {
            return Err(Error::precondition(
                "the container answers what it was not asked",
                "`osctl up` replaces it by this version",
            )
            .into());
        }
        Ok(Line {
            to: stdin,
            from: Box::pin(stream::iter([Ok(first)]).chain(stdout)),
        })
    }
}
