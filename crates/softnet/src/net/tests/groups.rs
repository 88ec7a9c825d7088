//! What a device's driver is told of multicast groups: the first member, the last, and nothing in between, whichever sockets
//! join and leave meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use softnet_dev::{DeviceInfo, LinkState};

use super::threads::Rng;
use super::*;
use crate::net::UdpSocket;
use crate::net::groups;

const GROUPS: [Ipv4Addr; 2] = [Ipv4Addr::new(239, 0, 0, 1), Ipv4Addr::new(239, 0, 0, 2)];
const CALL: Duration = Duration::from_micros(20);
const ROUNDS: u64 = 300;
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// What drivers were told: the groups of the device that is open, and how often they were asked to join one.
#[derive(Default)]
struct Told {
    joined: Mutex<BTreeSet<IpAddr>>,
    asked: AtomicU64,
    /// Of so many requests one is refused; 0: none.
    refuse: AtomicU64,
}

/// A device that sees to it that groups are joined and left in turns.
struct Driver(Arc<dyn Device>, Arc<Told>);

impl Device for Driver {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn link(&self) -> LinkState {
        self.0.link()
    }
    fn join_group(&self, group: IpAddr) -> io::Result<()> {
        let (asked, refuse) =
            (self.1.asked.fetch_add(1, Ordering::Relaxed), self.1.refuse.load(Ordering::Relaxed));
        if refuse != 0 && asked % refuse == 0 {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // As long as a system call takes, for others to come in between.
        std::thread::sleep(CALL);
        assert!(self.1.joined.lock().unwrap().insert(group), "{group} was joined twice");
        Ok(())
    }
    fn leave_group(&self, group: IpAddr) {
        std::thread::sleep(CALL);
        assert!(self.1.joined.lock().unwrap().remove(&group), "{group} was not joined");
    }
}

fn start() -> (Assembly, Remains, Arc<Told>) {
    let told = Arc::new(Told::default());
    let (assembly, remains) = {
        let told = told.clone();
        assemble_on(move |device| Arc::new(Driver(device, told.clone())))
    };
    (assembly, remains, told)
}

impl Told {
    fn joined(&self) -> Vec<IpAddr> {
        self.joined.lock().unwrap().iter().copied().collect()
    }
}

#[test]
fn drivers_are_told_of_the_first_member_and_of_the_last() {
    let (assembly, remains, told) = start();
    let open = |port| UdpSocket::bind(&remains.handle, (ANY, port)).unwrap();
    let (a, b) = (open(1), open(2));
    let [group, other] = GROUPS;
    a.join_multicast_v4(&group, &OWN).unwrap();
    b.join_multicast_v4(&group, &ANY).unwrap();
    b.join_multicast_v4(&other, &ANY).unwrap();
    assert!(b.join_multicast_v4(&other, &ANY).is_err(), "twice");
    assert_eq!(told.joined(), [group, other].map(IpAddr::V4));
    assert_eq!(groups::members(&remains.shared, 0), BTreeMap::from([(group.into(), 2), (other.into(), 1)]));
    a.leave_multicast_v4(&group, &OWN).unwrap();
    assert!(a.leave_multicast_v4(&group, &OWN).is_err());
    assert_eq!(told.joined().len(), 2);
    // The device goes, and comes back without knowing of what was.
    let dev = &remains.shared.devices[0];
    let live = dev.live.swap(None).unwrap();
    dev.groups.closed(&*live.device);
    assert_eq!(told.joined(), [] as [IpAddr; 0]);
    b.leave_multicast_v4(&group, &ANY).unwrap();
    a.join_multicast_v4(&group, &ANY).unwrap();
    assert_eq!(told.joined(), [] as [IpAddr; 0], "there is no driver to be told");
    dev.live.store(Some(live));
    groups::opened(&remains.shared, 0);
    assert_eq!(told.joined(), [group, other].map(IpAddr::V4));
    a.leave_multicast_v4(&group, &ANY).unwrap();
    drop(b);
    assert_eq!((told.joined().len(), groups::members(&remains.shared, 0).len()), (0, 0));
    // A socket that was refused is no member.
    told.refuse.store(1, Ordering::Relaxed);
    assert!(a.join_multicast_v4(&group, &ANY).is_err() && groups::members(&remains.shared, 0).is_empty());
    told.refuse.store(0, Ordering::Relaxed);
    a.join_multicast_v4(&group, &ANY).unwrap();
    drop(assembly);
    assert_eq!(told.joined(), [] as [IpAddr; 0], "the stack's end ends it");
    drop(a);
    remains.check(1);
}

/// Does one of the things that change memberships of `socket`, which is in `mine`.
fn step(rng: &mut Rng, handle: &Handle, socket: &mut Option<UdpSocket>, mine: &mut BTreeSet<Ipv4Addr>) {
    let group = GROUPS[rng.below(2)];
    match (rng.below(6), &mut *socket) {
        (0, _) => {
            drop(socket.take());
            mine.clear();
        }
        (_, None) => *socket = Some(UdpSocket::bind(handle, (ANY, 0)).unwrap()),
        (1..4, Some(socket)) => {
            let left = socket.leave_multicast_v4(&group, &ANY).is_ok();
            assert_eq!(left, mine.remove(&group));
        }
        (_, Some(socket)) => {
            let joined = socket.join_multicast_v4(&group, &ANY).is_ok();
            assert!(!joined || mine.insert(group));
        }
    }
}

/// Looked at time and again, while no thread does anything.
#[test]
fn drivers_know_which_groups_are_left_when_sockets_join_leave_and_close_at_once() {
    let (assembly, remains, told) = start();
    told.refuse.store(7, Ordering::Relaxed);
    let mut users: Vec<_> = (0..3).map(|user| (Rng(user), None, BTreeSet::new())).collect();
    let mut changes = 0;
    for _ in 0..ROUNDS {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (rng, socket, mine) in &mut users {
                let handle = &remains.handle;
                threads.push(scope.spawn(move || (0..20).for_each(|_| step(rng, handle, socket, mine))));
            }
            // A scope ends before its threads have given up what they keep for themselves.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let mut expected = BTreeMap::new();
        for group in users.iter().flat_map(|(.., mine)| mine) {
            *expected.entry(IpAddr::V4(*group)).or_insert(0) += 1;
        }
        assert_eq!(groups::members(&remains.shared, 0), expected);
        assert_eq!(told.joined(), expected.into_keys().collect::<Vec<_>>());
        changes += told.asked.swap(0, Ordering::Relaxed);
    }
    assert!(changes > ROUNDS);
    drop(assembly);
    assert_eq!(told.joined(), [] as [IpAddr; 0]);
    drop(users);
    remains.check(1);
}

/// A long datagram that is not sent, for want of memory, is not delivered here either.
#[test]
fn members_get_nothing_of_what_its_sender_was_told_is_not_sent() {
    let (assembly, mut remains, _) = start();
    let [sender, member] = [7, 8].map(|port| UdpSocket::bind(&remains.handle, (ANY, port)).unwrap());
    member.join_multicast_v4(&GROUPS[0], &ANY).unwrap();
    // Not enough for its fragments.
    let ctx = &mut remains.far.ctx;
    let mut taken: Vec<_> = std::iter::from_fn(|| ctx.alloc_skb()).collect();
    taken.drain(..30).for_each(|skb| ctx.free_skb(skb));
    ctx.drain();
    let error = sender.send_to(&[7; 60_000], (GROUPS[0], 8)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(105), "ENOBUFS");
    assert!(!member.readiness().readable);
    taken.into_iter().for_each(|skb| ctx.free_skb(skb));
    ctx.drain();
    sender.send_to(&[7; 60_000], (GROUPS[0], 8)).unwrap();
    assert_eq!(member.recv(&mut vec![0; 65_536]).unwrap(), 60_000);
    drop((assembly, sender, member));
    remains.check(1);
}

/// Sixty members of a group, that are full, are sent long datagrams. What these might take of memory is never all reserved at
/// once: a socket that is read always has its minimum.
#[test]
fn a_datagram_to_many_leaves_others_their_minimum() {
    let (assembly, remains, _) = start();
    let group = GROUPS[0];
    let builder = UdpSocket::builder(&remains.handle).reuse_port(true).recv_buffer_size(1);
    let members: Vec<_> = (0..60).map(|_| builder.bind("0.0.0.0:8").unwrap()).collect();
    members.iter().for_each(|member| member.join_multicast_v4(&group, &OWN).unwrap());
    let sender = UdpSocket::bind(&remains.handle, (OWN, 0)).unwrap();
    sender.set_multicast_ttl_v4(0).unwrap();
    sender.send_to(b"full", (group, 8)).unwrap();
    let reader = UdpSocket::bind(&remains.handle, (OWN, 9)).unwrap();
    reader.set_nonblocking(true).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut read = 0u64;
            while !over.load(Ordering::Relaxed) {
                reader.send_to(b"to myself", (OWN, 9)).unwrap();
                reader.recv(&mut [0; 16]).unwrap_or_else(|error| panic!("lost after {read}: {error}"));
                read += 1;
            }
            read
        });
        for _ in 0..200 {
            let _ = sender.send_to(&[7; 60_000], (group, 8));
            if read.is_finished() {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(read.join().unwrap() > 0);
    });
    assert_eq!(members[0].inner().slot.slot().queued(), 1);
    drop((assembly, members, sender, reader));
    remains.check(1);
}

