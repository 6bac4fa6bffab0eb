//! What a relay in the container says to who asked for it, on another machine.

/// The first byte of its output, once it is connected: before that nothing has begun.
pub(crate) const RELAY_CONNECTED: u8 = b'+';
