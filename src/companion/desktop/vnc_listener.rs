//! The VNC port: held by the companion, which asks for the password before it starts anything.
//!
//! ```text
//! accept ─▶ stranger ──right──▶ viewer (bytes both ways)
//!              │    └──wrong──▶ told so, one after the other, or cut
//!              └─ out of time, or the oldest when too many come: cut
//! ```
//!
//! Wrong answers are told one after the other, one in each [`WRONG_PASSWORD_DELAY`], whoever gave them; who has to wait
//! longer than [`VNC_HANDSHAKE_TIMEOUT`] is cut without a word, and right answers wait for none of them. This slows down who
//! waits for the verdict; who guesses through many connections at once is up against the password itself. Nobody
//! who has not said it holds a place for long, so that guesses and silence keep nobody else out. Once let in,
//! bytes go both ways as they are, for as long as the client's machine answers.

use super::rfb::{self, RfbAuthResult, RfbChallengedClient};
use super::{Desktop, lock_unpoisoned};
use crate::protocol::hex::hex;
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// How many may look at once.
const MAX_VNC_CLIENTS: usize = 128;

/// How many may be asked for the password at once.
const MAX_UNAUTHENTICATED_CLIENTS: usize = 64;

/// From connecting to the answer, again to the verdict, and again for the server to let somebody in.
const VNC_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two guesses of anybody.
const WRONG_PASSWORD_DELAY: Duration = Duration::from_secs(1);

/// After an error of the port itself, such as too many open files.
const VNC_ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Seconds of silence after which a client's machine is asked whether it is there, between two such questions,
/// and how many of them it may leave open.
const VNC_TCP_KEEPALIVE: (u32, u32, u32) = (60, 15, 4);

/// The longest password file.
const MAX_VNC_PASSWORD_BYTES: usize = 64;

pub(super) async fn serve_vnc(
    desktop: Desktop,
    port: TcpListener,
    mut stop: watch::Receiver<bool>,
) {
    let gate = Arc::new(VncListener {
        desktop,
        guesses: tokio::sync::Mutex::default(),
        strangers: Mutex::new(UnauthenticatedClients(VecDeque::new())),
        places: Semaphore::new(MAX_VNC_CLIENTS),
    });
    let mut visits = JoinSet::new();
    for number in 0.. {
        let accepted = loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                Some(_) = visits.join_next() => {}
                accepted = port.accept() => break accepted,
            }
        };
        let client = match accepted {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!("vnc: {error}");
                sleep(VNC_ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let visit = gate.clone().handle_client(client, number);
        let task = visits.spawn(async move {
            if let Err(error) = visit.await {
                tracing::debug!("vnc: {error}");
            }
        });
        if let Some(oldest) = lock_unpoisoned(&gate.strangers).push_evicting_oldest(number, task) {
            oldest.abort();
        }
    }
}

/// Those who have not said the password yet, the oldest first.
#[derive(Debug)]
struct UnauthenticatedClients<T = AbortHandle>(VecDeque<(u64, T)>);

impl<T> UnauthenticatedClients<T> {
    /// Who has to go for this one.
    fn push_evicting_oldest(&mut self, number: u64, task: T) -> Option<T> {
        self.0.push_back((number, task));
        let is_full = self.0.len() > MAX_UNAUTHENTICATED_CLIENTS;
        is_full.then(|| self.0.pop_front().map(|(_, task)| task))?
    }

    /// That one is known now, or gone.
    fn remove_client(&mut self, number: u64) {
        self.0.retain(|(other, _)| *other != number);
    }
}

#[derive(Debug)]
struct VncListener {
    desktop: Desktop,
    /// Held while a wrong one waits for its verdict.
    guesses: tokio::sync::Mutex<()>,
    strangers: Mutex<UnauthenticatedClients>,
    places: Semaphore,
}

/// A place among the strangers, for as long as this lives.
struct UnauthenticatedSlot<'a>(&'a VncListener, u64);

impl Drop for UnauthenticatedSlot<'_> {
    fn drop(&mut self) {
        lock_unpoisoned(&self.0.strangers).remove_client(self.1);
    }
}

