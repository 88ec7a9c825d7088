use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::steer::flow_hash;

/// A frame of `protocol`, from a source and port to a destination and port, behind the VLAN tag if
/// there is one.
fn frame(vlan: Option<u16>, protocol: u8, (src, sp): (&str, u16), (dst, dp): (&str, u16)) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if let Some(tag) = vlan {
        frame.extend([0x81, 0]);
        frame.extend(tag.to_be_bytes());
    }
    match (src.parse::<Ipv4Addr>(), dst.parse::<Ipv4Addr>()) {
        (Ok(src), Ok(dst)) => {
            frame.extend([0x08, 0x00, 0x45, 0xb8, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0]);
            frame.extend([src.octets(), dst.octets()].concat());
        }
        _ => {
            frame.extend([0x86, 0xdd, 0x6b, 0x80, 0, 0, 0, 8, protocol, 64]);
            let of = |addr: &str| addr.parse::<Ipv6Addr>().unwrap().octets();
            frame.extend([of(src), of(dst)].concat());
        }
    }
    frame.extend([sp.to_be_bytes(), dp.to_be_bytes()].concat());
    frame.extend([0; 4]);
    frame
}

fn udp(src: (&str, u16), dst: (&str, u16)) -> Vec<u8> {
    frame(None, 17, src, dst)
}

fn rule(class: &mut RxClass, text: &str) -> Result<u32, String> {
    let order: RuleOrder = text.parse().map_err(|error: super::super::WordError| error.to_string())?;
    class.set_rule(&order).map_err(|error| error.to_string())
}

fn rss(class: &mut RxClass, text: &str) -> Result<Option<u32>, String> {
    class.set_rss(&text.parse().unwrap()).map_err(|error| error.to_string())
}

fn queue(class: &RxClass, frame: &[u8]) -> Option<u16> {
    match class.classify(frame) {
        Verdict::Queue { queue, .. } => Some(queue),
        Verdict::Drop => None,
    }
}

const A: (&str, u16) = ("66.9.149.187", 2794);
const B: (&str, u16) = ("161.142.100.80", 1766);
const A6: (&str, u16) = ("3ffe:2501:200:1fff::7", 2794);
const B6: (&str, u16) = ("3ffe:2501:200:3::1", 1766);

#[test]
fn rss_is_by_the_published_hashes() {
    let mut class = RxClass::new(8).unwrap();
    for vlan in [None, Some(0x2007)] {
        for (protocol, hash) in [(6, 0x51cc_c178), (17, 0x51cc_c178), (1, 0x323e_8fc2)] {
            let frame = frame(vlan, protocol, A, B);
            assert_eq!(class.classify(&frame), Verdict::Queue { queue: (hash as u16 & 127) % 8, hash });
            assert_eq!((class.hash(&frame), flow_hash(&frame)), (hash, hash));
        }
        for (protocol, hash) in [(6, 0x4020_7d3d), (17, 0x4020_7d3d), (58, 0x2cc1_8cd5)] {
            assert_eq!(class.hash(&frame(vlan, protocol, A6, B6)), hash);
        }
    }
    // A fragment goes by its addresses.
    let mut fragment = udp(A, B);
    fragment[20] = 0x20;
    assert_eq!(class.hash(&fragment), 0x323e_8fc2);
    // Without the ports of UDP, what is not cut goes the same way; and it is no flow hash any more.
    rss(&mut class, "rx-flow-hash udp4 sd").unwrap();
    assert_eq!(class.classify(&udp(A, B)), Verdict::Queue { queue: (0xc2 & 127) % 8, hash: 0 });
    assert_eq!(class.hash(&frame(None, 6, A, B)), 0x51cc_c178, "TCP");
    assert_eq!(queue(&class, &[0; 60]), Some(0), "not IP");
}

