//! The receive path, with a host that notes what it is handed.

use std::net::Ipv4Addr;

use super::*;
use crate::ip::input::{Exception, Exceptions, Ingress};
use crate::ip::slow::world::{MACS, TestFamily, World, udp};
use crate::ip::source::RpFilter;
use crate::qdisc::Origin;
use crate::skb::HEADROOM;
use crate::sock::Transport;
use crate::stack::receive::{Receive, ReceiveHost};
use crate::steer::TxChoice;

/// What the receive path asked for; packets are known by their lengths.
#[derive(Debug, PartialEq)]
enum Call {
    Xmit(u16, TxChoice, Origin, Vec<usize>),
    Local(Transport, Vec<usize>),
    Exceptions(Vec<(usize, Exception)>),
}

/// A host with a socket for datagrams of even lengths.
#[derive(Default)]
struct Host(Vec<Call>);

fn lens(ctx: &mut SoftnetData, batch: &mut Batch) -> Vec<usize> {
    let lens = batch.as_slice().iter().map(Skb::len).collect();
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    lens
}

impl ReceiveHost for Host {
    fn now(&self) -> u64 {
        0
    }

    fn xmit(&mut self, ctx: &mut SoftnetData, dev: u16, choice: TxChoice, origin: Origin, batch: &mut Batch) {
        self.0.push(Call::Xmit(dev, choice, origin, lens(ctx, batch)));
    }

    fn local_input(&mut self, ctx: &mut SoftnetData, of: Transport, local: &mut Batch, unserved: &mut Batch) {
        self.0.push(Call::Local(of, local.as_slice().iter().map(Skb::len).collect()));
        for skb in local.drain() {
            match skb.len() % 2 {
                0 => ctx.deliver(skb),
                _ => unserved.push(skb).unwrap(),
            }
        }
    }

    fn exceptions(&mut self, ctx: &mut SoftnetData, exceptions: &mut Exceptions) {
        let all: Vec<_> = exceptions.drain().collect();
        self.0.push(Call::Exceptions(all.iter().map(|(skb, why)| (skb.len(), *why)).collect()));
        all.into_iter().for_each(|(skb, _)| ctx.free_skb(skb));
    }
}

/// What becomes of `frames` that come by RX queue 3 of the client's device, twice in a row.
fn received(frames: &[Vec<u8>]) -> Vec<Call> {
    let mut world = World::<Ipv4Addr>::acquainted();
    let (mut receive, mut host) = (Receive::default(), Host::default());
    let ingress = Ingress { dev: 0, mac: MACS[0], partial_csum: false, rp_filter: RpFilter::Off };
    for _ in 0..2 {
        let mut batch = Batch::new();
        for bytes in frames {
            let mut frame = world.ctx.alloc_frame().unwrap();
            frame.bytes_mut()[HEADROOM..][..bytes.len()].copy_from_slice(bytes);
            batch
                .push(world.ctx.build_skb(frame, HEADROOM, bytes.len()).unwrap_or_else(|_| panic!()))
                .unwrap();
        }
        receive.ip(&mut world.ctx, &world.tables, &ingress, 3, &mut batch, &mut host);
        assert!(batch.is_empty());
    }
    let second = host.0.split_off(host.0.len() / 2);
    assert_eq!(host.0, second, "nothing is left over from a batch");
    second
}

const CLIENT: Ipv4Addr = Ipv4Addr::CLIENT;
const SERVER: Ipv4Addr = Ipv4Addr::SERVER;
const OWN: Ipv4Addr = Ipv4Addr::OWN[0];
/// Bytes before a UDP payload.
const HEADERS: usize = 42;

#[test]
fn packets_are_sent_on_then_delivered_then_excepted() {
    let calls = received(&[
        udp(0, CLIENT, OWN, 9, 20),
        udp(0, CLIENT, SERVER, 1, 21),
        udp(0, CLIENT, SERVER, 9, 22),
        udp(0, CLIENT, OWN, 9, 23),
        udp(0, CLIENT, Ipv4Addr::host(1, 77), 9, 24),
        udp(0, CLIENT, Ipv4Addr::FAR, 9, 25),
        udp(0, CLIENT, OWN, 9, 26),
    ]);
    let of = |lens: &[usize]| lens.iter().map(|len| HEADERS + len).collect::<Vec<_>>();
    let exceptions = [(21, Exception::Ttl), (24, Exception::NextHop), (23, Exception::NoSocket)];
    let expected = [
        Call::Xmit(1, TxChoice::RxQueue(3), Origin::Forwarded, of(&[22, 25])),
        Call::Local(Transport::Udp, of(&[20, 23, 26])),
        Call::Exceptions(exceptions.map(|(len, why)| (HEADERS + len, why)).to_vec()),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn what_there_is_nothing_of_is_not_asked_for() {
    let udp_only = received(&[udp(0, CLIENT, OWN, 9, 20)]);
    assert_eq!(udp_only, [Call::Local(Transport::Udp, vec![HEADERS + 20])]);
    let unserved = received(&[udp(0, CLIENT, OWN, 9, 21)]);
    let exception = Call::Exceptions(vec![(HEADERS + 21, Exception::NoSocket)]);
    assert_eq!(unserved, [Call::Local(Transport::Udp, vec![HEADERS + 21]), exception]);
    assert_eq!(received(&[set_version(udp(0, CLIENT, SERVER, 9, 20))]), []);
}

/// A frame that no family takes.
fn set_version(mut frame: Vec<u8>) -> Vec<u8> {
    frame[12..14].copy_from_slice(&[0x12, 0x34]);
    frame
}
