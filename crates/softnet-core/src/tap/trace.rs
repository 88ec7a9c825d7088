//! Traces: what each stage decided of a packet (VPP's `trace`), as records of a capture that
//! [wants](super::Wanted::trace) them.
//!
//! The first packets that come in and match are marked, with the bit of the trace that wants them;
//! whatever stage meets a marked one while anything is captured says to its traces what it does with
//! it, in one record. A reader puts the records of one packet together by its
//! [number](Traced::packet), which is that of its head: from one [`Received`](Step::Received) to the
//! next. Copies and segments have heads of their own, and are not followed.
//!
//! A packet may go on in another thread, whose batch began earlier than the one that it came in. So a
//! thread's step is later than all that other threads have told, by a nanosecond if need be: sorted by
//! time, what was done with a packet is in order.
//!
//! Invariant: while nothing is captured a stage costs the load and the branch of a capture for each
//! batch, and no more than so many packets as were asked for are ever marked.

use std::net::{IpAddr, Ipv6Addr};

use super::filter::Facts;
use super::{Record, Seen, Tap};
use crate::ip::adjacency::Kind;
use crate::ip::hooks::Slot;
use crate::ip::input::Exception;
use crate::skb::{Flags, Skb};
use crate::sync::{AtomicU32, Ordering};

/// How many packets a trace still begins to follow.
#[derive(Debug)]
pub struct Budget(AtomicU32);

impl Budget {
    /// For so many packets.
    pub fn new(packets: u32) -> Self {
        Budget(AtomicU32::new(packets))
    }

    fn take(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

/// The two ends of a packet: addresses, and ports where there are any (0: none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Source and destination.
    pub addrs: [IpAddr; 2],
    /// Their ports.
    pub ports: [u16; 2],
}

impl Ends {
    /// Those of a frame, if it has any.
    pub fn of(frame: &[u8], len: usize) -> Option<Ends> {
        let facts = Facts::of(frame, len, None);
        Some(Ends { addrs: facts.addrs?, ports: facts.ports.unwrap_or_default() })
    }
}

/// What a stage did with a packet. The device and the queue that it is about are its record's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It came in: the first step of a packet.
    Received,
    /// It is handed to this device: by the link of a VLAN, or by a redirect.
    Handed,
    /// A VLAN's device hands it to its link.
    ToLink,
    /// The hooks of a slot (NAT, filter rules) let it pass, and may have translated it.
    Passed {
        /// Which slot.
        slot: Slot,
        /// Its ends before and behind.
        ends: Option<[Ends; 2]>,
        /// Number of its connection, plus one; 0: none is known.
        conntrack: u32,
    },
    /// The hooks of a slot took it: it is dropped, refused, or waits for its other fragments.
    Taken(Slot),
    /// A route was looked up.
    Route {
        /// The destination.
        dst: IpAddr,
        /// Bits of the prefix that was found.
        len: u8,
        /// What its next hop means.
        kind: Kind,
        /// The gateway, if it is by one.
        gateway: Option<IpAddr>,
        /// MAC address of the neighbour that it is sent to, if that is known.
        mac: Option<[u8; 6]>,
    },
    /// It needs the slow path, for this reason.
    Slow(Exception),
    /// It waits for the MAC address of this neighbour.
    Waits(IpAddr),
    /// It is handed to the sockets of a protocol.
    Socket(u8),
    /// It reached softnet itself.
    Delivered,
    /// It is handed to the discipline of a TX queue.
    Queued,
    /// It is put on the ring of a TX queue.
    Sent,
    /// It is dropped, for the reason with this number.
    Dropped(u8),
}

/// Bytes of the longest step.
const LONGEST: usize = 96;

/// Writes the bytes of a step.
struct Writer {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Writer {
    fn put(&mut self, more: &[u8]) {
        if let Some(to) = self.bytes.get_mut(self.len..self.len + more.len()) {
            to.copy_from_slice(more);
            self.len += more.len();
        }
    }

    fn addr(&mut self, addr: IpAddr) {
        let (family, bits) = match addr {
            IpAddr::V4(addr) => (4, addr.to_ipv6_mapped()),
            IpAddr::V6(addr) => (6, addr),
        };
        self.put(&[family]);
        self.put(&bits.octets());
    }
}

/// Reads them.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn addr(&mut self) -> Option<IpAddr> {
        let family = self.byte()?;
        let bits = Ipv6Addr::from(self.take::<16>()?);
        match family {
            4 => bits.to_ipv4_mapped().map(IpAddr::V4),
            6 => Some(bits.into()),
            _ => None,
        }
    }

    fn slot(&mut self) -> Option<Slot> {
        Slot::ALL.get(usize::from(self.byte()?)).copied()
    }

    fn ends(&mut self) -> Option<Ends> {
        let addrs = [self.addr()?, self.addr()?];
        let ports = [self.take()?, self.take()?].map(u16::from_le_bytes);
        Some(Ends { addrs, ports })
    }
}

