//! The VNC port: the companion holds it, and asks for the password before it starts any service.
//!
//! ```text
//! accept ─▶ unauthenticated ──right──▶ viewer (bytes both ways)
//!              │    └──wrong──▶ rejected, one after the other, or cut
//!              └─ timed out, or the oldest when there are too many: cut
//! ```
//!
//! Rejections are sent one after the other, one in each [`WRONG_PASSWORD_DELAY`], for all clients together. A rejection
//! that would wait longer than [`VNC_HANDSHAKE_TIMEOUT`] is not sent, and the connection is cut; right passwords wait
//! for no rejection. The delay slows down guessing over one connection; against guessing over many connections, only
//! the strength of the password protects. An unauthenticated client holds its slot for a short time only, so that
//! guesses and silent connections do not block other clients. After authentication the listener copies bytes in both
//! directions, as long as the client's machine answers.

use super::Desktop;
use super::rfb::{self, RfbAuthResult, RfbChallengedClient};
use crate::companion::activity::ActivityLog;
use crate::protocol::activity::{ActivityKind, ActivityVerdict};
use crate::protocol::activity_draft::ActivityDraft;
use crate::protocol::hex::hex;
use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// The client in the record of a sign-in: the protocol has no names.
const VNC_CLIENT: &str = "vnc";

/// Maximum number of viewers.
const MAX_VNC_CLIENTS: usize = 128;

/// Maximum number of clients in authentication.
const MAX_UNAUTHENTICATED_CLIENTS: usize = 64;

/// Maximum time from the connection to the response, from the response to the result, and for the handshake with the
/// server.
const VNC_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two rejections, for all clients together.
const WRONG_PASSWORD_DELAY: Duration = Duration::from_secs(1);

/// Delay after an error of the port, such as too many open files.
const VNC_ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// TCP keepalive: seconds of silence before the first probe, seconds between two probes, and the number of unanswered
/// probes that ends the connection.
const VNC_TCP_KEEPALIVE: (u32, u32, u32) = (60, 15, 4);

/// Maximum bytes of the password file.
const MAX_VNC_PASSWORD_BYTES: usize = 64;

pub(super) async fn serve_vnc(
    desktop: Desktop,
    port: TcpListener,
    activity: ActivityLog,
    mut stop: watch::Receiver<bool>,
) {
    let gate = Arc::new(VncListener {
        desktop,
        activity,
        rejection_lock: tokio::sync::Mutex::default(),
        unauthenticated: Mutex::new(UnauthenticatedClients(VecDeque::new())),
        client_permits: Semaphore::new(MAX_VNC_CLIENTS),
    });
    let mut sessions = JoinSet::new();
    for number in 0.. {
        let accepted = loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                Some(_) = sessions.join_next() => {}
                accepted = port.accept() => break accepted,
            }
        };
        let client = match accepted {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "the companion can't accept a VNC connection");
                sleep(VNC_ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let session = gate.clone().handle_client(client, number);
        let task = sessions.spawn(async move {
            if let Err(error) = session.await {
                tracing::debug!(%error, "a VNC connection failed");
            }
        });
        if let Some(oldest) = gate
            .unauthenticated
            .lock()
            .push_evicting_oldest(number, task)
        {
            oldest.abort();
        }
    }
}

/// Clients that have not authenticated yet, the oldest first.
#[derive(Debug)]
struct UnauthenticatedClients<T = AbortHandle>(VecDeque<(u64, T)>);

impl<T> UnauthenticatedClients<T> {
    /// Adds a client; returns the client that must be cut because the list is full.
    fn push_evicting_oldest(&mut self, number: u64, task: T) -> Option<T> {
        self.0.push_back((number, task));
        let is_full = self.0.len() > MAX_UNAUTHENTICATED_CLIENTS;
        is_full.then(|| self.0.pop_front().map(|(_, task)| task))?
    }

    /// Removes a client that has authenticated or disconnected.
    fn remove_client(&mut self, number: u64) {
        self.0.retain(|(other, _)| *other != number);
    }
}

#[derive(Debug)]
struct VncListener {
    desktop: Desktop,
    activity: ActivityLog,
    /// Held while a client with a wrong password waits for its rejection.
    rejection_lock: tokio::sync::Mutex<()>,
    unauthenticated: Mutex<UnauthenticatedClients>,
    client_permits: Semaphore,
}

/// An entry of the list of unauthenticated clients, removed on drop.
struct UnauthenticatedSlot<'a>(&'a VncListener, u64);

impl Drop for UnauthenticatedSlot<'_> {
    fn drop(&mut self) {
        self.0.unauthenticated.lock().remove_client(self.1);
    }
}

