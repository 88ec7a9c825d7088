//! An Ethernet interface as a device, by packet sockets: any kernel, any driver, CAP_NET_RAW alone.
//!
//! * **Beside the kernel.** A packet socket gets copies: the kernel sees every frame as well, and
//!   answers what is for its own addresses. So this is for interfaces on which the kernel has none,
//!   and does not forward. An interface that both serve is for `xdp`, which tells their frames
//!   apart.
//! * **Callers.** [`open`] and the [`Device`] part: any thread. The queues: their owners, as
//!   [`RxQueue`] and [`TxQueue`] say.
//! * **Received** are frames to the interface's MAC address, to all, and to groups; none that this
//!   host sends. The VLAN tag that the kernel took out is put back. Several queues share the
//!   interface by the hash of flows (`PACKET_FANOUT`).
//! * **Segments.** Each frame has a header (`vnet`): a checksum that a local sender left is
//!   completed. What merges packets on the interface is switched off while it is open, unless
//!   offloads are on; segments that a sender on the same machine leaves uncut (a veth's peer with
//!   TSO) are lost then, as `rx_too_long`.
//! * **Invariant.** No socket gets a frame before all have joined: till then their filter lets
//!   nothing through.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use softnet_core::ip::v6::addr::link_local;
use softnet_core::skb::DropReason;

use super::error::PacketError;
use super::ring::{Layout, Ring};
use super::rx::{PacketRx, Queue};
use super::tx::PacketTx;
use super::{FilterInsn, PacketSocket};
use crate::bpf::XdpMode;
use crate::device::{Device, DeviceInfo, Features, LinkState, OpenDevice, RxQueue, TxQueue};
use crate::netlink::{Link, Netlink};
use crate::rx_frames::{LONGEST_OF_SEGMENTS, longest};
use crate::sys_error::{SysError, SysResult};
use crate::xdp::Conflict;
use crate::xdp::control::Control;
use crate::xdp::groups::Groups;
use crate::xdp::offload::Offloads;
use crate::xdp::theirs::Theirs;

/// Largest MTU.
pub const MAX_MTU: u32 = 65_521;

/// Queues at the most.
pub const MAX_QUEUES: u32 = 64;

/// Bytes of packets that a queue may have in the interface's own queue.
const SEND_BUFFER: i32 = 4 << 20;

/// `struct sockaddr_ll` has the type of a frame; those above are of others, or from here.
const PACKET_MULTICAST: u32 = 2;

// Classic BPF, as in linux/bpf_common.h.
const LDW: u16 = 0x20;
const JGT: u16 = 0x25;
const RET: u16 = 0x06;
/// Where the frame's type is (`SKF_AD_OFF + SKF_AD_PKTTYPE`).
const PKTTYPE: u32 = 0xffff_f004;

pub(super) const NOTHING: [FilterInsn; 1] = [(RET, 0, 0, 0)];
/// To the interface's address, to all, or to a group.
const TO_US: [FilterInsn; 4] =
    [(LDW, 0, 0, PKTTYPE), (JGT, 1, 0, PACKET_MULTICAST), (RET, 0, 0, u32::MAX), (RET, 0, 0, 0)];

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Name of the interface, in the calling thread's network namespace.
    pub interface: String,
    /// Queues, from 1 to [`MAX_QUEUES`].
    pub queues: u32,
    /// Slots of each queue's ring, or some more; fewer if they are large.
    pub ring: u32,
    /// Have packets of many segments, and with partial checksums, come as they are.
    pub offloads: bool,
    /// Take the interface even if the kernel has addresses on it.
    pub force: bool,
    /// Softnet's own addresses.
    pub addresses: Vec<IpAddr>,
}

impl PacketConfig {
    /// `interface` with one queue of 512 slots, without offloads.
    pub fn new(interface: impl Into<String>) -> Self {
        let (queues, ring, offloads, force) = (1, 512, false, false);
        PacketConfig { interface: interface.into(), queues, ring, offloads, force, addresses: Vec::new() }
    }
}

/// Opens the interface as device number `dev`. Works in the calling thread's network namespace; the
/// device may be used from any.
///
/// # Errors
/// See [`PacketError`].
pub fn open(config: &PacketConfig, dev: u16) -> Result<OpenDevice, PacketError> {
    open_with_addresses(config, dev).map(|(device, _)| device)
}

