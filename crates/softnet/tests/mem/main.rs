//! The runtime over in-process devices: its own threads on one side of the wires, the test's on the other.
//!
//! Time-outs are there to fail instead of to hang; nothing is asserted about how long anything takes.

mod apps;
mod arfs;
mod builder;
mod busy_poll;
mod contexts;
mod deferral;
mod epoll;
mod epoll_rules;
mod examples;
mod flow_order;
mod frames;
mod frames6;
mod gro;
mod hooks;
mod link;
mod live;
mod many_devices;
mod memory;
mod metrics;
mod mirred;
mod multicast4;
mod multicast6;
mod order;
mod path_mtu;
mod pktinfo;
mod policy;
mod poller;
mod qdisc;
mod ready_fd;
mod rss;
mod scope;
mod sender;
mod sender_waits;
mod sleep;
mod steering;
mod tcp;
mod tcp_epoll;
mod tcp_options;
#[cfg(feature = "tokio")]
mod tcp_tokio;
mod tcp_wire;
mod traffic;
mod udp;
mod udp_long;
mod udp_rules;
mod udp_wake;
mod vlan;
mod world;
mod xps;
