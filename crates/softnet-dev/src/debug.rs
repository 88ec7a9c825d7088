//! `Debug` of types that have nothing to tell of themselves but their name, so that types with one
//! of them can derive it.

use std::fmt::{Debug, Formatter, Result};

macro_rules! opaque {
    ($($name:literal: $type:ty),* $(,)?) => {$(
        impl Debug for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.debug_struct($name).finish_non_exhaustive()
            }
        }
    )*};
}

opaque! {
    "Claims": crate::xdp::Claims,
    "Ethtool": crate::ethtool::Ethtool,
    "MemDoorbell": crate::mem::MemDoorbell,
    "NicPort": crate::mem::NicPort,
    "Umem": crate::xdp::Umem,
}

impl<T: Debug> Debug for crate::PiGuard<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        (**self).fmt(f)
    }
}