impl VncListener {
    async fn handle_client(self: Arc<Self>, mut client: TcpStream, number: u64) -> io::Result<()> {
        let stranger = UnauthenticatedSlot(&self, number);
        set_socket_options(&client)?;
        let password = match read_password(&self.desktop.0.settings.password).await {
            Some(password) => password,
            // The port answers, as in the trial of a new body, and lets nobody in.
            None => random_password()?,
        };
        let asked = rfb::challenge_client(&mut client, &password);
        let asked = timeout(VNC_HANDSHAKE_TIMEOUT, asked).await??;
        match asked.admitted {
            RfbAuthResult::Foreign => Ok(()),
            RfbAuthResult::WrongPassword => {
                let told = async {
                    let _one = self.guesses.lock().await;
                    sleep(WRONG_PASSWORD_DELAY).await;
                    let why = "the password is wrong; osctl status names its file";
                    asked.send_rejected(&mut client, why).await
                };
                timeout(VNC_HANDSHAKE_TIMEOUT, told).await?
            }
            RfbAuthResult::Yes => {
                drop(stranger);
                let Ok(_place) = self.places.try_acquire() else {
                    tracing::warn!("vnc: {MAX_VNC_CLIENTS} clients are there already");
                    let why = "too many clients are there already";
                    return asked.send_rejected(&mut client, why).await;
                };
                self.proxy_to_server(client, &asked).await
            }
        }
    }

    async fn proxy_to_server(
        &self,
        mut client: TcpStream,
        asked: &RfbChallengedClient,
    ) -> io::Result<()> {
        let visit = async {
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
        match visit.await {
            Ok((mut server, _stay)) => {
                asked.send_accepted(&mut client).await?;
                copy_bidirectional(&mut client, &mut server).await?;
                Ok(())
            }
            Err(why) => {
                tracing::warn!("vnc: the desktop can't be shown: {why}");
                let told = "the desktop can't be shown; osctl logs tells why";
                asked.send_rejected(&mut client, told).await
            }
        }
    }
}

/// What the host has put there, read anew each time: it may have been changed.
async fn read_password(file: &Path) -> Option<String> {
    let text = tokio::fs::read_to_string(file).await.ok()?;
    let text = text.trim();
    (1..=MAX_VNC_PASSWORD_BYTES)
        .contains(&text.len())
        .then(|| text.to_owned())
}

/// One that nobody can say.
fn random_password() -> io::Result<String> {
    let mut random = [0; MAX_VNC_PASSWORD_BYTES / 2];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(hex(random))
}

/// Bytes go at once, and a machine that is gone is noticed: a desktop that somebody looks at never ends.
fn set_socket_options(client: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (silence, between, most) = VNC_TCP_KEEPALIVE;
    setsockopt(client, sockopt::KeepAlive, &true)?;
    setsockopt(client, sockopt::TcpKeepIdle, &silence)?;
    setsockopt(client, sockopt::TcpKeepInterval, &between)?;
    setsockopt(client, sockopt::TcpKeepCount, &most)?;
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
    fn the_oldest_stranger_goes_for_a_new_one() {
        let mut strangers = UnauthenticatedClients(VecDeque::new());
        let most = MAX_UNAUTHENTICATED_CLIENTS as u64;
        for number in 0..most {
            assert_eq!(strangers.push_evicting_oldest(number, number), None);
        }
        assert_eq!(strangers.push_evicting_oldest(most, most), Some(0));
        // Whoever has said the password goes for nobody.
        strangers.remove_client(1);
        assert_eq!(strangers.push_evicting_oldest(most + 1, most + 1), None);
        assert_eq!(strangers.push_evicting_oldest(most + 2, most + 2), Some(2));
    }

    #[test]
    fn the_password_is_what_the_file_says_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let said = || runtime.block_on(read_password(&file));
        assert_eq!(said(), None);
        for (text, expected) in [
            ("", None),
            (" \n", None),
            ("secret\n", Some("secret".into())),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(said(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_client_whose_machine_is_gone_is_noticed() {
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
