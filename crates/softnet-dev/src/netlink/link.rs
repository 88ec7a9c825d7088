//! Interfaces.

use std::os::fd::AsRawFd;
use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use super::socket::{Netlink, attributes_of, number, text};
use crate::netns::NetNs;
use crate::sys_error::{SysError, SysResult};

const HEADER_LEN: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFF_UP: u32 = 1;
const IFF_RUNNING: u32 = 1 << 6;
const IFF_LOWER_UP: u32 = 1 << 16;

/// An interface, as it was when asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Kernel index, unique in its namespace as long as the interface exists.
    pub index: u32,
    /// Name.
    pub name: String,
    /// MAC address; zeros if it has none of that length.
    pub mac: [u8; 6],
    /// Largest L3 packet in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// The wire is live (of a veth: the peer is up too).
    pub carrier: bool,
    /// Packets pass: the kernel has taken note of the carrier, which it may do a second late (linkwatch). Until then it
    /// drops what is sent.
    pub running: bool,
    /// RX queues it was made with.
    pub rx_queues: u32,
    /// TX queues it was made with.
    pub tx_queues: u32,
    /// The bridge, bond or VRF that it is a port of.
    pub master: Option<u32>,
    /// Kind of virtual interface (`veth`, `bridge`, …); `None` for hardware and loopback.
    pub kind: Option<String>,
}

impl Link {
    /// Reads an `RTM_NEWLINK` or `RTM_DELLINK`; `None` if it is not about the interface as such (a bridge's view of
    /// its port, a wireless event).
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let header = payload.get(..HEADER_LEN)?;
        if header[0] != libc::AF_UNSPEC as u8 {
            return None;
        }
        let flags = number(header, 8)?;
        let mut link = Link {
            index: number(header, 4)?,
            name: String::new(),
            mac: [0; 6],
            mtu: 0,
            up: flags & IFF_UP != 0,
            carrier: flags & IFF_LOWER_UP != 0,
            running: flags & IFF_RUNNING != 0,
            rx_queues: 1,
            tx_queues: 1,
            master: None,
            kind: None,
        };
        for (kind, value) in attributes_of(&payload[HEADER_LEN..]) {
            match kind {
                IFLA_IFNAME => link.name = text(&value),
                IFLA_ADDRESS => link.mac = value.try_into().unwrap_or([0; 6]),
                IFLA_MTU => link.mtu = number(&value, 0)?,
                IFLA_NUM_RX_QUEUES => link.rx_queues = number(&value, 0)?,
                IFLA_NUM_TX_QUEUES => link.tx_queues = number(&value, 0)?,
                IFLA_MASTER => link.master = number(&value, 0).filter(|index| *index != 0),
                IFLA_LINKINFO => {
                    let info = attributes_of(&value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                    link.kind = info.map(|(_, kind)| text(&kind));
                }
                _ => {}
            }
        }
        // Wireless events come as link messages with little more than a name.
        (!link.name.is_empty() && link.mtu != 0).then_some(link)
    }
}

/// The kernel's counters of an interface, since it was made (`struct rtnl_link_stats64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received, on an Ethernet interface from its header on, without FCS.
    pub rx_bytes: u64,
    /// Received packets that were dropped.
    pub rx_dropped: u64,
    /// Packets to send that were dropped.
    pub tx_dropped: u64,
}

impl LinkCounters {
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let attributes = payload.get(HEADER_LEN..)?;
        let (_, counters) = attributes_of(attributes).find(|(kind, _)| *kind == IFLA_STATS64)?;
        let counters = counters.as_chunks::<8>().0;
        let counter = |at: usize| counters.get(at).map(|bytes| u64::from_ne_bytes(*bytes));
        Some(LinkCounters {
            rx_packets: counter(0)?,
            tx_packets: counter(1)?,
            rx_bytes: counter(2)?,
            rx_dropped: counter(6)?,
            tx_dropped: counter(7)?,
        })
    }
}

fn named(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message
}