/// As [`open`], and hands out the means to change softnet's addresses while the device is open.
///
/// # Errors
/// As [`open`].
pub fn open_with_addresses(
    config: &PacketConfig,
    dev: u16,
) -> Result<(OpenDevice, OwnAddresses), PacketError> {
    let name = &config.interface;
    let kernel = |source| PacketError::Kernel { name: name.clone(), source };
    let mut netlink = Netlink::new().map_err(kernel)?;
    let link = usable_link(config, &mut netlink)?;
    let mtu = link.mtu as u16;
    let most = if config.offloads { LONGEST_OF_SEGMENTS } else { longest(mtu) };
    let layout = Layout::new(config.ring as usize, most);
    let queues = queues(config, &link, layout).map_err(kernel)?;
    let control = Arc::new(Control::new(link.index).map_err(kernel)?);
    let mut offloads = (!config.offloads).then(|| Offloads::merging(&link, &mut netlink));
    let merging = offloads.as_mut().map(|offloads| offloads.switch_off(XdpMode::Skb)).unwrap_or_default();
    let groups = Arc::new(Groups::new(link.index, None));
    // Where the kernel has no IPv6 it can't; much comes through all the same.
    let _ = groups.solicit(&own_ipv6(&config.addresses, link.mac));
    let on = if config.offloads { "offloads on" } else { "offloads off" };
    let info = DeviceInfo {
        mode: format!("{} slots a queue, {on}{merging}", layout.slots()),
        ifindex: link.index,
        mac: link.mac,
        mtu,
        features: Features { partial_csum: false, zero_copy: false },
        ..DeviceInfo::new(link.name, "packet")
    };
    let rx = queues.iter().zip(0..).map(|(queue, number)| {
        Box::new(PacketRx::new(queue.clone(), (dev, number), config.offloads)) as Box<dyn RxQueue>
    });
    let tx = queues
        .iter()
        .map(|queue| Box::new(PacketTx::new(queue.clone(), control.clone(), dev)) as Box<dyn TxQueue>);
    let (rx, tx) = (rx.collect(), tx.collect());
    let own = OwnAddresses {
        mac: link.mac,
        ifindex: link.index,
        groups: Arc::downgrade(&groups),
        state: Mutex::new((netlink, None)),
    };
    let device = PacketDevice { info, control, queues, groups, _offloads: offloads };
    // What came meanwhile is the first that is received.
    device.listen().map_err(kernel)?;
    Ok((OpenDevice { device: Arc::new(device), rx, tx }, own))
}

/// Whether the interface is one that may and can be taken, as it is now. It is not touched.
///
/// # Errors
/// See [`PacketError`].
pub fn look(config: &PacketConfig) -> Result<(), PacketError> {
    let kernel = |source| PacketError::Kernel { name: config.interface.clone(), source };
    usable_link(config, &mut Netlink::new().map_err(kernel)?).map(drop)
}

/// The means to change softnet's addresses on an open device.
#[derive(Debug)]
pub struct OwnAddresses {
    mac: [u8; 6],
    ifindex: u32,
    /// Gone when the device is closed.
    groups: Weak<Groups>,
    /// And what was said last of an address that both have.
    state: Mutex<(Netlink, Option<Conflict>)>,
}

impl OwnAddresses {
    /// From now on softnet's addresses are `addresses`, and it is in the groups in which neighbours
    /// look for them. Without effect on a device that is closed. Returns one that the kernel has,
    /// too, unless that was said before.
    pub fn replace(&self, addresses: &[IpAddr]) -> Option<Conflict> {
        // As when it is opened.
        let _ = self.groups.upgrade()?.solicit(&own_ipv6(addresses, self.mac));
        let now = self.conflict(addresses);
        let before = std::mem::replace(&mut self.state().1, now.clone());
        now.filter(|now| before.as_ref() != Some(now))
    }

    /// The first of `addresses` that the kernel has now, too. `None` also if the kernel can't be asked.
    pub fn conflict(&self, addresses: &[IpAddr]) -> Option<Conflict> {
        let mut state = self.state();
        let netlink = &mut state.0;
        let theirs = Theirs::now(netlink, self.ifindex).ok()?;
        theirs.conflict(self.mac, addresses, netlink)
    }

