//! The handshake of the RFB protocol of VNC (RFC 6143, section 7.1), as server and as client.
//!
//! The companion asks for the password before a VNC server runs; the VNC server behind it asks for none.

use des::Des;
use des::cipher::{Array, BlockCipherEncrypt, KeyInit};
use std::io;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const RFB_VERSION: &[u8; 12] = b"RFB 003.008\n";

/// RFB security types.
const RFB_SECURITY_NONE: u8 = 1;
const RFB_SECURITY_PASSWORD: u8 = 2;

/// Number of significant bytes of a password.
const VNC_KEY_BYTES: usize = 8;

const VNC_CHALLENGE_BYTES: usize = 16;

/// The protocol version of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RfbVersion {
    /// 3.3: the server selects the security type.
    V33,
    /// 3.7
    V37,
    /// 3.8 and later.
    V38,
}

impl RfbVersion {
    fn parse_version(bytes: &[u8; 12]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (major, minor) = text.strip_prefix("RFB ")?.trim_end().split_once('.')?;
        match (major.parse::<u16>().ok()?, minor.parse::<u16>().ok()?) {
            (3, 7) => Some(Self::V37),
            // Apple's own version numbers are later versions of its own protocol.
            (3, 8..) | (4.., _) => Some(Self::V38),
            (3, _) => Some(Self::V33),
            _ => None,
        }
    }
}

/// The result of a client's authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RfbAuthResult {
    Accepted,
    WrongPassword,
    /// The client speaks another protocol.
    OtherProtocol,
}

/// A client that has answered the challenge and waits for the result.
#[derive(Debug)]
pub(super) struct RfbChallengedClient {
    version: RfbVersion,
    pub(super) auth_result: RfbAuthResult,
}

/// Asks a client for the password. Does not send the result yet.
///
/// # Errors
/// When the client disconnects.
pub(super) async fn challenge_client<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut S,
    password: &str,
) -> io::Result<RfbChallengedClient> {
    client.write_all(RFB_VERSION).await?;
    let mut bytes = [0; 12];
    client.read_exact(&mut bytes).await?;
    let other_protocol = RfbChallengedClient {
        version: RfbVersion::V38,
        auth_result: RfbAuthResult::OtherProtocol,
    };
    let Some(version) = RfbVersion::parse_version(&bytes) else {
        return Ok(other_protocol);
    };
    match version {
        RfbVersion::V33 => {
            client
                .write_all(&u32::from(RFB_SECURITY_PASSWORD).to_be_bytes())
                .await?
        }
        RfbVersion::V37 | RfbVersion::V38 => {
            client.write_all(&[1, RFB_SECURITY_PASSWORD]).await?;
            if client.read_u8().await? != RFB_SECURITY_PASSWORD {
                return Ok(other_protocol);
            }
        }
    }
    let mut challenge = [0; VNC_CHALLENGE_BYTES];
    getrandom::fill(&mut challenge).map_err(io::Error::other)?;
    client.write_all(&challenge).await?;
    let mut response = [0; VNC_CHALLENGE_BYTES];
    client.read_exact(&mut response).await?;
    let is_right: bool = response
        .ct_eq(&challenge_response(challenge, password))
        .into();
    let auth_result = match is_right {
        true => RfbAuthResult::Accepted,
        false => RfbAuthResult::WrongPassword,
    };
    Ok(RfbChallengedClient {
        version,
        auth_result,
    })
}

impl RfbChallengedClient {
    /// # Errors
    /// When the client has disconnected.
    pub(super) async fn send_accepted<S: AsyncWrite + Unpin>(
        &self,
        client: &mut S,
    ) -> io::Result<()> {
        client.write_all(&0u32.to_be_bytes()).await
    }

    /// Sends the rejection, with the reason if the client's version has a field for it.
    ///
    /// # Errors
    /// When the client has disconnected.
    pub(super) async fn send_rejected<S: AsyncWrite + Unpin>(
        &self,
        client: &mut S,
        why: &str,
    ) -> io::Result<()> {
        let mut bytes = 1u32.to_be_bytes().to_vec();
        if self.version == RfbVersion::V38 {
            bytes.extend(u32::try_from(why.len()).unwrap_or_default().to_be_bytes());
            bytes.extend(why.as_bytes());
        }
        client.write_all(&bytes).await?;
        client.shutdown().await
    }
}

