//! Rows of `show filter`.

use softnet_core::sync::Ordering;

use crate::control::show::FilterRow;
use crate::control::{Direction, MirredAction};
use crate::device::Netdev;

/// The filters of a device. `name`: of the device with an index.
pub(super) fn rows(dev: &Netdev, name: impl Fn(u16) -> String) -> Vec<FilterRow> {
    let row = |parent: Direction| {
        let action = dev.hook(parent).action()?;
        let (mirred, stats) = (&action.mirred, &action.stats);
        Some(FilterRow {
            dev: dev.name.clone(),
            parent,
            kind: "matchall".into(),
            action: "mirred".into(),
            direction: if mirred.ingress { Direction::Ingress } else { Direction::Egress },
            mirred_action: if mirred.mirror { MirredAction::Mirror } else { MirredAction::Redirect },
            to_dev: name(mirred.dev),
            bytes: stats.bytes.load(Ordering::Relaxed),
            packets: stats.packets.load(Ordering::Relaxed),
            drops: stats.drops.load(Ordering::Relaxed),
            overlimits: stats.overlimits.load(Ordering::Relaxed),
        })
    };
    [Direction::Ingress, Direction::Egress].into_iter().filter_map(row).collect()
}
