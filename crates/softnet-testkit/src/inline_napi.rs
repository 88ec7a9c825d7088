//! A NAPI instance of the kernel that the calling thread polls itself, inside a system call (preferred busy polling,
//! Documentation/networking/napi.rst), and that nothing else wakes.
//!
//! It stands for the receiving side of a NIC at a measuring client: the sender at the other end of a veth pair then
//! pays for no wake-up and no softirq of the client, however it sends. An AF_XDP socket cannot be busy polled on a
//! veth (the kernel finds the instance of such a socket by its queue, and a veth does not tell), so a UDP socket that
//! received one packet by the instance lends its knowledge of it.
//!
//! Any thread may call it; one at a time polls. Invariant: while it lives the instance stays masked, and its timer
//! polls it should the thread not come back.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;

use super::datagrams::incoming_napi_id;
use super::packet::set_option;
use super::{Generator, GeneratorConfig, UdpFrame};
use softnet_dev::netlink::{NapiKnobs, NetdevFamily};
use softnet_dev::netns::NetNs;

/// The discard port.
const PORT: u16 = 9;
const PATIENCE: Duration = Duration::from_secs(5);
/// Any but 0: a call that may not block polls once, and returns.
const BUSY_POLL_USECS: i32 = 20;
const BUDGET: i32 = 64;
/// For so long no packet comes, of a thousand a second, only where they wait for a poll.
const SILENCE: Duration = Duration::from_millis(500);
/// Polls in vain that leave the instance masked: all.
const DEFER: u32 = i32::MAX as u32;

fn drain(socket: &UdpSocket) {
    while socket.recv(&mut [0; 64]).is_ok() {}
}

fn wait_for_a_packet(socket: &UdpSocket, patience: Duration) -> io::Result<()> {
    let began = Instant::now();
    while socket.recv(&mut [0; 64]).is_err() {
        if began.elapsed() > patience {
            return Err(io::Error::other("no broadcast came"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A NAPI instance of the kernel that the calling thread polls itself.
pub struct InlineNapi {
    socket: UdpSocket,
    id: u32,
}

impl InlineNapi {
    /// Of the instance that polls the single queue of the veth in the namespace `ns`, whose peer is `peer`. A program
    /// that is attached there must pass broadcasts to the kernel. Each poll arms the instance's timer for `timeout`.
    ///
    /// # Errors
    /// The veth has no NAPI instance (it has one with XDP attached, or GRO on); a kernel without knobs for a single
    /// instance (Linux 6.13) or without busy polling. Needs CAP_NET_ADMIN and CAP_NET_RAW.
    pub fn new(ns: &NetNs, peer: (&NetNs, &str), timeout: Duration) -> io::Result<Self> {
        let socket = ns.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))??;
        socket.set_nonblocking(true)?;
        let frame = UdpFrame {
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: [0xff; 6],
            src: Ipv4Addr::UNSPECIFIED,
            dst: Ipv4Addr::BROADCAST,
            src_port: PORT,
            dst_port: PORT,
            len: 60,
        };
        let (there, interface) = (peer.0, peer.1.to_owned());
        let config = GeneratorConfig { interface, frames: vec![frame.build()], rate: Some(1000), cpu: None };
        let generator = Generator::start(there, config)?;
        wait_for_a_packet(&socket, PATIENCE)?;
        let id = incoming_napi_id(socket.as_fd());
        if id == 0 {
            return Err(io::Error::other("packets come by no NAPI instance"));
        }
        let knobs = NapiKnobs {
            defer_hard_irqs: DEFER,
            gro_flush_timeout: timeout.as_nanos() as u64,
            irq_suspend_timeout: 0,
        };
        ns.run(|| NetdevFamily::new()?.set_napi(id, knobs))??;
        // They hold from the end of the next poll on: that of a packet that comes now. If none comes any
        // more, that poll has been, and the instance waits for its timer.
        drain(&socket);
        let _ = wait_for_a_packet(&socket, SILENCE);
        generator.stop()?;
        for (option, value) in [
            (libc::SO_BUSY_POLL_BUDGET, BUDGET),
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, BUSY_POLL_USECS),
        ] {
            set_option(socket.as_fd(), libc::SOL_SOCKET, option, value)?;
        }
        let napi = InlineNapi { socket, id };
        // What waits for the socket would end each call before it polls; the first of these calls polls.
        drain(&napi.socket);
        Ok(napi)
    }

    /// Number of the instance.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Polls the instance once, for up to 64 packets.
    #[inline]
    pub fn poll(&self) {
        // Receives nothing: what the instance brings is not for this socket.
        let _ = rustix::net::recv(&self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net_allowed;
    use softnet_dev::netlink::{Netlink, Offload, set_offload};

    /// The timer is so long that only polls can bring what is sent.
    #[test]
    fn packets_come_by_polls_alone() {
        if !net_allowed() {
            return;
        }
        let (here, there) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        let name = format!("n{}", std::process::id());
        here.run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_veth(&name, "far", (1, 1), Some(&there)).unwrap();
            // Without it a veth has no NAPI instance.
            set_offload(&name, Offload::Gro, true).unwrap();
            netlink.set_up(&name).unwrap();
        })
        .unwrap();
        let far = || {
            let mut netlink = Netlink::new().unwrap();
            netlink.set_up("far").unwrap();
            netlink.wait_running("far").unwrap();
            // Else the kernel passes the instance by.
            set_offload("far", Offload::Tso, false).unwrap();
        };
        there.run(far).unwrap();
        let napi = InlineNapi::new(&here, (&there, "far"), Duration::from_secs(3600)).unwrap();
        assert_ne!(napi.id(), 0);
        let receiver = here.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7)).unwrap()).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let frame = UdpFrame {
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: [0xff; 6],
            src: Ipv4Addr::UNSPECIFIED,
            dst: Ipv4Addr::BROADCAST,
            src_port: 7,
            dst_port: 7,
            len: 60,
        };
        let config = GeneratorConfig {
            interface: "far".into(),
            frames: vec![frame.build()],
            rate: Some(1000),
            cpu: None,
        };
        let generator = Generator::start(&there, config).unwrap();
        let began = Instant::now();
        while generator.report().sent < 20 && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let sent = generator.stop().unwrap().sent;
        assert!(sent >= 20);
        let mut buffer = [0; 64];
        assert!(receiver.recv(&mut buffer).is_err(), "something else polled");
        let mut received = 0;
        while received < sent && began.elapsed() < 4 * PATIENCE {
            napi.poll();
            received += u64::from(receiver.recv(&mut buffer).is_ok());
        }
        assert_eq!(received, sent);
    }
}
