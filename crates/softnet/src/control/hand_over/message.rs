//! What is said when one process takes another's place: plain data, and how it is written.
//!
//! The offer is text, since it is read before anything stops. The frames are numbers, since all
//! wait for them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use softnet_core::conntrack::Carried;
use softnet_core::ip::MacAddr;
use softnet_dev::hand_over::{DeviceFacts, HeldFrames};

/// Of all that is said, and of what rings look like. Another one is refused.
pub(crate) const VERSION: u32 = 2;

/// What the running instance has, and is about to hand over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Its process.
    pub(crate) pid: u32,
    /// Frames of its packet memory.
    pub(crate) frames: u32,
    /// Its open devices.
    pub(crate) devices: Vec<OfferedDevice>,
    /// The neighbours that it can send to.
    pub(crate) neighbours: Vec<OfferedNeighbour>,
}

/// An open device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedDevice {
    /// Its name.
    pub(crate) name: String,
    /// What its driver tells.
    pub(crate) facts: DeviceFacts,
    /// Descriptors that belong to it.
    pub(crate) descriptors: usize,
}

/// A neighbour whose MAC address is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedNeighbour {
    /// The device, by name.
    pub(crate) dev: String,
    /// Its address.
    pub(crate) ip: IpAddr,
    /// Its MAC address.
    pub(crate) mac: MacAddr,
}

/// Connections, as [`Carried`] has them.
pub(crate) type Connections = Vec<Vec<u8>>;

/// Bytes of connections that go together.
const TOGETHER: usize = 40_000 * Carried::LEN;

/// Adds a connection to those that are to be sent.
pub(crate) fn push(all: &mut Connections, carried: &Carried) {
    match all.last_mut().filter(|last| last.len() < TOGETHER) {
        Some(last) => last.extend_from_slice(&carried.to_bytes()),
        None => all.push(carried.to_bytes().to_vec()),
    }
}

/// The connections that `bytes` say; those that can't be are left out.
pub(crate) fn connections(bytes: &[u8]) -> impl Iterator<Item = Carried> {
    bytes.as_chunks().0.iter().filter_map(Carried::from_bytes)
}

/// The frames that rings hold, when nothing moves any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// Of each device, in the order of the offer.
    pub(crate) devices: Vec<StoppedDevice>,
}

/// Those of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoppedDevice {
    /// Of each RX queue.
    pub(crate) rx: Vec<HeldFrames>,
    /// Of each TX queue.
    pub(crate) tx: Vec<Vec<u32>>,
}

impl Stopped {
    /// In bytes: counts and numbers of 32 bits, little-endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |number: usize| out.extend_from_slice(&(number as u32).to_le_bytes());
        put(self.devices.len());
        for StoppedDevice { rx, tx } in &self.devices {
            put(rx.len());
            for HeldFrames { frames, is_amid } in rx {
                put(usize::from(*is_amid));
                put(frames.len());
                frames.iter().for_each(|index| put(*index as usize));
            }
            put(tx.len());
            for frames in tx {
                put(frames.len());
                frames.iter().for_each(|index| put(*index as usize));
            }
        }
        out
    }

    /// What `bytes` say; `None` if they say nothing, or more.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = Words(bytes);
        let devices = words.list(|words| {
            let rx = words.list(|words| {
                let is_amid = match words.next()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                Some(HeldFrames { is_amid, frames: words.list(Words::next)? })
            })?;
            Some(StoppedDevice { rx, tx: words.list(|words| words.list(Words::next))? })
        })?;
        words.0.is_empty().then_some(Stopped { devices })
    }

    /// Whether they can be the frames of a region of so many: none of them twice.
    pub(crate) fn is_sound(&self, frames: u32) -> bool {
        let mut seen = vec![false; frames as usize];
        let of_rx = self.devices.iter().flat_map(|device| &device.rx).flat_map(|held| &held.frames);
        let of_tx = self.devices.iter().flat_map(|device| &device.tx).flatten();
        let first =
            |index: &u32| seen.get_mut(*index as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        of_rx.chain(of_tx).all(first)
    }
}

/// Bytes that are read as numbers.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    /// A count, and so many of what `read` reads, each of which takes a number at least.
    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.next()? as usize;
        if count > self.0.len() / 4 {
            return None;
        }
        (0..count).map(|_| read(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stopped() -> impl Strategy<Value = Stopped> {
        let frames = || prop::collection::vec(any::<u32>(), 0..40);
        let held = (frames(), any::<bool>()).prop_map(|(frames, is_amid)| HeldFrames { frames, is_amid });
        let queues = (prop::collection::vec(held, 0..4), prop::collection::vec(frames(), 0..4));
        let device = queues.prop_map(|(rx, tx)| StoppedDevice { rx, tx });
        prop::collection::vec(device, 0..4).prop_map(|devices| Stopped { devices })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(stopped in stopped()) {
            prop_assert_eq!(Stopped::decode(&stopped.encode()), Some(stopped));
        }

        #[test]
        fn what_is_cut_short_or_longer_is_refused(stopped in stopped(), cut in 1usize..9) {
            let mut bytes = stopped.encode();
            let short = bytes.len().saturating_sub(cut);
            prop_assert_eq!(Stopped::decode(&bytes[..short]), None);
            bytes.extend(vec![0; cut]);
            prop_assert_eq!(Stopped::decode(&bytes), None);
        }

        #[test]
        fn garbage_is_no_panic_and_takes_no_memory(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Stopped::decode(&bytes);
            let many = [&u32::MAX.to_le_bytes()[..], &bytes].concat();
            prop_assert_eq!(Stopped::decode(&many), None);
        }
    }

    #[test]
    fn a_frame_is_in_one_ring() {
        let of = |rx: &[u32], tx: &[u32]| {
            let rx = vec![HeldFrames { frames: rx.into(), is_amid: false }];
            Stopped { devices: vec![StoppedDevice { rx, tx: vec![tx.into()] }] }
        };
        assert!(of(&[0, 7], &[6]).is_sound(8));
        assert!(!of(&[0, 8], &[6]).is_sound(8), "there is no such");
        assert!(!of(&[0, 7], &[7]).is_sound(8) && !of(&[3, 3], &[]).is_sound(8), "twice");
    }

    #[test]
    fn an_offer_is_read_as_it_was_written() {
        let facts = DeviceFacts {
            ifindex: 3,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            native: true,
            mode: "native".into(),
            ring: 256,
            frags: false,
            queues: Vec::new(),
            offloads: Vec::new(),
        };
        let offer = Offer {
            pid: 7,
            frames: 4096,
            devices: vec![OfferedDevice { name: "s0".into(), facts, descriptors: 2 }],
            neighbours: vec![OfferedNeighbour {
                dev: "s0".into(),
                ip: "fd00::1".parse().unwrap(),
                mac: [2, 0, 0, 0, 0, 9],
            }],
        };
        let text = serde_json::to_string(&offer).unwrap();
        assert_eq!(serde_json::from_str::<Offer>(&text).unwrap(), offer);
        assert!(serde_json::from_str::<Offer>(&text.replace("ring", "rang")).is_err());
        assert!(serde_json::from_str::<Offer>("{}").is_err());
    }
}
