//! The receiving half of a connection: what is accepted, held, acknowledged and advertised.

pub(crate) mod ack;
pub(crate) mod reassembly;
pub(crate) mod sack;
pub(crate) mod window;
