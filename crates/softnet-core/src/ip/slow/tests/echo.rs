//! Echo requests that come in one packet.

use super::*;
use crate::ip::ETH_LEN;
use crate::ip::neigh::NeighState;

for_each_family! { echo_is_answered_also_through_a_stale_neighbour }

fn echo_is_answered_also_through_a_stale_neighbour<F: TestFamily>() {
    let mut world = World::<F>::new();
    world.one(0, F::question(0, F::CLIENT, CLIENT_MAC));
    for (own, ttl, padding) in
        [(F::OWN[0], 1, 0), (F::OWN[1], 64, 0), (F::OWN[0], 1, 50), (F::OWN[1], 64, 50)]
    {
        let question = echo(own, ttl);
        let sent = world.one(0, [&question[..], &vec![0; padding]].concat());
        assert_eq!(sent.len(), 1);
        let (dev, frame) = &sent[0];
        assert_eq!((*dev, &frame[..ETH_LEN]), (0, &eth(CLIENT_MAC, MACS[0], F::ETHERTYPE)[..]));
        let expected = Header { src: own, dst: F::CLIENT, ttl: 64, protocol: F::ICMP };
        assert_eq!(F::header(packet(frame)), expected);
        let [asked, answered] = [&question, frame].map(|frame| &packet(frame)[F::HEADER..]);
        assert_eq!(F::sum(F::ICMP, own, F::CLIENT, answered), 0xffff);
        assert_eq!((answered[0], &answered[4..]), (F::ECHO_REPLY, &asked[4..]));
        assert_eq!(world.state(F::CLIENT), NeighState::Delay);
    }
    let stats = world.ctx.stats();
    // Four echoes and a question came here, and were answered.
    assert_eq!((stats.delivered.get(), stats.originated.get(), stats.dropped()), (5, 5, 0));
}
