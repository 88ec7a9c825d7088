//! What ICMP says of segments that were sent (RFC 5927, RFC 9293 3.9.2.2).
//!
//! The slow path reads the message, and the holder of the connection's shard believes it if what it
//! quotes is in flight.

use softnet_tcp::Seq;
use softnet_tcp::conn::{Error, PathFloor};

use super::super::key::{Flow, is_v4};
use super::env::Env;
use super::output::{Effects, mss_of};
use super::shard::Shard;
use crate::SoftnetData;

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
        });
        shorter.unwrap_or(false)
    }
}
