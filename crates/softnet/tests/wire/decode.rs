//! What a frame says, in words: canonical, so that two routers can be compared.
//!
//! Addresses have the names of `net`. Checksums are verified and left out where they are right. Identifications and
//! bytes that were sent with the case are `same`; others are numbered or summed up. Fields with their usual value are left out.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::net::{
    A, B, BROADCAST, C, LINKS, Net, OTHER, anybody_mac, gateway_mac, gateway4, gateway6, group_mac,
    router_local, router_mac, router4, router6, solicited_node,
};
use super::packet::{FRAGMENT, ICMP, ICMP6, ID, Mac, ROUTING, TCP, UDP, sum};

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

    pub(crate) fn mac(&self, mac: Mac) -> String {
        for link in LINKS {
            let letter = LETTER[link];
            for (known, name) in [
                (router_mac(link), "R"),
                (gateway_mac(link), "gw"),
                (anybody_mac(link), "anybody"),
                (self.net.host_mac(link), "host"),
                (self.net.other_mac(link), "other"),
            ] {
                if mac == known {
                    return format!("{name}.{letter}");
                }
            }
        }
        match self.groups().map(group_mac).contains(&mac) {
            true => "group.host".into(),
            false if mac == BROADCAST => "all".into(),
            false => mac.map(|byte| format!("{byte:02x}")).join(":"),
        }
    }

    /// The solicited-node groups of the case's hosts.
    fn groups(&self) -> [Ipv6Addr; 6] {
        let [a, b, c] = LINKS;
        let (global, local) = (|link| self.net.host6(link), |link| self.net.host_local(link));
        [global(a), self.net.other6(a), self.net.other6(b), local(a), local(b), local(c)].map(solicited_node)
    }

    pub(crate) fn ip4(&self, addr: Ipv4Addr) -> String {
        for link in LINKS {
            let letter = LETTER[link];
            for (known, name) in [
                (router4(link), "R"),
                (gateway4(link), "gw"),
                (self.net.host4(link), "host"),
                (self.net.other4(link), "other"),
                (self.net.remote4(link), "remote"),
            ] {
                if addr == known {
                    return format!("{name}.{letter}");
                }
            }
        }
        addr.to_string()
    }

    pub(crate) fn ip6(&self, addr: Ipv6Addr) -> String {
        for link in LINKS {
            let letter = LETTER[link];
            for (known, name) in [
                (router6(link), "R"),
                (router_local(link), "R.local"),
                (gateway6(link), "gw"),
                (self.net.host6(link), "host"),
                (self.net.other6(link), "other"),
                (self.net.host_local(link), "host.local"),
                (self.net.remote6(link), "remote"),
            ] {
                if addr == known {
                    return format!("{name}.{letter}");
                }
            }
        }
        if self.groups().contains(&addr) {
            return "group.host".into();
        }
        let prefix = u128::from(addr) & !0xffff_ffff;
        if u128::from(self.net.within(prefix.into())) == u128::from(addr) {
            return format!("{}host", Ipv6Addr::from(prefix));
        }
        addr.to_string()
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
        let who = |at| format!("{}@{}", self.ip4(addr4(packet, at + 6)), self.mac(mac(at)));
        fields.say("sender", who(8));
        match mac(18) {
            [0, 0, 0, 0, 0, 0] => fields.say("target", self.ip4(addr4(packet, 24))),
            _ => fields.say("target", who(18)),
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

    fn packet4(&mut self, packet: &[u8], fields: &mut Fields) -> String {
        let (header, total) =
            (usize::from(packet.first().unwrap_or(&0) & 15) * 4, usize::from(be16(packet, 2)));
        if packet.len() < 20 || header < 20 || total < header || total > packet.len() {
            fields.say("bytes", hex(packet));
            return "ip damaged".into();
        }
        let (packet, trailer) = packet.split_at(total);
        let (src, dst) = (addr4(packet, 12), addr4(packet, 16));
        fields.say("", format!("{}>{}", self.ip4(src), self.ip4(dst)));
        fields.unless("ttl", packet[8], 64);
        fields.unless("tos", format!("{:02x}", packet[1]), "00".into());
        let own = LINKS.iter().any(|link| router4(*link) == src);
        let (word, id) = (be16(packet, 6), be16(packet, 4));
        // Of a whole packet that the router made, it has no meaning (RFC 6864).
        if !own || word & 0x3fff != 0 {
            let ident = self.ident(id.into(), own);
            fields.say("id", ident);
        }
        // An error fits anywhere.
        let error = own && packet[9] == ICMP && matches!(packet.get(header), Some(3 | 5 | 11 | 12));
        for (bit, flag) in [(0x8000, "reserved"), (0x4000, "df"), (0x2000, "mf")] {
            if word & bit != 0 && !(error && bit == 0x4000) {
                fields.say("", flag);
            }
        }
        let offset = usize::from(word & 0x1fff) * 8;
        fields.unless("offset", offset, 0);
        if header > 20 {
            let options = self.options4(&packet[20..header]);
            fields.say("options", options);
        }
        if sum(&[&packet[..header]]) != 0xffff {
            fields.say("", "header-checksum-wrong");
        }
        fields.say("len", total);
        let (proto, payload) = (packet[9], &packet[header..]);
        let kind = match offset {
            0 => {
                let pseudo = [&packet[12..20], &[0, proto], &(payload.len() as u16).to_be_bytes()].concat();
                self.transport(proto, payload, &pseudo, word & 0x2000 != 0, fields)
            }
            _ => {
                self.data(payload, fields);
                format!("fragment of {proto}")
            }
        };
        self.trailer(trailer, fields);
        format!("ip {kind}")
    }

    fn options4(&self, options: &[u8]) -> String {
        let (mut at, mut said) = (0, Vec::new());
        while let Some(&kind) = options.get(at) {
            if kind < 2 {
                let name = ["end", "nop"][usize::from(kind)];
                said.push(name.to_owned());
                at += 1;
                continue;
            }
            let len = usize::from(*options.get(at + 1).unwrap_or(&0));
            let Some(option) = options.get(at..at + len).filter(|option| option.len() >= 2) else {
                said.push(format!("damaged {}", hex(&options[at..])));
                break;
            };
            let pointer = *option.get(2).unwrap_or(&0);
            let addrs = |from: usize| {
                let all = option.get(from..).unwrap_or(&[]).chunks(4).map(|chunk| match chunk.len() {
                    4 => self.ip4(addr4(chunk, 0)),
                    _ => hex(chunk),
                });
                all.collect::<Vec<_>>().join(",")
            };
            said.push(match kind {
                7 => format!("rr/{pointer}({})", addrs(3)),
                131 => format!("lsrr/{pointer}({})", addrs(3)),
                137 => format!("ssrr/{pointer}({})", addrs(3)),
                68 if len >= 4 && option[3] & 15 == 0 => {
                    let stamps = option[4..].chunks(4).map(|stamp| match be32(stamp, 0) {
                        0 => "0",
                        _ => "time",
                    });
                    format!("ts/{pointer}/{:02x}({})", option[3], stamps.collect::<Vec<_>>().join(","))
                }
                68 if len >= 4 => {
                    let pairs = option[4..].chunks(8).map(|pair| {
                        let stamp = if be32(pair, 4) == 0 { "0" } else { "time" };
                        format!("{}={stamp}", self.ip4(addr4(pair, 0)))
                    });
                    format!("ts/{pointer}/{:02x}({})", option[3], pairs.collect::<Vec<_>>().join(","))
                }
                148 => format!("alert({})", hex(&option[2..])),
                _ => hex(option),
            });
            at += len;
        }
        said.join(" ")
    }

    fn packet6(&mut self, packet: &[u8], fields: &mut Fields) -> String {
        let len = 40 + usize::from(be16(packet, 4));
        if packet.len() < 40 || len > packet.len() {
            fields.say("bytes", hex(packet));
            return "ip6 damaged".into();
        }
        let (packet, trailer) = packet.split_at(len);
        fields.say("", format!("{}>{}", self.ip6(addr6(packet, 8)), self.ip6(addr6(packet, 24))));
        fields.unless("hops", packet[7], 64);
        fields.unless("class", format!("{:02x}", be16(packet, 0) >> 4 & 0xff), "00".into());
        fields.unless("flow", format!("{:05x}", be32(packet, 0) & 0xf_ffff), "00000".into());
        fields.say("len", len);
        let (mut next, mut at, mut offset, mut more) = (packet[6], 40, 0, false);
        let mut dst = addr6(packet, 24);
        let own = LINKS.iter().any(|link| [router6(*link), router_local(*link)].contains(&addr6(packet, 8)));
        while let (0 | ROUTING | FRAGMENT | 60, Some(header)) =
            (next, packet.get(at..).filter(|h| h.len() >= 8))
        {
            if next == FRAGMENT {
                let word = be16(header, 2);
                (offset, more) = (usize::from(word & !7), word & 1 != 0);
                let more = if more { "+" } else { "" };
                let ident = self.ident(be32(header, 4), own);
                fields.say("frag", format!("{offset}{more}/{ident}"));
                (next, at) = (header[0], at + 8);
                if offset != 0 {
                    break;
                }
                continue;
            }
            let len = (usize::from(header[1]) + 1) * 8;
            let Some(header) = header.get(..len) else { break };
            let name = match next {
                0 => "hbh",
                60 => "dst",
                _ => "rh",
            };
            if next == ROUTING && len >= 24 && header[3] != 0 {
                dst = addr6(header, len - 16);
            }
            let words = if next == ROUTING && len >= 24 {
                let via = header[8..].chunks(16).map(|addr| self.ip6(addr6(addr, 0))).collect::<Vec<_>>();
                format!("{}/{}({})", header[2], header[3], via.join(","))
            } else {
                hex(&header[2..])
            };
            fields.say(name, words);
            (next, at) = (header[0], at + len);
        }
        let payload = packet.get(at..).unwrap_or(&[]);
        let kind = match offset {
            0 => {
                let length = (payload.len() as u32).to_be_bytes();
                let pseudo = [&packet[8..24], &dst.octets(), &length, &[0, 0, 0, next]].concat();
                self.transport(next, payload, &pseudo, more, fields)
            }
            _ => {
                self.data(payload, fields);
                format!("fragment of {next}")
            }
        };
        self.trailer(trailer, fields);
        format!("ip6 {kind}")
    }

    /// What follows the IP header; of a first fragment (`cut`) the checksum says nothing.
    fn transport(
        &mut self,
        proto: u8,
        message: &[u8],
        pseudo: &[u8],
        cut: bool,
        fields: &mut Fields,
    ) -> String {
        let (least, at) = match proto {
            ICMP => (8, 2),
            ICMP6 => (8, 2),
            UDP => (8, 6),
            TCP => (20, 16),
            _ => {
                self.data(message, fields);
                return format!("protocol {proto}");
            }
        };
        if message.len() < least {
            fields.say("bytes", message.len());
            return format!("protocol {proto} short");
        }
        let pseudo = if proto == ICMP { &[][..] } else { pseudo };
        match be16(message, at) {
            0 if !cut => fields.say("", "checksum-zero"),
            _ if !cut && sum(&[pseudo, message]) != 0xffff => fields.say("", "checksum-wrong"),
            _ => {}
        }
        let rest = be32(message, 4);
        match proto {
            UDP => {
                fields.say("ports", format!("{}>{}", be16(message, 0), be16(message, 2)));
                if !cut {
                    fields.unless("udp-len", usize::from(be16(message, 4)), message.len());
                }
                self.data(&message[8..], fields);
                "udp".into()
            }
            TCP => {
                fields.say("ports", format!("{}>{}", be16(message, 0), be16(message, 2)));
                fields.say("flags", format!("{:02x}", message[13]));
                fields.say("seq", format!("{:x}/{:x}", be32(message, 4), be32(message, 8)));
                fields.say("window", be16(message, 14));
                self.data(&message[20..], fields);
                "tcp".into()
            }
            ICMP => {
                let (kind, code) = (message[0], message[1]);
                let body = &message[8..];
                match kind {
                    3 | 11 | 12 => {
                        fields.unless("rest", format!("{rest:x}"), "0".into());
                        self.quote(body, fields);
                    }
                    5 => {
                        fields.say("gateway", self.ip4(rest.into()));
                        self.quote(body, fields);
                    }
                    14 => fields.say("rest", format!("{rest:x}")),
                    _ => {
                        fields.say("rest", format!("{rest:x}"));
                        self.data(body, fields);
                    }
                }
                let name = match kind {
                    0 => "echo reply",
                    3 => "unreachable",
                    5 => "redirect",
                    8 => "echo request",
                    11 => "time exceeded",
                    12 => "parameter problem",
                    14 => "timestamp reply",
                    _ => return format!("icmp {kind}/{code}"),
                };
                format!("icmp {name}{}", if code == 0 { String::new() } else { format!("/{code}") })
            }
            _ => self.icmp6(message, rest, fields),
        }
    }

    fn icmp6(&mut self, message: &[u8], rest: u32, fields: &mut Fields) -> String {
        let (kind, code, body) = (message[0], message[1], &message[8..]);
        let name = match kind {
            1 => "unreachable",
            2 => "packet too big",
            3 => "time exceeded",
            4 => "parameter problem",
            128 => "echo request",
            129 => "echo reply",
            133 => "router solicitation",
            134 => "router advertisement",
            135 => "neighbour solicitation",
            136 => "neighbour advertisement",
            137 => "redirect",
            _ => "",
        };
        match kind {
            1..=4 => {
                fields.unless("rest", rest, 0);
                self.quote(body, fields);
            }
            135..=137 if body.len() >= 16 => {
                if kind == 136 {
                    let flags =
                        [(31, 'R'), (30, 'S'), (29, 'O')].iter().filter(|(bit, _)| rest >> bit & 1 == 1);
                    fields.say("flags", flags.map(|(_, letter)| letter).collect::<String>());
                    fields.unless("rest", rest & 0x1fff_ffff, 0);
                } else {
                    fields.unless("rest", rest, 0);
                }
                fields.say("target", self.ip6(addr6(body, 0)));
                let mut options = &body[16..];
                if kind == 137 && options.len() >= 16 {
                    fields.say("for", self.ip6(addr6(options, 0)));
                    options = &options[16..];
                }
                self.options6(options, fields);
            }
            _ => {
                fields.say("rest", format!("{rest:x}"));
                self.data(body, fields);
            }
        }
        match (name, code) {
            ("", _) => format!("icmp {kind}/{code}"),
            (_, 0) => format!("icmp {name}"),
            _ => format!("icmp {name}/{code}"),
        }
    }

    /// Options of neighbour discovery.
    fn options6(&mut self, mut options: &[u8], fields: &mut Fields) {
        while options.len() >= 8 {
            let len = usize::from(options[1]) * 8;
            let Some(option) = options.get(..len).filter(|option| !option.is_empty()) else { break };
            let mac: Mac = option[2..8].try_into().unwrap_or([0; 6]);
            match option[0] {
                1 => fields.say("slla", self.mac(mac)),
                2 => fields.say("tlla", self.mac(mac)),
                4 => self.quote(&option[8..], fields),
                _ => fields.say("option", hex(option)),
            }
            options = &options[len..];
        }
        if !options.is_empty() {
            fields.say("options-rest", hex(options));
        }
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

/// The run that a frame belongs to: one of those for which `known` says so, by the first address in it.
pub(crate) fn run_of(frame: &[u8], known: impl Fn(u16) -> bool) -> Option<u16> {
    let run_at = |at: usize| {
        let rest = &frame[at..];
        let run = match rest {
            [10, 1..=3, hi, lo, ..] => [hi & !OTHER, *lo],
            [2, 0x0a | 0x0b, 0, 1..=3, hi, lo, ..] | [198, 18 | 19, hi, lo, ..] | [100, 64, hi, lo, ..] => {
                [*hi, *lo]
            }
            [0x20, 1, 0x0d, 0xb8, 0, _, 0, 0, 0, 0, 0, 0, 0, 0xa, hi, lo, ..]
            | [0xfd, 0, 0, 0, 0, 0, 0, _, 0, 0, 0, 0, 0, 0xa | 0xb, hi, lo, ..]
            | [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa..=0xc, hi, lo, ..] => [*hi, *lo],
            _ => return None,
        };
        Some(u16::from_be_bytes(run)).filter(|run| known(*run))
    };
    (0..frame.len().min(200)).find_map(run_at)
}

/// Whether a router sends it of its own accord: reports of its groups, and solicitations of routers.
pub(crate) fn is_noise(frame: &[u8]) -> bool {
    match be16(frame, 12) {
        0x0800 => frame.get(23) == Some(&2),
        0x86dd => {
            let hop_by_hop = frame.get(20) == Some(&0) && frame.get(54) == Some(&ICMP6);
            let at = if hop_by_hop { 62 } else { 54 };
            (hop_by_hop || frame.get(20) == Some(&ICMP6)) && matches!(frame.get(at), Some(131..=133 | 143))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
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
