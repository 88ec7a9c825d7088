//! What becomes of the slow path's effects.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::*;
use crate::fold::FoldKey;
use crate::ip::neigh::NeighParams;
use crate::ip::slow::world::{NoSockets, TestFamily};
use crate::ip::slow::{Effects, SlowPath};
use crate::ip::tables::Tables;
use crate::ip::testing::context;
use crate::qdisc::Origin;
use crate::skb::Flags;
use crate::stack::slow::{SlowHost, SlowPathState};
use crate::stack::sockets::SocketHost;
use crate::steer::TxChoice;

/// Packets that were sent together: by which device, how, which, and how many neighbours the tables had then.
type Call = (u16, TxChoice, Origin, Vec<u8>, usize);

struct Host {
    tables: RefCell<Arc<Tables>>,
    sent: RefCell<Vec<Call>>,
    sockets: NoSockets,
}

impl SlowHost for Host {
    fn now(&self) -> u64 {
        0
    }

    fn tables(&self) -> Arc<Tables> {
        self.tables.borrow().clone()
    }

    fn replace(&self, tables: Arc<Tables>) -> Arc<Tables> {
        self.tables.replace(tables)
    }

    fn xmit(&self, ctx: &mut SoftnetData, dev: u16, choice: TxChoice, origin: Origin, batch: &mut Batch) {
        let known = self.tables.borrow().v4.hosts.len();
        self.sent.borrow_mut().push((dev, choice, origin, ids(ctx, batch), known));
    }

    fn sockets(&self) -> &impl SocketHost {
        &self.sockets
    }
}

/// What is sent when the slow path wants what `fill` says.
fn sent(fill: impl FnOnce(&mut SoftnetData, &mut Effects)) -> (Vec<Call>, usize) {
    let mut ctx = context();
    let mut tables = Tables::new(FoldKey::new([1, 2]));
    tables.set_iface(0, Some(Ipv4Addr::iface(0)));
    let sockets = NoSockets::new(ctx.region());
    let host = Host { tables: RefCell::new(Arc::new(tables)), sent: RefCell::default(), sockets };
    let mut state = SlowPathState::new(SlowPath::new(NeighParams::default(), [1, 2]));
    state.run(&mut ctx, &host, |_, ctx, _, out| fill(ctx, out));
    ctx.drain();
    (host.sent.take(), host.tables().v4.hosts.len())
}

/// A packet for the slow path to send.
fn marked(ctx: &mut SoftnetData, id: u8, choice: TxChoice, flags: u16) -> Skb {
    let mut skb = packet(ctx, id);
    skb.head_mut().flags = flags;
    choice.mark(skb.head_mut());
    skb
}

#[test]
fn neighbouring_packets_of_one_queue_leave_together_in_order() {
    let [one, two] = [TxChoice::RxQueue(1), TxChoice::Queue(1)];
    let packets = [
        (0, one, 0),
        (0, one, 0),
        // Another kind of choice of the same number, another queue, another device.
        (0, two, 0),
        (0, TxChoice::Queue(2), 0),
        (1, TxChoice::Queue(2), 0),
        // One that waited, and is taken beyond the limit.
        (1, TxChoice::Queue(2), Flags::HELD),
        (1, TxChoice::Queue(2), Flags::HELD | Flags::ORIGINATED),
        (1, one, Flags::HELD),
        (0, one, Flags::ORIGINATED),
    ];
    let (calls, _) = sent(|ctx, out| {
        for ((dev, choice, flags), id) in packets.into_iter().zip(0..) {
            out.send.push((dev, marked(ctx, id, choice, flags)));
        }
    });
    let calls: Vec<_> =
        calls.into_iter().map(|(dev, choice, origin, ids, _)| (dev, choice, origin, ids)).collect();
    let (forwarded, held) = (Origin::Forwarded, Origin::Held);
    let expected = [
        (0, one, forwarded, vec![0, 1]),
        (0, two, forwarded, vec![2]),
        (0, TxChoice::Queue(2), forwarded, vec![3]),
        (1, TxChoice::Queue(2), forwarded, vec![4]),
        (1, TxChoice::Queue(2), held, vec![5, 6]),
        (1, one, held, vec![7]),
        (0, one, forwarded, vec![8]),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn more_than_a_batch_leaves_in_several() {
    let (calls, _) = sent(|ctx, out| {
        (0..150).for_each(|id| out.send.push((0, marked(ctx, id, TxChoice::Queue(0), 0))));
    });
    assert_eq!(calls.iter().map(|(.., ids, _)| ids.len()).collect::<Vec<_>>(), [64, 64, 22]);
    assert!(calls.into_iter().flat_map(|(.., ids, _)| ids).eq(0..150));
}

/// What waited for a neighbour is on its TX queue before the fast path knows the neighbour.
#[test]
fn a_neighbour_is_published_after_what_waited_for_it_was_sent() {
    let (calls, known) = sent(|ctx, out| {
        out.publish.push((0, IpAddr::from([10, 0, 0, 9]), Some([2; 6])));
        out.send.push((0, marked(ctx, 0, TxChoice::Queue(0), Flags::HELD)));
    });
    assert_eq!(calls, [(0, TxChoice::Queue(0), Origin::Held, vec![0], 0)]);
    assert_eq!(known, 1);
}
