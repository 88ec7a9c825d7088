//! VLANs: that each has a link, in no circle, and nothing that only queues have.

use std::collections::HashMap;

use super::super::errors::{Found, Section};
use super::super::{Config, DeviceConfig};
use super::told;
use crate::driver::Vlan;

/// Tags that a packet may have at once (the kernel's `MAX_NEST_DEV`).
const MAX_TAGS: usize = 8;

/// Whether a VLAN is over device `name`.
pub(super) fn is_link(devices: &[DeviceConfig], name: &str) -> bool {
    devices.iter().any(|device| device.driver.get::<Vlan>().is_some_and(|vlan| vlan.link == name))
}

/// Adds what is wrong with VLANs to `found`.
pub(super) fn check(config: &Config, found: &mut Vec<Found>) {
    let mut vlans = HashMap::new();
    let of: HashMap<&str, &DeviceConfig> =
        config.devices.iter().rev().map(|device| (device.name.as_str(), device)).collect();
    for (i, device) in config.devices.iter().enumerate() {
        let Some(vlan) = device.driver.get::<Vlan>() else { continue };
        let at = Section::Device(i);
        let link = at.key("link");
        queues(device, i, found);
        if told(found, link) {
            continue;
        }
        if !of.contains_key(vlan.link.as_str()) {
            let mut names: Vec<_> = of.keys().copied().filter(|name| *name != device.name).collect();
            names.sort_unstable();
            let names = if names.is_empty() { "there is none".into() } else { names.join(", ") };
            let message = format!("expected the name of another [[device]] ({names}), found {:?}", vlan.link);
            found.push(Found::new(link, message));
            continue;
        }
        let (mut way, mut down) = (vec![device.name.as_str()], Some(vlan));
        while let Some(vlan) = down {
            let again = way.contains(&vlan.link.as_str());
            way.push(&vlan.link);
            if again {
                let message = format!("expected a link that is not over this device: {}", way.join(" over "));
                found.push(Found::new(link, message));
                break;
            }
            if way.len() > MAX_TAGS + 1 {
                let message = format!("expected at most {MAX_TAGS} VLANs over each other");
                found.push(Found::new(link, message));
                break;
            }
            down = of.get(vlan.link.as_str()).and_then(|device| device.driver.get());
        }
        let key = (&vlan.link, vlan.protocol, vlan.id);
        if let Some(other) = vlans.insert(key, &device.name)
            && !told(found, at.key("id"))
        {
            let (id, link, protocol) = (vlan.id, &vlan.link, vlan.protocol.name());
            let message = format!("VLAN {id} ({protocol}) over {link:?} is {other:?} already");
            found.push(Found::new(at.key("id"), message));
        }
    }
}