impl Netlink {
    /// The interface called `name`, `None` if there is none.
    pub fn link(&mut self, name: &str) -> SysResult<Option<Link>> {
        let request = RouteNetlinkMessage::GetLink(named(name));
        match self.get(request, &format!("look up interface {name}")) {
            Ok(answers) => Ok(answers.iter().find_map(|(_, payload)| Link::parse(payload))),
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`link`](Self::link), but that there is none is an error (ENODEV).
    pub fn existing_link(&mut self, name: &str) -> SysResult<Link> {
        self.link(name)?.ok_or_else(|| {
            SysError::new(
                format!("look up interface {name}"),
                std::io::Error::from_raw_os_error(libc::ENODEV),
            )
        })
    }

    /// The kernel's counters of the interface called `name`.
    ///
    /// # Errors
    /// ENODEV if there is no such interface.
    pub fn counters(&mut self, name: &str) -> SysResult<LinkCounters> {
        let what = format!("read the counters of {name}");
        let answers = self.get(RouteNetlinkMessage::GetLink(named(name)), &what)?;
        answers.iter().find_map(|(_, payload)| LinkCounters::parse(payload)).ok_or_else(|| {
            SysError::new(what, std::io::Error::new(std::io::ErrorKind::InvalidData, "the kernel sent none"))
        })
    }

    /// All interfaces of the namespace.
    pub fn links(&mut self) -> SysResult<Vec<Link>> {
        let answers = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), "list interfaces")?;
        Ok(answers.iter().filter_map(|(_, payload)| Link::parse(payload)).collect())
    }

    /// Makes a veth pair, both ends down, each with `queues` (RX, TX); the peer in `peer_ns` if given. Deleting
    /// either end deletes both.
    ///
    /// # Errors
    /// EEXIST if one of the names is taken. Needs CAP_NET_ADMIN.
    pub fn add_veth(
        &mut self,
        name: &str,
        peer_name: &str,
        queues: (u32, u32),
        peer_ns: Option<&NetNs>,
    ) -> SysResult<()> {
        let end = |name: &str| {
            let mut message = named(name);
            message.attributes.push(LinkAttribute::NumRxQueues(queues.0));
            message.attributes.push(LinkAttribute::NumTxQueues(queues.1));
            message
        };
        let mut peer = end(peer_name);
        if let Some(ns) = peer_ns {
            peer.attributes.push(LinkAttribute::NetNsFd(ns.fd().as_raw_fd()));
        }
        let mut message = end(name);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let request = RouteNetlinkMessage::NewLink(message);
        self.change(request, NLM_F_CREATE | NLM_F_EXCL, &format!("make veth pair {name}, {peer_name}"))
    }

    /// Deletes an interface.
    pub fn delete_link(&mut self, name: &str) -> SysResult<()> {
        self.change(RouteNetlinkMessage::DelLink(named(name)), 0, &format!("delete interface {name}"))
    }

    /// Sets an interface administratively up.
    pub fn set_up(&mut self, name: &str) -> SysResult<()> {
        self.set_flag_up(name, LinkFlags::Up, "up")
    }

    /// Makes a bridge, up, and `port` a port of it.
    ///
    /// # Errors
    /// EEXIST if the name is taken; ENODEV if there is no such port.
    pub fn add_bridge(&mut self, name: &str, port: &str) -> SysResult<()> {
        let mut bridge = named(name);
        let kind = LinkInfo::Kind(netlink_packet_route::link::InfoKind::Bridge);
        bridge.attributes.push(LinkAttribute::LinkInfo(vec![kind]));
        let request = RouteNetlinkMessage::NewLink(bridge);
        self.change(request, NLM_F_CREATE | NLM_F_EXCL, "add a bridge")?;
        self.add_bridge_port(name, port)?;
        self.set_up(name)
    }

    /// Makes `port` a port of the bridge called `name`.
    ///
    /// # Errors
    /// ENODEV if there is no such bridge or port.
    pub fn add_bridge_port(&mut self, name: &str, port: &str) -> SysResult<()> {
        let mut message = named(port);
        message.attributes.push(LinkAttribute::Controller(self.existing_link(name)?.index));
        self.change(RouteNetlinkMessage::SetLink(message), Default::default(), "set a bridge's port")
    }

    /// `ifindex` and the indices of all that this interface is a port of now, directly or not.
    pub fn with_masters(&mut self, ifindex: u32) -> SysResult<Vec<u32>> {
        let links = self.links()?;
        let master = |index| links.iter().find(|link| link.index == index).and_then(|link| link.master);
        let mut chain = vec![ifindex];
        let mut next = master(ifindex);
        // A port of a port of … ends somewhere; whatever changes meanwhile, so does this.
        while let Some(index) = next.filter(|index| !chain.contains(index)) {
            chain.push(index);
            next = master(index);
        }
        Ok(chain)
    }

    /// Waits until packets pass an interface that is up and whose peer is; a few seconds at the most.
    ///
    /// # Errors
    /// ETIMEDOUT, or what the kernel says.
    pub fn wait_running(&mut self, name: &str) -> SysResult<()> {
        const PAUSE: Duration = Duration::from_millis(5);
        for _ in 0..1000 {
            if self.existing_link(name)?.running {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        let late = std::io::Error::from_raw_os_error(libc::ETIMEDOUT);
        Err(SysError::new(format!("wait for {name} to come up"), late))
    }

    /// Sets an interface administratively down.
    pub fn set_down(&mut self, name: &str) -> SysResult<()> {
        self.set_flag_up(name, LinkFlags::empty(), "down")
    }

    fn set_flag_up(&mut self, name: &str, flags: LinkFlags, word: &str) -> SysResult<()> {
        let mut message = named(name);
        message.header.flags = flags;
        message.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(message), 0, &format!("set interface {name} {word}"))
    }

    /// Sets the MTU in bytes.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> SysResult<()> {
        let mut message = named(name);
        message.attributes.push(LinkAttribute::Mtu(mtu));
        self.change(RouteNetlinkMessage::SetLink(message), 0, &format!("set MTU of {name} to {mtu}"))
    }

    /// Sets how many packets may wait to be sent by each of its queues.
    pub fn set_tx_queue_len(&mut self, name: &str, len: u32) -> SysResult<()> {
        let mut message = named(name);
        message.attributes.push(LinkAttribute::TxQueueLen(len));
        self.change(RouteNetlinkMessage::SetLink(message), 0, &format!("set txqueuelen of {name} to {len}"))
    }

    /// Sets the MAC address.
    pub fn set_mac(&mut self, name: &str, mac: [u8; 6]) -> SysResult<()> {
        let mut message = named(name);
        message.attributes.push(LinkAttribute::Address(mac.to_vec()));
        self.change(RouteNetlinkMessage::SetLink(message), 0, &format!("set MAC address of {name}"))
    }
}
