//! The five hook slots: every packet passes each slot of its way once, in order, whichever path it takes and wherever it waits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use super::frags::{Fragments, ping};
use super::*;
use crate::ip::ETH_LEN;
use crate::ip::hooks::{Hook, HookContext, Passage, Slot};
use crate::ip::v4::header::protocol;
use crate::ip::v6::addr::link_local;
use crate::ip::v6::header::Ipv6Header;
use crate::skb::{Batch, DropReason, Skb};
use crate::sock::key::addr_of;
use crate::sock::udp::output::UdpHead;
use crate::steer::TxChoice;

for_each_family! {
    received_packets_pass_each_slot_of_their_way_once,
    packets_that_wait_for_a_neighbour_pass_no_slot_twice,
    a_datagram_in_fragments_is_one_packet_at_input,
    packets_made_here_pass_output_and_postrouting,
    slots_that_change_nothing_change_nothing,
    what_a_slot_drops_is_counted_there,
    a_destination_that_is_rewritten_is_routed_anew,
    a_source_that_is_rewritten_leaves_so,
    what_a_hook_makes_is_sent_like_all_that_is_made_here,
    hooks_do_not_make_packets_for_ever,
}

const SLOTS: [Slot; 5] = [Slot::Prerouting, Slot::Input, Slot::Forward, Slot::Output, Slot::Postrouting];

/// The reason by which the tests' hooks drop. No other part of the world has it.
const DROPPED: DropReason = DropReason::TcEgress;

/// What a family's packets are like for those that rewrite them.
trait Rewrite: Fragments + Send + Sync {
    /// A group that softnet is not in by itself, and a frame to it.
    fn to_group(payload: usize) -> (Self, Vec<u8>);
    /// Puts another source (0) or destination (1) into a packet, and renews its checksums.
    fn rewrite(packet: &mut [u8], which: usize, addr: Self);
    /// An address that only the slow path looks at: softnet's own on the client's link, if there is one of that kind.
    const ODD: Self;
    /// What becomes of an echo request whose destination is rewritten to that.
    const ODD_ANSWERED: bool;
}

impl Rewrite for Ipv4Addr {
    fn to_group(payload: usize) -> (Self, Vec<u8>) {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        (group, set(udp(0, Self::CLIENT, group, 9, payload), 0, &[1, 0, 0x5e, 1, 2, 3]))
    }

    fn rewrite(packet: &mut [u8], which: usize, addr: Self) {
        packet[12 + 4 * which..][..4].copy_from_slice(&addr.octets());
        let frame = super::super::world::v4::mend([&[0; ETH_LEN], &*packet].concat());
        packet.copy_from_slice(&frame[ETH_LEN..]);
    }

    const ODD: Self = Ipv4Addr::new(169, 254, 1, 1);
    const ODD_ANSWERED: bool = false;
}

impl Rewrite for Ipv6Addr {
    fn to_group(payload: usize) -> (Self, Vec<u8>) {
        let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 9);
        (group, udp(0, Self::CLIENT, group, 9, payload))
    }

    fn rewrite(packet: &mut [u8], which: usize, addr: Self) {
        packet[8 + 16 * which..][..16].copy_from_slice(&addr.octets());
        if Ipv6Header::new(packet).unwrap().next_header() == Self::ICMP {
            let [src, dst] = ends::<Self>(packet);
            packet[42..44].fill(0);
            let check = !Self::sum(Self::ICMP, src, dst, &packet[40..]);
            packet[42..44].copy_from_slice(&check.to_be_bytes());
        }
    }

    const ODD: Self = link_local(MACS[0]);
    const ODD_ANSWERED: bool = true;
}

/// Source and destination of a packet, which begins at its IP header.
fn ends<F: TestFamily>(packet: &[u8]) -> [F; 2] {
    let (src, dst) = F::ends(packet).unwrap();
    [src, dst]
}

