//! Rewriting: another source or destination in the headers of a packet, and the checksums that
//! cover it, by difference (RFC 1624).
//!
//! Called by the hooks of [`nat`](super), with packets that have a [tuple](crate::conntrack::Tuple). A checksum that
//! was wrong stays wrong, so that the receiver notices. Bytes that are not there are not written.

use crate::conntrack::tuple::query_ports;
use crate::ip::ETH_LEN;
use crate::ip::checksum::{add, fold};
use crate::ip::v4::header::{MIN_LEN, protocol};
use crate::skb::{Csum, Head};

/// Offset of the checksum in an IPv4 header.
const IP_CHECK: usize = 10;
/// In those of TCP and UDP.
const TCP_CHECK: usize = 16;
const UDP_CHECK: usize = 6;
/// Of the checksum and the identifier in an ICMP header.
const ICMP_CHECK: usize = 2;
const ICMP_ID: usize = 4;

/// Which end of a packet is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum End {
    Source = 0,
    Destination,
}

/// What a change adds to a sum that covers it.
#[derive(Clone, Copy)]
pub(super) struct Delta {
    /// The change of an address, which is in the header and the pseudo-header.
    addr: u64,
    /// That of a port.
    port: u64,
}

impl Delta {
    /// Of `(address, port)` from `old` to `new`.
    #[inline(always)]
    pub(super) fn new(old: (u32, u16), new: (u32, u16)) -> Self {
        Delta { addr: u64::from(!old.0) + u64::from(new.0), port: u64::from(!old.1) + u64::from(new.1) }
    }
}

/// The checksum after what it covers changed by `delta`.
#[inline(always)]
fn changed(check: u16, delta: u64) -> u16 {
    !fold(u64::from(!check) + delta)
}

/// That of UDP, where 0 is none, and stays so (RFC 768).
#[inline(always)]
fn changed_udp(check: u16, delta: u64) -> u16 {
    match check {
        0 => 0,
        check => match changed(check, delta) {
            0 => 0xffff,
            new => new,
        },
    }
}

/// The checksum in a header after what it covers changed by `delta`.
#[inline(always)]
pub(super) fn mended(check: [u8; 2], delta: u64) -> [u8; 2] {
    changed(u16::from_be_bytes(check), delta).to_be_bytes()
}

/// That of UDP.
#[inline(always)]
pub(super) fn mended_udp(check: [u8; 2], delta: u64) -> [u8; 2] {
    changed_udp(u16::from_be_bytes(check), delta).to_be_bytes()
}

/// The sum of a pseudo-header after it changed by `delta`.
#[inline(always)]
pub(super) fn summed(sum: [u8; 2], delta: u64) -> [u8; 2] {
    fold(u64::from(u16::from_be_bytes(sum)) + delta).to_be_bytes()
}

/// Writes `new` for the address of one end to an IPv4 header, of which the rest stays as it is.
#[inline(always)]
pub(super) fn header(ip: &mut [u8; MIN_LEN], end: End, new: u32, delta: Delta) {
    let at = 12 + 4 * end as usize;
    ip[at..at + 4].copy_from_slice(&new.to_be_bytes());
    let check = mended([ip[IP_CHECK], ip[IP_CHECK + 1]], delta.addr);
    ip[IP_CHECK..IP_CHECK + 2].copy_from_slice(&check);
}

/// Writes `new` for the endpoint at `end` of a packet that has a tuple, [given](crate::skb::Skb::parts_mut)
/// in its parts.
#[inline(always)]
pub(super) fn rewrite((head, data): (&mut Head, &mut [u8]), end: End, new: (u32, u16)) {
    head.hash = 0;
    let (at, number) = (usize::from(head.l4), head.protocol);
    let partial = match head.csum {
        Csum::None | Csum::Unnecessary => false,
        Csum::Partial { .. } => true,
        Csum::Complete { .. } => {
            // It summed what is other bytes now.
            head.csum = Csum::None;
            false
        }
    };
    // Nearly all are without options.
    if at == ETH_LEN + MIN_LEN
        && number != protocol::ICMP
        && let Some((both, rest)) = data.split_first_chunk_mut()
    {
        return match end {
            End::Source => plain::<0>(both, rest, number, partial, new),
            End::Destination => plain::<1>(both, rest, number, partial, new),
        };
    }
    let l4 = data.get(at..).and_then(|l4| l4.first_chunk());
    let old_port = l4.map_or(0, |l4| port(l4, number, end));
    let Some(ip) = data.get_mut(ETH_LEN..).and_then(|ip| ip.first_chunk_mut::<MIN_LEN>()) else { return };
    let from = 12 + 4 * end as usize;
    let old = u32::from_be_bytes([ip[from], ip[from + 1], ip[from + 2], ip[from + 3]]);
    let delta = Delta::new((old, old_port), new);
    header(ip, end, new.0, delta);
    if let Some(l4) = data.get_mut(at..) {
        segment(l4, number, partial, end, new.1, delta);
    }
}

