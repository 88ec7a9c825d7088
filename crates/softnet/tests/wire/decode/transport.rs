//! What is in packets: UDP, TCP, ICMP of both families, neighbour discovery.

use super::{Decoder, Fields, addr6, be16, be32, hex};
use crate::packet::{ICMP, ICMP6, Mac, TCP, UDP, sum};

impl Decoder<'_> {
    /// What follows the IP header; of a first fragment (`cut`) the checksum says nothing.
    pub(super) fn transport(
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

    pub(super) fn icmp6(&mut self, message: &[u8], rest: u32, fields: &mut Fields) -> String {
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
    pub(super) fn options6(&mut self, mut options: &[u8], fields: &mut Fields) {
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
}
