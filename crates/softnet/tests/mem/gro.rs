//! GRO in a stack that runs: what leaves is what came, one hop on, in every mode and context;
//! sockets get datagrams; nothing is held for ever, and nothing is lost when it is switched or
//! stopped.

use std::net::Ipv4Addr;

use softnet::config::{Context, Knobs};
use softnet::control::show::{GroRow, NapiRow};
use softnet::control::{SetKnobs, Target};
use softnet::net::UdpSocket;
use softnet_core::gro::GroMode;
use softnet_core::ip::checksum;

use super::frames::{host, host_mac, ip, own, own_mac};
use super::udp::datagram;
use super::world::{Lane, Setup, World, of_port, until};

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

fn set(world: &World, change: impl FnOnce(&mut Knobs)) -> Vec<NapiRow> {
    let knobs = Knobs::default().with(change);
    world.view.set_knobs(&SetKnobs { target: Target::Dev("mem0".into()), knobs }).unwrap()
}

fn gro(world: &World) -> GroRow {
    world.view.napis().into_iter().find(|row| row.dev == "mem0").expect("mem0").gro
}

/// A TCP segment from the host at port 0.
fn tcp(dst: Ipv4Addr, sport: u16, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = [sport, 80].map(u16::to_be_bytes).concat();
    segment.extend(seq.to_be_bytes());
    segment.extend([0, 0, 0, 9, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    let pseudo = checksum::pseudo_header_sum(host(0).to_bits(), dst.to_bits(), 6, segment.len() as u16);
    let check = !checksum::add(pseudo, checksum::sum(&segment));
    segment[16..18].copy_from_slice(&check.to_be_bytes());
    ip(0, dst, 64, 6, &segment)
}

/// Three flows of TCP and one of UDP, mixed, to the host at port 1.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = vec![];
    for i in 0..16u32 {
        for flow in 0..3 {
            let payload = vec![i as u8; if flow == 1 && i == 9 { 700 } else { 1400 }];
            let lost = flow == 2 && i == 5;
            let flags = if i == 15 { ACK | PSH } else { ACK };
            if !lost {
                frames.push(tcp(host(1), 1000 + flow, i * 1400, flags, &payload));
            }
        }
        frames.push(datagram(0, host(1), (5, 9), &vec![i as u8; 900]));
    }
    frames
}

/// What a frame is like when it leaves by port 1.
fn forwarded(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&host_mac(1));
    frame[6..12].copy_from_slice(&own_mac(1));
    frame[22] -= 1;
    frame[24..26].fill(0);
    let check = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame
}

/// By flow, in order.
fn flows(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
    let mut flows = vec![vec![]; 4];
    for frame in frames {
        let port = usize::from(frame[34]) << 8 | usize::from(frame[35]);
        flows[port.checked_sub(1000).unwrap_or(3)].push(frame);
    }
    flows
}

fn collect(sinks: &mut [Lane], n: usize) -> Vec<Vec<u8>> {
    let mut got = vec![];
    until("the frames that were sent", || {
        sinks.iter_mut().for_each(|sink| _ = sink.receive(|frame| got.push(frame.to_vec())));
        got.len() >= n
    });
    got
}

#[test]
fn what_leaves_is_what_came() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 2, known: true, ..Setup::default() }.start();
    let mut sinks = of_port(&mut lanes, 1);
    let frames = frames();
    let expected = flows(frames.iter().map(|frame| forwarded(frame)));
    for context in [Context::Softirq, Context::Threaded, Context::Workqueue, Context::BusyPoll] {
        world.set(0, context);
        for mode in [GroMode::Frags, GroMode::Off, GroMode::FragsUdp, GroMode::List] {
            let rows = set(&world, |knobs| knobs.gro = Some(mode));
            assert_eq!(rows[0].gro.mode, mode.name());
            let before = gro(&world).merged;
            until("packets are merged", || {
                assert_eq!(lanes[0].send(&frames), frames.len());
                assert_eq!(flows(collect(&mut sinks, frames.len())), expected, "{context} {mode}");
                mode == GroMode::Off || gro(&world).merged > before
            });
            until("no more is held", || gro(&world).held == 0);
        }
    }
    let row = gro(&world);
    assert!(row.segments > row.aggregates && row.merged == row.segments - row.aggregates);
    assert!(row.flushed["last"] > 0 && row.flushed["mismatch"] + row.flushed["poll_end"] > 0, "{row:?}");
    lanes.append(&mut sinks);
    world.settle(lanes[0].counts().0);
    world.end(lanes);
}

