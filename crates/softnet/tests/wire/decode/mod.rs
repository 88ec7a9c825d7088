//! What a frame says, in words: canonical, so that two routers can be compared.
//!
//! Addresses have the names of `net`. Checksums are verified and left out where they are right. Identifications and
//! bytes that were sent with the case are `same`; others are numbered or summed up. Fields with their usual value are left out.

mod ip;
mod names;
mod transport;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) use names::{is_announcement, is_noise, run_of};

use super::net::{Net, gateway_mac, router_mac};
use super::packet::{ID, sum};

const LETTER: [char; 3] = ['a', 'b', 'c'];

/// What a frame says: its kind, and its fields in the order of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) link: usize,
    pub(crate) kind: String,
    pub(crate) fields: Vec<(&'static str, String)>,
}

impl Said {
    /// All of it, in one line.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{} {}", LETTER[self.link], self.kind);
        for (name, value) in &self.fields {
            line.extend([" ", name, if name.is_empty() { "" } else { " " }, value]);
        }
        line
    }
}

/// Reads the frames that one router sent in one run of a case.
pub(crate) struct Decoder<'a> {
    net: Net,
    /// What was sent, from the IP header on.
    sent: &'a [Vec<u8>],
    /// Identifications of the router's own, as they came.
    idents: HashMap<u32, usize>,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}
