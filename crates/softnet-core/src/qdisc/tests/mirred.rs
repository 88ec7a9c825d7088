//! Redirects between devices that are nothing but their two hooks: what leaves by a device without a redirect is
//! transmitted, what comes in by one is delivered. A redirect to ingress waits in a backlog if it comes from egress,
//! and is received at once if it comes from ingress, as in the kernel.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::super::MirredOutcome::{Go, Loop, TooDeep};
use super::*;

/// A hook: the device, and whether it is that for what comes in.
type Hook = (u16, bool);

struct Net {
    ctx: SoftnetData,
    rules: HashMap<Hook, Mirred>,
    backlog: VecDeque<(u16, Skb)>,
    /// What each action decided, in order.
    outcomes: Vec<MirredOutcome>,
    /// By which device packets left, and came in to stay.
    transmitted: Vec<u16>,
    delivered: Vec<u16>,
    dropped: Vec<DropReason>,
    /// Packets, the first one and its copies.
    packets: usize,
}

fn redirect(from: Hook, to: Hook) -> (Hook, Mirred) {
    (from, Mirred { mirror: false, ingress: to.1, dev: to.0 })
}

fn mirror(from: Hook, to: Hook) -> (Hook, Mirred) {
    (from, Mirred { mirror: true, ..redirect(from, to).1 })
}

const EGRESS: bool = false;
const INGRESS: bool = true;

impl Net {
    /// Lets one packet pass `hook` under `rules`, and all that comes of it.
    fn run(rules: impl IntoIterator<Item = (Hook, Mirred)>, hook: Hook) -> Net {
        let mut net = Net {
            ctx: crate::ip::testing::context(),
            rules: rules.into_iter().collect(),
            backlog: VecDeque::new(),
            outcomes: vec![],
            transmitted: vec![],
            delivered: vec![],
            dropped: vec![],
            packets: 1,
        };
        let skb = net.ctx.alloc_skb().expect("memory for a test");
        net.pass(hook, skb);
        while let Some((dev, skb)) = net.backlog.pop_front() {
            assert_eq!(net.ctx.mirred().devs(), [0; 0], "a backlog is in no nest");
            net.pass((dev, INGRESS), skb);
        }
        assert_eq!(net.ctx.mirred().devs(), [0; 0], "all left");
        let ends = net.transmitted.len() + net.delivered.len() + net.dropped.len();
        assert_eq!(ends, net.packets, "each packet has one end");
        net
    }

    fn pass(&mut self, hook: Hook, skb: Skb) {
        assert!(self.outcomes.len() < 1000, "goes round for ever");
        let skb = match self.rules.get(&hook).copied() {
            Some(mirred) => self.act(mirred, hook.1, skb),
            None => Some(skb),
        };
        if let Some(skb) = skb {
            if hook.1 { &mut self.delivered } else { &mut self.transmitted }.push(hook.0);
            self.ctx.free_skb(skb);
        }
    }

    /// What a runner of actions does; the packet, if it goes on.
    fn act(&mut self, mirred: Mirred, at_ingress: bool, skb: Skb) -> Option<Skb> {
        let outcome = mirred.enter(self.ctx.mirred(), skb.head());
        self.outcomes.push(outcome);
        if let Some(reason) = mirred.shot(outcome, at_ingress) {
            self.dropped.push(reason);
            self.ctx.free(skb, reason);
            return None;
        }
        if outcome != Go {
            return Some(skb);
        }
        let (mut sent, kept) = if mirred.mirror {
            self.packets += 1;
            (self.ctx.copy(&skb).expect("memory for a test"), Some(skb))
        } else {
            (skb, None)
        };
        mirred.mark(sent.head_mut());
        match (at_ingress, mirred.ingress) {
            (EGRESS, INGRESS) => self.backlog.push_back((mirred.dev, sent)),
            _ => self.pass((mirred.dev, mirred.ingress), sent),
        }
        mirred.leave(self.ctx.mirred());
        kept
    }
}

#[test]
fn a_device_that_redirects_to_itself() {
    let net = Net::run([redirect((0, EGRESS), (0, EGRESS))], (0, EGRESS));
    assert_eq!((&net.outcomes[..], &net.dropped[..]), (&[Go, Loop][..], &[DropReason::TcEgress][..]));
    assert_eq!(net.ctx.stats().drops(0, DropReason::TcEgress), 1);
}

#[test]
fn two_devices_that_redirect_to_each_other() {
    let rules = [redirect((0, EGRESS), (1, EGRESS)), redirect((1, EGRESS), (0, EGRESS))];
    let net = Net::run(rules, (0, EGRESS));
    assert_eq!((&net.outcomes[..], &net.dropped[..]), (&[Go, Go, Loop][..], &[DropReason::TcEgress][..]));
    // The same two, from where a packet came in: the loop is found after the second visit of device 0.
    let net = Net::run([redirect((7, INGRESS), (0, EGRESS))].into_iter().chain(rules), (7, INGRESS));
    assert_eq!((&net.outcomes[..], net.dropped.len()), (&[Go, Go, Loop][..], 1));
}

