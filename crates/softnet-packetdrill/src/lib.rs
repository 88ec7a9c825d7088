//! A shared object through which packetdrill runs its scripts against softnet's TCP engine.
//!
//! `packetdrill --so_filename=libsoftnet_packetdrill.so` loads it instead of talking to the
//! kernel, and `cargo xtask packetdrill` runs scripts so. It is a host of the engine like any
//! other, in virtual time: `stack` holds sockets and the table of connections, `sock` their
//! payload, `calls` and `options` what scripts call, `epoll` readiness, `world` the clock
//! and calls that wait, `settings` what scripts set by commands, `ip` packets as bytes.
//!
//! It is no part of what is released. `unsafe` is where C hands over pointers, in `abi`, `memory`
//! and `preload`, and nowhere else.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "C hands over pointers")]
pub mod abi;
mod calls;
mod epoll;
mod info;
mod ip;
#[allow(unsafe_code, reason = "C hands over pointers")]
mod memory;
mod options;
mod pace;
#[allow(unsafe_code, reason = "C hands over pointers")]
pub mod preload;
mod settings;
mod skbs;
mod sock;
mod stack;
mod world;
