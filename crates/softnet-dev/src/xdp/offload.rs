//! Receive offloads that a device can't do with, switched off as long as it is open.
//!
//! * In either mode what takes **VLAN tags** out of frames: the program would take a frame of a
//!   VLAN for one without.
//! * In SKB mode what **merges** packets of a flow into one: an AF_XDP frame has no room for
//!   several segments. In native mode the program sees packets before they are merged, and drivers
//!   refuse it, or switch off by themselves what merges before. In SKB mode it sees what the kernel
//!   made of them. The kernel does not merge in software on an interface with a program
//!   (`netif_elide_gro`), and switches off what its hardware merges, for good; but ports of a
//!   bridge or bond merge before that sees a packet.
//!
//! Invariant: what was on before a device was opened is on again when it is closed; after a crash it stays off.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::bpf::XdpMode;
use crate::ethtool::Ethtool;
use crate::hand_over::OffloadFacts;
use crate::netlink::{Link, Netlink};

/// By its name in the kernel, and as `ethtool -K` has it.
type Offload = (&'static str, &'static str);

const MERGING: [Offload; 5] = [
    ("rx-gro", "gro"),
    ("rx-gro-hw", "rx-gro-hw"),
    ("rx-lro", "lro"),
    ("rx-gro-list", "rx-gro-list"),
    ("rx-udp-gro-forwarding", "rx-udp-gro-forwarding"),
];

/// Tags of customers and of providers.
const UNTAGGING: [Offload; 2] =
    [("rx-vlan-hw-parse", "rxvlan"), ("rx-vlan-stag-hw-parse", "rx-vlan-stag-hw-parse")];

/// The offloads of an interface, and of its ports, as they were.
pub(crate) struct Offloads {
    interfaces: Vec<Interface>,
    /// They are off, and this process puts them back.
    off: AtomicBool,
}

/// An offload that takes tags out of frames and can't be switched off.
#[derive(Debug)]
pub(super) struct Untagging {
    /// The interface that does it.
    pub(super) interface: String,
    /// The command that was without effect.
    pub(super) command: String,
}

struct Interface {
    name: String,
    ethtool: Ethtool,
    /// Those that were on.
    merging: Vec<Offload>,
    untagging: Vec<Offload>,
}

impl Interface {
    fn all(&self) -> impl Iterator<Item = &Offload> {
        self.merging.iter().chain(&self.untagging)
    }

    fn set(&self, on: bool) -> crate::SysResult<()> {
        self.ethtool.set(&self.all().map(|(name, _)| *name).collect::<Vec<_>>(), on)
    }

    /// Whether any of `offloads` is on now.
    fn is_any_on<'a>(&self, mut offloads: impl Iterator<Item = &'a Offload>) -> bool {
        offloads.any(|(name, _)| is_on(&self.ethtool, name))
    }

    /// The command that switches `offloads`.
    fn command<'a>(&self, offloads: impl Iterator<Item = &'a Offload>, word: &str) -> String {
        let words: Vec<_> = offloads.map(|(_, name)| format!("{name} {word}")).collect();
        format!("`ethtool -K {} {}`", self.name, words.join(" "))
    }
}

fn is_on(ethtool: &Ethtool, name: &str) -> bool {
    ethtool.is_on(name).ok().flatten() == Some(true)
}

impl Offloads {
    /// Takes note of what is on. What the interfaces do not tell is left alone.
    pub(super) fn of(link: &Link, netlink: &mut Netlink) -> Self {
        Self::among(link, netlink, &MERGING, &UNTAGGING)
    }

    /// As [`of`](Self::of), of what merges packets alone.
    pub(crate) fn merging(link: &Link, netlink: &mut Netlink) -> Self {
        Self::among(link, netlink, &MERGING, &[])
    }

    fn among(link: &Link, netlink: &mut Netlink, merging: &[Offload], untagging: &[Offload]) -> Self {
        let links = netlink.links().unwrap_or_default();
        let ports = links.into_iter().filter(|port| port.master == Some(link.index));
        let of = |link: Link| {
            let ethtool = Ethtool::new(link.index).ok()?;
            let on = |offloads: &[Offload]| -> Vec<_> {
                offloads.iter().copied().filter(|(name, _)| is_on(&ethtool, name)).collect()
            };
            let (merging, untagging) = (on(merging), on(untagging));
            let is_any = !merging.is_empty() || !untagging.is_empty();
            is_any.then_some(Interface { name: link.name, ethtool, merging, untagging })
        };
        let interfaces = std::iter::once(link.clone()).chain(ports).filter_map(of).collect();
        Offloads { interfaces, off: AtomicBool::new(false) }
    }