/// A packet at a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pass<F> {
    slot: Slot,
    input: Option<u16>,
    output: Option<u16>,
    ends: [F; 2],
    /// Bytes from the IP header on, and whether they are in several frames.
    len: usize,
    chained: bool,
}

/// A hook that does `act` to each packet; it goes on if that says so.
struct Each<A>(A);

impl<A: Fn(Passage, &mut Skb) -> bool + Send + Sync> Hook for Each<A> {
    fn run(&self, cx: &mut HookContext<'_>, passage: Passage, batch: &mut Batch) {
        let mut some = std::mem::take(batch);
        cx.redirect();
        for mut skb in some.drain() {
            assert_offsets(&skb);
            match (self.0)(passage, &mut skb) {
                true => batch.push(skb).unwrap(),
                false => cx.ctx.free(skb, DROPPED),
            }
        }
    }
}

/// At every slot the head says what the bytes do.
fn assert_offsets(skb: &Skb) {
    let bytes = &skb.data()[ETH_LEN..];
    let (mut protocol, mut at, mut fragment) = match bytes[0] >> 4 {
        4 => (bytes[9], usize::from(bytes[0] & 15) * 4, bytes[6] & 0x3f != 0 || bytes[7] != 0),
        _ => (bytes[6], 40, false),
    };
    while bytes[0] >> 4 == 6 && [0, 43, 60].contains(&protocol) {
        (protocol, at) = (bytes[at], at + 8 * (1 + usize::from(bytes[at + 1])));
    }
    fragment |= bytes[0] >> 4 == 6 && protocol == 44;
    let head = skb.head();
    assert_eq!(usize::from(head.l3), ETH_LEN);
    match fragment {
        true => assert_eq!(head.l4, 0),
        false => assert_eq!((head.protocol, usize::from(head.l4)), (protocol, ETH_LEN + at)),
    }
}

/// Has `act` done in all `slots`.
fn hook<F: Rewrite>(
    world: &mut World<F>,
    slots: &[Slot],
    act: impl Fn(Passage, &mut Skb) -> bool + Send + Sync + 'static,
) {
    let hook: Arc<dyn Hook> = Arc::new(Each(act));
    slots.iter().for_each(|slot| world.tables.hooks.set(*slot, Some(hook.clone())));
}

/// What passed since it was last asked.
struct Passes<F>(Arc<Mutex<Vec<Pass<F>>>>);

impl<F: Rewrite> Passes<F> {
    fn of(world: &mut World<F>) -> Self {
        let passes = Passes(Arc::default());
        passes.watch(world, |_, _| true);
        passes
    }

    /// Notes what passes before `act` is done to it.
    fn watch(&self, world: &mut World<F>, act: impl Fn(Passage, &mut Skb) -> bool + Send + Sync + 'static) {
        let passes = self.0.clone();
        hook(world, &SLOTS, move |passage, skb| {
            let Passage { slot, input, output } = passage;
            let (len, chained) = (skb.len() - ETH_LEN, skb.is_chained());
            let ends = ends::<F>(&skb.data()[ETH_LEN..]);
            passes.lock().unwrap().push(Pass { slot, input, output, ends, len, chained });
            act(passage, skb)
        });
    }

    fn take(&self) -> Vec<Pass<F>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// The slots, and the devices there.
    fn ways(&self) -> Vec<(Slot, Option<u16>, Option<u16>)> {
        self.take().into_iter().map(|pass| (pass.slot, pass.input, pass.output)).collect()
    }
}

type Way = &'static [(Slot, Option<u16>, Option<u16>)];