#[test]
fn both_directions_of_a_flow_go_to_one_queue_where_that_was_asked_for() {
    let periodic = super::super::format_key(&[0x6d, 0x5a].repeat(20));
    for how in ["xfrm symmetric-xor", "xfrm symmetric-or-xor", &format!("hkey {periodic}")] {
        let mut class = RxClass::new(16).unwrap();
        assert_ne!(class.hash(&udp(A, B)), class.hash(&udp(B, A)));
        rss(&mut class, how).unwrap();
        for (a, b) in [(A, B), (A6, B6)] {
            assert_eq!(class.hash(&udp(a, b)), class.hash(&udp(b, a)), "{how}");
            assert_eq!(class.classify(&udp(a, b)), class.classify(&udp(b, a)));
            // Not since nothing counts.
            assert_ne!(class.hash(&udp(a, b)), class.hash(&udp(a, (b.0, 7))));
        }
    }
}

#[test]
fn a_filter_of_one_flow_comes_behind_the_users_and_before_the_table() {
    let mut class = RxClass::new(8).unwrap();
    let by_table = queue(&class, &udp(A, B)).unwrap();
    let [first, second] = [1, 2].map(|n| (by_table + n) % 8);
    let key = FlowKey::of(&udp(A, B)).unwrap();
    class.set_flow_filter(9, Some((&key, first))).unwrap();
    assert_eq!(queue(&class, &udp(A, B)), Some(first));
    assert_eq!(queue(&class, &frame(Some(5), 17, A, B)), Some(first), "whatever its VLAN");
    assert_eq!(queue(&class, &frame(None, 6, A, B)), Some(by_table), "TCP");
    let shown = |class: &RxClass| {
        let of = |(at, rule, hits): (u32, Rule, u64)| format!("{at}: {rule}, {hits}");
        class.flow_filters().map(of).collect::<Vec<_>>()
    };
    let words = "flow-type udp4 src-ip 66.9.149.187 dst-ip 161.142.100.80 src-port 2794 dst-port 1766";
    assert_eq!(shown(&class), [format!("1033: {words} action {first}, 2")]);
    // It goes elsewhere, and is counted on; another flow's takes its place.
    class.set_flow_filter(9, Some((&key, second))).unwrap();
    assert_eq!(queue(&class, &udp(A, B)), Some(second));
    assert_eq!(shown(&class), [format!("1033: {words} action {second}, 3")]);
    assert_eq!(rule(&mut class, "flow-type udp4 action -1"), Ok(1023));
    assert_eq!(queue(&class, &udp(A, B)), None);
    let of_rfs =
        "delete: the filter at location 1033 is RFS's, which deletes it when its flow has gone quiet";
    assert_eq!(rule(&mut class, "delete 1033"), Err(of_rfs.into()));
    assert_eq!(rule(&mut class, "delete 1023"), Ok(1023));
    let other = FlowKey::of(&udp(B, A)).unwrap();
    class.set_flow_filter(9, Some((&other, second))).unwrap();
    assert_eq!((queue(&class, &udp(A, B)), queue(&class, &udp(B, A))), (Some(by_table), Some(second)));
    for (at, queue) in [(FLOW_LOCATIONS, 0), (9, 8)] {
        class.set_flow_filter(at, Some((&other, queue))).unwrap_err();
    }
    assert_eq!(class.flow_filters().count(), 1);
    class.set_flow_filter(9, None).unwrap();
    class.set_flow_filter(9, None).unwrap();
    assert_eq!(class.flow_filters().count(), 0);
}

