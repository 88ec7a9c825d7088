//! Receive offloads that merge packets of a flow into one, switched off as long as a device is open in SKB mode: an AF_XDP
//! frame has no room for several segments.
//!
//! In native mode the program sees packets before they are merged, and drivers refuse it, or switch off by themselves what
//! merges before. In SKB mode it sees what the kernel made of them. The kernel does not merge in software on an interface
//! with a program (`netif_elide_gro`), and switches off what its hardware merges, for good; but ports of a bridge or bond
//! merge before that sees a packet.
//!
//! Invariant: what was on before a device was opened is on again when it is closed; after a crash it stays off.

use crate::ethtool::Ethtool;
use crate::netlink::{Link, Netlink};

/// By their names in the kernel, and as `ethtool -K` has them.
const MERGING: [(&str, &str); 5] = [
    ("rx-gro", "gro"),
    ("rx-gro-hw", "rx-gro-hw"),
    ("rx-lro", "lro"),
    ("rx-gro-list", "rx-gro-list"),
    ("rx-udp-gro-forwarding", "rx-udp-gro-forwarding"),
];

/// The offloads of an interface, and of its ports, as they were.
pub(super) struct Offloads {
    interfaces: Vec<Interface>,
    off: bool,
}

struct Interface {
    name: String,
    ethtool: Ethtool,
    /// Those that were on.
    on: Vec<(&'static str, &'static str)>,
}

impl Interface {
    fn set(&self, on: bool) -> crate::SysResult<()> {
        self.ethtool.set(&self.on.iter().map(|(name, _)| *name).collect::<Vec<_>>(), on)
    }

    /// Whether any of them is on now.
    fn is_any_on(&self) -> bool {
        self.on.iter().any(|(name, _)| self.ethtool.is_on(name).ok().flatten() == Some(true))
    }

    /// The command for that.
    fn command(&self, word: &str) -> String {
        let words: Vec<_> = self.on.iter().map(|(_, name)| format!("{name} {word}")).collect();
        format!("`ethtool -K {} {}`", self.name, words.join(" "))
    }
}

impl Offloads {
    /// Takes note of what is on. What the interfaces do not tell is left alone.
    pub(super) fn of(link: &Link, netlink: &mut Netlink) -> Self {
        let links = netlink.links().unwrap_or_default();
        let ports = links.into_iter().filter(|port| port.master == Some(link.index));
        let of = |link: Link| {
            let ethtool = Ethtool::new(link.index).ok()?;
            let is_on = |(name, _): &(&str, _)| ethtool.is_on(name).ok().flatten() == Some(true);
            let on: Vec<_> = MERGING.into_iter().filter(is_on).collect();
            (!on.is_empty()).then_some(Interface { name: link.name, ethtool, on })
        };
        let interfaces = std::iter::once(link.clone()).chain(ports).filter_map(of).collect();
        Offloads { interfaces, off: false }
    }

    /// Switches off what is on. Returns that in words for the user; empty if nothing is.
    pub(super) fn switch_off(&mut self) -> String {
        self.off = true;
        let said = self.interfaces.iter().map(|interface| match interface.set(false) {
            // The kernel says nothing of what the driver does not let go of.
            Ok(()) if interface.is_any_on() => {
                format!("; {} is wanted, and was not granted", interface.command("off"))
            }
            Ok(()) => {
                let command = interface.command("on");
                format!(
                    "; until it is closed, {} merges no packets (after a crash: {command})",
                    interface.name
                )
            }
            Err(error) => format!("; {} is wanted, and failed: {error}", interface.command("off")),
        });
        said.collect()
    }
}

impl Drop for Offloads {
    fn drop(&mut self) {
        if self.off {
            // They may be gone.
            self.interfaces.iter().for_each(|interface| _ = interface.set(true));
        }
    }
}