fn addr4(bytes: &[u8], at: usize) -> Ipv4Addr {
    be32(bytes, at).into()
}
fn addr6(bytes: &[u8], at: usize) -> Ipv6Addr {
    let octets: [u8; 16] = bytes.get(at..at + 16).and_then(|b| b.try_into().ok()).unwrap_or([0; 16]);
    octets.into()
}
fn hex(bytes: &[u8]) -> String {
    match bytes {
        [] => "none".into(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// The fields of one frame, as they are found.
struct Fields(Vec<(&'static str, String)>);

impl Fields {
    fn say(&mut self, name: &'static str, value: impl ToString) {
        self.0.push((name, value.to_string()));
    }
    fn unless<T: PartialEq + ToString>(&mut self, name: &'static str, value: T, usual: T) {
        if value != usual {
            self.say(name, value);
        }
    }
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(net: Net, sent: &'a [Vec<u8>]) -> Self {
        Decoder { net, sent, idents: HashMap::new() }
    }

    pub(crate) fn read(&mut self, link: usize, frame: &[u8]) -> Said {
        let mut fields = Fields(Vec::new());
        let mac = |at: usize| frame.get(at..at + 6).and_then(|mac| mac.try_into().ok()).unwrap_or([0; 6]);
        let (dst, src, mut kind, mut rest) =
            (mac(0), mac(6), be16(frame, 12), frame.get(14..).unwrap_or(&[]));
        if (src, dst) != (router_mac(link), gateway_mac(link)) {
            fields.say("", format!("[{}>{}]", self.mac(src), self.mac(dst)));
        }
        while matches!(kind, 0x8100 | 0x88a8) && rest.len() >= 4 {
            fields.say("tag", format!("{kind:04x}/{:04x}", be16(rest, 0)));
            (kind, rest) = (be16(rest, 2), &rest[4..]);
        }
        let kind = match kind {
            0x0800 => self.packet4(rest, &mut fields),
            0x86dd => self.packet6(rest, &mut fields),
            0x0806 => self.arp(rest, &mut fields),
            _ => {
                fields.say("data", hex(rest));
                format!("ethertype {kind:04x}")
            }
        };
        Said { link, kind, fields: fields.0 }
    }

    fn arp(&self, packet: &[u8], fields: &mut Fields) -> String {
        let mac = |at: usize| packet.get(at..at + 6).and_then(|mac| mac.try_into().ok()).unwrap_or([0; 6]);
        fields.unless("format", hex(packet.get(..6).unwrap_or(&[])), "000108000604".into());
        let host = |at| format!("{}@{}", self.ip4(addr4(packet, at + 6)), self.mac(mac(at)));
        fields.say("sender", host(8));
        match mac(18) {
            [0, 0, 0, 0, 0, 0] => fields.say("target", self.ip4(addr4(packet, 24))),
            _ => fields.say("target", host(18)),
        }
        self.trailer(packet.get(28..).unwrap_or(&[]), fields);
        match be16(packet, 6) {
            1 => "arp request".into(),
            2 => "arp reply".into(),
            other => format!("arp {other}"),
        }
    }

    fn trailer(&self, trailer: &[u8], fields: &mut Fields) {
        if !trailer.is_empty() {
            let zero = trailer.iter().all(|byte| *byte == 0);
            fields.say("trailer", format!("{}{}", trailer.len(), if zero { "" } else { " not zero" }));
        }
    }

    /// An identification; `own` of a packet that a router made, however it chose it.
    fn ident(&mut self, id: u32, own: bool) -> String {
        if id == u32::from(ID) && !own {
            return "same".into();
        }
        let next = self.idents.len() + 1;
        format!("own{}", self.idents.entry(id).or_insert(next))
    }

    /// Payload: where it was sent before, it is the same.
    fn data(&self, data: &[u8], fields: &mut Fields) {
        if data.is_empty() {
            return;
        }
        let sent = |packet: &Vec<u8>| packet.windows(data.len()).any(|window| window == data);
        let what = match data.len() {
            _ if self.sent.iter().any(sent) => "same".into(),
            1..=16 => hex(data),
            _ => format!("sum {:04x}", sum(&[data])),
        };
        fields.say("data", format!("{} {what}", data.len()));
    }

    /// A packet that an error quotes.
    fn quote(&self, quote: &[u8], fields: &mut Fields) {
        // A redirect's is filled up to a multiple of eight.
        let differing = |packet: &Vec<u8>| {
            let all = quote.iter().zip(packet.iter()).enumerate();
            let mut at: Vec<usize> = all.filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect();
            at.extend(packet.len()..quote.len());
            at
        };
        let best = self.sent.iter().map(differing).min_by_key(Vec::len);
        let what = match best {
            Some(at) if at.is_empty() => "same".into(),
            // By the names of fields: which bytes differ depends on times and addresses.
            Some(at) if at.len() <= 24 => {
                let options = 20..usize::from(quote.first().unwrap_or(&0) & 15) * 4;
                let v4 = quote.first().is_some_and(|first| first >> 4 == 4);
                let mut names: Vec<_> = at
                    .iter()
                    .map(|at| match at {
                        1 if v4 => "tos".into(),
                        8 if v4 => "ttl".into(),
                        10 | 11 if v4 => "checksum".into(),
                        at if v4 && options.contains(at) => "options".into(),
                        7 if !v4 => "hops".into(),
                        at => at.to_string(),
                    })
                    .collect();
                names.dedup();
                format!("but for {}", names.join(","))
            }
            // Whatever else it is, without sums that depend on addresses.
            _ => {
                let inner = match quote.first().map_or(0, |first| first >> 4) {
                    4 if quote.len() >= 20 => {
                        format!("{}>{}", self.ip4(addr4(quote, 12)), self.ip4(addr4(quote, 16)))
                    }
                    6 if quote.len() >= 40 => {
                        format!("{}>{}", self.ip6(addr6(quote, 8)), self.ip6(addr6(quote, 24)))
                    }
                    _ => String::new(),
                };
                format!("other {inner}")
            }
        };
        fields.say("quote", format!("{} {what}", quote.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::net::{A, B, C, router4};
    use super::super::packet::{Frame, Ip4, Ip6, Layer3};
    use super::*;

    fn line(net: Net, packet: &impl Layer3, sent: &[Vec<u8>]) -> String {
        let frame = Frame::new(B, (router_mac(B), gateway_mac(B)), packet).bytes();
        Decoder::new(net, sent).read(B, &frame).line()
    }

    #[test]
    fn frames_are_said_in_words() {
        let net = Net { run: 300 };
        let udp = net.through().ttl(63).udp(9, 3);
        assert_eq!(
            line(net, &udp, &[udp.bytes()]),
            "b ip udp remote.a>remote.b ttl 63 id same len 31 ports 4000>9 data 3 same"
        );
        let echo = net.through6().hops(63).echo(0);
        assert_eq!(
            line(net, &echo, &[]),
            "b ip6 icmp echo request remote.a>remote.b hops 63 len 48 rest 43210001"
        );
        let error = Ip4::new(router4(A), net.remote4(A)).id(7).tos(0xc0).icmp(11, 0, 0, &udp.bytes()[..28]);
        assert_eq!(
            line(net, &error, &[udp.bytes()]),
            "b ip icmp time exceeded R.a>remote.a tos c0 len 56 quote 28 same"
        );
        let cut = &Ip6::new(net.remote6(A), net.remote6(C)).udp(9, 40).fragments(&[(0, 16), (16, 48)])[1];
        assert_eq!(
            line(net, cut, &[]),
            "b ip6 fragment of 17 remote.a>remote.c len 80 frag 16/same data 32 sum 9c0c"
        );
    }

    #[test]
    fn frames_are_their_runs() {
        let net = Net { run: 0x0203 };
        let frame = net.a(net.to_router().udp(9, 3)).bytes();
        assert_eq!(run_of(&frame, |run| run == 0x0203), Some(0x0203));
        assert_eq!(run_of(&frame, |run| run > 0x0203), None);
        assert_eq!(run_of(&net.a(net.to_router6().echo(3)).bytes(), |run| run > 0x100), Some(0x0203));
    }
}
