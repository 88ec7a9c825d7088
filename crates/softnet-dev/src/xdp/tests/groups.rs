//! Multicast groups that are joined: their datagrams are softnet's, and the kernel is a member for it.

use std::net::{Ipv6Addr, SocketAddrV6};

use super::*;

const JOINED: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const OTHER: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 4);
const JOINED6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x1234);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x1, 0x1234);
/// What is to this one comes, and all before it has come then.
const LAST: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 255);

/// Whether the kernel is a member here, as `/proc/net` tells.
fn kernel_is_member(world: &World, group: IpAddr) -> bool {
    let (file, name) = match group {
        IpAddr::V4(group) => ("igmp", format!("{:08X}", u32::from_ne_bytes(group.octets()))),
        IpAddr::V6(group) => ("igmp6", format!("{:032x}", group.to_bits())),
    };
    let text = world.here.run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap());
    text.unwrap().contains(&name)
}

/// The kernel's end: sends to groups of both families, each datagram with what group it is to as its payload.
struct Sender([UdpSocket; 2], u32);

impl Sender {
    fn new(world: &World) -> Self {
        world
            .there
            .run(|| {
                let index = Netlink::new().unwrap().existing_link("k0").unwrap().index;
                let v6 = UdpSocket::bind("[::]:0").unwrap();
                Sender([udp(peer(0)), v6], index)
            })
            .unwrap()
    }

    fn send(&self, group: IpAddr) -> bool {
        let payload = group.to_string();
        let sent = match group {
            IpAddr::V4(group) => self.0[0].send_to(payload.as_bytes(), (group, 7)),
            IpAddr::V6(group) => {
                self.0[1].send_to(payload.as_bytes(), SocketAddrV6::new(group, 7, 0, self.1))
            }
        };
        // There may be no address yet to send from.
        sent.is_ok()
    }
}

/// The groups to which datagrams came.
fn received(device: &mut OpenDevice, ctx: &mut SoftnetData) -> Vec<IpAddr> {
    let mut groups = vec![];
    for rx in &mut device.rx {
        let mut batch = Batch::new();
        rx.rx_burst(ctx, &mut batch, 64);
        for skb in batch.drain() {
            let at = if skb.data()[12..14] == [8, 0] { 42 } else { 62 };
            // Short frames are filled up.
            let text = skb.data()[at..].split(|byte| *byte == 0).next().unwrap();
            groups.push(std::str::from_utf8(text).unwrap().parse().unwrap());
            ctx.free(skb, DropReason::UnhandledProto);
        }
    }
    groups
}

fn datagrams_to_a_group_come(mode: Mode) {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    // Of IPv4 alone: groups of either family may be joined all the same.
    let (mut device, claims) = world.open(&XdpConfig { mode, ..world.config(0) }, &mut ctx).unwrap();
    device.device.join_group(LAST.into()).unwrap();
    let sender = Sender::new(&world);
    for (joined, other) in [(IpAddr::V4(JOINED), IpAddr::V4(OTHER)), (JOINED6.into(), OTHER6.into())] {
        let mut come = |device: &mut OpenDevice| {
            for group in [other, joined, LAST.into()] {
                until("it is sent", || sender.send(group));
            }
            let mut groups = vec![];
            until("the last", || {
                groups.extend(received(device, &mut ctx));
                groups.last() == Some(&LAST.into())
            });
            groups.pop();
            groups
        };
        assert_eq!((come(&mut device), kernel_is_member(&world, joined)), (vec![], false));
        device.device.join_group(joined).unwrap();
        device.device.join_group(joined).expect("joined already");
        assert!(kernel_is_member(&world, joined) && !kernel_is_member(&world, other));
        assert_eq!(come(&mut device), [joined]);
        claims.replace(&Claim::default()).unwrap();
        assert_eq!(come(&mut device), [joined], "another program, the same groups");
        device.device.leave_group(joined);
        device.device.leave_group(joined);
        assert_eq!((come(&mut device), kernel_is_member(&world, joined)), (vec![], false));
    }
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

#[test]
fn datagrams_to_a_group_come_while_it_is_joined() {
    datagrams_to_a_group_come(Mode::Native);
}

#[test]
fn datagrams_to_a_group_come_while_it_is_joined_in_skb_mode() {
    datagrams_to_a_group_come(Mode::Skb);
}

/// More than one socket of the kernel's may be in, and from a thread that is in the interface's namespace.
#[test]
fn many_groups_are_joined_at_once_and_left_with_the_device() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let (device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let groups = (0..50).map(|i| IpAddr::V4(Ipv4Addr::new(239, 9, 9, i)));
    world.here.run(|| groups.clone().for_each(|group| device.device.join_group(group).unwrap())).unwrap();
    assert!(groups.clone().all(|group| kernel_is_member(&world, group)));
    let not_a_group = device.device.join_group(peer(0).into()).unwrap_err().to_string();
    assert!(not_a_group.starts_with("join multicast group 10.9.0.2: "), "{not_a_group}");
    close(device, &mut ctx);
    assert!(!groups.clone().any(|group| kernel_is_member(&world, group)));
    world.assert_whole(&mut ctx);
}
