//! Expressions against packets, errors with their places, and a model: the same tree evaluated the plain way.

use proptest::prelude::*;

use super::*;

/// A frame from 10.0.0.1 to 10.0.1.2 with this protocol and ports.
fn v4(protocol: u8, [src, dst]: [u16; 2]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 1, 2]);
    frame.extend(src.to_be_bytes());
    frame.extend(dst.to_be_bytes());
    frame.extend([0; 16]);
    frame
}

/// From 2001:db8::1 to ff02::1, UDP behind a hop-by-hop header.
fn v6([src, dst]: [u16; 2]) -> Vec<u8> {
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 16, 0, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([17, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend(src.to_be_bytes());
    frame.extend(dst.to_be_bytes());
    frame.extend([0, 8, 0, 0]);
    frame
}

fn arp() -> Vec<u8> {
    let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6];
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
    frame
}

fn tagged(mut frame: Vec<u8>, id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    frame.splice(12..12, [0x81, 0, high, low]);
    frame
}

fn takes(text: &str, frame: &[u8]) -> bool {
    Filter::parse(text).unwrap_or_else(|error| panic!("{error}")).matches(frame, frame.len(), None)
}

#[test]
fn expressions_choose_packets() {
    let (tcp, udp6) = (v4(6, [1234, 80]), v6([546, 547]));
    for (text, of_tcp, of_udp6, of_arp) in [
        ("", true, true, true),
        ("ip", true, false, false),
        ("ip6", false, true, false),
        ("arp", false, false, true),
        ("tcp", true, false, false),
        ("udp", false, true, false),
        ("icmp or icmp6", false, false, false),
        ("host 10.0.0.1", true, false, true),
        ("ip host 10.0.0.1", true, false, false),
        ("arp host 10.0.0.9", false, false, true),
        ("src host 10.0.0.1", true, false, true),
        ("dst 10.0.0.1", false, false, false),
        ("src or dst host 10.0.1.2", true, false, false),
        ("src and dst net 10.0.0.0/8", true, false, true),
        ("src and dst net 10.0.0.0/24", false, false, true),
        ("net 10", true, false, true),
        ("dst net 10.0.1", true, false, false),
        ("net 10.0.1.0 mask 255.255.255.0", true, false, false),
        ("net 0.0.0.0/0", true, false, true),
        ("net 2001:db8::/32", false, true, false),
        ("dst host ff02::1", false, true, false),
        ("port 80", true, false, false),
        ("src port 80", false, false, false),
        ("tcp dst port 80", true, false, false),
        ("udp port 80", false, false, false),
        ("udp portrange 500-600", false, true, false),
        ("portrange 600-500", false, true, false),
        ("port 80 or 546", true, true, false),
        ("host 10.0.0.7 or 10.0.0.9", false, false, true),
        ("not tcp", false, true, true),
        ("! ( tcp or udp )", false, false, true),
        // From left to right, neither before the other.
        ("arp or tcp and port 1", false, false, false),
        ("arp or (tcp and port 1)", false, false, true),
        ("proto 6", true, false, false),
        ("ip proto \\tcp", true, false, false),
        ("ip6 proto 17", false, true, false),
        ("ether proto 0x0806", false, false, true),
        ("ether host 2:0:0:0:0:1", true, true, true),
        ("ether dst 02:00:00:00:00:02", true, false, false),
        ("broadcast", false, false, true),
        ("ether multicast", false, true, true),
        ("greater 60", false, true, false),
        ("less 54", true, false, true),
        ("vlan", false, false, false),
    ] {
        let found = [&tcp, &udp6, &arp()].map(|frame| takes(text, frame));
        assert_eq!(found, [of_tcp, of_udp6, of_arp], "{text}");
        // Every test but that for tags and lengths looks behind them.
        if !text.contains("vlan") && !text.contains("er ") && !text.contains("less") {
            let found = [&tcp, &udp6, &arp()].map(|frame| takes(text, &tagged(frame.clone(), 7)));
            assert_eq!(found, [of_tcp, of_udp6, of_arp], "tagged: {text}");
        }
    }
}

#[test]
fn tags_are_seen_in_the_frame_and_beside_it() {
    let inner = v4(17, [1, 2]);
    for (text, beside, within, twice) in [
        ("vlan", true, true, true),
        ("vlan 7", true, true, true),
        ("vlan 9", false, false, true),
        ("vlan 7 and udp port 2", true, true, true),
        ("not vlan", false, false, false),
        ("greater 58", true, true, true),
    ] {
        let filter = Filter::parse(text).unwrap();
        let (one, two) = (tagged(inner.clone(), 7), tagged(tagged(inner.clone(), 9), 0xe007));
        let found = [
            filter.matches(&inner, inner.len(), Some(0x2007)),
            filter.matches(&one, one.len(), None),
            filter.matches(&two, two.len(), None),
        ];
        assert_eq!(found, [beside, within, twice], "{text}");
    }
}

#[test]
fn further_fragments_have_no_ports() {
    let mut frame = v4(17, [53, 53]);
    frame[20] = 0x20;
    assert!(takes("udp port 53", &frame), "the first one has");
    frame[21] = 8;
    assert!(takes("udp", &frame) && !takes("port 53", &frame));
}

#[test]
fn errors_say_where() {
    for (text, at, what) in [
        ("host", 4, "expected an IP address, found the end"),
        ("tcp prot 80", 4, "expected and, or, or the end, found \"prot\""),
        ("port http", 5, "expected a port, 0 to 65535, found \"http\""),
        ("port 65536", 5, "expected a port, 0 to 65535, found \"65536\""),
        ("udp and (port 53", 16, "expected and, or, or a closing parenthesis, found the end"),
        ("host gw", 5, "expected an IP address (names are not looked up), found \"gw\""),
        ("net 10.1.0.0/8", 4, "expected an address without bits behind the first 8, found \"10.1.0.0/8\""),
        ("ip6 host 10.0.0.1", 9, "expected an address of that protocol, found \"10.0.0.1\""),
        ("tcp host 10.0.0.1", 0, "expected nothing, ip, ip6, arp or ether, found \"tcp\" before it"),
        ("vlan 4096", 5, "expected the id of a VLAN, 0 to 4095, found \"4096\""),
        ("ether host 1:2:3:4:5", 11, "expected a MAC address, as 02:00:00:00:00:01, found \"1:2:3:4:5\""),
        ("tcp)", 3, "expected and, or, or the end, found \")\""),
        ("portrange 1", 10, "expected two ports, as 1024-65535, found \"1\""),
    ] {
        let error = Filter::parse(text).expect_err(text);
        assert_eq!((error.at, &error.what[..]), (at, what), "{text}");
        let shown = error.to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!((lines[1].trim(), lines[2].find('^')), (text, Some(2 + at)), "{shown}");
    }
    let error = Filter::parse("bogus").unwrap_err();
    assert!(error.what.starts_with("expected host, net, port"), "{error}");
}

#[test]
fn depth_is_bounded() {
    let nested = |n| format!("{}tcp{}", "(tcp or ".repeat(n), ")".repeat(n));
    assert!(Filter::parse(&nested(30)).is_ok());
    assert!(Filter::parse(&nested(40)).unwrap_err().what.starts_with("more than 30"));
    assert!(Filter::parse(&"not ".repeat(100_000)).is_err());
    // Operands do not pile up from left to right.
    let long = vec!["port 80"; 1000].join(" or ");
    assert!(takes(&long, &v4(6, [1, 80])) && !takes(&long, &v4(6, [1, 81])));
}

/// An expression as a tree, to compare with.
#[derive(Clone, Debug)]
enum Tree {
    Leaf(usize),
    Not(Box<Tree>),
    Two(bool, Box<Tree>, Box<Tree>),
}

const LEAVES: [&str; 6] = ["tcp", "udp", "port 80", "src net 10.0.0.0/25", "ip6", "vlan 7"];

impl Tree {
    fn text(&self) -> String {
        match self {
            Tree::Leaf(leaf) => LEAVES[*leaf].into(),
            Tree::Not(of) => format!("not ({})", of.text()),
            Tree::Two(and, a, b) => {
                format!("({}) {} ({})", a.text(), if *and { "and" } else { "||" }, b.text())
            }
        }
    }

    fn value(&self, leaves: &[bool; 6]) -> bool {
        match self {
            Tree::Leaf(leaf) => leaves[*leaf],
            Tree::Not(of) => !of.value(leaves),
            Tree::Two(true, a, b) => a.value(leaves) && b.value(leaves),
            Tree::Two(false, a, b) => a.value(leaves) || b.value(leaves),
        }
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    (0..LEAVES.len()).prop_map(Tree::Leaf).prop_recursive(6, 40, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|of| Tree::Not(of.into())),
            (any::<bool>(), inner.clone(), inner).prop_map(|(and, a, b)| Tree::Two(and, a.into(), b.into())),
        ]
    })
}