const FORWARDED: Way = &[
    (Slot::Prerouting, Some(0), None),
    (Slot::Forward, Some(0), Some(1)),
    (Slot::Postrouting, Some(0), Some(1)),
];
const LOCAL: Way = &[(Slot::Prerouting, Some(0), None), (Slot::Input, Some(0), None)];
/// To softnet, and an answer.
const ANSWERED: Way = &[
    (Slot::Prerouting, Some(0), None),
    (Slot::Input, Some(0), None),
    (Slot::Output, None, Some(0)),
    (Slot::Postrouting, None, Some(0)),
];
/// An error about a packet that is not for softnet.
const REFUSED: Way =
    &[(Slot::Prerouting, Some(0), None), (Slot::Output, None, Some(0)), (Slot::Postrouting, None, Some(0))];

/// Frames by the client's device, the way of each, and how many packets are sent.
fn cases<F: Rewrite>() -> Vec<(Vec<u8>, Way, usize)> {
    let to = |dst: F, ttl: u8, len: usize| udp(0, F::CLIENT, dst, ttl, len);
    vec![
        (to(F::SERVER, 9, 10), FORWARDED, 1),
        (to(F::FAR, 9, 10), FORWARDED, 1),
        (F::with_options(to(F::SERVER, 9, 10)), FORWARDED, 1),
        // Without a socket, so that the sender is told.
        (to(F::OWN[0], 9, 10), ANSWERED, 1),
        (F::with_options(to(F::OWN[1], 9, 10)), ANSWERED, 1),
        (echo(F::OWN[0], 9), ANSWERED, 1),
        (F::to_group(10).1, LOCAL, 0),
        (to(F::SERVER, 1, 10), REFUSED, 1),
        (to(F::NOWHERE, 9, 10), REFUSED, 1),
        (to(F::UNREACHABLE, 9, 10), REFUSED, 1),
        (F::whole(to(F::SERVER, 9, 1300)), REFUSED, 1),
        (to(F::BLACKHOLE, 9, 10), &FORWARDED[..1], 0),
        // Not sound.
        (set(to(F::SERVER, 9, 10), ETH_LEN, &[0x20]), &[], 0),
    ]
}

fn received_packets_pass_each_slot_of_their_way_once<F: Rewrite>() {
    let mut world = World::<F>::acquainted();
    let passes = Passes::of(&mut world);
    for (frame, way, n) in cases::<F>() {
        let sent = world.one(0, frame.clone());
        assert_eq!((passes.ways(), sent.len()), (way.to_vec(), n), "{frame:x?}");
    }
    // All in one batch: each packet by itself, with its own addresses, and in the order of its way.
    let cases: Vec<_> = cases::<F>().into_iter().filter(|(_, way, _)| !way.is_empty()).collect();
    let frames: Vec<_> = cases.iter().map(|(frame, ..)| frame.clone()).collect();
    world.input(0, &frames);
    let mut passes = passes.take();
    for (frame, way, _) in cases {
        let [src, dst] = ends::<F>(packet(&frame));
        for (slot, input, output) in way {
            let is = |pass: &Pass<F>| {
                let received = input.is_some() && pass.ends == [src, dst];
                let made = input.is_none() && pass.ends[1] == src;
                (pass.slot, pass.input, pass.output) == (*slot, *input, *output) && (received || made)
            };
            passes.remove(passes.iter().position(is).expect("it passed"));
        }
    }
    assert_eq!(passes, []);
}

