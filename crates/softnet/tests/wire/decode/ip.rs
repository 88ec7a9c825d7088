//! The IP headers, with their options and extension headers.

use super::{Decoder, Fields, addr4, addr6, be16, be32, hex};
use crate::net::{LINKS, router_local, router4, router6};
use crate::packet::{FRAGMENT, ICMP, ROUTING, sum};

impl Decoder<'_> {
    pub(super) fn packet4(&mut self, packet: &[u8], fields: &mut Fields) -> String {
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

    pub(super) fn options4(&self, options: &[u8]) -> String {
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

    pub(super) fn packet6(&mut self, packet: &[u8], fields: &mut Fields) -> String {
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
}
