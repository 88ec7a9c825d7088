//! What is said of segments that were sent: by ICMP (RFC 5927, RFC 9293 3.9.2.2), and by this host's own
//! TX queues of what they dropped.
//!
//! The slow path reads an ICMP message, and the holder of the connection's shard believes it if what it
//! quotes is in flight.

use softnet_tcp::conn::{Error, PathFloor};
use softnet_tcp::{Segment, Seq};

use super::super::key::{Flow, is_v4};
use super::env::Env;
use super::output::{Effects, mss_of};
use super::packet::of_sent;
use super::shard::Shard;
use crate::SoftnetData;
use crate::ip::v4::header::protocol;
use crate::skb::{DropReason, Flags, Skb};

/// A message about a segment that was sent, or is said to have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The segment's flow, seen from here.
    pub flow: Flow,
    /// Its sequence number.
    pub seq: Seq,
    /// What became of it.
    pub what: News,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It did not arrive.
    Error(Error),
    /// It was too long for a link that takes so many bytes from the IP header on.
    TooBig {
        /// The link's MTU; 0: the router did not say.
        mtu: u32,
        /// Bytes of the packet from the IP header on.
        len: u16,
    },
    /// It never left: there was no room before the device, or on its ring.
    Dropped {
        /// Its sequence numbers: payload and FIN.
        len: u32,
    },
}

impl Told {
    /// What the connection of a packet of this host is to be told that was dropped before it left, for
    /// `reason`; `None` if there is no such connection, or none that would send it again.
    #[cold]
    pub fn dropped(skb: &Skb, reason: DropReason) -> Option<Told> {
        use DropReason::{FullRing, QdiscBurstDrop, QdiscDrop, QdiscOverlimit};
        let head = skb.head();
        let full = matches!(reason, FullRing | QdiscBurstDrop | QdiscDrop | QdiscOverlimit);
        if !full || head.flags & Flags::ORIGINATED == 0 || head.protocol != protocol::TCP {
            return None;
        }
        let (l3, l4) = (usize::from(head.l3), usize::from(head.l4));
        let (flow, seq) = of_sent(skb.data().get(l3..)?, head.dev)?;
        let tcp = skb.data().get(l4..)?;
        let header = Segment::header_len(tcp).ok()?;
        let segment = Segment::parse(tcp.get(..header)?).ok()?;
        let payload = skb.len().checked_sub(l4 + header)? as u32;
        let len = payload + u32::from(segment.flags.any(softnet_tcp::Flags::FIN));
        (len > 0).then_some(Told { flow, seq, what: News::Dropped { len } })
    }

    /// Takes in what `next` says, if that is of the numbers which follow.
    pub fn extend(&mut self, next: &Told) -> bool {
        match (&mut self.what, next.what) {
            (News::Dropped { len }, News::Dropped { len: more })
                if self.flow == next.flow && self.seq + *len == next.seq && *len + more < 1 << 30 =>
            {
                *len += more;
                true
            }
            _ => false,
        }
    }
}

impl Shard {
    /// Has the connection that a message is about take note of it. Returns whether its segments are
    /// shorter since.
    pub fn told(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, told: &Told, out: &mut Effects) -> bool {
        let Some(index) = self.conn_of(&told.flow) else { return false };
        let remote = told.flow.remote;
        let shorter = self.enter(ctx, env, out, index, |conn, cx| match told.what {
            News::Error(error) => {
                conn.icmp_error(cx, told.seq, error);
                false
            }
            News::TooBig { mtu, .. } => {
                let floor = if is_v4(remote) { PathFloor::Ipv4 } else { PathFloor::Ipv6 };
                let mss = mss_of(mtu.min(u16::MAX.into()) as u16, remote);
                conn.path_mss_changed(cx, told.seq, mss, floor)
            }
            News::Dropped { len } => {
                conn.local_drop(cx, told.seq, len);
                false
            }
        });
        shorter.unwrap_or(false)
    }
}
