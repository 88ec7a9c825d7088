//! Reads an expression: the grammar of `pcap-filter(7)` without arithmetic on the packet's bytes,
//! names of hosts and services, and protocols of other links.
//!
//! Invariant: an error says where it is and what was expected; any text is read in time linear in
//! its length, and parts in parentheses are not deeper than [`MAX_NESTED`].

use std::net::{IpAddr, Ipv4Addr};

use super::{Filter, MAX_DEPTH, Op, Side, Test};
use crate::ip::ethernet::ethertype;

/// Parentheses in parentheses, and `not`s of `not`s.
const MAX_NESTED: u32 = MAX_DEPTH / 2 - 2;

/// Where an expression is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}\n  {text}\n  {blank:at$}^", blank = "")]
pub struct FilterError {
    /// The expression.
    pub text: String,
    /// Characters before the place.
    pub at: usize,
    /// What was expected there, and what was found.
    pub what: String,
}

/// A word of the expression, and where it starts.
#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    at: usize,
}

/// A protocol before an address or a port.
#[derive(Clone, Copy, PartialEq)]
enum Proto {
    Ether,
    /// By EtherType: `ip`, `ip6`, `arp`.
    Network(u16),
    /// By L4 protocol: `tcp`, `udp`, `sctp`.
    Transport(u8),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Host,
    Net,
    Port,
    PortRange,
    Proto,
}

/// What stands before an address or a number.
#[derive(Clone, Copy)]
struct Qualifiers {
    proto: Option<Proto>,
    side: Option<Side>,
    kind: Kind,
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
    ops: Vec<Op>,
    /// Those of the last address or number: `host a or b`.
    last: Option<Qualifiers>,
}

