//! Applications that take packets of a NAPI instance, before routing does.
//!
//! The thread that polls the instance (of its context, or of an application) hands each application the packets that its
//! filter wants, as a list, and wakes it when the poll is done. The application's side is
//! [`NapiPoller`](crate::app::NapiPoller).
//!
//! Invariant: at most `limit` packets wait for an application, a poll's worth more at the worst; the rest are drops that
//! are counted, as those of a full socket buffer are.

use std::sync::Arc;

use arc_swap::ArcSwap;
use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, DropReason, Skb, SkbList};
use softnet_core::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mailbox, Ordering, PushError};

use crate::util::Waker;

/// Which packets an application wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFilter {
    /// All that the instance receives.
    All,
    /// Those of an EtherType, which must not be 0x0806 (ARP) if the device is to be reached.
    EtherType(u16),
    /// UDP to a port, whatever the address, of either family; not fragments, nor behind IPv6 extension headers.
    UdpPort(u16),
}

impl PacketFilter {
    /// Whether it wants `packet`, which begins with the Ethernet header. Whatever is in it, this does not panic.
    pub fn wants(self, packet: &[u8]) -> bool {
        let be16 = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
        match self {
            PacketFilter::All => true,
            PacketFilter::EtherType(wanted) => be16(12) == Some(wanted),
            PacketFilter::UdpPort(port) => {
                let ip = 14;
                let Some(&version) = packet.get(ip) else { return false };
                match (be16(12), version >> 4) {
                    (Some(0x0800), 4) => {
                        let header = usize::from(version & 0x0f) * 4;
                        header >= 20
                            && packet.get(ip + 9) == Some(&17)
                            // Neither more fragments nor an offset.
                            && be16(ip + 6).is_some_and(|fragment| fragment & 0x3fff == 0)
                            && be16(ip + header + 2) == Some(port)
                    }
                    (Some(0x86dd), 6) => packet.get(ip + 6) == Some(&17) && be16(ip + 42) == Some(port),
                    _ => false,
                }
            }
        }
    }
}

/// The side of an application that pollers of its instance see.
pub struct App {
    /// For display.
    pub name: String,
    /// Thread that uses it, once it did.
    pub tid: AtomicU32,
    filter: PacketFilter,
    ready: Mailbox<SkbList>,
    /// Frames of the packets that wait for it.
    queued: AtomicUsize,
    limit: usize,
    /// Wakes it.
    pub waker: Waker,
    /// Packets it was given.
    pub packets: AtomicU64,
    /// Packets it would have been given, had there been room.
    pub dropped: AtomicU64,
    /// Times it blocked.
    pub sleeps: AtomicU64,
}

impl App {
    /// An application that is in no list yet. It takes what is pushed by `ready`.
    pub(crate) fn new(
        name: String,
        filter: PacketFilter,
        limit: usize,
        ready: Mailbox<SkbList>,
    ) -> std::io::Result<Self> {
        Ok(App {
            name,
            tid: AtomicU32::new(0),
            filter,
            ready,
            queued: AtomicUsize::new(0),
            limit,
            waker: Waker::new()?,
            packets: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        })
    }

    /// Frames of the packets that wait for it.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// The application took packets of `frames` frames.
    pub(crate) fn took(&self, frames: usize) {
        self.queued.fetch_sub(frames, Ordering::Relaxed);
    }

    /// Hands it what it wants of `batch`; the rest stays, in order. Returns whether that was anything,
    /// and how many there was no room for.
    fn offer(&self, ctx: &mut SoftnetData, batch: &mut Batch) -> (bool, u64) {
        let room = self.limit.saturating_sub(self.queued());
        let (mut list, mut rest, mut frames, mut full) = (SkbList::new(), Batch::new(), 0, 0);
        for skb in batch.drain() {
            if !self.filter.wants(skb.data()) {
                keep(ctx, &mut rest, skb);
                continue;
            }
            let takes = skb.frame_count();
            // A list refuses only what is of another region than the rest, and there is one.
            let refused = if frames + takes <= room { list.push_back(skb).err() } else { Some(skb) };
            match refused {
                None => frames += takes,
                Some(skb) => {
                    ctx.free(skb, DropReason::SocketRcvbuff);
                    full += 1;
                }
            }
        }
        batch.append(&mut rest);
        let n = list.len();
        if full > 0 {
            self.dropped.fetch_add(full, Ordering::Relaxed);
        }
        if n == 0 {
            return (full > 0, full);
        }
        self.queued.fetch_add(frames, Ordering::Relaxed);
        match self.ready.push(list) {
            Ok(_) => {
                ctx.delivered(n as u64);
                self.packets.fetch_add(n as u64, Ordering::Relaxed);
                (true, full)
            }
            Err(PushError::Full(mut list) | PushError::Closed(mut list)) => {
                self.took(frames);
                self.dropped.fetch_add(n as u64, Ordering::Relaxed);
                while let Some(skb) = list.pop_front() {
                    ctx.free(skb, DropReason::SocketRcvbuff);
                }
                (false, full + n as u64)
            }
        }
    }
}

