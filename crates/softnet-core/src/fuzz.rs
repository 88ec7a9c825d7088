//! What fuzzing runs, here as ordinary functions: whatever bytes they are given, none may panic. The tests run them on the
//! corpus of `fuzz/corpus`; `cargo fuzz` runs them for as long as it is let.

pub use crate::conntrack::fuzz::conntrack;
pub use crate::filter::fuzz as filter;
pub use crate::gro::fuzz::gro;
pub use crate::ip::reassembly::fuzz::reassembly;
pub use crate::ip::slow::fuzz::{forward, forward6};
pub use crate::nat::fuzz::{nat, nat64};
pub use crate::vlan::fuzz::vlan;

use std::net::Ipv4Addr;

use crate::SoftnetData;
use crate::ip::icmp_error::{icmp_error, icmpv6_error};
use crate::ip::icmp_limit::{IcmpLimit, IcmpParams};
use crate::ip::v4::arp::{ArpPacket, LEN};
use crate::ip::v4::header::validate;
use crate::ip::v4::icmp::{IcmpError, build_error, echo_reply};
use crate::ip::v4::options::EchoOptions;
use crate::ip::{ETH_LEN, checksum};
use crate::siphash::SipKey;
use crate::skb::{CacheSizes, HeapMemory, Region, Skb};

/// Bytes that say what to do, one step after the other.
pub(crate) struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Script(data)
    }

    /// The next byte; `None` at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// The next bytes, as many as two bytes before them say, or as there are.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let len = u16::from_be_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)]);
        let (bytes, rest) = self.0.split_at(usize::from(len % 2048).min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// An ARP packet: what is understood is written as it was read.
pub fn arp(data: &[u8]) {
    if let Ok(packet) = ArpPacket::parse(data) {
        let mut bytes = [0; LEN];
        packet.write(&mut bytes);
        assert_eq!(bytes, data[..LEN]);
        let _ = (packet.is_probe(), packet.is_gratuitous());
    }
}

/// A frame, to be answered as an echo request and complained about: what is made of it is sound, and nothing leaks.
pub fn icmp(data: &[u8]) {
    let memory = Box::new(HeapMemory::new(Region::bytes(8, 8)));
    let region = Region::new(memory, 8, 8).expect("room for a region");
    let mut ctx = SoftnetData::new(region, CacheSizes::default());
    let broadcast = |addr: Ipv4Addr| addr.octets()[3] == 255;
    let sound = |ctx: &mut SoftnetData, skb: Skb| {
        let packet = &skb.data()[usize::from(skb.head().l3)..];
        let lengths = validate(packet).expect("a sound header");
        assert_eq!(checksum::sum(&packet[lengths.header..lengths.total]), 0xffff);
        ctx.deliver(skb);
    };
    if let Some(mut skb) = ctx.alloc_skb() {
        let len = data.len().min(skb.tailroom());
        if let Some(to) = skb.put(len) {
            to.copy_from_slice(&data[..len]);
        }
        skb.head_mut().l3 = ETH_LEN as u16;
        let error = IcmpError::FragmentationNeeded { mtu: 1400 };
        let source = Ipv4Addr::new(10, 0, 0, 1);
        let mut limit = IcmpLimit::new(IcmpParams::default(), SipKey::new([1, 2]));
        if let Some(made) = build_error(&mut ctx, &skb, error, source, broadcast, &mut limit, 0) {
            sound(&mut ctx, made);
        }
        match echo_reply(&mut skb, &EchoOptions::NONE, broadcast, || 1) {
            Ok(()) => sound(&mut ctx, skb),
            Err(reason) => ctx.free(skb, reason),
        }
    }
    ctx.drain();
    assert_eq!((ctx.region().frames_free(), ctx.region().heads_free()), (8, 8));
}

/// An ICMP message of either family that may be an error, its checksum made right.
pub fn icmp_errors(data: &[u8]) {
    let mut message = data.to_vec();
    if let Some(field) = message.get_mut(2..4) {
        field.fill(0);
        let check = checksum::checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
    }
    for (said, six) in [(icmp_error(&message), false), (icmpv6_error(&message), true)] {
        if let Some((_, quote)) = said {
            assert!(quote.src.is_ipv6() == six && quote.dst.is_ipv6() == six);
            assert!(quote.ports().is_none() || quote.transport.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(name: &str, target: fn(&[u8])) {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
        let files: Vec<_> = std::fs::read_dir(format!("{corpus}{name}")).unwrap().collect();
        assert!(!files.is_empty(), "{name}");
        for file in files {
            target(&std::fs::read(file.unwrap().path()).unwrap());
        }
    }

    #[test]
    fn the_corpus_is_replayed() {
        replay("arp", arp);
        replay("icmp", icmp);
        replay("icmp_errors", icmp_errors);
        replay("filter", filter);
        replay("reassembly", reassembly);
        replay("gro", gro);
        replay("forward", forward);
        replay("forward6", forward6);
        replay("conntrack", conntrack);
        replay("nat", nat);
        replay("nat64", nat64);
        replay("vlan", vlan);
    }

    proptest::proptest! {
        /// Scripts that nothing leads to.
        #[test]
        fn whatever_comes_is_borne(data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            conntrack(&data);
            nat(&data);
            nat64(&data);
            vlan(&data);
        }
    }
}
