//! Reassembly of whatever a stranger makes up.

use super::FragParams;
use super::rig::{Rig, SECOND, v4, v6};
use crate::fuzz::Script;

/// The bytes that datagrams of identification `id` have, whatever their length.
fn truth(id: u8, range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|i| ((i * 31) ^ (i >> 8) ^ (usize::from(id) * 7)) as u8).collect()
}

/// Plays a script: fragments of a few datagrams of both families, each of the true bytes at its place, raw packets, and
/// time. What comes out must be true, and every packet accounted for.
pub fn reassembly(data: &[u8]) {
    // Few frames, as making them is what takes the time; still, a datagram of as many fragments as may be fits.
    let mut rig = Rig::with(FragParams::default(), 300);
    let mut script = Script::new(data);
    while let Some(op) = script.byte() {
        match op % 8 {
            0 => drop(rig.pass(script.byte().unwrap_or(0).into())),
            1 => {
                // Anything at all, of the version that it says. It must not be taken for one of those below.
                let packet = script.bytes();
                if !packet.is_empty() {
                    let _ = rig.feed(packet);
                }
            }
            _ => {
                let (start, len) = (script.byte().unwrap_or(0), script.byte().unwrap_or(0));
                let (six, more, id) = (op & 8 != 0, op & 16 != 0, op >> 5);
                // To the end of what fits in a datagram, in steps of 8; lengths that are no multiple of that, too.
                let start = usize::from(start) * if op & 1 != 0 { 8 } else { 256 };
                let len = usize::from(len) * if op & 2 != 0 { 1 } else { 6 };
                let payload = truth(id, start..start + len);
                let word = u16::from(more);
                let packet = match six {
                    true => v6(44, &[], 17, u32::from(id) | 1 << 31, start as u16 & !7 | word, &payload),
                    false => v4(id.into(), 253, &[], 0, word << 13 | (start / 8) as u16 & 0x1fff, &payload),
                };
                if let Ok(Some(done)) = rig.feed(&packet) {
                    let header = if six { 40 } else { 20 };
                    assert_eq!(done[header..], truth(id, 0..done.len() - header));
                }
            }
        }
        rig.now += SECOND / 100;
    }
}
