//! Browser sign-in: a code that works once, exchanged for a session cookie.
//!
//! A cookie carries a signature, so that it stays valid when the companion restarts. The key is derived from the digest
//! of the token, so that a new token invalidates all cookies. A cookie gives access to the routes of the desktop's page
//! and to nothing else (see `http::auth`).

use crate::protocol::hex::hex;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;

/// How long a code is valid.
pub(crate) const ONE_TIME_TOKEN_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a cookie is valid.
pub(crate) const DESKTOP_COOKIE_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum number of pending codes; people do not need more.
const MAX_ONE_TIME_TOKENS: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct OneTimeTokens {
    key: Arc<[u8; 32]>,
    pending: Arc<Mutex<VecDeque<PendingToken>>>,
}

/// A code that was not redeemed yet.
#[derive(Debug)]
struct PendingToken {
    digest: [u8; 32],
    expires_at: Instant,
}

impl OneTimeTokens {
    /// Derives the key from the token's digest, which only its holder knows; without a token, no cookie is required.
    pub(crate) fn new(token: Option<&str>) -> Self {
        let mut key = Sha256::new();
        key.update(b"osctl pass\0");
        key.update(token.unwrap_or_default());
        Self {
            key: Arc::new(key.finalize().into()),
            pending: Arc::default(),
        }
    }

    /// Issues a code that works once, for [`ONE_TIME_TOKEN_TIMEOUT`]; `None` without randomness.
    pub(crate) fn issue_token(&self) -> Option<String> {
        let code = random_token()?;
        let mut codes = self.pending.lock();
        codes.push_back(PendingToken {
            digest: hash_token(&code),
            expires_at: Instant::now() + ONE_TIME_TOKEN_TIMEOUT,
        });
        while codes.len() > MAX_ONE_TIME_TOKENS {
            codes.pop_front();
        }
        Some(code)
    }

    /// Exchanges a code for a cookie; the code is invalid afterwards.
    pub(crate) fn redeem_token(&self, code: &str) -> Option<String> {
        let digest = hash_token(code);
        let mut codes = self.pending.lock();
        codes.retain(|code| code.expires_at > Instant::now());
        let found = codes
            .iter()
            .position(|code| code.digest.ct_eq(&digest).into())?;
        codes.remove(found);
        let end = SystemTime::now() + DESKTOP_COOKIE_TIMEOUT;
        self.issue_cookie(end)
    }

    fn issue_cookie(&self, end: SystemTime) -> Option<String> {
        let end = end.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let word = format!("{end}.{}", random_token()?);
        Some(format!("{word}.{}", self.sign_cookie(&word)))
    }

    /// Whether this companion issued the cookie, and the cookie has not expired.
    pub(crate) fn is_valid_cookie(&self, pass: &str) -> bool {
        let Some((word, signature)) = pass.rsplit_once('.') else {
            return false;
        };
        let is_ours: bool = self
            .sign_cookie(word)
            .as_bytes()
            .ct_eq(signature.as_bytes())
            .into();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let end = word.split('.').next().and_then(|end| end.parse().ok());
        is_ours && now.is_ok_and(|now| end.is_some_and(|end: u64| now.as_secs() < end))
    }

    fn sign_cookie(&self, word: &str) -> String {
        // HMAC accepts a key of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&*self.key) else {
            return String::new();
        };
        mac.update(word.as_bytes());
        hex(mac.finalize().into_bytes())
    }
}

fn hash_token(code: &str) -> [u8; 32] {
    Sha256::digest(code.as_bytes()).into()
}

fn random_token() -> Option<String> {
    let mut secret = [0u8; 24];
    getrandom::fill(&mut secret).ok()?;
    Some(hex(secret))
}

#[cfg(test)]
mod tests {
    use super::OneTimeTokens;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_code_works_once() {
        let tokens = OneTimeTokens::new(Some("digest"));
        let code = tokens.issue_token().unwrap();
        assert_eq!(tokens.redeem_token("another"), None);
        let pass = tokens.redeem_token(&code).unwrap();
        assert_eq!(tokens.redeem_token(&code), None);
        assert!(tokens.is_valid_cookie(&pass));
    }

    #[test]
    fn invalid_cookies_are_rejected() {
        let tokens = OneTimeTokens::new(Some("digest"));
        let pass = tokens
            .issue_cookie(SystemTime::now() + Duration::from_secs(60))
            .unwrap();
        assert!(tokens.is_valid_cookie(&pass));
        assert!(
            OneTimeTokens::new(Some("digest")).is_valid_cookie(&pass),
            "after a restart"
        );
        assert!(!OneTimeTokens::new(Some("other")).is_valid_cookie(&pass));
        let later = pass.replacen('1', "2", 1);
        assert!(!tokens.is_valid_cookie(&later));
        let old = tokens
            .issue_cookie(SystemTime::now() - Duration::from_secs(1))
            .unwrap();
        assert!(!tokens.is_valid_cookie(&old));
        for nonsense in ["", ".", "..", "9999999999.x."] {
            assert!(!tokens.is_valid_cookie(nonsense), "{nonsense}");
        }
    }

    #[test]
    fn unused_codes_do_not_pile_up() {
        let tokens = OneTimeTokens::new(None);
        let first = tokens.issue_token().unwrap();
        for _ in 0..1000 {
            tokens.issue_token().unwrap();
        }
        assert_eq!(tokens.redeem_token(&first), None);
        assert!(tokens.pending.lock().len() <= 64);
    }
}
