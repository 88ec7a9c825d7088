//! Whatever comes, and when: nothing is lost.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::ip::ETH_LEN;
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v4::header::protocol;
use crate::ip::v6::addr::{ALL_NODES, link_local, solicited_node};
use crate::ip::v6::header::next;

for_each_family! { nothing_is_lost }

/// What may happen to the world.
#[derive(Clone, Debug)]
enum Event {
    /// Frames arrive at a device.
    Frames(u16, Vec<Vec<u8>>),
    /// Milliseconds pass.
    Pass(u64),
    /// A device vanishes, or returns.
    Toggle(u16),
}

/// A family of which any frames may come.
trait Any: TestFamily {
    fn any_ip() -> BoxedStrategy<Self>;
    /// A sensible frame for device `dev`.
    fn sensible(dev: u16) -> BoxedStrategy<Vec<u8>>;
}

fn any_mac() -> impl Strategy<Value = crate::ip::MacAddr> + Clone {
    prop_oneof![Just(CLIENT_MAC), Just(SERVER_MAC)]
}

impl Any for Ipv4Addr {
    fn any_ip() -> BoxedStrategy<Self> {
        let broadcast = Ipv4Addr::new(10, 1, 0, 255);
        let known =
            [Self::CLIENT, Self::SERVER, Self::GATEWAY, Self::FAR, Self::OWN[0], Self::OWN[1], broadcast];
        prop_oneof![
            5 => proptest::sample::select(known.to_vec()),
            2 => (0u8..12, 0u8..4).prop_map(|(a, b)| Ipv4Addr::new(10, a % 2, 0, b)),
            1 => any::<u32>().prop_map(Ipv4Addr::from),
        ]
        .boxed()
    }

    fn sensible(dev: u16) -> BoxedStrategy<Vec<u8>> {
        use super::super::world::v4::*;
        let ip = Self::any_ip;
        let options = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(131), any::<u8>()], 0..12);
        prop_oneof![
            4 => (ip(), ip(), 0u8..4, 0usize..900).prop_map(move |(s, d, t, n)| udp(dev, s, d, t * 20 + 1, n)),
            2 => (ip(), prop_oneof![Just(8u8), any::<u8>()]).prop_map(|(d, kind)| echo_like(kind, d, 3)),
            2 => (ip(), options).prop_map(|(d, options)| with_options(d, 2, &options)),
            // Fragments of few datagrams, so that some become whole, and some overlap.
            4 => (ip(), 0u16..4, any::<bool>(), 1usize..3, any::<bool>()).prop_map(|(dst, at, more, n, udp)| {
                let kind = if udp { protocol::UDP } else { protocol::ICMP };
                let word = u16::from(more) << 13 | at;
                mend(set(Self::ip(0, CLIENT, dst, 9, kind, &vec![8; n * 8]), ETH_LEN + 6, &word.to_be_bytes()))
            }),
            2 => (ip(), any_mac()).prop_map(move |(ip, mac)| Self::answer(dev, ip, mac)),
            1 => (ip(), any_mac()).prop_map(move |(ip, mac)| Self::question(dev, ip, mac)),
            1 => (ip(), ip(), any_mac()).prop_map(|(a, b, mac)| arp(BROADCAST, ArpPacket::request(mac, a, b))),
        ]
        .boxed()
    }
}

impl Any for Ipv6Addr {
    fn any_ip() -> BoxedStrategy<Self> {
        let known = [
            Self::CLIENT,
            Self::SERVER,
            Self::GATEWAY,
            Self::FAR,
            Self::OWN[0],
            Self::OWN[1],
            link_local(MACS[0]),
            solicited_node(Self::OWN[0]),
            ALL_NODES,
        ];
        prop_oneof![
            6 => proptest::sample::select(known.to_vec()),
            2 => (0u16..2, 0u8..4).prop_map(|(dev, host)| Self::host(dev, host)),
            1 => any::<u128>().prop_map(Ipv6Addr::from_bits),
        ]
        .boxed()
    }

    fn sensible(dev: u16) -> BoxedStrategy<Vec<u8>> {
        use super::super::world::v6::*;
        let ip = Self::any_ip;
        let header = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(58), any::<u8>()], 8..40);
        let first = prop::sample::select(vec![0u8, 43, 44, 60, 58]);
        prop_oneof![
            // Fragments of few datagrams, so that some become whole, and some overlap.
            4 => (ip(), 0u16..4, 0u16..2, 1usize..3, any::<bool>()).prop_map(move |(dst, at, more, n, udp)| {
                let kind = if udp { next::UDP } else { next::ICMPV6 };
                let header = [kind, 0, 0, (at * 8 + more) as u8, 0, 0, 0, 7];
                Self::ip(dev, CLIENT, dst, 9, next::FRAGMENT, &[&header[..], &vec![128; n * 8]].concat())
            }),
            4 => (ip(), ip(), 0u8..4, 0usize..1400).prop_map(move |(s, d, t, n)| udp(dev, s, d, t * 20 + 1, n)),
            2 => (ip(), ip(), any::<u8>(), 8usize..50).prop_map(move |(s, d, kind, n)| {
                icmp(dev, s, d, 255, &[&[kind, 0, 0, 0][..], &vec![0; n]].concat())
            }),
            2 => (ip(), ip(), first, header).prop_map(move |(s, d, first, mut header)| {
                header[1] %= 4;
                Self::ip(dev, s, d, 9, first, &header)
            }),
            2 => (ip(), any_mac(), any::<u8>()).prop_map(move |(ip, mac, flags)| advert(dev, ip, mac, flags)),
            2 => (ip(), any_mac(), ip()).prop_map(move |(ip, mac, to)| solicitation(dev, ip, Some(mac), to)),
        ]
        .boxed()
    }
}

/// A frame for device `dev`: mostly sensible, sometimes with a few bytes changed, sometimes noise.
fn any_frame<F: Any>(dev: u16) -> impl Strategy<Value = Vec<u8>> {
    let edits = prop_oneof![Just(vec![]), prop::collection::vec(any::<(u16, u8)>(), 1..3)];
    let changed = (F::sensible(dev), edits).prop_map(|(mut frame, edits)| {
        for (at, to) in edits {
            let at = usize::from(at) % frame.len();
            frame[at] = to;
        }
        frame
    });
    prop_oneof![9 => changed, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

fn any_event<F: Any>() -> impl Strategy<Value = Event> {
    let frames =
        |dev| prop::collection::vec(any_frame::<F>(dev), 1..20).prop_map(move |f| Event::Frames(dev, f));
    prop_oneof![
        5 => frames(0),
        5 => frames(1),
        4 => (0u64..4000).prop_map(Event::Pass),
        1 => (0u16..2).prop_map(Event::Toggle),
    ]
}

/// Whatever comes when, each step's books balance and all memory comes home (`World` asserts both), also when memory is
/// short.
fn nothing_is_lost<F: Any>() {
    let config = ProptestConfig { cases: 200, ..ProptestConfig::default() };
    proptest!(config, |(events in prop::collection::vec(any_event::<F>(), 1..40), scarce: bool)| {
        let mut world = World::<F>::with_frames(if scarce { 6 } else { 2048 });
        for event in events {
            match event {
                Event::Frames(dev, frames) => drop(world.input(dev, &frames)),
                Event::Pass(ms) => drop(world.pass(ms * 1_000_000)),
                Event::Toggle(dev) => match world.iface(dev) {
                    Some(_) => world.vanish(dev),
                    None => world.appear(dev),
                },
            }
        }
    });
}