impl Step {
    fn write(&self) -> Writer {
        let mut to = Writer { bytes: [0; LONGEST], len: 0 };
        match *self {
            Step::Received => to.put(&[0]),
            Step::Passed { slot, ends, conntrack } => {
                to.put(&[1, slot as u8]);
                to.put(&conntrack.to_le_bytes());
                for ends in ends.iter().flatten() {
                    ends.addrs.into_iter().for_each(|addr| to.addr(addr));
                    ends.ports.into_iter().for_each(|port| to.put(&port.to_le_bytes()));
                }
            }
            Step::Taken(slot) => to.put(&[2, slot as u8]),
            Step::Route { dst, len, kind, gateway, mac } => {
                to.put(&[3, len, kind as u8, u8::from(mac.is_some()), u8::from(gateway.is_some())]);
                to.put(&mac.unwrap_or_default());
                to.addr(dst);
                gateway.into_iter().for_each(|gateway| to.addr(gateway));
            }
            Step::Slow(why) => to.put(&[4, why as u8]),
            Step::Waits(addr) => {
                to.put(&[5]);
                to.addr(addr);
            }
            Step::Socket(protocol) => to.put(&[6, protocol]),
            Step::Delivered => to.put(&[7]),
            Step::Queued => to.put(&[8]),
            Step::Sent => to.put(&[9]),
            Step::Dropped(reason) => to.put(&[10, reason]),
            Step::Handed => to.put(&[11]),
            Step::ToLink => to.put(&[12]),
        }
        to
    }

    fn read(from: &mut Reader<'_>) -> Option<Step> {
        Some(match from.byte()? {
            0 => Step::Received,
            1 => {
                let slot = from.slot()?;
                let conntrack = u32::from_le_bytes(from.take()?);
                let ends = if from.0.is_empty() { None } else { Some([from.ends()?, from.ends()?]) };
                Step::Passed { slot, ends, conntrack }
            }
            2 => Step::Taken(from.slot()?),
            3 => {
                let [len, kind, has_mac, has_gateway] = from.take()?;
                let kind = KINDS.into_iter().find(|one| *one as u8 == kind)?;
                let mac = from.take::<6>()?;
                let dst = from.addr()?;
                let gateway = if has_gateway != 0 { Some(from.addr()?) } else { None };
                Step::Route { dst, len, kind, gateway, mac: (has_mac != 0).then_some(mac) }
            }
            4 => Step::Slow(Exception::of(from.byte()?)),
            5 => Step::Waits(from.addr()?),
            6 => Step::Socket(from.byte()?),
            7 => Step::Delivered,
            8 => Step::Queued,
            9 => Step::Sent,
            10 => Step::Dropped(from.byte()?),
            11 => Step::Handed,
            12 => Step::ToLink,
            _ => return None,
        })
    }
}

const KINDS: [Kind; 10] = [
    Kind::NoRoute,
    Kind::Rewrite,
    Kind::Connected,
    Kind::Resolve,
    Kind::Local,
    Kind::Broadcast,
    Kind::Blackhole,
    Kind::Unreachable,
    Kind::Prohibit,
    Kind::Multipath,
];

/// A step of a packet, as a record tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced<'a> {
    /// Which packet: that of the last [`Step::Received`] with this number.
    pub packet: u64,
    /// What was done.
    pub step: Step,
    /// With [`Step::Received`] and [`Step::Sent`]: the bytes of the packet, as many as were wanted.
    pub bytes: &'a [u8],
}

