//! The wire of `bench rfs`: datagrams of many flows that say when they came.
//!
//! One thread [offers](crate::bench::offer) them; the worker that polls the NIC writes them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use softnet_dev::mem::{Sink, Source};
use softnet_testkit::UdpFrame;

use crate::bench::offer::Stamps;

/// Flows: told apart by their source ports.
pub(super) const FLOWS: u64 = 64;
/// Consumers: flows are dealt to them in turn, by destination ports.
pub(super) const CONSUMERS: u64 = 2;
pub(super) const FIRST_PORT: u16 = 7000;
pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 1, 0];
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 254);

/// Bytes of a frame; its payload is number and stamp.
const SIZE: usize = 60;
const SRC_PORT: usize = 34;
const DST_PORT: usize = 36;
const CHECKSUM: usize = 40;
const PAYLOAD: usize = 42;
/// Number and stamp of a datagram.
pub(super) fn parse(payload: &[u8]) -> Option<(u64, u64)> {
    let word = |at: usize| payload.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    Some((word(0)?, word(8)?))
}

/// Where the datagrams come from.
pub(super) struct FlowSource {
    stamps: Arc<Stamps>,
    template: [u8; SIZE],
    number: u64,
}

impl FlowSource {
    pub(super) fn new(stamps: Arc<Stamps>) -> Self {
        let frame = UdpFrame {
            src_mac: [2, 0, 0, 0, 3, 0],
            dst_mac: MAC,
            src: Ipv4Addr::new(198, 18, 0, 1),
            dst: ADDRESS,
            src_port: 1024,
            dst_port: FIRST_PORT,
            len: SIZE as u16,
        };
        let (frame, mut template) = (frame.build(), [0; SIZE]);
        let len = frame.len().min(SIZE);
        template[..len].copy_from_slice(&frame[..len]);
        // None: the payload is another each time.
        template[CHECKSUM..PAYLOAD].fill(0);
        FlowSource { stamps, template, number: 0 }
    }
}

impl Source for FlowSource {
    fn write(&mut self, buf: &mut [u8]) -> usize {
        let Some(buf) = buf.first_chunk_mut::<SIZE>() else { return 0 };
        *buf = self.template;
        let number = self.number;
        self.number += 1;
        let flow = (number % FLOWS) as u16;
        let stamp = self.stamps.of(number);
        buf[SRC_PORT..DST_PORT].copy_from_slice(&(1024 + flow).to_be_bytes());
        buf[DST_PORT..DST_PORT + 2].copy_from_slice(&(FIRST_PORT + flow % CONSUMERS as u16).to_be_bytes());
        buf[PAYLOAD..PAYLOAD + 8].copy_from_slice(&number.to_le_bytes());
        buf[PAYLOAD + 8..PAYLOAD + 16].copy_from_slice(&stamp.to_le_bytes());
        SIZE
    }

    fn next_len(&self) -> usize {
        SIZE
    }
}

/// Where nothing goes that counts.
pub(super) struct NoSink;

impl Sink for NoSink {
    fn read(&mut self, _: &[u8]) {}
}
