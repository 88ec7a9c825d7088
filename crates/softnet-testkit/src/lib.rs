//! What softnet's tests, benches and demo send with, receive with and compare with. Not published: the published crates
//! have it as a dev-dependency alone.
//!
//! **Traffic** for end-to-end tests and benches: a generator, a sink and a forwarder that are the kernel's and have
//! nothing of softnet's own drivers in them.
//!
//! ```text
//!  source namespace        middle namespace            sink namespace
//!  Generator ─► veth ═══ veth (in)   (out) veth ═══ veth ─► Sink
//! ```
//!
//! [`Testbed`] makes the three namespaces and the two wires. What forwards in the middle is up to the caller: the
//! system under test, or the kernel ([`Testbed::forward_by_kernel`]) to compare it with.
//!
//! On plain veth the receiver's softirq runs on the sender's CPU, right inside the send call; see
//! [`KernelNapi`] for how the middle gets a CPU of its own. [`Report::idle_share`] says whether the generator was
//! what limited a measurement.
//!
//! Apart from this are [`datagrams`], UDP sockets in batches, for servers and clients at the ends;
//! [`PacketSocket`], which sends and captures whole frames; [`FrameBurst`], which sends many that
//! differ; [`RouteLoader`], which changes the kernel's routes by the thousand; [`fpm`], what FRR's zebra
//! tells of its own; [`InlineNapi`], a
//! measuring client's own NAPI instance; and [`Block`], an allocator's memory to compare packet memory
//! with.
//!
//! **Tests**: [`net_allowed`] skips, or with `SOFTNET_REQUIRE_NET=1` fails, a test that lacks
//! privileges; [`kernel_has`] skips one that lacks a newer kernel; [`raise_loopback`] is for those
//! that need no more than that interface; [`replay`] runs a fuzz target on its corpus;
//! [`lock_while_holder_is_hogged`] tries a lock's priority inheritance.
//!
//! Invariant: no function here takes or returns a type of `softnet-dev` that the unit tests of `softnet-dev` use with
//! it. Those are compiled against a second copy of that crate.

mod blocks;
mod burst;
pub mod datagrams;
pub mod fpm;
mod frame;
mod generator;
mod inline_napi;
mod packet;
mod route_loader;
mod sender;
mod sink;
mod testbed;
mod testing;
#[cfg(test)]
mod tests;
mod vlan_end;

pub use blocks::Block;
pub use burst::FrameBurst;
pub use frame::UdpFrame;
pub use generator::{Generator, GeneratorConfig, Report};
pub use inline_napi::InlineNapi;
pub use packet::PacketSocket;
pub use route_loader::{LoadedRoute, RouteChange, RouteLoader};
pub use sink::{Sink, SinkFilter};
pub use testbed::{KernelNapi, Testbed, Wire, sysctl};
pub use testing::{kernel_has, lock_while_holder_is_hogged, net_allowed, raise_loopback, replay};
pub use vlan_end::{VlanEnd, VlanPort};
