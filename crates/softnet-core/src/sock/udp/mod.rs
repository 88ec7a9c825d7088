//! UDP: what comes in, what goes out, and errors about that. Sockets as such are [common](super) to all protocols.

pub(super) mod datagram;
pub mod error;
mod input;
pub mod output;

pub use datagram::Datagram;
pub use input::{udp_input, udp_members};

/// The receiving side of a UDP socket.
pub type UdpInbox = super::Inbox<Datagram>;
