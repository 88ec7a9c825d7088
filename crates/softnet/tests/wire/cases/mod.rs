//! The cases, by area.

pub(crate) mod anycast;
pub(crate) mod arp;
pub(crate) mod echo;
pub(crate) mod errors;
pub(crate) mod extension;
pub(crate) mod forward;
pub(crate) mod frag4;
pub(crate) mod frag6;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub(crate) mod martian;
pub(crate) mod mtu;
pub(crate) mod nd;
pub(crate) mod options;
pub(crate) mod redirect;
pub(crate) mod scope;
pub(crate) mod source;
pub(crate) mod tcp;
pub(crate) mod udp;
pub(crate) mod vlan;
