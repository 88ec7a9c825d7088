//! Client and server in one process, by an emulated NIC of one queue. As [`echo`](crate::bench::echo)'s, but that requests
//! are of two kinds: the client says which, and the NIC writes them.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use softnet::Stack;
use softnet::config::DeviceConfig;
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::mem::{NicConfig, NicPort, Source, nic};
use softnet_dev::sched::Policy;

use super::light::Light;
use super::packet::{Ends, Format, PORTS, Request, number};
use super::{Bed, Side, config, host, text};
use crate::bench::echo::{Answers, Client, Responses, Sent, Wire};

const ENDS: Ends = Ends {
    client: ([2, 0, 0, 0, 2, 0], Ipv4Addr::new(198, 18, 0, 2)),
    server: ([2, 0, 0, 0, 1, 0], Ipv4Addr::new(198, 18, 0, 1)),
};
/// Descriptors of each ring.
const RING: usize = 1024;
/// Requests that wait in the ring, and as many that may be about to find no place there.
const ORDERS: usize = 2 * RING;
/// Most numbers that the client takes at once.
const TAKE: usize = 64;
/// Marks what is the second application's, on either way.
const SECOND: u64 = 1 << 16;

fn code(request: Request) -> u64 {
    match request {
        Request::Server(id) => u64::from(id),
        Request::Second(id) => SECOND | u64::from(id),
    }
}

fn request(code: u64) -> Request {
    if code & SECOND == 0 { Request::Server(code as u16) } else { Request::Second(code as u16) }
}

/// What requests are to arrive, by their place in the order. A place is written before its request is offered, and read when
/// the driver takes that.
type Orders = Arc<[AtomicU64]>;

struct Requests {
    format: Format,
    orders: Orders,
    position: usize,
}

impl Source for Requests {
    fn write(&mut self, buf: &mut [u8]) -> usize {
        let order = self.orders[self.position % ORDERS].load(Ordering::Acquire);
        self.position += 1;
        self.format.write(request(order), buf)
    }

    fn next_len(&self) -> usize {
        self.format.len()
    }
}

struct MemWire {
    port: NicPort,
    orders: Orders,
    /// Requests that found a place in the ring.
    left: usize,
    answers: Arc<Answers>,
    position: u64,
    /// Number of the server's next request.
    next: u64,
    light: Light,
}

impl MemWire {
    fn offer(&mut self, n: u64, now: u64, order: impl Fn(u64) -> Request) -> u64 {
        for i in 0..n {
            self.orders[(self.left + i as usize) % ORDERS].store(code(order(i)), Ordering::Release);
        }
        let left = self.port.offer_at(n, now);
        self.left += left as usize;
        left
    }
}

impl Wire for MemWire {
    fn send(&mut self, first: u64, n: u64, now: u64) -> Result<Sent, String> {
        let n = n.min(RING as u64);
        let left = self.offer(n, now, |i| Request::Server((first + i) as u16));
        self.next = first + left;
        Ok(Sent { left, lost: n - left })
    }

    fn receive(&mut self, now: u64, answered: &mut Vec<u64>) -> Result<(), String> {
        if let Some(number) = self.light.take_due(now)
            && self.offer(1, now, |_| Request::Second(number as u16)) == 0
        {
            self.light.put_back();
        }
        while answered.len() < TAKE
            && let Some(code) = self.answers.get(self.position)
        {
            self.position += 1;
            match request(code.into()) {
                Request::Server(id) => answered.push(number(id, self.next)),
                Request::Second(id) => self.light.answered(id, now)?,
            }
        }
        self.light.give_up(now);
        // A look at each batch and not at each turn: the line is the server's.
        if !answered.is_empty() && self.answers.has_strange() {
            return Err("a packet came out that is no response to any request".into());
        }
        Ok(())
    }

    fn measure(&mut self, begins: Option<u64>) {
        self.light.measure(begins);
    }

    fn is_busy(&self) -> bool {
        self.light.is_busy()
    }
}

pub(super) fn bed(cpu: usize, policy: Option<Policy>) -> Result<Bed, String> {
    // The sums are the server's own work; on its CPU they are not checked as well.
    let format = Format::new(ENDS, false);
    let answers = Answers::new();
    let orders: Orders = (0..ORDERS).map(|_| AtomicU64::new(0)).collect();
    let port = Arc::new(Mutex::new(None));
    let opener = {
        let (answers, port, orders) = (answers.clone(), port.clone(), orders.clone());
        move |_: &Arc<Region>| {
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                let source = Requests { format: format.clone(), orders: orders.clone(), position: 0 };
                let format = format.clone();
                let number = move |packet: &[u8]| format.answered(packet).map(code);
                let sink = Responses { answers: answers.clone(), position: 0, number };
                let config = NicConfig {
                    name: name.into(),
                    mac: ENDS.server.0,
                    rx_ring: RING,
                    tx_ring: RING,
                    ..NicConfig::default()
                };
                let nic = nic(dev, &config, vec![(source, sink)]).map_err(text)?;
                *port.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports.into_iter().next();
                Ok::<_, String>(nic.open)
            })
        }
    };
    let config = config(cpu, policy, DeviceConfig::new("nic0"), &ENDS)?;
    let stack = Stack::run(Assembly::new(config, vec![], opener).map_err(text)?).map_err(text)?;
    let port = port.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or("the NIC was not opened")?;
    let (light, second) = Light::new();
    let wire = MemWire { port, orders, left: 0, answers, position: 0, next: 0, light };
    let side = Side { second, host: host(stack)?, veth: None, threads: Vec::new() };
    Ok(Bed { client: Client::with_lanes(Box::new(wire), PORTS), side })
}
