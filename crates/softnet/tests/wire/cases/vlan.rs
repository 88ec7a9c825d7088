//! Tags: those of VLAN 0 say a priority and nothing else (IEEE 802.1Q).

use crate::case::Cases;
use crate::net::{A, BROADCAST, Net, group_mac, router4, router6, solicited_node};
use crate::packet::{Frame, Ip4, Ip6};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("vlan");
    let c = &mut cases;
    let tags = [
        ("priority-0", 0x8100, 0),
        ("priority-5", 0x8100, 0xa000),
        ("priority-7-drop", 0x8100, 0xf000),
        ("vlan-1", 0x8100, 1),
        ("vlan-5", 0x8100, 5),
        ("vlan-4095", 0x8100, 4095),
        ("service-0", 0x88a8, 0),
        ("service-5", 0x88a8, 5),
        ("old-qinq-0", 0x9100, 0),
    ];
    for (name, ethertype, control) in tags {
        let tagged = move |frame: Frame| frame.tag(ethertype, control);
        c.add(format!("{name}-v4-through"), move |n| tagged(n.a(n.through().udp(5, 20))));
        c.add(format!("{name}-v6-through"), move |n| tagged(n.a(n.through6().udp(5, 20))));
        c.add(format!("{name}-v4-echo"), move |n| tagged(n.a(n.to_router().echo(20))));
        c.add(format!("{name}-v6-echo"), move |n| tagged(n.a(n.to_router6().echo(20))));
        c.add(format!("{name}-v4-ttl-1"), move |n| tagged(n.a(n.through().ttl(1).udp(5, 20))));
        c.add(format!("{name}-v4-long"), move |n| tagged(n.a(n.through().udp(5, 1472))));
        c.add(format!("{name}-arp"), move |n: Net| {
            tagged(Frame::new(A, (n.host_mac(A), BROADCAST), &n.who_has(router4(A))))
        });
        c.add(format!("{name}-solicitation"), move |n| {
            let group = solicited_node(router6(A));
            let body = [&router6(A).octets()[..], &[1, 1], &n.host_mac(A)].concat();
            let packet = Ip6::new(n.host6(A), group).hops(255).icmp(135, 0, 0, &body);
            tagged(Frame::new(A, (n.host_mac(A), group_mac(group)), &packet))
        });
    }
    c.add("cut", |n| n.a(n.through().udp(5, 20)).tag(0x8100, 0).cut(0));
    c.add("other-mac", |n| n.a(n.through().udp(5, 20)).tag(0x8100, 0).to([2, 9, 9, 9, 9, 9]));
    c.add("host-to-router", |n| n.host(Ip4::new(n.host4(A), router4(A)).echo(20)).tag(0x8100, 0x6000));
    cases
}