proptest! {
    #[test]
    fn expressions_are_what_their_trees_say(tree in trees(), of in 0..4usize) {
        let frame = [v4(6, [1, 80]), v4(17, [80, 2]), v6([1, 2]), tagged(v4(6, [80, 80]), 7)][of].clone();
        let leaves = LEAVES.map(|leaf| takes(leaf, &frame));
        prop_assert_eq!(takes(&tree.text(), &frame), tree.value(&leaves), "{}", tree.text());
    }

    #[test]
    fn any_text_is_read_or_refused(text in "([a-z0-9./:()!&| -]|host|net|port|not|and|or|src|é){0,40}", frame in prop::collection::vec(any::<u8>(), 0..80)) {
        match Filter::parse(&text) {
            Ok(filter) => { filter.matches(&frame, frame.len(), None); }
            Err(error) => prop_assert!(error.at <= text.chars().count()),
        }
    }

    /// Any bytes of any length, with every header as IPv4, IPv6 or ARP.
    #[test]
    fn any_packet_can_be_asked(ethertype in prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x0806), Just(0x8100)], rest in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut frame = vec![0; 12];
        frame.extend(ethertype.to_be_bytes());
        frame.extend(rest);
        for end in [frame.len(), frame.len() / 2, 14, 0] {
            takes("udp port 1 or net 10 or vlan 1 or ether host 0:0:0:0:0:0", &frame[..end.min(frame.len())]);
        }
    }
}
