//! Names for what is written beside its place, until it is whole.

use std::ffi::{OsStr, OsString};

/// Names have 255 bytes at most; ours adds 23.
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