impl<'a> Traced<'a> {
    /// What `record` tells; `None` if it is not of a trace.
    pub fn read(record: &Record<'a>) -> Option<Traced<'a>> {
        if record.seen != Seen::Step {
            return None;
        }
        let (packet, rest) = record.data.split_first_chunk()?;
        let (len, rest) = rest.split_first()?;
        let (step, bytes) = rest.split_at_checked(usize::from(*len))?;
        let step = Step::read(&mut Reader(step))?;
        Some(Traced { packet: u64::from_le_bytes(*packet), step, bytes })
    }
}

/// The number of a packet, while it lives.
fn number(skb: &Skb) -> u64 {
    u64::from(skb.region()) << 32 | u64::from(skb.index())
}

/// Whether `skb` is followed.
pub(crate) fn is_traced(skb: &Skb) -> bool {
    skb.head().flags & Flags::TRACED != 0
}

impl Tap {
    /// A packet came in by `queue` of `dev`: marks it for each trace that wants it.
    pub(super) fn begin(&mut self, skb: &mut Skb, dev: u16, queue: u16) {
        let tag = crate::vlan::get(skb.head()).map(|(_, tci)| tci);
        let before = skb.head().flags & Flags::TRACED;
        if before != 0 {
            self.tell(skb, before, (dev, queue), Step::Handed);
        }
        let wants = |one: &&super::Joined| {
            one.wanted.trace.as_ref().is_some_and(|budget| {
                before & one.mark == 0
                    && one.wanted.concerns(dev, queue)
                    && one.wanted.filter.matches(skb.data(), skb.len(), tag)
                    && budget.take()
            })
        };
        let new = self.captures.iter().filter(wants).fold(0, |marks, one| marks | one.mark);
        if new != 0 {
            skb.head_mut().flags |= new;
            self.tell(skb, new, (dev, queue), Step::Received);
        }
    }

    /// When a step is, of a packet that the thread has from anywhere: later than all that another
    /// thread has told.
    fn time_of_step(&mut self) -> u64 {
        let Tap { taps, now, told, .. } = self;
        let time = |last: u64| if last == *told { last.max(*now) } else { (last + 1).max(*now) };
        // Relaxed: what brought the packet here brought the time of its last step, or a later one.
        let mut last = taps.told.load(Ordering::Relaxed);
        while let Err(later) =
            taps.told.compare_exchange_weak(last, time(last), Ordering::Relaxed, Ordering::Relaxed)
        {
            last = later;
        }
        *told = time(last);
        *told
    }

    /// Writes a step of a packet to the traces with these marks.
    fn tell(&mut self, skb: &Skb, marks: u16, (dev, queue): (u16, u16), step: Step) {
        let time = self.time_of_step();
        let Writer { bytes, len } = step.write();
        let number = number(skb).to_le_bytes();
        let shown = matches!(step, Step::Received | Step::Sent);
        for super::Joined { wanted, ring, .. } in self.captures.iter_mut().filter(|one| one.mark & marks != 0)
        {
            let kept = if shown { skb.len().min(wanted.snaplen).min(super::MAX_SNAPLEN) } else { 0 };
            let place = u64::from(dev) | u64::from(queue) << 16 | (Seen::Step as u64) << 32;
            let size = [len as u8];
            let pieces = [&number[..], &size, &bytes[..len]].into_iter().chain(skb.pieces(0, kept));
            let total = number.len() + 1 + len + kept;
            ring.push([total as u64 | (skb.len() as u64) << 32, time, place], total, pieces);
        }
    }

    /// The step of a packet, at `now`; of one that is not followed, nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn step(&mut self, now: u64, skb: &Skb, at: (u16, u16), step: Step) {
        if is_traced(skb) && self.joined(1) {
            self.now = self.now.max(now);
            // A mark may be of a trace that has ended.
            match skb.head().flags & self.traces {
                0 => {}
                marks => self.tell(skb, marks, at, step),
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_were_written() {
        let v4 = |last| IpAddr::from([10, 0, 0, last]);
        let v6 = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7u16]);
        let ends = |to| Ends { addrs: [v4(1), to], ports: [4000, 53] };
        let mut steps = vec![
            Step::Received,
            Step::Passed { slot: Slot::Prerouting, ends: None, conntrack: 0 },
            Step::Passed { slot: Slot::Postrouting, ends: Some([ends(v4(2)), ends(v6)]), conntrack: 9 },
            Step::Taken(Slot::Input),
            Step::Slow(Exception::Ttl),
            Step::Waits(v6),
            Step::Socket(17),
            Step::Delivered,
            Step::Queued,
            Step::Sent,
            Step::Dropped(3),
            Step::Handed,
            Step::ToLink,
        ];
        for kind in KINDS {
            steps.push(Step::Route { dst: v6, len: 48, kind, gateway: Some(v4(9)), mac: Some([2; 6]) });
            steps.push(Step::Route { dst: v4(3), len: 0, kind, gateway: None, mac: None });
        }
        for step in steps {
            let Writer { bytes, len } = step.write();
            assert_eq!(Step::read(&mut Reader(&bytes[..len])), Some(step));
            // However little there is of it.
            (0..len).for_each(|cut| _ = Step::read(&mut Reader(&bytes[..cut])));
        }
    }

    #[test]
    fn a_budget_is_taken_once() {
        let budget = Budget::new(2);
        assert_eq!([budget.take(), budget.take(), budget.take()], [true, true, false]);
    }
}