    /// Those that another process has switched off, by what it told of them.
    pub(super) fn handed_over(link: &Link, netlink: &mut Netlink, told: &[OffloadFacts]) -> Self {
        let links = netlink.links().unwrap_or_default();
        let ours = |other: &&Link| other.index == link.index || other.master == Some(link.index);
        let of = |told: &OffloadFacts| {
            let link = links.iter().filter(ours).find(|link| link.name == told.interface)?;
            let among = |known: &[Offload]| -> Vec<_> {
                known.iter().copied().filter(|(name, _)| told.on.iter().any(|on| on == name)).collect()
            };
            let (merging, untagging) = (among(&MERGING), among(&UNTAGGING));
            let (name, ethtool) = (link.name.clone(), Ethtool::new(link.index).ok()?);
            Some(Interface { name, ethtool, merging, untagging })
        };
        Offloads { interfaces: told.iter().filter_map(of).collect(), off: AtomicBool::new(false) }
    }

    /// What was on before, for another process.
    pub(super) fn told(&self) -> Vec<OffloadFacts> {
        let told = |interface: &Interface| OffloadFacts {
            interface: interface.name.clone(),
            on: interface.all().map(|(name, _)| (*name).to_owned()).collect(),
        };
        self.interfaces.iter().map(told).collect()
    }

    /// They are this process's to put back.
    pub(super) fn taken_over(&self) {
        self.off.store(true, Ordering::Relaxed);
    }

    /// Switches off what is on and may not be in `mode`. Returns in words for the user what no
    /// longer merges packets.
    pub(crate) fn switch_off(&mut self, mode: XdpMode) -> String {
        *self.off.get_mut() = true;
        if mode == XdpMode::Native {
            self.interfaces.iter_mut().for_each(|interface| interface.merging.clear());
        }
        let said = self.interfaces.iter().map(|interface| match interface.set(false) {
            // The kernel says nothing of what the driver does not let go of.
            Ok(()) if interface.is_any_on(interface.merging.iter()) => {
                format!(
                    "; {} is wanted, and was not granted",
                    interface.command(interface.merging.iter(), "off")
                )
            }
            Ok(()) if interface.merging.is_empty() => String::new(),
            Ok(()) => {
                let command = interface.command(interface.all(), "on");
                format!(
                    "; until it is closed, {} merges no packets (after a crash: {command})",
                    interface.name
                )
            }
            Err(error) => {
                format!("; {} is wanted, and failed: {error}", interface.command(interface.all(), "off"))
            }
        });
        said.collect()
    }

    /// What takes tags out of frames all the same.
    pub(super) fn untagging(&self) -> Option<Untagging> {
        let stays = |interface: &&Interface| interface.is_any_on(interface.untagging.iter());
        self.interfaces.iter().find(stays).map(|interface| Untagging {
            interface: interface.name.clone(),
            command: interface.command(interface.untagging.iter(), "off"),
        })
    }
}

impl Drop for Offloads {
    fn drop(&mut self) {
        if *self.off.get_mut() {
            // They may be gone.
            self.interfaces.iter().for_each(|interface| _ = interface.set(true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;
    use softnet_testkit::net_allowed;

    /// What an interface does not let go of, in the place of what takes tags out of frames: of that
    /// there is none here.
    #[test]
    fn what_takes_out_tags_all_the_same_is_known() {
        if !net_allowed() {
            return;
        }
        let ns = NetNs::new().unwrap();
        ns.run(|| {
            let mut netlink = Netlink::new().unwrap();
            let lo = netlink.existing_link("lo").unwrap();
            let mut fixed = Offloads::among(&lo, &mut netlink, &[], &[("rx-checksum", "rxvlan")]);
            assert_eq!(fixed.switch_off(XdpMode::Native), "");
            let stays = fixed.untagging().unwrap();
            assert_eq!((&stays.interface[..], &stays.command[..]), ("lo", "`ethtool -K lo rxvlan off`"));
            let mut loose = Offloads::among(&lo, &mut netlink, &[], &[("rx-gro", "rxvlan")]);
            loose.switch_off(XdpMode::Native);
            assert!(loose.untagging().is_none());
        })
        .unwrap();
    }
}