#[test]
fn a_filter_comes_before_the_table() {
    let mut class = RxClass::new(8).unwrap();
    let by_table = queue(&class, &udp(A, B)).unwrap();
    let other = (by_table + 1) % 8;
    assert_eq!(rule(&mut class, &format!("flow-type udp4 dst-port 1766 action {other}")), Ok(1023));
    assert_eq!(queue(&class, &udp(A, B)), Some(other));
    assert_eq!(queue(&class, &frame(None, 6, A, B)), Some(by_table), "TCP");
    assert_eq!(queue(&class, &udp(B, A)), queue(&RxClass::new(8).unwrap(), &udp(B, A)), "another port");
    // What is at a lower location comes first; automatic ones are filled from the end.
    assert_eq!(rule(&mut class, "flow-type udp4 action -1"), Ok(1022));
    assert_eq!(queue(&class, &udp(A, B)), None);
    assert_eq!(rule(&mut class, "flow-type udp4 src-ip 66.9.149.187 action 3 loc 7"), Ok(7));
    assert_eq!(queue(&class, &udp(A, B)), Some(3));
    let hits: Vec<_> = class.filters().map(|(at, _, hits)| (at, hits)).collect();
    assert_eq!(hits, [(7, 1), (1022, 1), (1023, 1)]);
    // A copy counts on.
    let copy = class.clone();
    copy.classify(&udp(A, B));
    assert_eq!(class.filters().next().unwrap().2, 2);
    assert_eq!(rule(&mut class, "delete 7"), Ok(7));
    assert_eq!(queue(&class, &udp(A, B)), None);
}

#[test]
fn a_filter_leads_to_a_context() {
    let mut class = RxClass::new(8).unwrap();
    assert_eq!(
        rule(&mut class, "flow-type tcp4 context 1").unwrap_err(),
        "context: no context 1; `softnet set rss DEV context new` makes one"
    );
    assert_eq!(rss(&mut class, "context new equal 1 start 6"), Ok(Some(1)));
    rule(&mut class, "flow-type tcp4 context 1 loc 0").unwrap();
    assert_eq!(queue(&class, &frame(None, 6, A, B)), Some(6));
    assert_eq!(queue(&class, &udp(A, B)), Some(0));
    let error = rss(&mut class, "context 1 delete").unwrap_err();
    assert_eq!(error, "context 1 is in use by the filter at location 0: delete that first");
    rss(&mut class, "context 1 equal 1 start 5").unwrap();
    assert_eq!(queue(&class, &frame(None, 6, A, B)), Some(5));
    rule(&mut class, "delete 0").unwrap();
    assert_eq!(rss(&mut class, "context 1 delete"), Ok(None));
}

#[test]
fn each_part_of_a_filter_counts_under_its_mask() {
    for (text, takes, leaves) in [
        ("udp4 src-ip 66.9.149.187", udp(A, B), udp(B, A)),
        ("udp4 src-ip 66.9.149.0 m 0.0.0.255", udp(A, B), udp(("66.9.150.187", 2794), B)),
        ("udp4 dst-ip 161.142.0.0 m 0.0.255.255", udp(A, B), udp(B, A)),
        ("udp4 src-port 2794", udp(A, B), udp(B, A)),
        ("udp4 src-port 0xae0 m 0xf", udp(A, B), udp((A.0, 2816), B)),
        ("ip4 l4proto 17", udp(A, B), frame(None, 6, A, B)),
        ("ip4 tos 0xb8", udp(A, B), udp(A6, B6)),
        ("udp4 tos 0x10 m 0xef", udp(A, B), udp(A6, B6)),
        ("udp4 vlan 7 m 0xf000", frame(Some(0x2007), 17, A, B), udp(A, B)),
        ("udp4 vlan 0 m 0xf000", frame(Some(0x2000), 17, A, B), udp(A, B)),
        ("udp4 vlan 7", frame(Some(7), 17, A, B), frame(Some(0x2007), 17, A, B)),
        ("tcp6", frame(None, 6, A6, B6), udp(A6, B6)),
        ("udp6 dst-ip 3ffe:2501:200:3::1", udp(A6, B6), udp(B6, A6)),
        (
            "udp6 dst-ip 3ffe:2501:: m ::ffff:ffff:ffff:ffff:ffff:ffff",
            udp(A6, B6),
            udp(A6, ("3ffe:2502::1", 1)),
        ),
        ("ip6 tclass 0xb8", udp(A6, B6), udp(A, B)),
        ("udp4 dst-port 0", udp(A, (B.0, 0)), udp(A, B)),
    ] {
        let mut class = RxClass::new(1).unwrap();
        rule(&mut class, &format!("flow-type {text} action -1")).unwrap();
        assert_eq!((queue(&class, &takes), queue(&class, &leaves)), (None, Some(0)), "{text}");
        // Shown in words that make the same.
        let (_, shown, _) = class.filters().next().unwrap();
        let again: RuleOrder = shown.to_string().parse().unwrap();
        assert_eq!(again, RuleOrder::Insert { rule: *shown, location: None }, "{shown}");
        assert_eq!(
            shown.to_string(),
            format!("flow-type {text} action -1")
                .replace("0xae0", "2784")
                .replace("0xb8", "184")
                .replace("0x10", "16")
        );
    }
    // A fragment has no ports, not even 0.
    let mut class = RxClass::new(1).unwrap();
    rule(&mut class, "flow-type udp4 dst-port 0 m 0xfffe action -1").unwrap();
    let mut fragment = udp(A, B);
    assert_eq!(queue(&class, &fragment), None);
    fragment[20] = 0x20;
    assert_eq!(queue(&class, &fragment), Some(0));
    rule(&mut class, "flow-type udp4 action -1").unwrap();
    assert_eq!(queue(&class, &fragment), None, "by its protocol");
}

