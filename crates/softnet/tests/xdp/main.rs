//! The runtime over real interfaces: kernel endpoints in namespaces of the tests' own, softnet between them by AF_XDP.
//!
//! Time-outs are there to fail instead of to hang; nothing is asserted about how long anything takes.

mod builder;
mod claims;
mod dad;
mod daemons;
mod dns;
mod follow;
mod fpm;
mod fragments;
mod home;
mod home_clients;
mod hosts;
mod ipv6;
mod jumbo;
mod life;
mod link;
mod live;
mod moves;
mod multicast;
mod nat;
mod nat64;
mod neigh;
mod ports;
mod rules;
mod scope;
mod segments;
mod shape;
mod starve;
mod switch;
mod tap;
mod tcp;
mod tcp_matrix;
mod tcp_queue;
mod traffic;
mod udp;
mod vlan;
mod world;
