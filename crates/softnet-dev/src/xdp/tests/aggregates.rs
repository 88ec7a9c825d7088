//! Runs of segments that leave uncut.

use softnet_core::gso::{self, TxOffloads};
use softnet_core::skb::{Csum, GsoType};

use super::*;
use crate::netlink::{Offload, set_offload};
use crate::packet::PacketSocket;

/// Ethernet, IPv4 and TCP headers.
const HEADERS: usize = 54;
const MSS: usize = 1000;

/// What a run of segments of [`MSS`] bytes looks like: `payload` bytes from number `seq` on.
fn run(ctx: &mut SoftnetData, macs: ([u8; 6], [u8; 6]), seq: u32, payload: usize) -> Skb {
    let mut skb = ctx.alloc_skb().unwrap();
    let data = skb.put(HEADERS + payload.min(MSS)).unwrap();
    data.fill(seq as u8);
    data[..6].copy_from_slice(&macs.1);
    data[6..12].copy_from_slice(&macs.0);
    data[12..14].copy_from_slice(&[0x08, 0x00]);
    let total = (HEADERS - 14 + payload) as u16;
    data[14..24].copy_from_slice(&[0x45, 0, (total >> 8) as u8, total as u8, 0, 0, 0x40, 0, 64, 6]);
    data[24..26].fill(0);
    data[26..30].copy_from_slice(&softnet(0).octets());
    data[30..34].copy_from_slice(&peer(0).octets());
    data[34..38].copy_from_slice(&[0, 7, 0, 7]);
    data[38..42].copy_from_slice(&seq.to_be_bytes());
    data[42..46].fill(0);
    data[46..54].copy_from_slice(&[0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let mut left = payload.saturating_sub(MSS);
    while left > 0 {
        let mut part = ctx.alloc_skb().unwrap();
        part.put(left.min(MSS)).unwrap().fill(seq as u8);
        left -= left.min(MSS);
        skb.append(part).unwrap();
    }
    let head = skb.head_mut();
    (head.l3, head.l4, head.protocol) = (14, 34, 6);
    head.csum = Csum::Partial { start: 34, offset: 16 };
    if payload > MSS {
        (head.gso_type, head.gso_size) = (GsoType::TcpV4, MSS as u16);
        head.gso_segs = payload.div_ceil(MSS) as u16;
    }
    gso::announce();
    skb
}

/// Lengths and numbers of the TCP packets that arrived, in their order.
fn arrived(socket: &PacketSocket, payload: usize) -> Vec<(usize, u32)> {
    let (mut buffer, mut all) = (vec![0; 66_000], Vec::new());
    until("packets", || {
        while let Some(len) = socket.recv(&mut buffer).unwrap() {
            if buffer[12..14] == [0x08, 0x00] && buffer[23] == 6 {
                let seq = u32::from_be_bytes(buffer[38..42].try_into().unwrap());
                all.push((len - HEADERS, seq));
            }
        }
        all.iter().map(|(len, _)| len).sum::<usize>() >= payload
    });
    all
}

#[test]
fn runs_of_segments_leave_whole_and_in_their_order() {
    let Some(world) = World::new() else { return };
    // The interface takes them as they are; or the kernel cuts them before.
    for whole in [true, false] {
        let mut ctx = world.ctx();
        world.add_pair(0, 1);
        world.here.run(|| set_offload("s0", Offload::Tso, whole).unwrap()).unwrap();
        let theirs = world.there.run(|| Netlink::new().unwrap().link("k0").unwrap().unwrap()).unwrap();
        let socket = world.there.run(|| PacketSocket::open(theirs.index, &[]).unwrap()).unwrap();
        let cfg = XdpConfig { tso: true, ..world.config(0) };
        let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
        until("link up", || device.device.link() == LinkState::Up);
        let offloads = TxOffloads { csum: true, tso4: true, tso6: true, uso: false };
        assert_eq!(device.tx[0].offloads(), offloads);
        let macs = (device.device.info().mac, theirs.mac);
        let mut batch = Batch::new();
        let sent = [(300, 0), (2500, 300), (3000, 2800), (500, 5800), (40_000, 6300), (1, 46_300)];
        for (payload, seq) in sent {
            batch.push(run(&mut ctx, macs, seq, payload)).unwrap();
        }
        let tx = &mut device.tx[0];
        assert_eq!((tx.tx_burst(&mut ctx, &mut batch), tx.kick(&mut ctx)), (sent.len(), false));
        let got = arrived(&socket, 46_301);
        let want: Vec<_> = match whole {
            true => sent.to_vec(),
            false => sent
                .iter()
                .flat_map(|(payload, seq)| {
                    (0..*payload).step_by(MSS).map(move |at| (MSS.min(payload - at), seq + at as u32))
                })
                .collect(),
        };
        assert_eq!(got, want);
        assert_eq!(tx.stats().packets.get(), sent.len() as u64);
        close(device, &mut ctx);
        world.assert_whole(&mut ctx);
        world.delete_pair(0);
    }
}

/// Packets for an interface that is down are dropped, whatever they are, and do not wait for it.
#[test]
fn runs_are_dropped_while_the_interface_is_down() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let cfg = XdpConfig { tso: true, ..world.config(0) };
    let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
    world.here.run(|| Netlink::new().unwrap().set_down("s0").unwrap()).unwrap();
    let macs = (device.device.info().mac, [2; 6]);
    let mut batch = Batch::new();
    for seq in [0, 5000] {
        batch.push(run(&mut ctx, macs, seq, 5000)).unwrap();
    }
    let tx = &mut device.tx[0];
    while !batch.is_empty() {
        tx.tx_burst(&mut ctx, &mut batch);
    }
    assert!(tx.down());
    assert_eq!((tx.stats().packets.get(), ctx.stats().dropped()), (0, 2));
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}