#[test]
fn filters_that_can_not_be_are_refused() {
    let mut class = RxClass::new(4).unwrap();
    rule(&mut class, "flow-type udp4 action 0 loc 5").unwrap();
    for (text, expected) in [
        ("", "expected flow-type or delete, found nothing"),
        ("delete", "delete: expected the location of a filter, found nothing"),
        ("delete 6", "delete: no filter at location 6; `softnet show ntuple` lists those that there are"),
        ("delete 5 now", "expected nothing more, found \"now\""),
        (
            "flow-type ether action 1",
            "flow-type: expected ip4, tcp4, udp4, ip6, tcp6 or udp6, found \"ether\"",
        ),
        ("flow-type udp4", "expected action or context at the end, found nothing"),
        (
            "flow-type udp4 action 4",
            "action: queue 4 is not there: the device has 4, numbered from 0; -1 drops",
        ),
        (
            "flow-type udp4 action -2",
            "action: expected the number of an RX queue, or -1 to drop, found \"-2\"",
        ),
        (
            "flow-type udp4 action 1 loc 5",
            "loc: there is a filter at location 5: delete that first, or leave `loc` out",
        ),
        ("flow-type udp4 action 1 loc 1024", "loc: expected a location from 0 to 1023, found 1024"),
        (
            "flow-type udp4 dst-port 70000 action 1",
            "dst-port: expected a number from 0 to 65535, found \"70000\"",
        ),
        ("flow-type udp4 dst-port 7 m", "dst-port: expected a number from 0 to 65535, found nothing"),
        ("flow-type udp4 src-ip ::1 action 1", "src-ip: expected an IPv4 address, found \"::1\""),
        ("flow-type tcp6 src-ip 1.2.3.4 action 1", "src-ip: expected an IPv6 address, found \"1.2.3.4\""),
        (
            "flow-type tcp4 l4proto 6 action 1",
            "expected src-ip, dst-ip, tos, src-port, dst-port, vlan, action, context or loc, found \"l4proto\"",
        ),
    ] {
        assert_eq!(rule(&mut class, text), Err(expected.into()), "{text}");
    }
    assert_eq!(class.filters().count(), 1);
    (1..LOCATIONS).for_each(|_| _ = rule(&mut class, "flow-type udp4 action 0").unwrap());
    assert!(
        rule(&mut class, "flow-type udp4 action 0").unwrap_err().contains("all 1024 locations are taken")
    );
}

