//! How a browser comes in: a code that works once, exchanged for a pass in a cookie.
//!
//! A pass proves itself by a signature, so that it outlives the companion; its key is derived from
//! the token's digest, so that another token ends all passes. It opens what the desktop's page
//! needs, and nothing else (see `http::guard`).

use super::lock;
use crate::protocol::hex::hex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;

/// How long a code waits for its browser.
pub(crate) const CODE: Duration = Duration::from_secs(120);

/// How long a pass is worth something.
pub(crate) const PASS: Duration = Duration::from_secs(7 * 24 * 3600);

/// Codes that wait; more are not needed by people.
const MOST: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct Tickets {
    key: Arc<[u8; 32]>,
    codes: Arc<Mutex<VecDeque<Code>>>,
}

/// One that waits for its browser.
#[derive(Debug)]
struct Code {
    digest: [u8; 32],
    end: Instant,
}

impl Tickets {
    /// Signed with what only the holder of the token's digest knows; without a token, no pass is
    /// asked for.
    pub(crate) fn new(token: Option<&str>) -> Self {
        let mut key = Sha256::new();
        key.update(b"osctl pass\0");
        key.update(token.unwrap_or_default());
        Self {
            key: Arc::new(key.finalize().into()),
            codes: Arc::default(),
        }
    }

    /// A code that works once, for [`CODE`]; nothing without randomness.
    pub(crate) fn issue(&self) -> Option<String> {
        let code = random()?;
        let mut codes = lock(&self.codes);
        codes.push_back(Code {
            digest: digest(&code),
            end: Instant::now() + CODE,
        });
        while codes.len() > MOST {
            codes.pop_front();
        }
        Some(code)
    }

    /// A pass for a code, which is worth nothing afterwards.
    pub(crate) fn redeem(&self, code: &str) -> Option<String> {
        let given = digest(code);
        let mut codes = lock(&self.codes);
        codes.retain(|code| code.end > Instant::now());
        let found = codes
            .iter()
            .position(|code| code.digest.ct_eq(&given).into())?;
        codes.remove(found);
        let end = SystemTime::now() + PASS;
        self.pass(end)
    }

    fn pass(&self, end: SystemTime) -> Option<String> {
        let end = end.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let word = format!("{end}.{}", random()?);
        Some(format!("{word}.{}", self.sign(&word)))
    }

    /// Whether a pass is one of ours and not over.
    pub(crate) fn admits(&self, pass: &str) -> bool {
        let Some((word, signature)) = pass.rsplit_once('.') else {
            return false;
        };
        let is_ours: bool = self
            .sign(word)
            .as_bytes()
            .ct_eq(signature.as_bytes())
            .into();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let end = word.split('.').next().and_then(|end| end.parse().ok());
        is_ours && now.is_ok_and(|now| end.is_some_and(|end: u64| now.as_secs() < end))
    }

    fn sign(&self, word: &str) -> String {
        // A key of any length is fine.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&*self.key) else {
            return String::new();
        };
        mac.update(word.as_bytes());
        hex(mac.finalize().into_bytes())
    }
}

fn digest(code: &str) -> [u8; 32] {
    Sha256::digest(code.as_bytes()).into()
}

fn random() -> Option<String> {
    let mut secret = [0u8; 24];
    getrandom::fill(&mut secret).ok()?;
    Some(hex(secret))
}

#[cfg(test)]
mod tests {
    use super::Tickets;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_code_works_once() {
        let tickets = Tickets::new(Some("digest"));
        let code = tickets.issue().unwrap();
        assert_eq!(tickets.redeem("another"), None);
        let pass = tickets.redeem(&code).unwrap();
        assert_eq!(tickets.redeem(&code), None);
        assert!(tickets.admits(&pass));
    }

    #[test]
    fn a_pass_is_worth_nothing_when_it_is_forged_old_or_of_another_token() {
        let tickets = Tickets::new(Some("digest"));
        let pass = tickets
            .pass(SystemTime::now() + Duration::from_secs(60))
            .unwrap();
        assert!(tickets.admits(&pass));
        assert!(
            Tickets::new(Some("digest")).admits(&pass),
            "after a restart"
        );
        assert!(!Tickets::new(Some("other")).admits(&pass));
        let later = pass.replacen('1', "2", 1);
        assert!(!tickets.admits(&later));
        let old = tickets
            .pass(SystemTime::now() - Duration::from_secs(1))
            .unwrap();
        assert!(!tickets.admits(&old));
        for nonsense in ["", ".", "..", "9999999999.x."] {
            assert!(!tickets.admits(nonsense), "{nonsense}");
        }
    }

    #[test]
    fn codes_that_nobody_uses_do_not_pile_up() {
        let tickets = Tickets::new(None);
        let first = tickets.issue().unwrap();
        for _ in 0..1000 {
            tickets.issue().unwrap();
        }
        assert_eq!(tickets.redeem(&first), None);
        assert!(tickets.codes.lock().unwrap().len() <= 64);
    }
}
