//! GRO and GSO of whatever a stranger makes up.

use std::collections::BTreeMap;

use super::rig::{ACK, Packet, Rig};
use super::{GroMode, OLD};
use crate::fuzz::Script;
use crate::skb::{Batch, Skb};

/// Plays a script: packets of a few flows that mostly follow each other, raw ones, time, and
/// flushes. The frames that come out are those that went in, and every packet is accounted for.
pub fn gro(data: &[u8]) {
    let mut script = Script::new(data);
    let mode = GroMode::ALL[usize::from(script.byte().unwrap_or(0)) % 4];
    // Few frames, as making them is what takes the time.
    let mut rig = Rig::of(mode, 300);
    let mut frames: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    let mut flows = [(0u16, 0u32); 8];
    while let Some(op) = script.byte() {
        let out = match op % 8 {
            0 => rig.flush(op & 8 != 0),
            1 => {
                let bytes = script.bytes();
                let Some(mut skb) = rig.ctx.alloc_skb() else { continue };
                match skb.put(bytes.len()) {
                    Some(to) => to.copy_from_slice(bytes),
                    None => {
                        rig.ctx.free_skb(skb);
                        continue;
                    }
                }
                *frames.entry(bytes.to_vec()).or_default() += 1;
                rig.receive_skbs(Batch::from(skb))
            }
            _ => {
                let (id, seq) = &mut flows[usize::from(op >> 5)];
                let (len, odd) =
                    (1 + usize::from(script.byte().unwrap_or(0)) * 5, script.byte().unwrap_or(0));
                let mut packet = Packet {
                    sport: u16::from(op >> 5),
                    id: *id,
                    seq: *seq,
                    flags: if odd & 1 != 0 { ACK | odd } else { ACK },
                    payload: vec![odd; len],
                    ..Packet::new(op & 8 != 0, op & 16 != 0)
                };
                (*id, *seq) = (id.wrapping_add(1), seq.wrapping_add(len as u32));
                if odd & 0x42 == 0x42 {
                    packet.options = vec![odd; (usize::from(odd >> 4) * 2) & !3];
                }
                let skb = rig.skb(&packet);
                *frames.entry(packet.bytes()).or_default() += 1;
                rig.receive_skbs(Batch::from(skb))
            }
        };
        rig.params.now += OLD / 8;
        take(&mut rig, out, &mut frames);
        if rig.ctx.region().frames_free() < 100 {
            let out = rig.flush(false);
            take(&mut rig, out, &mut frames);
        }
    }
    let out = rig.flush(false);
    take(&mut rig, out, &mut frames);
    assert!(frames.values().all(|n| *n == 0), "what came out is not what went in");
}

fn take(rig: &mut Rig, out: Vec<Skb>, frames: &mut BTreeMap<Vec<u8>, i64>) {
    for skb in out {
        for (_, frame) in rig.cut(skb) {
            *frames.entry(frame).or_default() -= 1;
        }
    }
}
