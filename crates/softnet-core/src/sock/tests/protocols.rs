//! Sockets of several protocols in one table: each has ports of its own, and what waits is handed out as its protocol has it.

use super::*;

/// Another protocol (a number for experiments, RFC 3692). Its packets are two ports, source and destination, and a byte; both
/// hosts are known.
struct Note {
    flow: Flow,
    byte: u8,
    skb: Skb,
}

const NOTE: u8 = 253;
const OWN: Addr = mapped(0x0a00_0001);
const PEER: Addr = mapped(0x0a00_0002);

impl Message for Note {
    const PROTOCOL: u8 = NOTE;

    fn read(skb: Skb) -> Result<Self, Skb> {
        let Some(&[s0, s1, d0, d1, byte]) = skb.data().first_chunk() else { return Err(skb) };
        let (rport, lport) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
        Ok(Note { flow: Flow { local: OWN, remote: PEER, lport, rport, protocol: NOTE }, byte, skb })
    }

    fn flow(&self) -> &Flow {
        &self.flow
    }

    fn into_skb(self) -> Skb {
        self.skb
    }
}

impl World {
    fn note(&mut self, flow: &Flow, byte: u8) -> Skb {
        let mut skb = self.ctx.alloc_skb().unwrap();
        let ([s0, s1], [d0, d1]) = (flow.rport.to_be_bytes(), flow.lport.to_be_bytes());
        skb.put(5).unwrap().copy_from_slice(&[s0, s1, d0, d1, byte]);
        skb
    }

    /// A packet that was received is handed over, as the input of its protocol does.
    fn hand_over(&mut self, flow: &Flow, skb: Skb) -> Found {
        let sockets = self.binder.sockets().clone();
        let found = sockets.lookup(flow, 0);
        let World { ctx, room, ready, .. } = self;
        let mut to = Arrivals { sockets: &sockets, napi_id: 0, room: *room, queued: 0, ready };
        match found {
            Found::Socket(hit) => to.hand_over(ctx, hit, &mut Batch::from(skb)),
            _ => ctx.free_skb(skb),
        }
        found
    }

    fn end<M: Message>(&mut self, inbox: crate::sock::Inbox<M>) {
        self.binder.close(inbox.slot().index());
        let slot = inbox.slot().index();
        inbox.close(&mut self.ctx);
        self.binder.release(slot);
    }
}

#[test]
fn each_protocol_has_ports_of_its_own() {
    let mut world = World::new();
    let flow = Flow { local: OWN, remote: PEER, lport: 7, rport: 9, protocol: UDP };
    let note = Flow { protocol: NOTE, ..flow };
    let mut datagrams = world.binder.open::<Datagram>(&bind(ANY, 7)).unwrap();
    let skb = world.note(&note, 1);
    assert_eq!(world.hand_over(&note, skb), Found::None);
    let mut notes = world.binder.open::<Note>(&bind(ANY, 7)).unwrap();
    assert_eq!(world.binder.open::<Note>(&bind(OWN, 7)).err(), Some(BindError::InUse));
    assert_eq!(world.binder.open::<Datagram>(&bind(OWN, 7)).err(), Some(BindError::InUse));
    assert_eq!(world.one(&flow, b"datagram"), 0);
    let skb = world.note(&note, 2);
    assert!(matches!(world.hand_over(&note, skb), Found::Socket(_)));
    let keys = [datagrams.slot().slot().key(), notes.slot().slot().key()];
    assert_eq!(keys.map(|key| key.unwrap().0.protocol), [UDP, NOTE]);
    assert_eq!(world.ready, [datagrams.slot().index(), notes.slot().index()]);
    assert!([datagrams.slot(), notes.slot()].iter().all(|slot| slot.slot().readiness().readable));
    assert_eq!(world.payloads(&mut datagrams), [b"datagram".to_vec()]);
    let got = notes.next(&mut world.ctx).unwrap();
    assert_eq!((got.flow, got.byte), (note, 2));
    world.ctx.free_skb(got.into_skb());
    assert!(!notes.slot().slot().readiness().readable && notes.next(&mut world.ctx).is_none());
    // Connected by the same ends, and not what is addressed to the one when the other is gone.
    let connect = |world: &mut World, index: u32, protocol: u8| {
        let generation = world.binder.connect(index, OWN, PEER, 9);
        let exact = world.binder.sockets().find_exact(&Flow { protocol, ..flow });
        assert_eq!(exact, Some(Hit { slot: index, generation }));
        generation
    };
    let generation = connect(&mut world, datagrams.slot().index(), UDP);
    datagrams.connected(&mut world.ctx, (PEER, 9), generation);
    connect(&mut world, notes.slot().index(), NOTE);
    world.end(notes);
    let skb = world.note(&note, 3);
    assert_eq!(world.hand_over(&note, skb), Found::None);
    assert_eq!(world.one(&flow, b"another"), 0);
    assert_eq!(world.payloads(&mut datagrams).len(), 1);
    world.end(datagrams);
    world.ctx.drain();
}