fn packets_that_wait_for_a_neighbour_pass_no_slot_twice<F: Rewrite>() {
    let mut world = World::<F>::acquainted();
    let passes = Passes::of(&mut world);
    let silent = F::host(1, 77);
    for frame in [udp(0, F::CLIENT, silent, 9, 10), F::with_options(udp(0, F::CLIENT, silent, 9, 10))] {
        let held = world.held();
        world.one(0, frame);
        assert_eq!((passes.ways(), world.held()), (FORWARDED.to_vec(), held + 1));
    }
    let head = head(F::OWN[1], silent);
    assert!(world.send(&head, b"mine").is_empty());
    let made = [(Slot::Output, None, Some(1)), (Slot::Postrouting, None, Some(1))];
    assert_eq!(passes.ways(), made);
    let sent = world.one(1, F::answer(1, silent, SERVER_MAC));
    assert_eq!((sent.len(), world.held()), (3, 0));
    // Neighbour discovery that is received is IPv6, ARP no IP.
    assert!(
        passes
            .ways()
            .iter()
            .all(|(slot, input, _)| LOCAL.iter().any(|way| way.0 == *slot) && *input == Some(1))
    );
    // To one that never answers: the error is made here.
    let silent = F::host(1, 78);
    world.one(0, udp(0, F::CLIENT, silent, 9, 10));
    assert_eq!(passes.ways(), FORWARDED);
    let sent = world.pass(4 * SECOND);
    assert_eq!(sent.iter().filter(|(dev, _)| *dev == 0).count(), 1);
    assert_eq!(passes.ways(), REFUSED[1..]);
}

/// What a socket sends from `src` to `dst`.
fn head<F: TestFamily>(src: F, dst: F) -> UdpHead {
    let [src, dst] = [src, dst].map(|addr| addr_of(addr.into() as IpAddr));
    UdpHead { src, dst, sport: 7, dport: 9, ttl: 64, tos: 0 }
}

fn a_datagram_in_fragments_is_one_packet_at_input<F: Rewrite>() {
    let mut world = World::<F>::acquainted();
    let passes = Passes::of(&mut world);
    let request = ping(F::CLIENT, F::OWN[0], 3000);
    let fragments = F::cut(&request, 5);
    let n = fragments.len();
    let sent = world.input(0, &fragments);
    let passes = passes.take();
    let (before, rest) = passes.split_at(n);
    assert!(before.iter().all(|pass| pass.slot == Slot::Prerouting && !pass.chained), "{before:?}");
    let (whole, answer) = rest.split_first().unwrap();
    assert_eq!((whole.slot, whole.input, whole.chained), (Slot::Input, Some(0), true));
    assert_eq!((whole.ends, whole.len >= 3000), ([F::CLIENT, F::OWN[0]], true));
    // Each fragment of the answer by itself.
    let slots: Vec<_> = answer.iter().map(|pass| (pass.slot, pass.output, pass.ends)).collect();
    let each = |slot| (slot, Some(0), [F::OWN[0], F::CLIENT]);
    assert_eq!(slots, [Slot::Output, Slot::Postrouting].map(each).repeat(sent.len()));
}

fn packets_made_here_pass_output_and_postrouting<F: Rewrite>() {
    let mut world = World::<F>::acquainted();
    let passes = Passes::of(&mut world);
    let each = [(Slot::Output, None, Some(1)), (Slot::Postrouting, None, Some(1))];
    let head = head(F::OWN[1], F::SERVER);
    assert_eq!(world.send(&head, b"short").len(), 1);
    assert_eq!(passes.ways(), each);
    let payload = [0x5a; 3000];
    let (datagram, udp) = head.datagram(&payload);
    let (sent, done) = world.call(|slow, ctx, view, out| {
        let pieces = (8 + payload.len(), [&udp[..], &payload]);
        slow.send_datagram(ctx, view, datagram, TxChoice::Queue(0), pieces, out)
    });
    assert!(done.is_ok() && sent.len() > 1);
    assert_eq!(passes.ways(), each.repeat(sent.len()));
    // To all on a link.
    let (group, _) = F::to_group(0);
    let (datagram, udp) = self::head(F::OWN[1], group).datagram(&payload);
    let (sent, done) = world.call(|slow, ctx, view, out| {
        let pieces = (8 + payload.len(), [&udp[..], &payload]);
        slow.send_datagram_to_many(ctx, view, datagram, (TxChoice::Queue(0), 1, [1; 6]), pieces, out)
    });
    assert!(done.is_ok() && sent.len() > 1);
    assert_eq!(passes.ways(), each.repeat(sent.len()));
}

