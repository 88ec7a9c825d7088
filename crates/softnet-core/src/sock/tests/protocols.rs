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
    assert_eq!(keys.map(|key| key.unwrap().0.flow.protocol), [UDP, NOTE]);
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
        let exact = world.binder.sockets().find_exact(&Key::connected(Flow { protocol, ..flow }));
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

/// A listener's connections are beside it, each known by its peer; without theirs packets are the
/// listener's.
#[test]
fn accepted_sockets_share_their_listeners_port() {
    type Notes = crate::sock::Inbox<Note>;
    let mut world = World::new();
    let listener: Notes = world.binder.open(&bind(ANY, 7)).unwrap();
    let flow = |rport| Flow { local: OWN, remote: PEER, lport: 7, rport, protocol: NOTE };
    let accept = |world: &mut World, rport| world.binder.open_accepted::<Note>(&flow(rport), 8);
    let of = |world: &World, rport| match world.binder.sockets().lookup(&flow(rport), 0) {
        Found::Socket(hit) => Some(hit.slot),
        _ => None,
    };
    let [nine, ten] = [9, 10].map(|rport| accept(&mut world, rport).unwrap());
    let slots = [&nine, &ten, &listener].map(|inbox| inbox.slot().index());
    assert_eq!([9, 10, 11].map(|rport| of(&world, rport)), slots.map(Some));
    assert_eq!(accept(&mut world, 9).err(), Some(BindError::InUse));
    // Another listener is as much in the way as ever, and what was accepted stays so.
    assert_eq!(world.binder.open::<Note>(&bind(OWN, 7)).err(), Some(BindError::InUse));
    assert_eq!(world.binder.disconnect(slots[0]), Err(BindError::InUse));
    // It ends, and its packets are the listener's.
    world.end(nine);
    assert_eq!(of(&world, 9), Some(slots[2]));
    // The listener ends, and what it accepted stays; the port is free for another one, but none to
    // be chosen.
    world.end(listener);
    assert_eq!([9, 10].map(|rport| of(&world, rport)), [None, Some(slots[1])]);
    let taken = EPHEMERAL.filter(|port| *port != 40_000).collect();
    let far = Flow { lport: 40_000, ..flow(9) };
    let chosen = world.binder.open_accepted::<Note>(&far, 8).unwrap();
    let any = world.binder.open_beside::<Note>(&bind(ANY, 0), &taken);
    assert_eq!(any.err(), Some(BindError::NoPort));
    world.end(chosen);
    let again: Notes = world.binder.open(&bind(ANY, 7)).unwrap();
    assert_eq!(of(&world, 9), Some(again.slot().index()));
    world.end(again);
    world.end(ten);
    assert_eq!(of(&world, 10), None);
    assert!(world.binder.is_empty());
    world.ctx.drain();
}

/// Where connections are known by their ends, two are not of the same.
#[test]
fn a_connection_is_the_only_one_between_its_ends() {
    let mut world = World::new();
    let share = Bind { reuseport: true, ..bind(ANY, 7) };
    let notes: Vec<crate::sock::Inbox<Note>> = (0..2).map(|_| world.binder.open(&share).unwrap()).collect();
    let [a, b] = [0, 1].map(|i: usize| notes[i].slot().index());
    assert!(world.binder.connect_alone(a, OWN, PEER, 9).is_ok());
    assert_eq!(world.binder.connect_alone(b, OWN, PEER, 9), Err(BindError::InUse));
    assert!(world.binder.connect_alone(b, OWN, PEER, 10).is_ok());
    // By the same as before.
    assert!(world.binder.connect_alone(a, OWN, PEER, 9).is_ok());
    let accepted = Flow { local: OWN, remote: PEER, lport: 7, rport: 10, protocol: NOTE };
    assert_eq!(world.binder.open_accepted::<Note>(&accepted, 8).err(), Some(BindError::InUse));
    notes.into_iter().for_each(|inbox| world.end(inbox));
    world.ctx.drain();
}

/// Protocols need not have ports: what a socket is connected to is then its peer's address.
#[test]
fn a_socket_may_be_connected_to_no_port() {
    let mut world = World::new();
    let notes: crate::sock::Inbox<Note> = world.binder.open(&bind(ANY, 7)).unwrap();
    let slot = notes.slot().index();
    world.binder.connect(slot, OWN, PEER, 0);
    let (key, _) = notes.slot().slot().key().unwrap();
    assert!(key.is_connected());
    let found = |remote| {
        let flow = Flow { local: OWN, remote, lport: 7, rport: 0, protocol: NOTE };
        world.binder.sockets().lookup(&flow, 0)
    };
    assert!(matches!(found(PEER), Found::Socket(hit) if hit.slot == slot));
    assert_eq!(found(OWN), Found::None);
    world.binder.disconnect(slot).unwrap();
    assert!(!notes.slot().slot().key().unwrap().0.is_connected());
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
                    let taken = model.values().any(|Key { flow: key, .. }: &Key| {
                        let same = key.local == at.local || key.local == ANY || at.local == ANY;
                        (key.protocol, key.lport) == (protocol, lport) && same
                    });
                    prop_assert_eq!(opened.is_err(), taken || all.len() == MOST);
                    if let Ok(inbox) = opened {
                        let slot = match &inbox { Any::Datagrams(i) => i.slot().index(), Any::Notes(i) => i.slot().index() };
                        model.insert(slot, Key::bound(protocol, at.local, lport));
                        all.insert(slot, inbox);
                    }
                }
                1 if !slots.is_empty() => {
                    let slot = slots[which.index(slots.len())];
                    let key = model.get_mut(&slot).unwrap();
                    let local = if key.flow.local == ANY { addr(1) } else { key.flow.local };
                    *key = Key::connected(Flow { local, remote: PEER, rport: 9, ..key.flow });
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
                let bound = |local| Key::bound(protocol, local, lport);
                let found = match world.binder.sockets().lookup(&packet, 0) {
                    Found::Socket(hit) => Some(model[&hit.slot]),
                    Found::None => None,
                    Found::Contended => panic!("there is one thread"),
                };
                let keys = [Key::connected(packet), bound(packet.local), bound(ANY)];
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