/// What can't be read by the socket's protocol, or is from before it was connected to another peer, is freed and counted.
#[test]
fn what_the_protocol_does_not_read_is_freed() {
    let mut world = World::new();
    let mut notes = world.binder.open::<Note>(&bind(ANY, 7)).unwrap();
    let flow = Flow { local: OWN, remote: PEER, lport: 7, rport: 9, protocol: NOTE };
    let mut short = world.ctx.alloc_skb().unwrap();
    short.put(4).unwrap().fill(0);
    assert!(matches!(world.hand_over(&flow, short), Found::Socket(_)));
    for (rport, byte) in [(8, 1), (9, 2), (8, 3)] {
        let from = Flow { rport, ..flow };
        let skb = world.note(&from, byte);
        world.hand_over(&from, skb);
    }
    assert_eq!(notes.peek(&mut world.ctx).unwrap().byte, 1);
    let generation = world.binder.connect(notes.slot().index(), OWN, PEER, 9);
    notes.connected(&mut world.ctx, (PEER, 9), generation);
    let got = notes.next(&mut world.ctx).unwrap();
    assert_eq!(got.byte, 2);
    world.ctx.free_skb(got.into_skb());
    assert!(notes.next(&mut world.ctx).is_none());
    assert_eq!(world.drops(DropReason::SocketClose), 2, "one was no note, one from another peer");
    world.end(notes);
    world.ctx.drain();
}

/// Neither groups of sockets that share a port, nor members of a multicast group, are of several protocols.
#[test]
fn groups_are_of_one_protocol() {
    let mut world = World::new();
    let share = Bind { reuseport: true, ..bind(ANY, 7) };
    let group = v4("239.1.2.3");
    let datagrams: Vec<Inbox> = (0..2).map(|_| world.binder.open(&share).unwrap()).collect();
    let notes: Vec<crate::sock::Inbox<Note>> = (0..2).map(|_| world.binder.open(&share).unwrap()).collect();
    let of = |inboxes: &[u32], hit: Found| matches!(hit, Found::Socket(hit) if inboxes.contains(&hit.slot));
    let (udp, other) = (
        datagrams.iter().map(|inbox| inbox.slot().index()).collect::<Vec<_>>(),
        notes.iter().map(|inbox| inbox.slot().index()).collect::<Vec<_>>(),
    );
    let sockets = world.binder.sockets().clone();
    for rport in 1..200 {
        let flow = Flow { local: OWN, remote: PEER, lport: 7, rport, protocol: UDP };
        assert!(of(&udp, sockets.lookup(&flow, 0)));
        assert!(of(&other, sockets.lookup(&Flow { protocol: NOTE, ..flow }, 0)));
    }
    for index in udp.iter().chain(&other) {
        world.binder.join(*index, group, 3).unwrap();
    }
    let to = Flow { local: group, remote: PEER, lport: 7, rport: 9, protocol: UDP };
    let slots = |hits: Vec<Hit>| hits.into_iter().map(|hit| hit.slot).collect::<Vec<_>>();
    assert_eq!(slots(world.binder.members(&to, 3).collect()), udp);
    assert_eq!(slots(world.binder.members(&Flow { protocol: NOTE, ..to }, 3).collect()), other);
    assert_eq!(slots(world.binder.listeners(&to).collect()), udp);
    datagrams.into_iter().for_each(|inbox| world.end(inbox));
    assert!(world.binder.listeners(&to).next().is_none());
    notes.into_iter().for_each(|inbox| world.end(inbox));
}

