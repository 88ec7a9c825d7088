//! End to end, over veth pairs in namespaces of the test's own: the kernel at one end, an `xdp` device at the other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::thread::CapabilitySet;
use softnet_core::skb::{Batch, CacheSizes, DropReason, Region, Skb};

use super::*;
use crate::device::{DeviceInfo, LinkState};
use crate::ethtool::Ethtool;
use crate::memfd::MemfdMemory;
use crate::netns::NetNs;
use crate::testing::close;
use softnet_testkit::net_allowed;

mod aggregates;
mod groups;
mod kernel_irq;
mod life;
mod refusals;
mod traffic;
mod vlan;

const FRAMES: u32 = 16384;

/// Tests that may have a [`World`] at a time: a process has room for few regions, however many tests it runs at once.
const WORLDS: usize = 4;
static TAKEN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

struct Turn;

impl Turn {
    fn take() -> Self {
        let (taken, free) = &TAKEN;
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        *free.wait_while(taken, |taken| *taken == WORLDS).unwrap_or_else(PoisonError::into_inner) += 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (taken, free) = &TAKEN;
        *taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        free.notify_one();
    }
}

/// Softnet's side and the kernel's, and softnet's memory.
struct World {
    here: NetNs,
    there: NetNs,
    umem: Arc<Umem>,
    _turn: Option<Turn>,
}

/// Softnet's address on pair `i`, the address of the kernel at the other end, and that of the kernel on this.
fn softnet(i: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, i, 1)
}
fn peer(i: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, i, 2)
}
fn kernel(i: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, i, 3)
}

fn udp(from: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

impl World {
    fn new() -> Option<Self> {
        net_allowed().then(|| World { _turn: Some(Turn::take()), ..Self::with_frames(FRAMES) })
    }

    /// One more for a test that has a turn: with a memory of its own.
    fn with_frames(frames: u32) -> Self {
        let memory = MemfdMemory::new(Region::bytes(frames, frames)).unwrap();
        let region = Region::new(Box::new(memory), frames, frames).unwrap();
        let (here, there) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        for ns in [&here, &there] {
            ns.run(|| {
                // Link-local addresses are good at once.
                for knob in ["all", "default"] {
                    std::fs::write(format!("/proc/sys/net/ipv6/conf/{knob}/accept_dad"), "0").unwrap();
                }
            })
            .unwrap();
        }
        World { here, there, umem: Umem::new(region).unwrap(), _turn: None }
    }

    fn ctx(&self) -> SoftnetData {
        SoftnetData::new(self.umem.region().clone(), CacheSizes::default())
    }

    /// Makes pair `i`: `s<i>` here, `k<i>` there with an address.
    fn add_pair(&self, i: u8, queues: u32) {
        let (name, other) = (format!("s{i}"), format!("k{i}"));
        self.here
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_veth(&name, &other, (queues, queues), Some(&self.there)).unwrap();
                netlink.set_up(&name).unwrap();
            })
            .unwrap();
        self.there
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_address(&other, peer(i), 24).unwrap();
                netlink.set_up(&other).unwrap();
            })
            .unwrap();
    }

    fn delete_pair(&self, i: u8) {
        self.here.run(|| Netlink::new().unwrap().delete_link(&format!("s{i}")).unwrap()).unwrap();
    }

    fn config(&self, i: u8) -> XdpConfig {
        XdpConfig {
            ring: 256,
            claim: Claim { addresses: vec![softnet(i).into()], ..Claim::default() },
            ..XdpConfig::new(format!("s{i}"))
        }
    }

    fn open(&self, cfg: &XdpConfig, ctx: &mut SoftnetData) -> Result<(OpenDevice, Claims), XdpError> {
        let number = cfg.interface[1..].parse().unwrap();
        // The caller's thread stays where it is; a context belongs to its holder.
        self.here.run(|| open_with_claims(cfg, &self.umem, number, ctx)).unwrap()
    }

    fn peer_socket(&self, i: u8) -> UdpSocket {
        self.there.run(|| udp(peer(i))).unwrap()
    }

    /// All frames and heads are where they started.
    fn assert_whole(&self, ctx: &mut SoftnetData) {
        crate::testing::assert_whole(ctx, self.umem.region());
    }
}

