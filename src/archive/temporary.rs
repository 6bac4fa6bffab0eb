//! Names for what is written beside its place, until it is whole.

use crate::protocol::hex::hex;
use std::ffi::{OsStr, OsString};
use std::io;

/// Names have 255 bytes at most; with an id of [`fresh`] ours adds 29.
const ROOM: usize = 200;

/// `.NAME.osctl-ID`, in the same folder, so that a rename puts it into its place.
pub(crate) fn temporary(name: &OsStr, id: &str) -> OsString {
    let mut beside = OsString::from(".");
    let bytes = name.as_encoded_bytes();
    if bytes.len() <= ROOM {
        beside.push(name);
    } else {
        beside.push(String::from_utf8_lossy(&bytes[..ROOM / 4]).as_ref());
    }
    beside.push(".osctl-");
    beside.push(id);
    beside
}

/// An id that nobody has.
///
/// # Errors
/// When the system has no randomness.
pub(crate) fn fresh() -> io::Result<String> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(format!("no randomness: {e}")))?;
    Ok(hex(bytes))
}
