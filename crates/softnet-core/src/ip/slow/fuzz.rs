//! Fast and slow path together, on frames that a stranger makes up.

use super::world::*;
use super::*;
use crate::fuzz::Script;

/// Plays a script: frames of both devices, time, and devices that vanish and return. After each step the books balance,
/// and in the end all memory is at home (`World` asserts both).
pub fn forward(data: &[u8]) {
    let mut script = Script::new(data);
    let mut world = match script.byte() {
        // Scarce memory; nobody known yet; everybody known.
        Some(0) => World::with_frames(6),
        Some(1) => World::with_frames(64),
        _ => World::acquainted(),
    };
    while let Some(op) = script.byte() {
        let dev = u16::from(op & 1);
        match op >> 1 & 7 {
            0 => drop(world.pass(u64::from(script.byte().unwrap_or(0)) * SECOND / 4)),
            1 => match world.ifaces[usize::from(dev)] {
                Some(_) => world.vanish(dev),
                None => world.ifaces[usize::from(dev)] = Some(iface(dev.into())),
            },
            how => {
                let bytes = script.bytes();
                let mut frame = bytes[..bytes.len().min(1778 + ETH_LEN)].to_vec();
                // Most frames get past the first checks by themselves as good as never.
                if how > 2 && frame.len() >= ETH_LEN + 20 {
                    frame[..6].copy_from_slice(&MACS[usize::from(dev)]);
                    if how > 3 {
                        frame[12..14].copy_from_slice(&[8, 0]);
                        frame[ETH_LEN] = 0x40 | (frame[ETH_LEN] & 15).max(5);
                        let header = usize::from(frame[ETH_LEN] & 15) * 4;
                        if frame.len() >= ETH_LEN + header {
                            frame = mend(frame);
                        }
                    }
                }
                world.one(dev, frame);
            }
        }
    }
}