/// With a time-out that the test does not last for, and a doorbell that rings: a packet is held, the
/// next of its flow is merged with it, and the last one sends both on.
#[test]
fn a_packet_is_held_no_longer_than_the_timer_has_it() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let mut sinks = of_port(&mut lanes, 1);
    set(&world, |knobs| {
        (knobs.gro, knobs.gro_flush_timeout) = (Some(GroMode::Frags), Some(3_600_000_000_000))
    });
    let first = tcp(host(1), 1000, 0, ACK, &[1; 100]);
    // It may become old before it is seen.
    until("it is held", || {
        assert_eq!(lanes[0].send(std::slice::from_ref(&first)), 1);
        let sent = lanes[0].counts().0;
        until("it was received", || world.view.stats().received == sent);
        until("it is somewhere", || gro(&world).held == 1 || sinks[0].receive(|_| ()) > 0);
        let held = gro(&world).held == 1;
        assert!(!held || world.view.stats().held == 1);
        held
    });
    let row = world.view.napis().into_iter().find(|row| row.dev == "mem0").unwrap();
    assert_eq!(row.timer.map(|timer| timer.knob), Some("gro_flush_timeout".into()));
    let last = tcp(host(1), 1000, 100, ACK | PSH, &[2; 100]);
    assert_eq!(lanes[0].send(std::slice::from_ref(&last)), 1);
    assert_eq!(collect(&mut sinks, 2), [forwarded(&first), forwarded(&last)]);
    // A short one is given up by its timer.
    set(&world, |knobs| knobs.gro_flush_timeout = Some(1_000_000));
    assert_eq!(lanes[0].send(std::slice::from_ref(&first)), 1);
    assert_eq!(collect(&mut sinks, 1), [forwarded(&first)]);
    lanes.append(&mut sinks);
    world.settle(lanes[0].counts().0);
    world.end(lanes);
}

/// The stack stops while packets are held: they are in the books.
#[test]
fn what_is_held_at_the_end_is_freed_and_counted() {
    let (mut world, lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let mut lanes = lanes;
    set(&world, |knobs| {
        (knobs.gro, knobs.gro_flush_timeout) = (Some(GroMode::List), Some(3_600_000_000_000))
    });
    for sport in 0..5 {
        assert_eq!(lanes[0].send(&[tcp(host(1), sport, 0, ACK, &[1; 100])]), 1);
    }
    until("they were received", || world.view.stats().received == 5);
    world.stop();
    world.end(lanes);
}

/// Datagrams to a socket come one by one, whatever was made of them on the way; those that no
/// socket wants are each answered for.
#[test]
fn sockets_get_datagrams() {
    let (world, mut lanes) = Setup { ports: &[1], workers: 1, known: true, ..Setup::default() }.start();
    let socket = UdpSocket::bind(&world.handle(), (own(0), 7)).unwrap();
    let mut buffer = [0; 2048];
    for mode in [GroMode::FragsUdp, GroMode::List] {
        set(&world, |knobs| knobs.gro = Some(mode));
        let before = gro(&world).merged;
        until("datagrams are merged", || {
            let payloads: Vec<Vec<u8>> =
                (0..40u8).map(|i| vec![i; if i == 39 { 333 } else { 1000 }]).collect();
            let frames: Vec<_> =
                payloads.iter().map(|payload| datagram(0, own(0), (999, 7), payload)).collect();
            assert_eq!(lanes[0].send(&frames), 40);
            for payload in &payloads {
                let (n, from) = socket.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..n], from), (&payload[..], (host(0), 999).into()));
            }
            gro(&world).merged > before
        });
    }
    drop(socket);
    let drops = || world.view.stats().dropped;
    let before = drops();
    let frames: Vec<_> = (0..30u8).map(|i| datagram(0, own(0), (999, 7), &[i; 500])).collect();
    assert_eq!(lanes[0].send(&frames), 30);
    until("each is dropped for want of a socket", || drops() == before + 30);
    world.settle(lanes[0].counts().0);
    world.end(lanes);
}