fn slots_that_change_nothing_change_nothing<F: Rewrite>() {
    let run = |hooks: bool| {
        let mut world = World::<F>::acquainted();
        if hooks {
            hook(&mut world, &SLOTS, |_, _| true);
        }
        let frames: Vec<_> = cases::<F>().into_iter().map(|(frame, ..)| frame).collect();
        let mut sent = world.input(0, &frames);
        sent.extend(frames.into_iter().flat_map(|frame| world.one(0, frame)));
        sent.extend(world.input(0, &F::cut(&ping(F::CLIENT, F::OWN[0], 3000), 5)));
        sent.extend(world.one(0, udp(0, F::CLIENT, F::host(1, 77), 9, 10)));
        sent.extend(world.one(1, F::answer(1, F::host(1, 77), SERVER_MAC)));
        sent
    };
    assert_eq!(run(false), run(true));
}

fn what_a_slot_drops_is_counted_there<F: Rewrite>() {
    for (at, slot) in SLOTS.into_iter().enumerate() {
        for every in [1, 3] {
            let mut world = World::<F>::acquainted();
            let seen = Arc::new(Mutex::new([[0; 2]; 2]));
            let counts = seen.clone();
            hook(&mut world, &[slot], move |passage, _| {
                // Those made here count for the device that they leave by.
                let dev = passage.input.or(passage.output).unwrap();
                let [all, dropped] = &mut counts.lock().unwrap()[usize::from(dev)];
                *all += 1;
                let drops = *all % every == 0;
                *dropped += u64::from(drops);
                !drops
            });
            for (frame, ..) in cases::<F>() {
                world.input(0, &[frame.clone(), frame.clone(), frame]);
            }
            world.input(0, &F::cut(&ping(F::CLIENT, F::OWN[0], 3000), 5));
            world.send(&head(F::OWN[1], F::SERVER), b"mine");
            world.send(&head(F::OWN[1], F::host(1, 77)), b"mine");
            let [client, server] = *seen.lock().unwrap();
            let drops = [0, 1].map(|dev| world.ctx.stats().drops(dev, DROPPED));
            assert_eq!(drops, [client[1], server[1]], "{slot:?}");
            assert!(client[1] > 0 && (at < 3 || server[0] > 0), "{slot:?} {client:?} {server:?}");
            // Such as the fragments of which others were dropped. (The world balances its books at each step.)
            world.pass(200 * SECOND);
            assert_eq!(world.held(), 0);
        }
    }
}

fn a_destination_that_is_rewritten_is_routed_anew<F: Rewrite>() {
    let mut world = World::<F>::acquainted();
    let passes = Passes::of(&mut world);
    let becomes = |world: &mut World<F>, dst: F| {
        passes.watch(world, move |passage, skb| {
            if passage.slot == Slot::Prerouting {
                F::rewrite(&mut skb.data_mut()[ETH_LEN..], 1, dst);
                skb.head_mut().hash = 0;
            }
            true
        });
    };
    let refused = udp(0, F::CLIENT, F::UNREACHABLE, 9, 10);
    for frame in [refused.clone(), F::with_options(refused), udp(0, F::CLIENT, F::OWN[0], 9, 10)] {
        becomes(&mut world, F::FAR);
        let sent = world.one(0, frame.clone());
        assert_eq!((passes.ways(), sent.len()), (FORWARDED.to_vec(), 1));
        assert_eq!((sent[0].0, &sent[0].1[..6]), (1, &SERVER_MAC[..]));
        assert_eq!(ends::<F>(packet(&sent[0].1)), [F::CLIENT, F::FAR]);
        // And to softnet itself.
        becomes(&mut world, F::OWN[1]);
        assert_eq!((world.one(0, frame).len(), passes.ways()), (1, ANSWERED.to_vec()));
    }
    becomes(&mut world, F::OWN[1]);
    let answer = world.one(0, echo(F::NOWHERE, 9));
    let expected = Header { src: F::OWN[1], dst: F::CLIENT, ttl: 64, protocol: F::ICMP };
    assert_eq!((F::header(packet(&answer[0].1)), passes.ways()), (expected, ANSWERED.to_vec()));
    becomes(&mut world, F::BLACKHOLE);
    world.one(0, echo(F::OWN[0], 9));
    assert_eq!((passes.ways(), world.drops(DropReason::IpBlackhole)), (FORWARDED[..1].to_vec(), 1));
    // To where only the slow path looks, which does not lead it through the slot again.
    becomes(&mut world, F::ODD);
    let answers = world.one(0, echo(F::OWN[0], 9)).len();
    let way = if F::ODD_ANSWERED { ANSWERED } else { &LOCAL[..1] };
    assert_eq!((answers, passes.ways()), (usize::from(F::ODD_ANSWERED), way.to_vec()));
}