/// The port, or what stands for it, of the endpoint at `end`.
fn port(l4: &[u8; 8], number: u8, end: End) -> u16 {
    let ports = match number {
        protocol::ICMP => {
            query_ports(l4[0], u16::from_be_bytes([l4[ICMP_ID], l4[ICMP_ID + 1]])).unwrap_or_default()
        }
        _ => u32::from_be_bytes([l4[0], l4[1], l4[2], l4[3]]),
    };
    match end {
        End::Source => (ports >> 16) as u16,
        End::Destination => ports as u16,
    }
}

/// Of a packet of TCP or UDP without options: its headers up to the first eight bytes of the L4
/// header, and the rest. `END` is that of an [`End`].
///
/// In the machine's byte order: a sum of words whose bytes are swapped is the sum with its bytes
/// swapped (RFC 1071 section 2).
#[inline(always)]
fn plain<const END: usize>(
    both: &mut [u8; ETH_LEN + MIN_LEN + 8],
    rest: &mut [u8],
    number: u8,
    partial: bool,
    (addr, port): (u32, u16),
) {
    const L4: usize = ETH_LEN + MIN_LEN;
    let (addr, port) = (addr.to_be(), port.to_be());
    let (at, port_at) = (ETH_LEN + 12 + 4 * END, L4 + 2 * END);
    let old = u32::from_ne_bytes([both[at], both[at + 1], both[at + 2], both[at + 3]]);
    let old_port = u16::from_ne_bytes([both[port_at], both[port_at + 1]]);
    [both[at], both[at + 1], both[at + 2], both[at + 3]] = addr.to_ne_bytes();
    [both[port_at], both[port_at + 1]] = port.to_ne_bytes();
    let delta = u64::from(!old) + u64::from(addr);
    let l4_delta = if partial { delta } else { delta + u64::from(!old_port) + u64::from(port) };
    let check = ETH_LEN + IP_CHECK;
    let new = changed(u16::from_ne_bytes([both[check], both[check + 1]]), delta);
    [both[check], both[check + 1]] = new.to_ne_bytes();
    if number == protocol::UDP {
        let check = L4 + UDP_CHECK;
        let old = u16::from_ne_bytes([both[check], both[check + 1]]);
        let new = if partial { fold(u64::from(old) + l4_delta) } else { changed_udp(old, l4_delta) };
        [both[check], both[check + 1]] = new.to_ne_bytes();
    } else if let Some([a, b]) = rest.get_mut(TCP_CHECK - 8..TCP_CHECK - 6) {
        let old = u16::from_ne_bytes([*a, *b]);
        let new = if partial { fold(u64::from(old) + l4_delta) } else { changed(old, l4_delta) };
        [*a, *b] = new.to_ne_bytes();
    }
}

