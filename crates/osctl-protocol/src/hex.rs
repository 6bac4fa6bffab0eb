//! Hexadecimal encoding of bytes.

/// Lower-case hexadecimal.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    let digits = bytes.as_ref().iter();
    digits.map(|byte| format!("{byte:02x}")).collect()
}
