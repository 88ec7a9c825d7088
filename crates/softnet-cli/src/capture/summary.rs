//! A packet in one line, in tcpdump's short form.

use std::fmt::Write;
use std::net::IpAddr;

use softnet_core::tap::filter::Facts;

/// What `frame`, the first bytes of a packet of `len`, is.
pub(super) fn summary(frame: &[u8], len: usize) -> String {
    let facts = Facts::of(frame, len, None);
    let mut text = String::new();
    for id in facts.vlans() {
        let _ = write!(text, "vlan {id}, ");
    }
    let Some([src, dst]) = facts.addrs else {
        let _ = write!(text, "ethertype 0x{:04x}, length {len}", facts.ethertype);
        return text;
    };
    if facts.ethertype == 0x0806 {
        // The operation is before the addresses, whose place is known by now.
        let at = 12 + 4 * facts.vlans().count() + 2;
        let what = match frame.get(at + 7) {
            Some(1) => format!("Request who-has {dst} tell {src}"),
            Some(2) => match frame.get(at + 8..at + 14) {
                Some([a, b, c, d, e, f]) => {
                    format!("Reply {src} is-at {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
                }
                _ => format!("Reply from {src}"),
            },
            _ => format!("{src} > {dst}"),
        };
        return text + &format!("ARP, {what}, length {len}");
    }
    text += if src.is_ipv4() { "IP " } else { "IP6 " };
    let [from, to] = [0, 1].map(|end| match facts.ports {
        Some(ports) => format!("{}.{}", [src, dst][end], ports[end]),
        None => [src, dst][end].to_string(),
    });
    let _ = write!(text, "{from} > {to}: ");
    // Without what pads a short frame; an aggregate may have no length in its header.
    let l3 = 14 + 4 * facts.vlans().count();
    let word = |at: usize| frame.get(at..at + 2).map_or(0, |b| usize::from(u16::from_be_bytes([b[0], b[1]])));
    let (said, fixed) = if src.is_ipv4() { (word(l3 + 2), 0) } else { (word(l3 + 4), 40) };
    let end = if said > 0 { len.min(l3 + fixed + said) } else { len };
    let payload = end.saturating_sub(facts.l4.unwrap_or(0));
    let l4 = facts.l4.and_then(|at| frame.get(at..)).map(|l4| &l4[..l4.len().min(payload)]);
    text += &match (facts.protocol, l4) {
        (Some(6), Some(header)) if facts.ports.is_some() => tcp(header, payload),
        (Some(17), Some(header)) if facts.ports.is_some() => match header.get(4..6) {
            Some(&[high, low]) => {
                format!("UDP, length {}", u16::from_be_bytes([high, low]).saturating_sub(8))
            }
            _ => "UDP".into(),
        },
        (Some(1 | 58), Some(message @ [kind, ..])) => {
            format!("{}{}, length {}", icmp(src, *kind), echo(src, message), payload)
        }
        (Some(protocol), None) => format!("fragment of protocol {protocol}, length {len}"),
        (Some(protocol), _) => format!("protocol {protocol}, length {len}"),
        (None, _) => format!("length {len}"),
    };
    text
}

fn tcp(header: &[u8], len: usize) -> String {
    let Some(header) = header.get(..20) else { return "TCP".into() };
    let flags: String = [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (0x10, '.'), (0x40, 'E'), (0x80, 'W')]
        .into_iter()
        .filter(|(bit, _)| header[13] & bit != 0)
        .map(|(_, flag)| flag)
        .collect();
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let payload = len.saturating_sub(4 * usize::from(header[12] >> 4));
    let ack = if header[13] & 0x10 != 0 { format!(", ack {}", word(8)) } else { String::new() };
    format!(
        "Flags [{flags}], seq {}{ack}, win {}, length {payload}",
        word(4),
        u16::from_be_bytes([header[14], header[15]])
    )
}

fn icmp(src: IpAddr, kind: u8) -> String {
    let name = match (src.is_ipv4(), kind) {
        (true, 0) => "echo reply",
        (true, 3) => "unreachable",
        (true, 5) => "redirect",
        (true, 8) => "echo request",
        (true, 11) => "time exceeded",
        (false, 1) => "unreachable",
        (false, 2) => "packet too big",
        (false, 3) => "time exceeded",
        (false, 128) => "echo request",
        (false, 129) => "echo reply",
        (false, 133) => "router solicitation",
        (false, 134) => "router advertisement",
        (false, 135) => "neighbor solicitation",
        (false, 136) => "neighbor advertisement",
        (true, kind) => return format!("ICMP type {kind}"),
        (false, kind) => return format!("ICMP6, type {kind}"),
    };
    if src.is_ipv4() { format!("ICMP {name}") } else { format!("ICMP6, {name}") }
}

/// The identifier and number of an echo, by which a reply is found to its request.
fn echo(src: IpAddr, message: &[u8]) -> String {
    match (src.is_ipv4(), message) {
        (true, &[0 | 8, _, _, _, id_high, id, seq_high, seq, ..])
        | (false, &[128 | 129, _, _, _, id_high, id, seq_high, seq, ..]) => {
            format!(", id {}, seq {}", u16::from_be_bytes([id_high, id]), u16::from_be_bytes([seq_high, seq]))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, l4: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 20 + l4.len() as u8];
        frame.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 1, 2]);
        frame.extend(l4);
        frame.resize(frame.len().max(60), 0);
        frame
    }

    #[test]
    fn packets_in_one_line() {
        let syn = [4, 210, 0, 80, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0];
        let tcp = v4(6, &syn);
        let mut tagged = tcp.clone();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        let mut arp = vec![0xff; 6];
        arp.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        arp.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
        let mut reply = arp.clone();
        reply[21] = 2;
        for (frame, expected) in [
            (&tcp, "IP 10.0.0.1.1234 > 10.0.1.2.80: Flags [S], seq 9, win 256, length 0"),
            (&tagged, "vlan 7, IP 10.0.0.1.1234 > 10.0.1.2.80: Flags [S], seq 9, win 256, length 0"),
            (&v4(17, &[0, 1, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]), "IP 10.0.0.1.1 > 10.0.1.2.53: UDP, length 4"),
            (&v4(1, &[8, 0, 0, 0]), "IP 10.0.0.1 > 10.0.1.2: ICMP echo request, length 4"),
            (
                &v4(1, &[8, 0, 0, 0, 1, 2, 0, 3, 0]),
                "IP 10.0.0.1 > 10.0.1.2: ICMP echo request, id 258, seq 3, length 9",
            ),
            (&arp, "ARP, Request who-has 10.0.0.9 tell 10.0.0.1, length 42"),
            (&reply, "ARP, Reply 10.0.0.1 is-at 02:00:00:00:00:01, length 42"),
        ] {
            assert_eq!(summary(frame, frame.len()), expected);
            // However little of it was kept.
            (0..frame.len()).for_each(|kept| _ = summary(&frame[..kept], frame.len()));
        }
    }
}