proptest! {
    /// Sockets come, connect and go: what a look-up finds is what comparing with each says.
    #[test]
    fn a_lookup_finds_the_most_specific_of_its_protocol(
        steps in prop::collection::vec((any::<bool>(), 0u32..3, 1u16..3, 0u16..3, any::<prop::sample::Index>()), 1..60),
    ) {
        enum Any { Datagrams(Inbox), Notes(crate::sock::Inbox<Note>) }
        // A bucket for each at the most, so that keys of all kinds meet in chains.
        const MOST: usize = 4;
        let mut world = World::new();
        world.binder = Binder::new(world.ctx.region().clone(), MOST as u32, 3);
        let addr = |n: u32| if n == 0 { ANY } else { mapped(0x0a00_0000 + n) };
        let (mut model, mut all) = (HashMap::new(), HashMap::new());
        for (udp, local, lport, act, which) in steps {
            let protocol = if udp { UDP } else { NOTE };
            let mut slots: Vec<u32> = all.keys().copied().collect();
            slots.sort_unstable();
            match act {
                0 => {
                    let at = bind(addr(local), lport);
                    let opened = match udp {
                        true => world.binder.open(&at).map(Any::Datagrams),
                        false => world.binder.open(&at).map(Any::Notes),
                    };
                    let taken = model.values().any(|key: &Flow| {
                        let same = key.local == at.local || key.local == ANY || at.local == ANY;
                        (key.protocol, key.lport) == (protocol, lport) && same
                    });
                    prop_assert_eq!(opened.is_err(), taken || all.len() == MOST);
                    if let Ok(inbox) = opened {
                        let slot = match &inbox { Any::Datagrams(i) => i.slot().index(), Any::Notes(i) => i.slot().index() };
                        model.insert(slot, Flow::bound(protocol, at.local, lport));
                        all.insert(slot, inbox);
                    }
                }
                1 if !slots.is_empty() => {
                    let slot = slots[which.index(slots.len())];
                    let key = model.get_mut(&slot).unwrap();
                    let local = if key.local == ANY { addr(1) } else { key.local };
                    (key.local, key.remote, key.rport) = (local, PEER, 9);
                    world.binder.connect(slot, local, PEER, 9);
                }
                2 if !slots.is_empty() => {
                    let slot = slots[which.index(slots.len())];
                    model.remove(&slot);
                    match all.remove(&slot).unwrap() {
                        Any::Datagrams(inbox) => world.end(inbox),
                        Any::Notes(inbox) => world.end(inbox),
                    }
                }
                _ => {}
            }
            for (protocol, local, lport, rport) in
                [UDP, NOTE].into_iter().flat_map(|p| (1..3).flat_map(move |l| (1..3).flat_map(move |port| [9, 10].map(|r| (p, l, port, r)))))
            {
                let packet = Flow { local: addr(local), remote: PEER, lport, rport, protocol };
                let bound = |local| Flow::bound(protocol, local, lport);
                let found = match world.binder.sockets().lookup(&packet, 0) {
                    Found::Socket(hit) => Some(model[&hit.slot]),
                    Found::None => None,
                    Found::Contended => panic!("there is one thread"),
                };
                let keys = [packet, bound(packet.local), bound(ANY)];
                let expected = keys.into_iter().find(|key| model.values().any(|other| other == key));
                prop_assert_eq!(found, expected);
            }
        }
        for (_, inbox) in all.drain() {
            match inbox {
                Any::Datagrams(inbox) => world.end(inbox),
                Any::Notes(inbox) => world.end(inbox),
            }
        }
    }
}
