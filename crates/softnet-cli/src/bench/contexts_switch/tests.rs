//! The bench measures what it says, and notices what it must.

use super::load::Packet;
use super::*;
use softnet_testkit::net_allowed;

const SHORT: Duration = Duration::from_millis(500);

fn is_sound(found: &Found) {
    assert!(!found.switches.is_empty() && found.time >= SHORT && found.capacity > 0.0 && found.sent > 0);
    assert_eq!(found.reordered, 0);
    let sample = sample(found);
    let figure = |name| sample.iter().find(|(figure, _)| *figure == name).unwrap().1;
    assert!(figure("switch_p50_us") <= figure("switch_p99_us"));
    assert!(figure("switch_p99_us") <= figure("switch_max_us") && figure("longest_stall_ms") > 0.0);
}

#[test]
fn accounts_for_each_packet_over_mem() {
    is_sound(&measure(Device::Mem, SHORT).unwrap());
}

#[test]
fn accounts_for_each_packet_over_xdp() {
    if net_allowed() {
        is_sound(&measure(Device::Xdp, SHORT).unwrap());
    }
}

#[test]
fn packets_are_read_back() {
    let packet = Packet { flow: 31, number: 0xfedc_ba98, at: u64::MAX - 1 };
    assert_eq!(Packet::from_bytes(&packet.to_bytes()), Some(packet));
    assert_eq!(Packet::from_bytes(&packet.to_bytes()[1..]), None);
    assert_eq!(Packet::from_bytes(&[0xff; 16]), None, "no such flow");
}
