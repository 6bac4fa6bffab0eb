//! Bytes as people and file names carry them.

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    let digits = bytes.as_ref().iter();
    digits.map(|byte| format!("{byte:02x}")).collect()
}
