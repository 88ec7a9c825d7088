//! Traffic for benchmarks and end-to-end tests: a generator, a sink and a forwarder that are the kernel's and have
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
//! Apart from this are [`datagrams`], UDP sockets in batches, for servers and clients at the ends, and [`PacketSocket`],
//! which sends and captures whole frames.

pub mod datagrams;
mod frame;
mod generator;
mod inline_napi;
mod packet;
mod sender;
mod sink;
mod testbed;
#[cfg(test)]
mod tests;

pub use frame::UdpFrame;
pub use generator::{Generator, GeneratorConfig, Report};
pub use inline_napi::InlineNapi;
pub use packet::PacketSocket;
pub use sink::{Sink, SinkFilter};
pub use testbed::{KernelNapi, Testbed, Wire};