impl VncListener {
    async fn handle_client(self: Arc<Self>, mut client: TcpStream, number: u64) -> io::Result<()> {
        let unauthenticated_slot = UnauthenticatedSlot(&self, number);
        set_socket_options(&client)?;
        let password = match read_password(&self.desktop.0.settings.password_file).await {
            Some(password) => password,
            // Without a password file, as in the trial of a new body, the port answers and rejects every client.
            None => random_password()?,
        };
        let challenged = rfb::challenge_client(&mut client, &password);
        let challenged = timeout(VNC_HANDSHAKE_TIMEOUT, challenged).await??;
        match challenged.auth_result {
            RfbAuthResult::OtherProtocol => Ok(()),
            RfbAuthResult::WrongPassword => {
                let rejection = async {
                    let _one = self.rejection_lock.lock().await;
                    sleep(WRONG_PASSWORD_DELAY).await;
                    let why =
                        "the password is wrong; osctl status shows the path of the password file";
                    challenged.send_rejected(&mut client, why).await
                };
                timeout(VNC_HANDSHAKE_TIMEOUT, rejection).await?
            }
            RfbAuthResult::Accepted => {
                drop(unauthenticated_slot);
                let Ok(_place) = self.client_permits.try_acquire() else {
                    tracing::warn!(
                        limit = MAX_VNC_CLIENTS,
                        "the limit of VNC clients is reached"
                    );
                    let why = "the limit of VNC clients is reached";
                    return challenged.send_rejected(&mut client, why).await;
                };
                self.proxy_to_server(client, &challenged).await
            }
        }
    }

    async fn proxy_to_server(
        &self,
        mut client: TcpStream,
        challenged: &RfbChallengedClient,
    ) -> io::Result<()> {
        let session = async {
            let (mut server, stay) = self
                .desktop
                .connect_viewer()
                .await
                .map_err(|e| e.to_string())?;
            let entered = timeout(
                VNC_HANDSHAKE_TIMEOUT,
                rfb::connect_without_password(&mut server),
            )
            .await;
            let entered = entered.map_err(|_| "`x11vnc` does not answer")?;
            entered.map_err(|error| error.to_string())?;
            Ok::<_, String>((server, stay))
        };
        match session.await {
            Ok((mut server, _stay)) => {
                challenged.send_accepted(&mut client).await?;
                let sign_in = ActivityDraft {
                    text: "desktop".into(),
                    ..ActivityDraft::begin(ActivityKind::SignIn, VNC_CLIENT.into())
                };
                self.activity.record(sign_in, ActivityVerdict::Completed, 0);
                copy_bidirectional(&mut client, &mut server).await?;
                Ok(())
            }
            Err(why) => {
                tracing::warn!(%why, "the companion can't connect a VNC client to the desktop");
                let reason = "the desktop can't be shown; osctl logs shows the cause";
                challenged.send_rejected(&mut client, reason).await
            }
        }
    }
}

/// Reads the password file of the host; each client reads it again, because it may have changed.
async fn read_password(file: &Path) -> Option<String> {
    let text = tokio::fs::read_to_string(file).await.ok()?;
    let text = text.trim();
    (1..=MAX_VNC_PASSWORD_BYTES)
        .contains(&text.len())
        .then(|| text.to_owned())
}

/// A random password that no client can know.
fn random_password() -> io::Result<String> {
    let mut random = [0; MAX_VNC_PASSWORD_BYTES / 2];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(hex(random))
}

/// Sends bytes without delay, and detects a vanished machine: the desktop never ends while it has a viewer.
fn set_socket_options(client: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (silence, between, max_probes) = VNC_TCP_KEEPALIVE;
    setsockopt(client, sockopt::KeepAlive, &true)?;
    setsockopt(client, sockopt::TcpKeepIdle, &silence)?;
    setsockopt(client, sockopt::TcpKeepInterval, &between)?;
    setsockopt(client, sockopt::TcpKeepCount, &max_probes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        MAX_UNAUTHENTICATED_CLIENTS, UnauthenticatedClients, read_password, set_socket_options,
    };
    use nix::sys::socket::{getsockopt, sockopt};
    use std::collections::VecDeque;
    use std::net::Ipv4Addr;
    use tokio::net::{TcpListener, TcpStream};

    #[test]
    fn oldest_unauthenticated_is_evicted() {
        let mut clients = UnauthenticatedClients(VecDeque::new());
        let max_clients = MAX_UNAUTHENTICATED_CLIENTS as u64;
        for number in 0..max_clients {
            assert_eq!(clients.push_evicting_oldest(number, number), None);
        }
        assert_eq!(
            clients.push_evicting_oldest(max_clients, max_clients),
            Some(0)
        );
        // An authenticated client no longer counts, so the next client evicts none.
        clients.remove_client(1);
        assert_eq!(
            clients.push_evicting_oldest(max_clients + 1, max_clients + 1),
            None
        );
        assert_eq!(
            clients.push_evicting_oldest(max_clients + 2, max_clients + 2),
            Some(2)
        );
    }

    #[test]
    fn password_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let password = || runtime.block_on(read_password(&file));
        assert_eq!(password(), None);
        for (text, expected) in [
            ("", None),
            (" \n", None),
            ("secret\n", Some("secret".into())),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(password(), expected, "{text:?}");
        }
    }

    #[test]
    fn unreachable_client_is_detected() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = port.local_addr().unwrap();
            let _client = TcpStream::connect(address).await.unwrap();
            let (client, _) = port.accept().await.unwrap();
            set_socket_options(&client).unwrap();
            assert!(getsockopt(&client, sockopt::KeepAlive).unwrap());
            assert_eq!(getsockopt(&client, sockopt::TcpKeepIdle).unwrap(), 60);
        });
    }
}
