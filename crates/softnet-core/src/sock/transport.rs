//! The receive table: the protocols whose packets to this host go to sockets, by number (the
//! kernel's `inet_protos`).
//!
//! Read by the fast path and by the slow one, of both families. A protocol is added here, with its
//! input, and nowhere else: what is not in the table (ICMP, and what is not served) is the slow
//! path's. Invariant: what [`input`](Transport::input) is handed is of its protocol, whole, with
//! [`l3`](crate::skb::Head::l3) and [`l4`](crate::skb::Head::l4) in its head.

use std::ops::{Index, IndexMut};

use super::arrivals::Arrivals;
use super::key::Flow;
use super::table::Hit;
use super::udp::{udp_input, udp_members};
use crate::SoftnetData;
use crate::ip::v4::header::protocol;
use crate::skb::{Batch, DropReason, Skb};

/// A protocol with sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP. Its packets do not wait in a socket's inbox: see [`tcp`](super::tcp).
    Tcp,
}

impl Transport {
    /// All there are, in the order in which a batch's packets are handed over.
    pub const ALL: [Transport; 2] = [Transport::Udp, Transport::Tcp];

    /// That with IANA's protocol number `protocol`; IPv6's numbers of these are the same.
    #[inline(always)]
    pub const fn of(protocol: u8) -> Option<Transport> {
        match protocol {
            protocol::UDP => Some(Transport::Udp),
            protocol::TCP => Some(Transport::Tcp),
            _ => None,
        }
    }

    /// Its protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Transport::Udp => protocol::UDP,
            Transport::Tcp => protocol::TCP,
        }
    }

    /// Whether what is to many may be of the protocol numbered `protocol`.
    pub fn is_to_many(protocol: u8) -> bool {
        Transport::of(protocol).is_some_and(|transport| match transport {
            Transport::Udp => true,
            Transport::Tcp => false,
        })
    }

    /// Hands the packets of `local` over to their sockets, and leaves it empty. Those without a
    /// socket come out in `unserved`, not counted.
    #[inline(always)]
    pub fn input(
        self,
        ctx: &mut SoftnetData,
        to: &mut Arrivals<'_>,
        local: &mut Batch,
        unserved: &mut Batch,
    ) {
        match self {
            Transport::Udp => udp_input(ctx, to, local, unserved),
            // Where there is a table of connections, its shards have had the packets already.
            Transport::Tcp => std::mem::swap(local, unserved),
        }
    }

    /// Has `deliver` hand copies of `skb`, which is to many, over to each of the `members` for its
    /// flow.
    pub fn input_to_many(
        self,
        ctx: &mut SoftnetData,
        members: impl FnOnce(&Flow) -> Vec<Hit>,
        skb: Skb,
        deliver: impl FnMut(&mut SoftnetData, Hit, &mut Batch),
    ) {
        match self {
            Transport::Udp => udp_members(ctx, members, skb, deliver),
            Transport::Tcp => ctx.free(skb, DropReason::IpNoProto),
        }
    }
}

/// Packets to this host, by protocol.
#[derive(Default)]
pub struct LocalBatches([Batch; Transport::ALL.len()]);

impl Index<Transport> for LocalBatches {
    type Output = Batch;

    #[inline(always)]
    fn index(&self, transport: Transport) -> &Batch {
        &self.0[transport as usize]
    }
}

impl IndexMut<Transport> for LocalBatches {
    #[inline(always)]
    fn index_mut(&mut self, transport: Transport) -> &mut Batch {
        &mut self.0[transport as usize]
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Each number leads to one place of the table, and from there back.
    #[test]
    fn the_table_is_consistent() {
        for (at, transport) in Transport::ALL.into_iter().enumerate() {
            assert_eq!((transport as usize, Transport::of(transport.number())), (at, Some(transport)));
        }
        let known = (0..=u8::MAX).filter_map(Transport::of).count();
        assert_eq!(known, Transport::ALL.len());
        // The slow path answers it by itself.
        assert_eq!(Transport::of(protocol::ICMP), None);
    }
}