/// Runs `step` until it says that it is done.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while !step() {
        assert!(Instant::now() < give_up, "{what}: nothing came of it");
        std::thread::yield_now();
    }
}

/// Makes of an ARP request the reply, and of a UDP packet its echo. False if it is neither.
fn answer(skb: &mut Skb, mac: [u8; 6], address: Ipv4Addr) -> bool {
    let data = skb.data_mut();
    let swap = |data: &mut [u8], a: usize, b: usize, n: usize| {
        for k in 0..n {
            data.swap(a + k, b + k);
        }
    };
    match (data[12], data[13]) {
        (0x08, 0x06) if data[21] == 1 => {
            data[21] = 2;
            swap(data, 22, 32, 10);
            data[22..28].copy_from_slice(&mac);
            data[28..32].copy_from_slice(&address.octets());
            data.copy_within(6..12, 0);
            data[6..12].copy_from_slice(&mac);
            true
        }
        (0x08, 0x00) if data[23] == 17 => {
            swap(data, 0, 6, 6);
            swap(data, 26, 30, 4);
            swap(data, 34, 36, 2);
            // Without checksum: what a veth peer leaves in the field is only the pseudo-header's sum.
            data[40..42].fill(0);
            true
        }
        _ => false,
    }
}

/// One round of answering on every queue. Returns packets per queue.
fn serve(device: &mut OpenDevice, ctx: &mut SoftnetData, address: Ipv4Addr) -> Vec<usize> {
    let mac = device.device.info().mac;
    let mut counts = vec![];
    for (queue, (rx, tx)) in device.rx.iter_mut().zip(&mut device.tx).enumerate() {
        let mut batch = Batch::new();
        counts.push(rx.rx_burst(ctx, &mut batch, 64));
        let mut out = Batch::new();
        for mut skb in batch.drain() {
            assert_eq!(usize::from(skb.head().queue), queue);
            assert_eq!(usize::from(skb.head().dev), device.device.info().name[1..].parse::<usize>().unwrap());
            if answer(&mut skb, mac, address) {
                assert!(out.push(skb).is_ok());
            } else {
                ctx.free(skb, DropReason::UnhandledProto);
            }
        }
        let n = out.len();
        assert_eq!(tx.tx_burst(ctx, &mut out), n);
        if n > 0 {
            tx.kick(ctx);
        }
        tx.reap(ctx);
    }
    counts
}

/// Every socket sends to `to` and gets its own payload back. Returns packets per queue.
fn echo(device: &mut OpenDevice, ctx: &mut SoftnetData, sockets: &[UdpSocket], to: Ipv4Addr) -> Vec<usize> {
    let mut counts = vec![0; device.rx.len()];
    for (i, socket) in sockets.iter().enumerate() {
        let payload = format!("payload number {i}");
        socket.send_to(payload.as_bytes(), (to, 7)).unwrap();
        let mut buffer = [0; 64];
        until("echo", || {
            let served = serve(device, ctx, to);
            counts.iter_mut().zip(served).for_each(|(sum, n)| *sum += n);
            match socket.recv_from(&mut buffer) {
                Ok((n, from)) => {
                    assert_eq!((&buffer[..n], from), (payload.as_bytes(), SocketAddr::from((to, 7))));
                    true
                }
                Err(_) => false,
            }
        });
    }
    counts
}

/// A packet to send by device `i`, to whom does not matter.
fn packet(ctx: &mut SoftnetData, i: u8) -> Skb {
    let mut skb = ctx.alloc_skb().unwrap();
    skb.put(60).unwrap().fill(0);
    skb.head_mut().dev = u16::from(i);
    skb
}
