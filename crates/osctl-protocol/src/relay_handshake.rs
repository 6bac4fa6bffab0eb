//! The protocol of a relay in the container, for a host on another machine.

/// The first byte of the relay's output, sent once it is connected. Before this byte, no request was sent.
pub const RELAY_CONNECTED: u8 = b'+';
