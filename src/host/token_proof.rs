//! The proof of a connection: before a request uses the connection, the other end proves that it knows the digest of
//! the instance's token.
//!
//! While an instance is stopped, any process of the machine can listen at its port. Each new connection therefore
//! starts with `GET /ping?nonce=…`, which carries no secret, and is closed unless the answer is the nonce's HMAC (see
//! `protocol::proof`). The token follows on the same connection, so a change of the port's owner between two requests
//! does not matter. Requests of all kinds, including WebSockets, take their connections from this module.
//!
//! The proof shows that the other end is the container, not that the container is honest: the agent is root in it.

use crate::protocol::hex::hex;
use crate::protocol::proof::is_proof;
use crate::protocol::service::Ping;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;
use tower::{Layer, Service};

const PROOF_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A companion answers within milliseconds, unless its machine is overloaded.
const PROOF_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the response's head, and of its body.
const MAX_PROOF_BYTES: usize = 8 << 10;

type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a connection was closed before any request was sent over it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProofError {
    #[error("the connection ended before the proof was received: {0}")]
    ConnectionLost(String),
    #[error("the listener sent no valid proof for the instance's token")]
    Invalid,
    /// A companion of an earlier version answers like this. Another program may do the same.
    #[error("the listener answers without a proof")]
    Missing,
}

impl ProofError {
    /// The proof error that caused a request's error, if any.
    pub(super) fn find_in<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(failure) = error.downcast_ref() {
                return Some(failure);
            }
            cause = error.source();
        }
        None
    }
}

/// Passes only proven connections.
#[derive(Debug, Clone)]
pub(super) struct ProofLayer {
    /// SHA-256 of the token in hexadecimal.
    digest: Arc<str>,
}

impl ProofLayer {
    pub(super) fn new(digest: &str) -> Self {
        Self {
            digest: digest.into(),
        }
    }
}

impl<S> Layer<S> for ProofLayer {
    type Service = ProvenConnector<S>;

    fn layer(&self, connector: S) -> ProvenConnector<S> {
        ProvenConnector {
            connector,
            digest: Arc::clone(&self.digest),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct ProvenConnector<S> {
    connector: S,
    digest: Arc<str>,
}

impl<S, A> Service<A> for ProvenConnector<S>
where
    S: Service<A, Error = BoxError>,
    S::Response: Read + Write + Send + Unpin + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, address: A) -> Self::Future {
        let connecting = self.connector.call(address);
        let digest = Arc::clone(&self.digest);
        Box::pin(async move {
            let connection = timeout(PROOF_CONNECT_TIMEOUT, connecting).await??;
            match timeout(PROOF_TIMEOUT, prove_connection(connection, &digest)).await {
                Ok(proven) => Ok(proven?),
                Err(_) => {
                    let why = format!("no answer within {} s", PROOF_TIMEOUT.as_secs());
                    Err(ProofError::ConnectionLost(why).into())
                }
            }
        })
    }
}

/// Returns the same connection, if its other end knows the digest.
async fn prove_connection<C>(connection: C, digest: &str) -> Result<C, ProofError>
where
    C: Read + Write + Send + Unpin + 'static,
{
    let mut random = [0u8; 32];
    getrandom::fill(&mut random).map_err(|e| ProofError::ConnectionLost(e.to_string()))?;
    let nonce = hex(random);
    let (connection, answer) = send_ping(connection, &nonce).await?;
    let ping = serde_json::from_slice::<Ping>(&answer).map_err(|_| ProofError::Invalid)?;
    match ping.proof {
        Some(proof) if is_proof(digest, &nonce, &proof) => Ok(connection),
        Some(_) => Err(ProofError::Invalid),
        None => Err(ProofError::Missing),
    }
}

/// Sends one request over a connection, and returns the connection for more requests after the response.
async fn send_ping<C>(connection: C, nonce: &str) -> Result<(C, Bytes), ProofError>
where
    C: Read + Write + Send + Unpin + 'static,
{
    // A listener without HTTP is foreign; a companion that starts or stops may close the connection.
    let failed = |error: hyper::Error| match error.is_parse() {
        true => ProofError::Invalid,
        false => ProofError::ConnectionLost(error.to_string()),
    };
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_PROOF_BYTES);
    let (mut sender, driver) = builder.handshake(connection).await.map_err(failed)?;
    let request = hyper::Request::get(format!("/ping?nonce={nonce}"))
        .header("host", "localhost")
        .body(Empty::<Bytes>::new())
        .map_err(|e| ProofError::ConnectionLost(e.to_string()))?;
    let exchange = async move {
        let response = sender.send_request(request).await.map_err(failed)?;
        let body = Limited::new(response.into_body(), MAX_PROOF_BYTES);
        let body = body.collect().await.map_err(|_| ProofError::Invalid)?;
        Ok(body.to_bytes())
    };
    let (parts, answer) = tokio::join!(driver.without_shutdown(), exchange);
    let (answer, parts) = (answer?, parts.map_err(failed)?);
    // No other request was sent, so no other bytes may have arrived.
    match parts.read_buf.is_empty() {
        true => Ok((parts.io, answer)),
        false => Err(ProofError::Invalid),
    }
}
