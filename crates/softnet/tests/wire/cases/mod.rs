//! The cases, by area.

pub(crate) mod arp;
pub(crate) mod echo;
pub(crate) mod ipv4;
