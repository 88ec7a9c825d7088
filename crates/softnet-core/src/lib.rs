//! The mechanisms of softnet, without I/O, clock or threads.
//!
//! Time and packets come in as arguments; packets and actions come out. Nothing here reads a clock, blocks,
//! makes a system call or spins on a lock, so the same code runs on real threads, under a model checker and
//! in a simulation. `unsafe` is confined to [`skb`] and [`sync`].
#![deny(unsafe_code)]

pub mod conntrack;
pub mod filter;
pub mod fold;
#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
pub mod fuzz;
pub mod gro;
pub mod gso;
pub mod ip;
pub mod memory;
pub mod napi;
pub mod nat;
pub mod qdisc;
pub mod siphash;
pub mod skb;
pub mod sock;
pub mod softnet_data;
pub mod stack;
pub mod steer;
pub mod sync;
pub mod tap;
pub mod time;
pub mod vlan;

pub use softnet_data::SoftnetData;
