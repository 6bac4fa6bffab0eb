//! Names of temporary files, which are renamed to their final name when complete.

use osctl_protocol::hex::hex;
use std::ffi::{OsStr, OsString};
use std::io;

/// A file name has at most 255 bytes; with an id of [`random_id`] the temporary name adds 29.
const MAX_TEMPORARY_STEM_BYTES: usize = 200;

/// `.NAME.osctl-ID`, in the same folder, so that a rename moves the file to its final name.
pub fn temporary_name(name: &OsStr, id: &str) -> OsString {
    let mut temporary = OsString::from(".");
    let bytes = name.as_encoded_bytes();
    if bytes.len() <= MAX_TEMPORARY_STEM_BYTES {
        temporary.push(name);
    } else {
        temporary.push(String::from_utf8_lossy(&bytes[..MAX_TEMPORARY_STEM_BYTES / 4]).as_ref());
    }
    temporary.push(".osctl-");
    temporary.push(id);
    temporary
}

/// A random unique id.
///
/// # Errors
/// When the system provides no random numbers.
pub fn random_id() -> io::Result<String> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| io::Error::other(format!("no random numbers available: {e}")))?;
    Ok(hex(bytes))
}