    fn state(&self) -> MutexGuard<'_, (Netlink, Option<Conflict>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The interface, if it is one that may and can be taken.
fn usable_link(config: &PacketConfig, netlink: &mut Netlink) -> Result<Link, PacketError> {
    let name = config.interface.clone();
    let kernel = |source| PacketError::Kernel { name: name.clone(), source };
    let Some(link) = netlink.link(&name).map_err(kernel)? else {
        let links = netlink.links().map_err(kernel)?;
        let exist = links.into_iter().map(|link| link.name).collect::<Vec<_>>().join(", ");
        return Err(PacketError::NoInterface { name, exist });
    };
    if link.mac == [0; 6] {
        return Err(PacketError::NotEthernet { name });
    }
    if link.mtu > MAX_MTU {
        return Err(PacketError::Mtu { name, mtu: link.mtu, max: MAX_MTU });
    }
    let addresses = if config.force { Vec::new() } else { netlink.all_addresses().map_err(kernel)? };
    // The link-local one that the kernel gives every interface is no reason to refuse it.
    let is_theirs = |(index, address): &(u32, IpAddr)| {
        *index == link.index && !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
    };
    // Softnet's own may not be on any interface: the kernel answers for each of its addresses on
    // all of them.
    let is_ours = |(_, address): &(u32, IpAddr)| config.addresses.contains(address);
    match addresses.iter().find(|one| is_theirs(one) || is_ours(one)) {
        Some((_, address)) => Err(PacketError::KernelAddress { name, address: *address }),
        None => Ok(link),
    }
}

/// The IPv6 addresses by which neighbours look for softnet.
fn own_ipv6(addresses: &[IpAddr], mac: [u8; 6]) -> Vec<Ipv6Addr> {
    let mut own: Vec<Ipv6Addr> = Vec::new();
    own.extend(addresses.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(*address),
        IpAddr::V4(_) => None,
    }));
    if !own.is_empty() {
        own.push(link_local(mac));
    }
    own
}

/// The sockets of all queues, bound, and closed to all frames still.
fn queues(config: &PacketConfig, link: &Link, layout: Layout) -> SysResult<Vec<Arc<Queue>>> {
    let mut queues = Vec::new();
    let mut fanout = None;
    for _ in 0..config.queues {
        let socket = PacketSocket::unbound(&NOTHING)?;
        let ring = Ring::new(&socket, layout)?;
        socket.set_send_buffer(SEND_BUFFER);
        // Not with PACKET_QDISC_BYPASS, though a queue of the interface's own delays packets that have
        // been in one of softnet's: by that way the kernel drops aggregates that it has to cut itself.
        // Joined as long as the socket lives: what neighbours and routers say to all.
        socket.all_multicast(link.index)?;
        socket.bind(link.index)?;
        if config.queues > 1 {
            fanout = Some(socket.join_fanout(fanout)?);
        }
        queues.push(Arc::new(Queue::new(socket, ring)?));
    }
    Ok(queues)
}

impl PacketSocket {
    /// Has the interface receive frames to all groups, as long as the socket lives.
    fn all_multicast(&self, ifindex: u32) -> SysResult<()> {
        let request = libc::packet_mreq {
            mr_ifindex: ifindex as i32,
            mr_type: libc::PACKET_MR_ALLMULTI as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set_option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
            .map_err(|error| SysError::new("receive all multicast frames", error))
    }

    /// Shares the interface's frames with the other sockets of `group`, or of a new one, by flow.
    /// Returns the group.
    fn join_fanout(&self, group: Option<u16>) -> SysResult<u16> {
        let failed = |error| SysError::new("share an interface among packet sockets", error);
        let flags = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        let own = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
        let join = |flags: u32| {
            let request = u32::from(group.unwrap_or(0)) | (flags | own) << 16;
            self.set_option(libc::SOL_PACKET, libc::PACKET_FANOUT, &request)
        };
        // An older kernel (before 5.10) does not know that flag; the filter does the same.
        join(flags).or_else(|_| join(libc::PACKET_FANOUT_HASH)).map_err(failed)?;
        let mut joined = 0u32;
        let mut len = size_of::<u32>() as libc::socklen_t;
        // SAFETY: a live buffer of the stated length, which the kernel fills.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_FANOUT,
                (&raw mut joined).cast(),
                &raw mut len,
            )
        };
        if result < 0 { Err(failed(io::Error::last_os_error())) } else { Ok(joined as u16) }
    }
}

/// The shared part of an open device.
struct PacketDevice {
    info: DeviceInfo,
    control: Arc<Control>,
    queues: Vec<Arc<Queue>>,
    groups: Arc<Groups>,
    /// Puts back what was switched off.
    _offloads: Option<Offloads>,
}

impl PacketDevice {
    /// Lets frames through.
    fn listen(&self) -> SysResult<()> {
        let open = |queue: &Arc<Queue>| queue.socket.attach(&TO_US);
        self.queues.iter().try_for_each(open).map_err(|error| SysError::new("filter a packet socket", error))
    }
}

impl Device for PacketDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Also brings the kernel's counts of lost frames into the RX queues' statistics.
    fn link(&self) -> LinkState {
        self.queues.iter().for_each(|queue| queue.refresh());
        self.control.link()
    }

    /// The kernel joins, too, so that switches and routers hear of it.
    fn join_group(&self, group: IpAddr) -> io::Result<()> {
        self.groups.join(group).map_err(io::Error::from)
    }

    fn leave_group(&self, group: IpAddr) {
        self.groups.leave(group);
    }

    fn losses(&self) -> Vec<(DropReason, u64)> {
        Vec::new()
    }
}
