//! Client and server in one process, by an emulated NIC of one queue.
//!
//! The client lets requests arrive; that the NIC writes them into packet memory, and reads the responses out of it,
//! happens on the server's CPU, where a NIC's DMA would not be seen. Beside that the server's CPU does nothing for the
//! measurement but to hand over the numbers of responses, one store each.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use softnet::Stack;
use softnet::config::DeviceConfig;
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::mem::{NicConfig, NicPort, Source, nic};

use super::answers::{Answers, Responses};
use super::client::{Client, Sent, Wire};
use super::packet::{End, Format};
use super::{Bed, Setup};

const SERVER: End = End { mac: [2, 0, 0, 0, 1, 0], address: Ipv4Addr::new(198, 18, 0, 1) };
const CLIENT: End = End { mac: [2, 0, 0, 0, 2, 0], address: Ipv4Addr::new(198, 18, 0, 2) };
/// Descriptors of each ring.
const RING: usize = 1024;
/// Most numbers that it takes at once.
const TAKE: usize = 64;

struct Requests {
    format: Format,
    next: u64,
}

impl Source for Requests {
    fn write(&mut self, buf: &mut [u8]) -> usize {
        self.next += 1;
        self.format.write(self.next - 1, buf)
    }

    fn next_len(&self) -> usize {
        self.format.len()
    }
}

struct MemWire {
    port: NicPort,
    answers: Arc<Answers>,
    position: u64,
    /// Number of the last response, to complete the next from its lower half.
    last: u64,
    coalesces: bool,
}

impl Wire for MemWire {
    fn send(&mut self, _: u64, n: u64, now: u64) -> Result<Sent, String> {
        let left = self.port.offer_at(n, now);
        Ok(Sent { left, lost: n - left })
    }

    fn receive(&mut self, now: u64, answered: &mut Vec<u64>) -> Result<(), String> {
        if self.coalesces {
            self.port.tick(now);
        }
        while answered.len() < TAKE
            && let Some(low) = self.answers.get(self.position)
        {
            self.position += 1;
            // Numbers only grow, and by less than the lower half holds.
            self.last += u64::from(low.wrapping_sub(self.last as u32));
            answered.push(self.last);
        }
        // A look at each batch and not at each turn: the line is the server's.
        if !answered.is_empty() && self.answers.has_strange() {
            return Err("a packet came out that is no response to any request".into());
        }
        Ok(())
    }
}

pub(super) fn bed(setup: &Setup) -> Result<Bed, String> {
    let format = Format::new(CLIENT, SERVER, setup.payload);
    let answers = Answers::new();
    let port = Arc::new(Mutex::new(None));
    let opener = {
        let (answers, port, coalesce) = (answers.clone(), port.clone(), setup.coalesce);
        move |_: &Arc<Region>| {
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                let source = Requests { format: format.clone(), next: 0 };
                let format = format.clone();
                let number = move |packet: &[u8]| format.answered(packet);
                let sink = Responses { answers: answers.clone(), position: 0, number };
                let config = NicConfig {
                    name: name.into(),
                    mac: SERVER.mac,
                    rx_ring: RING,
                    tx_ring: RING,
                    coalesce,
                    ..NicConfig::default()
                };
                let nic = nic(dev, &config, vec![(source, sink)]).map_err(|e| e.to_string())?;
                *port.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports.into_iter().next();
                Ok::<_, String>(nic.open)
            })
        }
    };
    let mut config = setup.config();
    let address = format!("{}/24", SERVER.address).parse().map_err(|e| format!("{e:?}"))?;
    let device = DeviceConfig::new("nic0").with(|device| {
        device.addresses = vec![address];
        device.threaded = setup.context;
    });
    config.devices = vec![device];
    let assembly = Assembly::new(config, vec![], opener).map_err(|e| e.to_string())?;
    let stack = Stack::run(assembly).map_err(|e| e.to_string())?;
    let port = port.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or("the NIC was not opened")?;
    let coalesces = setup.coalesce != Default::default();
    let wire = MemWire { port, answers, position: 0, last: 0, coalesces };
    Bed::new(stack, Client::new(Box::new(wire)), None)
}