/// Connects to a server that requires no password.
///
/// # Errors
/// When the server requires a password, or disconnects.
pub(super) async fn connect_without_password<S: AsyncRead + AsyncWrite + Unpin>(
    server: &mut S,
) -> io::Result<()> {
    let mut bytes = [0; 12];
    server.read_exact(&mut bytes).await?;
    server.write_all(RFB_VERSION).await?;
    let count = server.read_u8().await?;
    let mut kinds = vec![0; count.into()];
    server.read_exact(&mut kinds).await?;
    if !kinds.contains(&RFB_SECURITY_NONE) {
        return Err(io::Error::other("the VNC server requires a password"));
    }
    server.write_all(&[RFB_SECURITY_NONE]).await?;
    match server.read_u32().await? {
        0 => Ok(()),
        _ => Err(io::Error::other("the VNC server rejected the connection")),
    }
}

/// The response of a client that knows the password.
fn challenge_response(
    challenge: [u8; VNC_CHALLENGE_BYTES],
    password: &str,
) -> [u8; VNC_CHALLENGE_BYTES] {
    let mut key = [0; VNC_KEY_BYTES];
    for (key_byte, byte) in key.iter_mut().zip(password.bytes()) {
        // The first implementation of the protocol read the bits in reverse order.
        *key_byte = byte.reverse_bits();
    }
    let cipher = Des::new(&Array::from(key));
    let mut answer = challenge;
    for block in answer.chunks_exact_mut(8) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(block);
        let mut whole = Array::from(bytes);
        cipher.encrypt_block(&mut whole);
        block.copy_from_slice(&whole);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::{RfbAuthResult, RfbVersion, challenge_client, challenge_response};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    /// A client of this version with this password; returns the result of its authentication.
    async fn authenticate_test_client(version: &[u8; 12], password: &str) -> RfbAuthResult {
        let (mut ours, theirs) = duplex(256);
        let client = tokio::spawn(answer_challenge(theirs, *version, password.to_owned()));
        let challenged = challenge_client(&mut ours, "secret!!").await.unwrap();
        client.abort();
        challenged.auth_result
    }

    async fn answer_challenge(mut gate: DuplexStream, version: [u8; 12], password: String) {
        let mut bytes = [0; 12];
        gate.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"RFB 003.008\n");
        gate.write_all(&version).await.unwrap();
        if &version == b"RFB 003.003\n" {
            assert_eq!(gate.read_u32().await.unwrap(), 2);
        } else {
            assert_eq!(gate.read_u16().await.unwrap(), 0x0102);
            gate.write_u8(2).await.unwrap();
        }
        let mut challenge = [0; 16];
        gate.read_exact(&mut challenge).await.unwrap();
        gate.write_all(&challenge_response(challenge, &password))
            .await
            .unwrap();
        // Keeps the connection open until the listener has decided.
        std::future::pending::<()>().await;
    }

    #[test]
    fn every_version_checks_the_password() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        runtime.block_on(async {
            for version in [
                b"RFB 003.003\n",
                b"RFB 003.007\n",
                b"RFB 003.008\n",
                b"RFB 003.889\n",
            ] {
                assert_eq!(
                    authenticate_test_client(version, "secret!!").await,
                    RfbAuthResult::Accepted
                );
                assert_eq!(
                    authenticate_test_client(version, "secret").await,
                    RfbAuthResult::WrongPassword
                );
                assert_eq!(
                    authenticate_test_client(version, "").await,
                    RfbAuthResult::WrongPassword
                );
            }
        });
    }

    #[test]
    fn the_cipher_is_the_one_that_clients_use() {
        // Computed by OpenSSL's DES in ECB mode with the key's bits reversed.
        let challenge = *b"0123456789abcdef";
        let expected = 0x5645_abeb_5f1e_6475_e8fe_b11b_eb66_ea19_u128;
        assert_eq!(
            challenge_response(challenge, "password"),
            expected.to_be_bytes()
        );
    }

    #[test]
    fn versions_are_distinguished() {
        assert_eq!(
            RfbVersion::parse_version(b"RFB 003.005\n"),
            Some(RfbVersion::V33)
        );
        assert_eq!(
            RfbVersion::parse_version(b"RFB 004.001\n"),
            Some(RfbVersion::V38)
        );
        assert_eq!(RfbVersion::parse_version(b"GET / HTTP/1"), None);
    }
}