fn a_source_that_is_rewritten_leaves_so<F: Rewrite>() {
    let mut world = World::<F>::acquainted();
    let other = F::host(1, 50);
    hook(&mut world, &[Slot::Postrouting], move |_, skb| {
        F::rewrite(&mut skb.data_mut()[ETH_LEN..], 0, other);
        skb.head_mut().hash = 0;
        true
    });
    let silent = F::host(1, 77);
    let mut sent = world.one(0, udp(0, F::CLIENT, F::SERVER, 9, 10));
    sent.extend(world.one(0, F::with_options(udp(0, F::CLIENT, F::SERVER, 9, 10))));
    sent.extend(world.one(0, echo(F::OWN[0], 9)));
    sent.extend(world.send(&head(F::OWN[1], F::SERVER), b"mine"));
    world.one(0, udp(0, F::CLIENT, silent, 9, 10));
    sent.extend(world.one(1, F::answer(1, silent, SERVER_MAC)));
    assert_eq!(sent.len(), 5);
    for (_, frame) in &sent {
        assert_eq!(ends::<F>(packet(frame))[0], other);
    }
    F::header(packet(&sent[0].1));
    let message = &packet(&sent[2].1)[F::HEADER..];
    assert_eq!(F::sum(F::ICMP, other, F::CLIENT, message), 0xffff);
}

/// Which packets the frames tell the client of, each by its source.
fn told_of(sent: &[Frame]) -> Vec<Ipv4Addr> {
    let redirects = sent.iter().map(|(_, frame)| packet(frame));
    let redirects = redirects.filter(|packet| packet[9] == protocol::ICMP && packet[20] == 5);
    redirects.map(|packet| ends::<Ipv4Addr>(&packet[28..])[0]).collect()
}

/// On the fast path and on the slow one a sender is told of what the forward slot lets pass, as it
/// was before postrouting.
#[test]
fn a_redirect_is_about_what_may_go_on_and_as_it_came() {
    use super::super::world::v4::{BEYOND, ROUTER};
    let (client, other) = (Ipv4Addr::CLIENT, Ipv4Addr::host(1, 50));
    let frame = udp(0, client, BEYOND, 9, 10);
    for frame in [frame.clone(), Ipv4Addr::with_options(frame)] {
        let mut world = World::<Ipv4Addr>::acquainted();
        world.one(0, frame.clone());
        world.one(0, Ipv4Addr::answer(0, ROUTER, SERVER_MAC));
        // (As that has come, the router is used, and known to the fast path.)
        world.one(0, frame.clone());
        world.now += 9 * SECOND;
        hook(&mut world, &[Slot::Forward], |_, _| false);
        assert_eq!(world.one(0, frame.clone()), []);
        hook(&mut world, &[Slot::Forward], |_, _| true);
        hook(&mut world, &[Slot::Postrouting], move |passage, skb| {
            if passage.input.is_some() {
                Ipv4Addr::rewrite(&mut skb.data_mut()[ETH_LEN..], 0, other);
                skb.head_mut().hash = 0;
            }
            true
        });
        let sent = world.one(0, frame);
        assert_eq!((sent.len(), told_of(&sent)), (2, vec![client]));
    }
}

