//! The companion's API as methods.
//!
//! Every answer states the protocol it speaks, so a call is one round trip and still never
//! misreads a companion of another version.

use super::instance::{Instance, Record};
use crate::error::{Error, Result};
use crate::protocol::fault::Failed;
use crate::protocol::kernel::{Execute, Reply, Reset, ResetReply};
use crate::protocol::service::Health;
use crate::protocol::{self, VERSION_HEADER};
use anyhow::Context;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    container: String,
    address: String,
    token: String,
    up: String,
}

impl Client {
    /// A client of the instance; nothing is sent yet.
    ///
    /// # Errors
    /// When the instance was never up.
    pub(crate) fn new(instance: &Instance, record: &Record, bind: IpAddr) -> Result<Self> {
        let token = instance.token()?.ok_or_else(|| not_running(instance))?;
        let address = SocketAddr::new(reached(bind), record.ports.kernel);
        // The address is this machine's own: no proxy, no TLS, no certificates to load.
        let http = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only(std::iter::empty())
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(5))
            .build()
            .context("making an HTTP client")?;
        Ok(Self {
            http,
            container: instance.container(),
            address: format!("http://{address}"),
            token,
            up: instance.command("up"),
        })
    }

    pub(crate) async fn execute(&self, request: &Execute) -> Result<Reply> {
        self.call(Method::POST, "/exec", Some(request)).await
    }

    /// Interrupts a run; the reply says what became of it.
    pub(crate) async fn interrupt(&self, id: &str) -> Result<Reply> {
        self.call(Method::DELETE, &format!("/exec/{id}"), None::<&()>)
            .await
    }

    pub(crate) async fn reset(&self) -> Result<ResetReply> {
        self.call(Method::POST, "/reset", Some(&Reset::default()))
            .await
    }

    /// The services' readiness, whether all are ready or not.
    pub(crate) async fn health(&self) -> Result<Health> {
        let request = self
            .request(Method::GET, "/health", None::<&()>)
            .timeout(Duration::from_secs(5));
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        self.check_protocol(&response)?;
        match response.status() {
            StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE => Ok(response.json().await?),
            _ => Err(refusal(response).await),
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let response = self
            .request(method, path, body)
            .send()
            .await
            .map_err(|e| self.unreachable(&e))?;
        self.check_protocol(&response)?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        response.json().await.map_err(|e| self.unreachable(&e))
    }

    fn request(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}{path}", self.address))
            .bearer_auth(&self.token);
        match body {
            Some(body) => request.json(body),
            None => request,
        }
    }

    fn check_protocol(&self, response: &reqwest::Response) -> Result<()> {
        let theirs = response
            .headers()
            .get(VERSION_HEADER)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("unknown");
        if theirs == protocol::VERSION.to_string() {
            return Ok(());
        }
        let (container, ours) = (self.container.clone(), protocol::VERSION);
        Err(Error::OtherProtocol {
            container,
            theirs: theirs.into(),
            ours,
        }
        .into())
    }

    fn unreachable(&self, error: &reqwest::Error) -> anyhow::Error {
        let container = self.container.clone();
        if error.is_connect() {
            return Error::NotRunning {
                container,
                up: self.up.clone(),
            }
            .into();
        }
        let mut why: &dyn std::error::Error = error;
        while let Some(source) = why.source() {
            why = source;
        }
        Error::Unreachable {
            container,
            address: self.address.clone(),
            why: why.to_string(),
        }
        .into()
    }
}

/// Where an instance is reached: the ports that its container publishes, by what they are for.
pub(crate) fn endpoints(record: &Record, bind: IpAddr) -> BTreeMap<&'static str, String> {
    let at = |port| SocketAddr::new(reached(bind), port);
    let ports = record.ports;
    BTreeMap::from([
        ("kernel", format!("http://{}", at(ports.kernel))),
        ("mcp", format!("http://{}", at(ports.mcp))),
        ("vnc", at(ports.vnc).to_string()),
    ])
}

/// An address that connects to what is bound to `bind`.
fn reached(bind: IpAddr) -> IpAddr {
    match bind {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        chosen => chosen,
    }
}

/// The error for an instance that was never up or is down.
pub(crate) fn not_running(instance: &Instance) -> anyhow::Error {
    Error::NotRunning {
        container: instance.container(),
        up: instance.command("up"),
    }
    .into()
}

async fn refusal(response: reqwest::Response) -> anyhow::Error {
    let status = response.status();
    match response.json::<Failed>().await {
        Ok(Failed { error, .. }) => Error::Refused {
            status: status.as_u16(),
            kind: error.kind,
            message: error.message,
            hint: error.hint,
        }
        .into(),
        Err(_) => anyhow::anyhow!("the companion answered {status} without a reason"),
    }
}