/// What is set has to have an effect: a VLAN sends and is polled by the queues of its link.
fn queues(device: &DeviceConfig, index: usize, found: &mut Vec<Found>) {
    // `force` is set for all devices by `softnet run --force`.
    let none = DeviceConfig::new("");
    let set = [
        ("workers", device.workers != none.workers),
        ("threaded", device.threaded != none.threaded),
        ("napi_defer_hard_irqs", device.napi_defer_hard_irqs != none.napi_defer_hard_irqs),
        ("gro_flush_timeout", device.gro_flush_timeout != none.gro_flush_timeout),
        ("irq_suspend_timeout", device.irq_suspend_timeout != none.irq_suspend_timeout),
        ("qdisc", device.qdisc != none.qdisc),
        ("tx_queue_len", device.tx_queue_len != none.tx_queue_len),
        ("steering", device.steering != none.steering),
        ("processing_cpu", device.processing_cpu != none.processing_cpu),
        ("rps_cpus", device.rps_cpus != none.rps_cpus),
        ("rps_flow_cnt", device.rps_flow_cnt != none.rps_flow_cnt),
        ("rss", device.rss != none.rss),
        ("xps_cpus", device.xps_cpus != none.xps_cpus),
        ("xps_rxqs", device.xps_rxqs != none.xps_rxqs),
    ];
    for (key, _) in set.into_iter().filter(|(_, set)| *set) {
        let message = "a VLAN has no interface and no queues of its own: set it for its link";
        found.push(Found::new(Section::Device(index).key(key), message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::VlanProtocol;

    /// A file with `eth1` and VLANs, each with name and keys; how many problems there are, and the first.
    fn parse(vlans: &[(&str, &str)]) -> Result<Config, (usize, String)> {
        let mut text = "[[device]]
name = \"eth1\"
"
        .to_owned();
        for (i, (name, keys)) in vlans.iter().enumerate() {
            text += &format!(
                "[[device]]
name = \"{name}\"
driver = \"vlan\"
addresses = [\"10.0.{i}.1/24\"]
{keys}
"
            );
        }
        Config::parse(&text, "r.toml", &[0]).map_err(|errors| {
            // That of a device which nothing is over after all is of no interest here.
            let text = errors.to_string();
            let all = text.lines().filter(|line| line.starts_with("r.toml:"));
            let all: Vec<_> = all.filter(|line| !line.contains("expected at least one address")).collect();
            (all.len(), all.first().copied().unwrap_or_default().to_owned())
        })
    }

    #[test]
    fn vlans_are_read() {
        let config = parse(&[
            ("eth1.5", "link = \"eth1\"\nid = 5\nforce = true"),
            ("q", "link = \"s\"\nid = 5\nmtu = 1400"),
            ("s", "link = \"eth1\"\nid = 5\nprotocol = \"802.1ad\""),
        ])
        .unwrap();
        let vlans: Vec<_> = config.devices[1..].iter().map(|device| device.driver.get::<Vlan>()).collect();
        let s = Vlan::new("eth1", 5).with(|vlan| vlan.protocol = VlanProtocol::Dot1ad);
        let q = Vlan::new("s", 5).with(|vlan| vlan.mtu = Some(1400));
        assert_eq!(vlans, [Some(&Vlan::new("eth1", 5)), Some(&q), Some(&s)]);
        // What the driver of the link is told.
        let told: Vec<_> = config.request(0).vlans.into_iter().map(|vlan| (vlan.protocol, vlan.id)).collect();
        assert_eq!(told, [(VlanProtocol::Dot1q, 5), (VlanProtocol::Dot1ad, 5)]);
        let addresses = &config.request(0).vlans[1].addresses;
        assert_eq!(addresses.len(), 2, "those of the VLAN over it, too: {addresses:?}");
    }

    #[test]
    fn vlans_that_cannot_be_are_refused() {
        let on = |link: &str, id: u32| format!("link = \"{link}\"\nid = {id}");
        for (vlans, told) in [
            (&[("a", on("eth1", 0))][..], "id: expected a number from 1 to 4094, found 0"),
            (&[("a", on("eth1", 4095))], "id: expected a number from 1 to 4094, found 4095"),
            (&[("a", on("eth1", 70_000))], "id: expected a number from 1 to 4094, found 65535"),
            (&[("a", "id = 1".into())], "expected the key \"link\", which is missing"),
            (&[("a", "link = \"eth1\"".into())], "id: expected a number from 1 to 4094, found 0"),
            (&[("a", on("eth2", 1))], "link: expected the name of another [[device]] (eth1), found \"eth2\""),
            (&[("a", on("a", 1))], "link: expected a link that is not over this device: a over a"),
            (
                &[("a", on("eth1", 7)), ("b", on("eth1", 7))],
                "id: VLAN 7 (802.1Q) over \"eth1\" is \"a\" already",
            ),
            (
                &[("a", format!("{}\nqdisc = \"pfifo\"", on("eth1", 1)))],
                "qdisc: a VLAN has no interface and no queues of its own: set it for its link",
            ),
            (
                &[("a", format!("{}\nprotocol = \"802.1x\"", on("eth1", 1)))],
                "protocol: expected \"802.1Q\" or \"802.1ad\", found \"802.1x\"",
            ),
        ] {
            let vlans: Vec<_> = vlans.iter().map(|(name, keys)| (*name, &keys[..])).collect();
            let (n, error) = parse(&vlans).unwrap_err();
            assert!(n == 1 && error.contains(told), "{n}: {error}, expected {told}");
        }
        let circle = [("a", on("b", 1)), ("b", on("a", 1))];
        let circle = circle.each_ref().map(|(name, keys)| (*name, &keys[..]));
        let told = "link: expected a link that is not over this device: a over b over a";
        assert!(parse(&circle).is_err_and(|(n, error)| n == 2 && error.contains(told)));
        let tower: Vec<_> = (0..9)
            .map(|i| (format!("v{i}"), on(&if i == 0 { "eth1".into() } else { format!("v{}", i - 1) }, 1)))
            .collect();
        let tower: Vec<_> = tower.iter().map(|(name, keys)| (&name[..], &keys[..])).collect();
        assert!(parse(&tower[..8]).is_ok());
        let told = "link: expected at most 8 VLANs over each other";
        assert!(parse(&tower).is_err_and(|(n, error)| n == 1 && error.contains(told)));
        // Without an address and a VLAN, a device is good for nothing.
        assert!(parse(&[]).is_err());
    }
}
