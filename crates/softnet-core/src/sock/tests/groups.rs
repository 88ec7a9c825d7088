//! Several sockets for one datagram: reuseport groups, of which one member gets it, and multicast groups, of which each does.

use super::*;

/// A sender that knows how NICs hash cannot lead all its flows to one member of a group: by the
/// hash of RSS with its published key, these flows all are the first member's. And each stack
/// distributes flows in its own way.
#[test]
fn a_sender_cannot_choose_the_member_that_serves_it() {
    let share = Bind { reuseport: true, limit: 512, ..bind(ANY, 7) };
    let mut shares = Vec::new();
    for seed in [7, 0xdead_beef_0bad_cafe] {
        let mut world = World::seeded(seed);
        let mut inboxes: Vec<Inbox> = (0..4).map(|_| world.binder.open(&share).unwrap()).collect();
        let mut sent = 0;
        for rport in 1024..=u16::MAX {
            let from = flow("10.0.0.1", 7, "10.0.0.9", rport);
            let mut skb = world.datagram(&from, &rport.to_be_bytes());
            if sent == 400 || scale(skb_get_hash(&mut skb), inboxes.len()) != 0 {
                world.ctx.free_skb(skb);
                continue;
            }
            sent += 1;
            assert_eq!(world.receive([skb]), 0);
        }
        assert_eq!(sent, 400);
        let got: Vec<_> = inboxes.iter_mut().map(|inbox| world.payloads(inbox)).collect();
        let lens: Vec<usize> = got.iter().map(Vec::len).collect();
        assert!(lens.iter().all(|n| (50..=150).contains(n)), "{lens:?} of {sent}");
        shares.push(got);
        inboxes.into_iter().for_each(|inbox| _ = world.close(inbox));
    }
    assert_ne!(shares[0], shares[1]);
}

#[test]
fn a_reuseport_group_shares_by_flow_or_by_napi_id() {
    let mut world = World::new();
    let share = Bind { reuseport: true, limit: 512, ..bind(ANY, 7) };
    let mut inboxes: Vec<Inbox> = (0..4).map(|_| world.binder.open(&share).unwrap()).collect();
    let from = |i: u32| Flow { rport: 1000 + i as u16, ..flow("10.0.0.1", 7, "10.0.0.9", 0) };
    for i in 0..256 {
        assert_eq!(world.one(&from(i), &i.to_be_bytes()), 0);
    }
    let mut whose = HashMap::new();
    for (member, inbox) in inboxes.iter_mut().enumerate() {
        let got = world.payloads(inbox);
        assert!((32..=96).contains(&got.len()), "member {member} got {} of 256", got.len());
        got.into_iter().for_each(|payload| assert_eq!(whose.insert(payload, member), None));
    }
    assert_eq!(whose.len(), 256);
    for i in 0..256u32 {
        world.one(&from(i), &i.to_be_bytes());
        assert_eq!(world.payloads(&mut inboxes[whose[&i.to_be_bytes()[..]]]).len(), 1, "a flow stays");
    }
    world.binder.set_napi(inboxes[2].slot().index(), 8193);
    for i in 0..10 {
        world.one(&from(i), b"by napi id");
    }
    assert_eq!(world.payloads(&mut inboxes[2]).len(), 10);
    // Members go, also the one that the table leads to, until none is left.
    while let Some(inbox) = inboxes.pop() {
        world.close(inbox);
        let refused = world.one(&from(1), b"any left?");
        assert_eq!(refused, usize::from(inboxes.is_empty()));
        let got: usize = inboxes.iter_mut().map(|inbox| world.payloads(inbox).len()).sum();
        assert_eq!(got, 1 - refused);
    }
    let first: Vec<Inbox> = (0..3).map(|_| world.binder.open(&share).unwrap()).collect();
    for inbox in first {
        world.close(inbox);
    }
}