/// A hook that makes a datagram from softnet's address on the client's link to the client for each
/// packet, which goes on if that is said; and what it saw.
struct Makes<F> {
    goes_on: bool,
    seen: Mutex<Vec<(u64, usize)>>,
    family: std::marker::PhantomData<F>,
}

impl<F> Makes<F> {
    fn new(goes_on: bool) -> Arc<Self> {
        Arc::new(Makes { goes_on, seen: Mutex::default(), family: std::marker::PhantomData })
    }
}

impl<F: Rewrite> Hook for Makes<F> {
    fn run(&self, cx: &mut HookContext<'_>, _: Passage, batch: &mut Batch) {
        for _ in 0..batch.len() {
            let mut skb = cx.ctx.alloc_skb().unwrap();
            let head = head(F::OWN[0], F::CLIENT);
            head.write(&mut skb, &head.no_link(), b"made").unwrap();
            cx.emit(skb);
        }
        let ifaces = cx.tables.ifaces.iter().flatten().count();
        self.seen.lock().unwrap().push((cx.now, ifaces));
        if !self.goes_on {
            cx.ctx.free_batch(batch, DROPPED);
        }
    }
}

fn what_a_hook_makes_is_sent_like_all_that_is_made_here<F: Rewrite>() {
    for slot in [Slot::Prerouting, Slot::Forward, Slot::Postrouting] {
        for options in [false, true] {
            let mut world = World::<F>::acquainted();
            let passes = Passes::of(&mut world);
            let makes = Makes::<F>::new(slot == Slot::Forward);
            // What is made passes postrouting, too.
            let makes_more = slot == Slot::Postrouting;
            world.tables.hooks.set(slot, Some(makes.clone()));
            world.now += 5;
            let frame = udp(0, F::CLIENT, F::SERVER, 9, 10);
            let frame = if options { F::with_options(frame) } else { frame };
            let sent = world.one(0, frame);
            let made: Vec<_> = sent.iter().filter(|(_, frame)| frame.ends_with(b"made")).collect();
            let n = if slot == Slot::Forward { 2 } else { 1 };
            let expected = if makes_more { 0 } else { n };
            assert_eq!((sent.len(), made.len()), (expected, expected.min(1)), "{slot:?}");
            for (dev, frame) in &made {
                assert_eq!((*dev, &frame[..6]), (0, &CLIENT_MAC[..]));
                assert_eq!(ends::<F>(packet(frame)), [F::OWN[0], F::CLIENT]);
            }
            let ways = passes.ways();
            assert!(ways.contains(&(Slot::Output, None, Some(0))), "{ways:?}");
            assert_eq!(ways.contains(&(Slot::Postrouting, None, Some(0))), !makes_more);
            assert!(makes.seen.lock().unwrap().iter().all(|seen| *seen == (world.now, 2)));
        }
    }
}

fn hooks_do_not_make_packets_for_ever<F: Rewrite>() {
    let mut world = World::<F>::acquainted();
    world.tables.hooks.set(Slot::Output, Some(Makes::<F>::new(true)));
    // Without a socket: an error, which has four others made one after the other.
    let sent = world.one(0, udp(0, F::CLIENT, F::OWN[0], 9, 10));
    assert_eq!((sent.len(), world.drops(DropReason::NetfilterDrop)), (5, 1));
    // All that a hook makes while it sees several is of one round.
    let frame = udp(0, F::CLIENT, F::OWN[0], 9, 10);
    let sent = world.input(0, &[frame.clone(), frame.clone(), frame]);
    assert_eq!((sent.len(), world.drops(DropReason::NetfilterDrop)), (15, 4));
}