#[test]
fn a_device_that_goes_and_comes_meanwhile_knows_them_too() {
    let (assembly, remains, told) = start();
    told.refuse.store(7, Ordering::Relaxed);
    let over = AtomicBool::new(false);
    let work = |user: u64| {
        let (mut rng, mut socket, mut mine) = (Rng(user), None, BTreeSet::new());
        let mut steps = 3000u32;
        while steps > 0 || !over.load(Ordering::Relaxed) {
            steps = steps.saturating_sub(1);
            step(&mut rng, &remains.handle, &mut socket, &mut mine);
        }
        socket
    };
    // The device goes and comes meanwhile, as the housekeeper has it, and at last may join whatever it wants.
    let dev = &remains.shared.devices[0];
    let go_and_come = || {
        let live = dev.live.swap(None).unwrap();
        dev.groups.closed(&*live.device);
        assert_eq!(told.joined(), [] as [IpAddr; 0]);
        std::thread::yield_now();
        dev.live.store(Some(live));
        groups::opened(&remains.shared, 0);
    };
    let sockets: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|user| scope.spawn(move || work(user))).collect();
        for _ in 0..30 {
            go_and_come();
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    told.refuse.store(0, Ordering::Relaxed);
    go_and_come();
    assert_eq!(told.joined(), groups::members(&remains.shared, 0).into_keys().collect::<Vec<_>>());
    assert!(told.asked.load(Ordering::Relaxed) > 20);
    drop(assembly);
    assert_eq!(told.joined(), [] as [IpAddr; 0]);
    drop(sockets);
    remains.check(1);
}

/// A group with members on several netdevs of a device is joined once, as long as there is one on any.
#[test]
fn a_driver_has_a_group_once_for_all_netdevs() {
    let (assembly, remains, told) = start();
    let dev = &remains.shared.devices[0];
    let [group, other] = GROUPS.map(|group| addr_of(group.into()));
    let update = |group, netdev, has_members| dev.update_group(group, netdev, || has_members).unwrap();
    [(group, 0), (group, 7), (group, 7), (other, 7)]
        .into_iter()
        .for_each(|(group, on)| update(group, on, true));
    assert_eq!((told.joined().len(), told.asked.load(Ordering::Relaxed)), (2, 2));
    update(group, 0, false);
    assert_eq!(told.joined(), GROUPS.map(IpAddr::V4));
    update(group, 7, false);
    assert_eq!(told.joined(), [GROUPS[1]].map(IpAddr::V4));
    update(other, 0, true);
    let live = dev.live.swap(None).unwrap();
    dev.groups.closed(&*live.device);
    assert_eq!(told.joined(), [] as [IpAddr; 0]);
    dev.live.store(Some(live));
    drop(assembly);
    remains.check(0);
}