#[test]
fn a_mirror_that_loops_lets_the_packet_pass() {
    let net = Net::run([mirror((0, EGRESS), (0, EGRESS))], (0, EGRESS));
    assert_eq!((&net.outcomes[..], &net.transmitted[..]), (&[Go, Loop][..], &[0, 0][..]));
    let rules = [mirror((0, EGRESS), (1, EGRESS)), mirror((1, EGRESS), (0, EGRESS))];
    let net = Net::run(rules, (0, EGRESS));
    // The copy's copy does not come to a third.
    assert_eq!((&net.outcomes[..], &net.transmitted[..]), (&[Go, Go, Loop][..], &[0, 1, 0][..]));
}

#[test]
fn a_loop_by_way_of_ingress_ends_at_the_packets_depth() {
    let rules = [redirect((0, EGRESS), (1, INGRESS)), redirect((1, INGRESS), (0, EGRESS))];
    let net = Net::run(rules, (0, EGRESS));
    assert_eq!(net.outcomes, [Go, Go, Go, Go, Go, TooDeep]);
    assert_eq!(net.dropped, [DropReason::TcIngress]);
    let net = Net::run(rules, (1, INGRESS));
    assert_eq!((net.outcomes.len(), &net.dropped[..]), (7, &[DropReason::TcIngress][..]));
    // Ingress to ingress, without a backlog in between.
    let net = Net::run([redirect((0, INGRESS), (0, INGRESS))], (0, INGRESS));
    assert_eq!(net.outcomes, [Go, Go, Go, TooDeep]);
    assert_eq!(net.dropped, [DropReason::TcIngress]);
    // A mirror: each round leaves a packet behind, the one that is too deep is dropped.
    let net = Net::run([mirror((0, INGRESS), (0, INGRESS))], (0, INGRESS));
    assert_eq!((&net.outcomes[..], &net.delivered[..]), (&[Go, Go, Go, TooDeep][..], &[0, 0, 0][..]));
    assert_eq!(net.dropped, [DropReason::TcIngress]);
}

#[test]
fn chains_up_to_the_limits_pass() {
    let egress = |n| (0..n).map(|dev| redirect((dev, EGRESS), (dev + 1, EGRESS)));
    for n in 0..=MIRRED_NEST_LIMIT as u16 {
        let net = Net::run(egress(n), (0, EGRESS));
        assert_eq!((net.outcomes, net.transmitted), (vec![Go; n.into()], vec![n]));
    }
    let net = Net::run(egress(5), (0, EGRESS));
    assert_eq!(
        (&net.outcomes[..], &net.dropped[..]),
        (&[Go, Go, Go, Go, TooDeep][..], &[DropReason::TcEgress][..])
    );

    let ingress = |n| (0..n).map(|dev| redirect((dev, INGRESS), (dev + 1, INGRESS)));
    for n in 0..=u16::from(MIRRED_DEFER_LIMIT) {
        let net = Net::run(ingress(n), (0, INGRESS));
        assert_eq!((net.outcomes, net.delivered), (vec![Go; n.into()], vec![n]));
    }
    let net = Net::run(ingress(4), (0, INGRESS));
    assert_eq!(
        (&net.outcomes[..], &net.dropped[..]),
        (&[Go, Go, Go, TooDeep][..], &[DropReason::TcIngress][..])
    );

    // Four by egress, one to ingress, and four by egress again: the second nest is a new one.
    let there = (0..3).map(|dev| redirect((dev, EGRESS), (dev + 1, EGRESS)));
    let round = [redirect((3, EGRESS), (4, INGRESS)), redirect((4, INGRESS), (5, EGRESS))];
    let back = (5..8).map(|dev| redirect((dev, EGRESS), (dev + 1, EGRESS)));
    let net = Net::run(there.chain(round).chain(back), (0, EGRESS));
    assert_eq!((net.outcomes, net.transmitted), (vec![Go; 8], vec![8]));
}

#[test]
fn the_stack_bears_more_than_it_holds() {
    let mut stack = MirredStack::default();
    stack.pop();
    assert!((0..4).all(|dev| stack.push(dev)) && !stack.push(4));
    assert_eq!(stack.devs(), [0, 1, 2, 3]);
    stack.pop();
    assert_eq!(stack.devs(), [0, 1, 2]);
}

proptest! {
    #[test]
    fn no_rules_make_a_packet_go_round_for_ever(
        rules in prop::collection::vec((0u16..5, any::<bool>(), 0u16..5, any::<bool>(), any::<bool>()), 0..12),
        start in (0u16..5, any::<bool>()),
    ) {
        let rules = rules.into_iter().map(|(from, at_ingress, dev, ingress, mirror)| {
            ((from, at_ingress), Mirred { mirror, ingress, dev })
        });
        let net = Net::run(rules, start);
        // Of each nest at most one action more than it has room for.
        prop_assert!(net.outcomes.len() <= (MIRRED_NEST_LIMIT + 1) * (usize::from(MIRRED_DEFER_LIMIT) + 1));
    }
}