/// The same in the L4 header, as far as it is there.
#[inline(always)]
pub(super) fn segment(l4: &mut [u8], number: u8, partial: bool, end: End, port: u16, delta: Delta) {
    let Some((first, rest)) = l4.split_first_chunk_mut::<8>() else { return };
    let port_at = 2 * end as usize;
    match number {
        protocol::UDP => {
            let check = [first[UDP_CHECK], first[UDP_CHECK + 1]];
            let check = match partial {
                true => summed(check, delta.addr),
                false => mended_udp(check, delta.addr + delta.port),
            };
            first[UDP_CHECK..UDP_CHECK + 2].copy_from_slice(&check);
            first[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
        }
        protocol::TCP => {
            if let Some([a, b]) = rest.get_mut(TCP_CHECK - 8..TCP_CHECK - 6) {
                let check = match partial {
                    true => summed([*a, *b], delta.addr),
                    false => mended([*a, *b], delta.addr + delta.port),
                };
                [*a, *b] = check;
            }
            first[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
        }
        protocol::ICMP => icmp_id(first, port, delta.port),
        _ => {}
    }
}

/// Writes the identifier of an ICMP query, whose checksum has no pseudo-header. The end that it
/// does not stand for has port 0, which does not change.
#[inline(always)]
fn icmp_id(first: &mut [u8; 8], id: u16, delta: u64) {
    // 0xffff + 0 is no difference: that of the end without an identifier.
    if delta == 0xffff && id == 0 {
        return;
    }
    let check = mended([first[ICMP_CHECK], first[ICMP_CHECK + 1]], delta);
    first[ICMP_CHECK..ICMP_CHECK + 2].copy_from_slice(&check);
    first[ICMP_ID..ICMP_ID + 2].copy_from_slice(&id.to_be_bytes());
}

/// What an ICMP error is changed by, so that it is about the packet that its receiver sent.
#[derive(Clone, Copy)]
pub(super) struct ErrorChange {
    /// Where the quoted packet's L4 header begins, from its IPv4 header on.
    pub(super) at: usize,
    /// Its protocol.
    pub(super) protocol: u8,
    /// The end of it that changes, from what to what.
    pub(super) end: End,
    pub(super) old: (u32, u16),
    pub(super) new: (u32, u16),
}

/// Mends the packet that an ICMP error quotes: `message` begins at its ICMP header. The error's
/// checksum is that of what it is then, if it was right (RFC 5508 section 4).
pub(super) fn quoted(message: &mut [u8], change: &ErrorChange) {
    const ICMP_LEN: usize = 8;
    let Some((icmp, quote)) = message.split_first_chunk_mut::<ICMP_LEN>() else { return };
    let ErrorChange { at, protocol, end, old, new } = *change;
    let len = quote.len().min(at + TCP_CHECK + 2);
    let sum = |quote: &[u8]| crate::ip::checksum::sum(&quote[..len]);
    let before = sum(quote);
    let delta = Delta::new(old, new);
    if let Some(ip) = quote.first_chunk_mut() {
        header(ip, end, new.0, delta);
    }
    if let Some(l4) = quote.get_mut(at..) {
        segment(l4, protocol, false, end, new.1, delta);
    }
    let change = add(!before, sum(quote));
    let check = mended([icmp[ICMP_CHECK], icmp[ICMP_CHECK + 1]], change.into());
    icmp[ICMP_CHECK..ICMP_CHECK + 2].copy_from_slice(&check);
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conntrack::Tuple;
    use crate::ip::checksum;
    use crate::ip::testing::context;

    /// A packet with these L4 bytes behind a header with `options` words of options; its checksums
    /// are right, or (partial) the sum of the pseudo-header.
    fn packet(number: u8, tuple: &Tuple, options: usize, mut l4: Vec<u8>, partial: bool) -> Vec<u8> {
        let (src, dst) = (tuple.src(), tuple.dst());
        let total = (MIN_LEN + 4 * options + l4.len()) as u16;
        let mut ip = vec![0x45 + options as u8, 0, 0, 0, 0, 7, 0, 0, 9, number, 0, 0];
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip.extend([src.0.to_be_bytes(), dst.0.to_be_bytes()].concat());
        ip.extend(vec![1; 4 * options]);
        let check = checksum::checksum(&ip);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        let pseudo = match number {
            protocol::ICMP => 0,
            _ => checksum::pseudo_header_sum(src.0, dst.0, number, l4.len() as u16),
        };
        let (at, ports) = match number {
            protocol::TCP => (16, 0),
            protocol::UDP => (6, 0),
            _ => (2, 4),
        };
        let port = |port: u16| port.to_be_bytes();
        match number {
            protocol::ICMP => {
                l4[0] = 8;
                l4[ports..ports + 2].copy_from_slice(&port(src.1));
            }
            _ => l4[..4].copy_from_slice(&[port(src.1), port(dst.1)].concat()),
        }
        l4[at..at + 2].fill(0);
        let check = match partial {
            true => pseudo,
            false => match !checksum::add(pseudo, checksum::sum(&l4)) {
                0 if number == protocol::UDP => 0xffff,
                check => check,
            },
        };
        l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
        [&[0; ETH_LEN][..], &ip, &l4].concat()
    }

    proptest! {
        /// By difference it is what it is computed afresh; 0 and 0xffff are the same sum.
        #[test]
        fn rewritten_is_as_if_made_so(
            number in prop::sample::select(vec![protocol::TCP, protocol::UDP, protocol::ICMP]),
            (src, dst) in any::<((u32, u16), (u32, u16))>(),
            new: (u32, u16),
            l4 in prop::collection::vec(any::<u8>(), 20..80),
            options in 0usize..3,
            of_source: bool,
            partial: bool,
        ) {
            let dst = if number == protocol::ICMP { (dst.0, 0) } else { dst };
            let partial = partial && number != protocol::ICMP;
            let end = if of_source || number == protocol::ICMP { End::Source } else { End::Destination };
            let tuple = Tuple::new(number, src, dst);
            let before = packet(number, &tuple, options, l4.clone(), partial);
            let changed = match end {
                End::Source => Tuple::new(number, new, dst),
                End::Destination => Tuple::new(number, src, new),
            };
            let expected = packet(number, &changed, options, l4, partial);
            let mut ctx = context();
            let mut skb = ctx.alloc_skb().unwrap();
            skb.put(before.len()).unwrap().copy_from_slice(&before);
            let l4_at = ETH_LEN + MIN_LEN + 4 * options;
            let head = skb.head_mut();
            (head.l3, head.l4, head.protocol, head.hash) = (ETH_LEN as u16, l4_at as u16, number, 5);
            if partial {
                head.csum = Csum::Partial { start: l4_at as u16, offset: 6 };
            }
            prop_assert_eq!(Tuple::of(&skb), Some(tuple));
            rewrite(skb.parts_mut(), end, new);
            let after = skb.data().to_vec();
            prop_assert_eq!((skb.head().hash, Tuple::of(&skb)), (0, Some(changed)));
            ctx.free_skb(skb);
            let at = l4_at + match number { protocol::TCP => 16, protocol::UDP => 6, _ => 2 };
            let check = |bytes: &[u8]| u16::from_be_bytes([bytes[at], bytes[at + 1]]) % 0xffff;
            prop_assert_eq!(check(&after), check(&expected));
            let but_check = |mut bytes: Vec<u8>| { bytes[at..at + 2].fill(0); bytes };
            prop_assert_eq!(but_check(after), but_check(expected));
        }
    }
}