proptest! {
    #[test]
    fn a_verdict_names_a_queue_that_is_there(
        queues in 1u16..40,
        frame in prop::collection::vec(prop_oneof![Just(0u8), Just(8), Just(0x45), any::<u8>()], 0..100),
        v6: bool,
    ) {
        let mut class = RxClass::new(queues).unwrap();
        rss(&mut class, &format!("context new equal {}", queues.min(3))).unwrap();
        rule(&mut class, &format!("flow-type ip4 tos 0 m 0xfe action {}", queues - 1)).unwrap();
        rule(&mut class, "flow-type ip6 context 1").unwrap();
        let mut frame = frame;
        if frame.len() > 14 {
            frame[12..15].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[8, 0, 0x45] });
        }
        if let Verdict::Queue { queue, hash } = class.classify(&frame) {
            prop_assert!(queue < queues);
            prop_assert_eq!(hash, flow_hash(&frame));
        }
    }

    #[test]
    fn no_text_panics(text: String) {
        let _ = text.parse::<RuleOrder>();
    }

    #[test]
    fn words_make_the_filter_that_they_show(
        src: u32, src_mask: u32, ports: [u8; 4], port_mask: [u8; 4], vlan: u16, queue: u16,
    ) {
        let action = RuleAction::Queue(queue);
        let rule = Rule::new(super::super::FlowType::Tcp4, action).with_parts([
            (&src.to_be_bytes(), &src_mask.to_be_bytes()),
            (&[], &[]),
            (&ports, &port_mask),
            (&[], &[]),
            (&[], &[]),
            (&vlan.to_be_bytes(), &[0xff; 2]),
        ]);
        prop_assert_eq!(rule.to_string().parse(), Ok(RuleOrder::Insert { rule, location: None }));
    }
}

/// Prints what hashing costs: run with `--release --ignored --nocapture`.
#[test]
#[ignore = "a figure, not a test"]
fn what_a_hash_costs() {
    let frames = |v6: bool| -> Vec<Vec<u8>> {
        let of = |i: u16| if v6 { udp((A6.0, i), B6) } else { udp((A.0, i), B) };
        (0..64).map(of).collect()
    };
    let mut class = RxClass::new(8).unwrap();
    let time = |name: &str, frames: &[Vec<u8>], hash: &dyn Fn(&[Vec<u8>]) -> u32| {
        let mut best = f64::MAX;
        for _ in 0..200 {
            let start = std::time::Instant::now();
            for _ in 0..100 {
                std::hint::black_box(hash(std::hint::black_box(frames)));
            }
            best = best.min(start.elapsed().as_nanos() as f64 / 6400.0);
        }
        println!("{name}: {best:.2} ns");
    };
    // Without looking for the fields in a frame.
    let tuples: Vec<Vec<u8>> = (0..64u8).map(|i| vec![i.wrapping_mul(37); 36]).collect();
    let hash = class.rss().hash().clone();
    time("RssHash of the fields, IPv4", &tuples, &|tuples| {
        tuples.iter().fold(0, |sum, t| sum ^ hash.hash::<8>(t[..].first_chunk().unwrap(), [t[8]; 4]))
    });
    time("RssHash of the fields, IPv6", &tuples, &|tuples| {
        tuples.iter().fold(0, |sum, t| sum ^ hash.hash::<32>(t[..].first_chunk().unwrap(), [t[32]; 4]))
    });
    for (name, frames) in [("IPv4", frames(false)), ("IPv6", frames(true))] {
        time(&format!("flow_hash {name}"), &frames, &|frames| {
            frames.iter().fold(0, |sum, f| sum ^ flow_hash(f))
        });
        time(&format!("RssHash {name}"), &frames, &|frames| {
            frames.iter().fold(0, |sum, f| sum ^ class.hash(f))
        });
        rss(&mut class, "xfrm symmetric-or-xor").unwrap();
        time(&format!("symmetric {name}"), &frames, &|frames| {
            frames.iter().fold(0, |sum, f| sum ^ class.hash(f))
        });
        rss(&mut class, "xfrm none").unwrap();
    }
}
