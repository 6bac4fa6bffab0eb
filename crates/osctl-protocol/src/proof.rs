//! The proof that the companion knows the digest of the token: its response to a nonce.
//!
//! The token itself does not leave the host before the companion has given this proof. The container knows only the
//! token's SHA-256, so the digest is the key.

use super::hex::hex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Maximum length of a nonce.
pub const MAX_NONCE_BYTES: usize = 128;

/// The SHA-256 digest of a text as hexadecimal digits. The container receives only this digest of the token.
pub fn sha256_fingerprint(token: &str) -> String {
    hex(Sha256::digest(token.as_bytes()))
}

/// HMAC-SHA256 of a nonce with the digest of the token as the key; all values are hexadecimal.
pub fn prove_nonce(digest: &str, nonce: &str) -> String {
    hex(keyed_mac(digest, nonce)
        .map(|mac| mac.finalize().into_bytes())
        .unwrap_or_default())
}

/// Whether `proof` is valid for the nonce.
pub fn is_proof(digest: &str, nonce: &str, proof: &str) -> bool {
    !digest.is_empty()
        && prove_nonce(digest, nonce)
            .as_bytes()
            .ct_eq(proof.as_bytes())
            .into()
}

fn keyed_mac(digest: &str, nonce: &str) -> Option<Hmac<Sha256>> {
    // HMAC accepts a key of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(digest.as_bytes()).ok()?;
    mac.update(b"osctl ping\0");
    mac.update(nonce.as_bytes());
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::{is_proof, prove_nonce};

    #[test]
    fn only_the_digest_answers_a_nonce() {
        let proof = prove_nonce("digest", "nonce");
        assert_eq!(proof.len(), 64);
        assert!(is_proof("digest", "nonce", &proof));
        assert!(!is_proof("digest", "another", &proof));
        assert!(!is_proof("other", "nonce", &proof));
        assert!(!is_proof("digest", "nonce", ""));
        assert!(!is_proof("", "nonce", &prove_nonce("", "nonce")));
    }
}