/// Puts a packet where there is room for it: `rest` is as large as the batch it came from.
fn keep(ctx: &mut SoftnetData, rest: &mut Batch, skb: Skb) {
    if let Err(skb) = rest.push(skb) {
        ctx.free(skb, DropReason::Shutdown);
    }
}

/// The applications of an instance.
#[derive(Default)]
pub struct Apps {
    any: AtomicBool,
    /// Packets that applications had no room for, those that have gone too.
    dropped: AtomicU64,
    list: ArcSwap<Vec<Arc<App>>>,
}

impl Apps {
    /// Whether there are any: one load.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Packets that they had no room for; it never shrinks.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// All of them.
    pub fn list(&self) -> Arc<Vec<Arc<App>>> {
        self.list.load_full()
    }

    /// Adds an application, behind those that are there.
    pub(crate) fn add(&self, app: &Arc<App>) {
        self.list.rcu(|list| {
            let mut list = Vec::clone(list);
            list.push(app.clone());
            list
        });
        self.any.store(true, Ordering::Release);
    }

    /// Removes an application. A poll that runs now may still hand it packets.
    pub(crate) fn remove(&self, app: &Arc<App>) {
        self.list.rcu(|list| {
            let mut list = Vec::clone(list);
            list.retain(|other| !Arc::ptr_eq(other, app));
            list
        });
        // Another that is added meanwhile has said so after this, or is in the list.
        self.any.store(false, Ordering::Release);
        if !self.list.load().is_empty() {
            self.any.store(true, Ordering::Release);
        }
    }

    /// Wakes all of them.
    pub(crate) fn wake(&self) {
        self.list.load().iter().for_each(|app| app.waker.wake());
    }

    /// Hands each what it wants of `batch`, in the order in which they were added; what none wants stays. Those that got
    /// something are to be woken when the poll is done: they are added to `woken`.
    pub(crate) fn deliver(&self, ctx: &mut SoftnetData, batch: &mut Batch, woken: &mut Vec<Arc<App>>) {
        for app in self.list.load().iter() {
            if batch.is_empty() {
                return;
            }
            let (given, dropped) = app.offer(ctx, batch);
            if dropped > 0 {
                self.dropped.fetch_add(dropped, Ordering::Relaxed);
            }
            if given && !woken.iter().any(|other| Arc::ptr_eq(other, app)) {
                woken.push(app.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(port: u16) -> Vec<u8> {
        let mut packet = vec![0; 14 + 20 + 8];
        packet[12..14].copy_from_slice(&[8, 0]);
        packet[14] = 0x45;
        packet[14 + 9] = 17;
        packet[14 + 22..14 + 24].copy_from_slice(&port.to_be_bytes());
        packet
    }

    #[test]
    fn filters_want_what_they_say() {
        let packet = udp(7);
        assert!(PacketFilter::All.wants(&[]) && PacketFilter::UdpPort(7).wants(&packet));
        assert!(
            PacketFilter::EtherType(0x0800).wants(&packet) && !PacketFilter::EtherType(0x0806).wants(&packet)
        );
        assert!(!PacketFilter::UdpPort(8).wants(&packet));
        for (at, value) in [(12, 0x86), (14, 0x65), (14, 0x44), (14 + 9, 6), (14 + 6, 0x20), (14 + 7, 1)] {
            let mut other = packet.clone();
            other[at] = value;
            assert!(!PacketFilter::UdpPort(7).wants(&other), "byte {at}");
        }
        let mut options = udp(0);
        options[14] = 0x46;
        options.extend([0; 4]);
        options[14 + 26..14 + 28].copy_from_slice(&7u16.to_be_bytes());
        assert!(PacketFilter::UdpPort(7).wants(&options));
        // Don't fragment is fine; and so is whatever comes cut short.
        let mut df = packet.clone();
        df[14 + 6] = 0x40;
        assert!(PacketFilter::UdpPort(7).wants(&df));
        for cut in 0..14 + 24 {
            assert!(!PacketFilter::UdpPort(7).wants(&packet[..cut]));
        }
    }

    #[test]
    fn a_port_is_one_of_either_family() {
        let mut packet = vec![0; 14 + 40 + 8];
        packet[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        packet[14 + 6] = 17;
        packet[14 + 42..14 + 44].copy_from_slice(&7u16.to_be_bytes());
        assert!(PacketFilter::UdpPort(7).wants(&packet) && !PacketFilter::UdpPort(8).wants(&packet));
        // Another EtherType, another version, and a fragment.
        for (at, value) in [(12, 0x08), (13, 0x00), (14, 0x45), (14 + 6, 44)] {
            let mut other = packet.clone();
            other[at] = value;
            assert!(!PacketFilter::UdpPort(7).wants(&other), "byte {at}");
        }
        for cut in 0..14 + 44 {
            assert!(!PacketFilter::UdpPort(7).wants(&packet[..cut]));
        }
    }
}
