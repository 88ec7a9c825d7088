//! What an expression may ask of a packet, read from its first bytes.
//!
//! Invariant: any bytes do; a field that is not there is `None`.

use std::net::IpAddr;

use crate::ip::ethernet::ethertype;

/// Tags that are looked behind.
const TAGS: usize = 3;
/// Extension headers of IPv6 that are looked behind.
const EXTENSIONS: usize = 8;

/// See the module.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Destination last, as all pairs here.
    pub macs: Option<[[u8; 6]; 2]>,
    /// Behind the tags.
    pub ethertype: u16,
    /// Ids of the VLAN tags, outermost first.
    vlans: [u16; TAGS],
    tags: usize,
    /// Of IP; in ARP, the protocol addresses.
    pub addrs: Option<[IpAddr; 2]>,
    /// The L4 protocol.
    pub protocol: Option<u8>,
    /// Of TCP, UDP and SCTP, where the header is there.
    pub ports: Option<[u16; 2]>,
    /// Where the L4 header is, if it is there.
    pub l4: Option<usize>,
    /// Bytes of the packet.
    pub len: usize,
}

fn bytes<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..)?.first_chunk().copied()
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    bytes(frame, at).map(u16::from_be_bytes)
}

impl Facts {
    /// Of the packet that starts with `frame`, see [`Filter::matches`](super::Filter::matches).
    pub fn of(frame: &[u8], len: usize, tag: Option<u16>) -> Self {
        let mut facts = Facts {
            macs: bytes(frame, 6).zip(bytes(frame, 0)).map(|(src, dst)| [src, dst]),
            ethertype: 0,
            vlans: [0; TAGS],
            tags: 0,
            addrs: None,
            protocol: None,
            ports: None,
            l4: None,
            len: len + if tag.is_some() { 4 } else { 0 },
        };
        if let Some(tci) = tag {
            facts.tag(tci);
        }
        // What is not there stays as it is.
        let _ = facts.read(frame);
        facts
    }

    /// Ids of the VLAN tags, outermost first.
    pub fn vlans(&self) -> impl Iterator<Item = u16> {
        self.vlans[..self.tags].iter().copied()
    }

    fn tag(&mut self, tci: u16) {
        if let Some(place) = self.vlans.get_mut(self.tags) {
            *place = tci & 0xfff;
            self.tags += 1;
        }
    }

    fn read(&mut self, frame: &[u8]) -> Option<()> {
        let mut at = 12;
        self.ethertype = word(frame, at)?;
        while matches!(self.ethertype, ethertype::VLAN | ethertype::PROVIDER_VLAN) && self.tags < TAGS {
            self.tag(word(frame, at + 2)?);
            at += 4;
            self.ethertype = word(frame, at)?;
        }
        at += 2;
        match self.ethertype {
            ethertype::IPV4 => self.v4(frame, at),
            ethertype::IPV6 => self.v6(frame, at),
            ethertype::ARP => {
                let addr = |at| bytes::<4>(frame, at).map(IpAddr::from);
                // Hardware Ethernet, protocol IPv4: RFC 826.
                if bytes(frame, at)? == [0, 1, 8, 0, 6, 4] {
                    self.addrs = Some([addr(at + 14)?, addr(at + 24)?]);
                }
                Some(())
            }
            _ => None,
        }
    }

    fn v4(&mut self, frame: &[u8], at: usize) -> Option<()> {
        let addr = |at| bytes::<4>(frame, at).map(IpAddr::from);
        self.addrs = Some([addr(at + 12)?, addr(at + 16)?]);
        self.protocol = Some(*frame.get(at + 9)?);
        // Further fragments have no L4 header.
        if word(frame, at + 6)? & 0x1fff == 0 {
            self.l4(frame, at + 4 * usize::from(frame.get(at)? & 15));
        }
        Some(())
    }

    fn v6(&mut self, frame: &[u8], at: usize) -> Option<()> {
        let addr = |at| bytes::<16>(frame, at).map(IpAddr::from);
        self.addrs = Some([addr(at + 8)?, addr(at + 24)?]);
        let (mut next, mut at) = (*frame.get(at + 6)?, at + 40);
        for _ in 0..EXTENSIONS {
            let len = match next {
                // Hop-by-hop, routing, destination options.
                0 | 43 | 60 => 8 * (1 + usize::from(*frame.get(at + 1)?)),
                44 => {
                    let is_first = word(frame, at + 2)? & !7 == 0;
                    if !is_first {
                        self.protocol = Some(*frame.get(at)?);
                        return Some(());
                    }
                    8
                }
                _ => break,
            };
            next = *frame.get(at)?;
            at += len;
        }
        self.protocol = Some(next);
        self.l4(frame, at);
        Some(())
    }

    fn l4(&mut self, frame: &[u8], at: usize) {
        self.l4 = (at <= frame.len()).then_some(at);
        if matches!(self.protocol, Some(6 | 17 | 132)) {
            self.ports = word(frame, at).zip(word(frame, at + 2)).map(|(src, dst)| [src, dst]);
        }
    }
}