impl Filter {
    /// Reads `text`; one without words takes every packet. In short:
    /// `[ip|ip6|arp|ether|tcp|udp|sctp] [src|dst|src or dst|src and dst]
    /// [host|net|port|portrange|proto] WHAT`, a protocol alone, `vlan [ID]`, `[ether]
    /// broadcast|multicast`, `less|greater BYTES`, with `and`, `or`, `not` (`&&`, `||`, `!`) and
    /// parentheses. As with libpcap, `and` and `or` are read from left to right, neither before the
    /// other. Other than libpcap's, every test looks behind VLAN tags.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        let mut parser = Parser { text, tokens: tokens(text), next: 0, ops: Vec::new(), last: None };
        if !parser.tokens.is_empty() {
            parser.expression(0)?;
            if parser.next < parser.tokens.len() {
                return Err(parser.expected("and, or, or the end"));
            }
        }
        Ok(Filter { ops: parser.ops })
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return tokens };
        let len = match first {
            '(' | ')' | '!' => 1,
            '&' | '|' => rest.len() - rest.trim_start_matches(first).len(),
            _ => rest.find(|c: char| c.is_whitespace() || "()!&|".contains(c)).unwrap_or(rest.len()),
        };
        let (word, more) = rest.split_at(len);
        tokens.push(Token { text: word, at: text.len() - rest.len() });
        rest = more;
    }
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).map(|token| token.text)
    }

    /// Takes the next word if it is one of these.
    fn take<T: Copy>(&mut self, words: &[(&str, T)]) -> Option<T> {
        let word = self.peek()?;
        let (_, value) = words.iter().find(|(one, _)| *one == word)?;
        self.next += 1;
        Some(*value)
    }

    fn took(&mut self, words: &[&str]) -> bool {
        let took = self.peek().is_some_and(|word| words.contains(&word));
        self.next += usize::from(took);
        took
    }

    /// An error at the next word.
    fn expected(&self, what: &str) -> FilterError {
        match self.tokens.get(self.next) {
            Some(token) => self.error(token.at, format!("expected {what}, found {:?}", token.text)),
            None => self.error(self.text.len(), format!("expected {what}, found the end")),
        }
    }

    /// An error at the word before the next.
    fn wrong(&self, what: &str) -> FilterError {
        match self.next.checked_sub(1).and_then(|at| self.tokens.get(at)) {
            Some(token) => self.error(token.at, format!("expected {what}, found {:?}", token.text)),
            None => self.expected(what),
        }
    }

    fn error(&self, at: usize, what: String) -> FilterError {
        let at = self.text.get(..at).map_or(0, |before| before.chars().count());
        // As one line, whatever blanks there are.
        let text = self.text.replace(|c: char| c.is_whitespace() || c.is_control(), " ");
        FilterError { text, at, what }
    }

    fn expression(&mut self, nested: u32) -> Result<(), FilterError> {
        self.term(nested)?;
        loop {
            let op = match () {
                () if self.took(&["and", "&&"]) => Op::And,
                () if self.took(&["or", "||"]) => Op::Or,
                () => return Ok(()),
            };
            self.term(nested)?;
            self.ops.push(op);
        }
    }

    fn term(&mut self, nested: u32) -> Result<(), FilterError> {
        if nested > MAX_NESTED {
            let at = self.tokens.get(self.next).map_or(self.text.len(), |token| token.at);
            return Err(self.error(at, format!("more than {MAX_NESTED} parentheses and nots in each other")));
        }
        if self.took(&["not", "!"]) {
            self.term(nested + 1)?;
            self.ops.push(Op::Not);
            return Ok(());
        }
        if self.took(&["("]) {
            self.expression(nested + 1)?;
            return match self.took(&[")"]) {
                true => Ok(()),
                false => Err(self.expected("and, or, or a closing parenthesis")),
            };
        }
        self.primitive()
    }

    fn test(&mut self, test: Test) {
        self.ops.push(Op::Test(test));
    }

    fn both(&mut self, one: Test, other: Test) {
        self.ops.extend([Op::Test(one), Op::Test(other), Op::And]);
    }

    fn primitive(&mut self) -> Result<(), FilterError> {
        if self.took(&["vlan"]) {
            let id = self.peek().and_then(|word| word.parse::<u32>().ok());
            let mut wanted = None;
            if let Some(id) = id {
                self.next += 1;
                let id = u16::try_from(id).ok().filter(|id| *id < 4096);
                wanted = Some(id.ok_or_else(|| self.wrong("the id of a VLAN, 0 to 4095"))?);
            }
            self.test(Test::Vlan(wanted));
            return Ok(());
        }
        if let Some(greater) = self.take(&[("greater", true), ("less", false)]) {
            let len = self.number("a number of bytes", u32::MAX)?;
            self.test(if greater { Test::Greater(len) } else { Test::Less(len) });
            return Ok(());
        }
        let start = self.next;
        let proto = self.take(&[
            ("ether", Proto::Ether),
            ("ip", Proto::Network(ethertype::IPV4)),
            ("ip6", Proto::Network(ethertype::IPV6)),
            ("arp", Proto::Network(ethertype::ARP)),
            ("tcp", Proto::Transport(6)),
            ("udp", Proto::Transport(17)),
            ("sctp", Proto::Transport(132)),
        ]);
        if matches!(proto, None | Some(Proto::Ether))
            && let Some(broadcast) = self.take(&[("broadcast", true), ("multicast", false)])
        {
            self.test(Test::Group { broadcast });
            return Ok(());
        }
        if proto.is_none()
            && let Some((ethertype, protocol)) =
                self.take(&[("icmp", (ethertype::IPV4, 1)), ("icmp6", (ethertype::IPV6, 58))])
        {
            self.both(Test::EtherType(ethertype), Test::Protocol(protocol));
            return Ok(());
        }
        let side = self.side()?;
        let kind = self.take(&[
            ("host", Kind::Host),
            ("net", Kind::Net),
            ("port", Kind::Port),
            ("portrange", Kind::PortRange),
            ("proto", Kind::Proto),
        ]);
        let qualifiers = match (proto, side, kind) {
            (None, None, None) => match self.last {
                Some(last)
                    if self.peek().is_some_and(|word| {
                        word.starts_with(|c: char| c.is_ascii_hexdigit() || c == ':')
                    }) =>
                {
                    last
                }
                _ => {
                    return Err(self.expected(
                        "host, net, port, portrange, proto, src, dst, vlan, less, greater, broadcast, multicast or a protocol",
                    ));
                }
            },
            (Some(Proto::Network(ethertype)), None, None) => {
                self.test(Test::EtherType(ethertype));
                return Ok(());
            }
            (Some(Proto::Transport(protocol)), None, None) => {
                self.test(Test::Protocol(protocol));
                return Ok(());
            }
            (Some(Proto::Ether), None, None) => {
                return Err(self.expected("host, src, dst, proto, broadcast or multicast"));
            }
            (proto, side, kind) => Qualifiers { proto, side, kind: kind.unwrap_or(Kind::Host) },
        };
        self.last = Some(qualifiers);
        self.qualified(qualifiers, start)
    }

    /// `src`, `dst`, `src or dst`, `src and dst`.
    fn side(&mut self) -> Result<Option<Side>, FilterError> {
        let ends = [("src", Side::Src), ("dst", Side::Dst)];
        let Some(first) = self.take(&ends) else { return Ok(None) };
        let other = if first == Side::Src { "dst" } else { "src" };
        let joins = self.tokens.get(self.next + 1).is_some_and(|token| token.text == other);
        let both = match self.peek() {
            Some("or" | "||") if joins => Side::Either,
            Some("and" | "&&") if joins => Side::Both,
            _ => return Ok(Some(first)),
        };
        self.next += 2;
        Ok(Some(both))
    }

    /// What follows `of`, which starts at word `start`.
    fn qualified(&mut self, of: Qualifiers, start: usize) -> Result<(), FilterError> {
        let side = of.side.unwrap_or(Side::Either);
        let not_of = |parser: &Self, what: &str| {
            let token = parser.tokens[start];
            parser.error(token.at, format!("expected {what}, found {:?} before it", token.text))
        };
        match (of.kind, of.proto) {
            (Kind::Host, Some(Proto::Ether)) => {
                let word = self.word("a MAC address")?;
                let mac = mac(word).ok_or_else(|| self.wrong("a MAC address, as 02:00:00:00:00:01"))?;
                self.test(Test::EtherHost(side, mac));
            }
            (Kind::Host | Kind::Net, None | Some(Proto::Network(_))) => {
                let (addr, bits) = match of.kind {
                    Kind::Net => self.net()?,
                    _ => {
                        let addr: IpAddr = self
                            .word("an IP address")?
                            .parse()
                            .map_err(|_| self.wrong("an IP address (names are not looked up)"))?;
                        (addr, if addr.is_ipv4() { 32 } else { 128 })
                    }
                };
                match of.proto {
                    Some(Proto::Network(ethertype)) => {
                        if addr.is_ipv4() == (ethertype == ethertype::IPV6) {
                            return Err(self.wrong("an address of that protocol"));
                        }
                        self.both(Test::EtherType(ethertype), Test::Net(side, addr, bits));
                    }
                    _ => self.test(Test::Net(side, addr, bits)),
                }
            }
            (Kind::Host | Kind::Net, _) => return Err(not_of(self, "nothing, ip, ip6, arp or ether")),
            (Kind::Port | Kind::PortRange, None | Some(Proto::Transport(_))) => {
                let (from, to) = self.ports(of.kind)?;
                match of.proto {
                    Some(Proto::Transport(p)) => self.both(Test::Protocol(p), Test::Ports(side, from, to)),
                    _ => self.test(Test::Ports(side, from, to)),
                }
            }
            (Kind::Port | Kind::PortRange, _) => return Err(not_of(self, "nothing, tcp, udp or sctp")),
            (Kind::Proto, proto) => {
                if of.side.is_some() {
                    return Err(not_of(self, "proto without src or dst"));
                }
                match proto {
                    Some(Proto::Ether) => {
                        let names = [("ip", 0x0800), ("ip6", 0x86dd), ("arp", 0x0806)];
                        let number = self.named("an EtherType, as 0x86dd", &names, u16::MAX.into())?;
                        self.test(Test::EtherType(number as u16));
                    }
                    Some(Proto::Transport(_)) => return Err(not_of(self, "nothing, ip, ip6 or ether")),
                    proto => {
                        let names = [
                            ("icmp", 1),
                            ("igmp", 2),
                            ("tcp", 6),
                            ("udp", 17),
                            ("gre", 47),
                            ("esp", 50),
                            ("ah", 51),
                            ("icmp6", 58),
                            ("ospf", 89),
                            ("vrrp", 112),
                            ("sctp", 132),
                        ];
                        let number = self.named("the number of a protocol, 0 to 255", &names, 255)?;
                        match proto {
                            Some(Proto::Network(ethertype)) => {
                                self.both(Test::EtherType(ethertype), Test::Protocol(number as u8));
                            }
                            _ => self.test(Test::Protocol(number as u8)),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn word(&mut self, what: &str) -> Result<&'a str, FilterError> {
        let word = self.peek().ok_or_else(|| self.expected(what))?;
        self.next += 1;
        Ok(word)
    }

    fn number(&mut self, what: &str, most: u32) -> Result<u32, FilterError> {
        self.named(what, &[], most)
    }

    /// A number up to `most`, decimal or `0x…`, or one of these names, perhaps with a backslash as
    /// libpcap wants it.
    fn named(&mut self, what: &str, names: &[(&str, u32)], most: u32) -> Result<u32, FilterError> {
        let word = self.word(what)?;
        let named = word.strip_prefix('\\').unwrap_or(word);
        if let Some((_, number)) = names.iter().find(|(name, _)| *name == named) {
            return Ok(*number);
        }
        let number = match word.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        number.filter(|number| *number <= most).ok_or_else(|| self.wrong(what))
    }

    fn ports(&mut self, kind: Kind) -> Result<(u16, u16), FilterError> {
        if kind == Kind::Port {
            let port = self.number("a port, 0 to 65535", u16::MAX.into())? as u16;
            return Ok((port, port));
        }
        let what = "two ports, as 1024-65535";
        let word = self.word(what)?;
        let range = word.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let (from, to): (u16, u16) = range.ok_or_else(|| self.wrong(what))?;
        Ok((from.min(to), from.max(to)))
    }

    /// `10.0.0.0/8`, `10.0.0.0 mask 255.0.0.0`, `192.168`, `2001:db8::/32`.
    fn net(&mut self) -> Result<(IpAddr, u8), FilterError> {
        let what = "a network, as 10.0.0.0/8, 192.168 or 2001:db8::/32";
        let word = self.word(what)?;
        let (addr, bits) = match word.split_once('/') {
            Some((addr, bits)) => {
                let addr = network(addr).map(|(addr, _)| addr).ok_or_else(|| self.wrong(what))?;
                let most = if addr.is_ipv4() { 32 } else { 128 };
                let bits = bits.parse().ok().filter(|bits| *bits <= most);
                (addr, bits.ok_or_else(|| self.wrong(what))?)
            }
            None => network(word).ok_or_else(|| self.wrong(what))?,
        };
        let (addr, bits) = match addr {
            IpAddr::V4(_) if self.took(&["mask"]) => {
                let what = "a mask, as 255.255.0.0";
                let mask = self.word(what)?.parse().map(Ipv4Addr::to_bits).ok();
                let mask = mask.filter(|mask| mask.leading_ones() + mask.trailing_zeros() >= 32);
                (addr, mask.ok_or_else(|| self.wrong(what))?.leading_ones() as u8)
            }
            _ => (addr, bits),
        };
        let beyond = match addr {
            IpAddr::V4(addr) => addr.to_bits().checked_shl(bits.into()).unwrap_or(0) != 0,
            IpAddr::V6(addr) => addr.to_bits().checked_shl(bits.into()).unwrap_or(0) != 0,
        };
        match beyond {
            true => Err(self.wrong(&format!("an address without bits behind the first {bits}"))),
            false => Ok((addr, bits)),
        }
    }
}

/// An address with all its bits, or the first parts of one of IPv4 with theirs.
fn network(word: &str) -> Option<(IpAddr, u8)> {
    if let Ok(addr) = word.parse::<IpAddr>() {
        return Some((addr, if addr.is_ipv4() { 32 } else { 128 }));
    }
    let mut octets = [0; 4];
    let mut parts = 0;
    for part in word.split('.') {
        *octets.get_mut(parts)? = part.parse().ok()?;
        parts += 1;
    }
    Some((Ipv4Addr::from(octets).into(), 8 * parts as u8))
}

fn mac(word: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = word.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}
