//! `--device` of benches that run on emulated NICs and over AF_XDP.

use clap::ValueEnum;

/// What the packets of a bench go by.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
pub(super) enum Device {
    /// Emulated NICs in this process
    Mem,
    /// AF_XDP on a veth pair
    Xdp,
    /// One after the other
    Both,
}

impl Device {
    /// As rows name them.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Device::Mem => &["mem"],
            Device::Xdp => &["xdp"],
            Device::Both => &["mem", "xdp"],
        }
    }

    pub(super) fn mem(self) -> bool {
        self != Device::Xdp
    }

    pub(super) fn xdp(self) -> bool {
        self != Device::Mem
    }
}