#[test]
fn members_of_a_group_get_a_copy_each() {
    let mut world = World::new();
    let group = flow("239.1.2.3", 7, "10.0.0.9", 5);
    let share = |local| Bind { reuseport: true, ..bind(local, 7) };
    let mut inboxes = [ANY, ANY, group.local].map(|local| world.binder.open(&share(local)).unwrap());
    let stranger = world.binder.open(&bind(ANY, 8)).unwrap();
    let index = |inbox: &Inbox| inbox.slot().index();
    for inbox in inboxes.iter().chain([&stranger]) {
        assert_eq!(world.binder.join(index(inbox), group.local, 1), Ok(()));
        assert_eq!(world.binder.join(index(inbox), group.local, 1), Err(BindError::Joined));
    }
    let mut multicast = |world: &mut World, dev: u16| {
        let payload: Vec<u8> = (0..90).collect();
        let skb = world.chain(&group, &payload, 40);
        let World { ctx, binder, ready, .. } = world;
        let sockets = binder.sockets().clone();
        let mut to = Arrivals {
            sockets: &sockets,
            napi_id: 1,
            room: SockMem::new(u32::MAX).room(0),
            queued: 0,
            ready,
        };
        let members = |flow: &Flow| binder.members(flow, dev).collect();
        udp_members(ctx, members, skb, |ctx, hit, run| to.hand_over(ctx, hit, run));
        inboxes
            .iter_mut()
            .map(|inbox| world.payloads(inbox))
            .map(|got| {
                assert!(got.iter().all(|got| *got == payload));
                got.len()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(multicast(&mut world, 1), [1, 1, 1]);
    assert_eq!(multicast(&mut world, 2), [0, 0, 0], "not on that device");
    assert_eq!(world.ctx.stats().originated.get(), 2, "copies");
    let left = index(&inboxes[0]);
    assert_eq!(world.binder.leave(left, group.local, 1), Ok(()));
    assert_eq!(world.binder.leave(left, group.local, 1), Err(BindError::NotJoined));
    assert!(world.binder.has_members(group.local, 1));
    for inbox in inboxes.into_iter().chain([stranger]) {
        world.close(inbox);
    }
    assert!(!world.binder.has_members(group.local, 1), "closed sockets are no members");
}

/// Of sockets bound to a group of one link, each receives from its own; datagrams to all nodes
/// reach every socket that is bound to the port.
#[test]
fn groups_of_one_link_are_the_devices_that_were_said() {
    let mut world = World::new();
    let group = flow("ff02::1234", 7, "2001:db8::9", 5);
    let on = |local, dev| Bind { dev: Some(dev), ..bind(local, 7) };
    let inboxes = [0, 1].map(|dev| world.binder.open(&on(group.local, dev)).unwrap());
    assert_eq!(world.binder.open::<Datagram>(&on(group.local, 1)).err(), Some(BindError::InUse));
    assert_eq!(
        world.binder.open::<Datagram>(&bind(group.local, 7)).err(),
        Some(BindError::InUse),
        "on any of them"
    );
    let [first, second] = inboxes.each_ref().map(|inbox| inbox.slot().index());
    for index in [first, second] {
        for dev in [0, 1] {
            world.binder.join(index, group.local, dev).unwrap();
        }
        assert_eq!(world.binder.joined(index, group.local), Some(0));
    }
    let members = |world: &World, flow: &Flow, dev| {
        world.binder.members(flow, dev).map(|hit| hit.slot).collect::<Vec<_>>()
    };
    for (dev, slots) in [(0, vec![first]), (1, vec![second]), (2, vec![])] {
        assert_eq!(members(&world, &group, dev), slots, "device {dev}");
    }
    let all = flow("ff02::1", 8, "2001:db8::9", 5);
    let share = |local, v4, v6| Bind { port: 8, v4, v6, reuseport: true, ..bind(local, 8) };
    let binds = [share(ANY, true, true), share(ANY, false, true), share(ANY, true, false)];
    let nodes = binds.map(|bind| world.binder.open(&bind).unwrap());
    let both = nodes.each_ref().map(|inbox| inbox.slot().index())[..2].to_vec();
    assert_eq!(members(&world, &all, 5), both, "those that take IPv6");
    inboxes.into_iter().chain(nodes).for_each(|inbox| _ = world.close(inbox));
}
