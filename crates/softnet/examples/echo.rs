//! A UDP echo server that polls its queues itself, and suspends their doorbells while it works.
//!
//! ```text
//! cargo run --release -p softnet --example echo -- CONFIG PORT
//! ```
//!
//! Datagrams to PORT, whatever the address, go back to where they came from; everything else on the interfaces of CONFIG is
//! routed as by `softnet run`. `softnet top` looks inside. Suspension takes all three knobs:
//!
//! ```text
//! softnet set dev eth1 napi-defer-hard-irqs=100 gro-flush-timeout=20000 irq-suspend-timeout=20000000
//! ```

use std::error::Error;
use std::path::Path;

use softnet::config::Config;
use softnet::{PacketFilter, PollerError, PollerParams, Stack};
use softnet_core::ip::checksum;
use softnet_core::skb::Batch;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [config, port] = &args[..] else { return Err("usage: echo CONFIG PORT".into()) };
    let (config, port) = (Config::load(Path::new(config))?, port.parse()?);
    // For `softnet show`, `top` and `set`, too.
    let stack = Stack::builder().config(config).control_socket().start()?;
    let napis = stack.view().napis();
    std::thread::scope(|scope| {
        // A thread for each queue.
        let start = |napi: u32| {
            scope.spawn({
                let stack = &stack;
                move || echo(stack, napi, port)
            })
        };
        let threads: Vec<_> = napis.iter().map(|row| start(row.id)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?.map_err(Into::into))
    })
}

/// Answers what comes by instance `napi`, until its interface goes away.
fn echo(stack: &Stack, napi: u32, port: u16) -> Result<(), PollerError> {
    // Polls once before it sleeps, and would rather do that itself than have others do it.
    let params = PollerParams { prefer_busy_poll: true, busy_poll_budget: 64, ..PollerParams::default() };
    let mut poller = stack.poller(napi, "echo", PacketFilter::UdpPort(port), params)?;
    let mut batch = Batch::new();
    loop {
        // While this keeps bringing packets no other thread polls the queue; when it runs dry the queue's doorbell wakes us.
        poller.wait(&mut batch, None)?;
        for skb in batch.as_mut_slice() {
            turn_round(skb.data_mut());
        }
        poller.send(&mut batch);
    }
}

/// Makes an Ethernet frame with a UDP datagram in it one to its sender. The filter let nothing else through.
fn turn_round(frame: &mut [u8]) {
    let v6 = frame[14] >> 4 == 6;
    let (addresses, udp) = match v6 {
        true => ((14 + 8, 16), 14 + 40),
        false => ((14 + 12, 4), 14 + usize::from(frame[14] & 0x0f) * 4),
    };
    // MAC addresses, IP addresses, ports: their sums stay as they are.
    for (at, len) in [(0, 6), addresses, (udp, 2)] {
        let (from, to) = frame[at..at + 2 * len].split_at_mut(len);
        from.swap_with_slice(to);
    }
    // The sender may have left the checksum to its device, as a veth does. 0: there is none (RFC 768), which only IPv4 allows.
    let Some(check) = frame.get_mut(udp + 6..udp + 8) else { return };
    check.fill(0);
    if v6 {
        let len = u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]);
        let datagram = frame.get(udp..udp + usize::from(len)).unwrap_or_default();
        let pseudo = checksum::add(checksum::sum(&frame[14 + 8..udp]), checksum::add(17, len));
        let check = !checksum::add(pseudo, checksum::sum(datagram));
        frame[udp + 6..udp + 8].copy_from_slice(&if check == 0 { 0xffff } else { check }.to_be_bytes());
    }
}
