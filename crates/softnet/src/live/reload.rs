//! What another configuration says otherwise than the one that a stack runs by.
//!
//! A device keeps its number as long as the stack runs. One that a new configuration does not have
//! is closed and stays known, without addresses, and comes back when a later one has it again; one
//! that no configuration had before gets the next number. Invariant: a merged configuration has all
//! devices of the old one in their order, and new ones after them.

use softnet_core::softnet_data::MAX_DEVICES;

use super::{LiveError, Told};
use crate::config::{Config, DeviceConfig, InterfaceAddr, StackConfig, TcpConfig};
use crate::driver::{DeviceDriver, Packet, Tap, Vlan, Xdp};

/// The configuration to run by, made of the running one and a new one.
pub(crate) struct Merged {
    /// All there is, but for routes that are `config.routes` of the new one.
    pub(crate) config: Config,
    /// For each device whether the new one does not have it.
    pub(crate) absent: Vec<bool>,
    /// Devices that were there, and that are to be closed and opened as they are configured now.
    pub(crate) anew: Vec<usize>,
    /// What is remembered of the new one.
    pub(crate) told: Told,
}

/// Merges them, or names what can't be changed.
pub(crate) fn merge(running: &Config, told: &Told, new: &Config, filter: u64) -> Result<Merged, LiveError> {
    let mut keys = Vec::new();
    stack(&running.stack, &new.stack, &mut keys);
    if running.tcp != new.tcp {
        tcp(&running.tcp, &new.tcp, &mut keys);
    }
    if running.control != new.control {
        keys.push("control.group".into());
    }
    tracked(running, new, &mut keys);
    let mut config = Config { routes: Vec::new(), ..new.clone() };
    config.routes.clone_from(&new.routes);
    config.devices = running.devices.clone();
    let mut absent = Vec::with_capacity(config.devices.len());
    let mut addresses = Vec::with_capacity(config.devices.len());
    let mut anew = Vec::new();
    for (dev, (device, told)) in config.devices.iter_mut().zip(&told.addresses).enumerate() {
        let new = new.devices.iter().find(|new| new.name == device.name);
        absent.push(new.is_none());
        match new {
            Some(new) => {
                fixed(device, new, &mut keys);
                if opens_otherwise(device, new) {
                    anew.push(dev);
                }
                let own = three_way(&device.addresses, told, &new.addresses);
                // Whether it was forced, the command line may have said.
                *device = DeviceConfig { addresses: own, force: device.force, ..new.clone() };
                addresses.push(new.addresses.clone());
            }
            None => {
                device.addresses.clear();
                addresses.push(Vec::new());
            }
        }
    }
    for device in new.devices.iter().filter(|new| running.devices.iter().all(|old| old.name != new.name)) {
        if let Some(old) =
            config.devices.iter().zip(&absent).find(|(old, absent)| **absent && tags(old, device))
        {
            keys.push(format!("device {:?} (it has the VLAN of {:?}, which went)", device.name, old.0.name));
        }
        absent.push(false);
        addresses.push(device.addresses.clone());
        config.devices.push(device.clone());
    }
    if config.devices.len() > MAX_DEVICES {
        let n = config.devices.len();
        let message = format!(
            "expected at most {MAX_DEVICES} devices with those that went since the start, found {n}; a restart forgets these"
        );
        return Err(LiveError::Impossible(message));
    }
    match keys.is_empty() {
        true => Ok(Merged { config, absent, anew, told: Told { addresses, filter } }),
        false => Err(LiveError::Restart(keys)),
    }
}

/// Whether both are VLANs with the same tag over the same link.
fn tags(one: &DeviceConfig, other: &DeviceConfig) -> bool {
    let tag = |device: &DeviceConfig| {
        let vlan = device.driver.get::<Vlan>()?;
        Some((vlan.link.clone(), vlan.protocol, vlan.id))
    };
    tag(one).is_some_and(|one| Some(one) == tag(other))
}

/// What there is, without what only the last configuration had, and with what only the new one has.
fn three_way(now: &[InterfaceAddr], last: &[InterfaceAddr], new: &[InterfaceAddr]) -> Vec<InterfaceAddr> {
    let gone = |own: &InterfaceAddr| last.contains(own) && !new.contains(own);
    let mut all: Vec<_> = now.iter().filter(|own| !gone(own)).copied().collect();
    // Another length of the network is the configuration's to say.
    let come: Vec<_> = new.iter().filter(|own| !last.contains(own)).collect();
    all.retain(|own| !come.iter().any(|new| new.addr() == own.addr()));
    all.extend(come);
    all
}

/// Names the keys among those listed that differ.
macro_rules! differ {
    ($keys:ident, $name:expr, $old:ident, $new:ident: $($field:ident),+ $(,)?) => {
        $(if $old.$field != $new.$field {
            $keys.push(format!("{}.{}", $name, stringify!($field)));
        })+
    };
}

fn stack(old: &StackConfig, new: &StackConfig, keys: &mut Vec<String>) {
    differ!(
        keys, "stack", old, new:
        name, control, workers, worker_policy, frames, netdev_budget, netdev_budget_usecs, dev_weight,
        skb_cache, skb_defer_max, workqueue_threads, netdev_max_backlog, rps_sock_flow_entries,
        flow_limit_table_len, qdisc_max_burst, txq_reselection_ms, max_sockets, default_qdisc, gc_thresh,
        icmp, ip_options, follow,
    );
}

fn tcp(_: &TcpConfig, _: &TcpConfig, keys: &mut Vec<String>) {
    keys.push("tcp".into());
}

/// The table of connections has its size, and whether it is there, from the start.
fn tracked(old: &Config, new: &Config, keys: &mut Vec<String>) {
    let table = |config: &Config| {
        config.tracked().map(|(connections, timeouts)| (connections, format!("{timeouts:?}")))
    };
    if old.nat.is_some() != new.nat.is_some() {
        keys.push("nat (whether there is one)".into());
    } else if table(old) != table(new) {
        keys.push("the table of connections (nat.connections, nat.timeouts, filter.connections, or rules with states where there were none)".into());
    } else if old.filter.asks_for_states() != new.filter.asks_for_states() {
        keys.push("rules with states where there were none, or none any more".into());
    }
}

/// What a device keeps as long as the stack runs.
fn fixed(old: &DeviceConfig, new: &DeviceConfig, keys: &mut Vec<String>) {
    let name = format_args!("device {:?}", old.name);
    // Of others more than what opens them depends on it.
    let can_change =
        |driver: &DeviceDriver| driver.get::<Xdp>().is_some() || driver.get::<Packet>().is_some();
    if !can_change(&old.driver) || !can_change(&new.driver) {
        differ!(keys, name, old, new: driver);
    }
    // What opens a program's own device may have nothing left to open it by once more.
    if ![old, new].iter().all(|device| can_change(&device.driver) || device.driver.get::<Tap>().is_some()) {
        differ!(keys, name, old, new: workers, partial_csum, rp_filter, tx_queue_len, xps_cpus, xps_rxqs);
    }
    differ!(keys, name, old, new: steering, processing_cpu, rps_cpus, rps_flow_cnt, rss);
}

/// Whether a device that is open has to be opened anew to be as `new` says.
fn opens_otherwise(old: &DeviceConfig, new: &DeviceConfig) -> bool {
    let of = |device: &DeviceConfig| {
        let DeviceConfig { workers, partial_csum, rp_filter, tx_queue_len, xps_cpus, xps_rxqs, .. } =
            device.clone();
        (workers, partial_csum, rp_filter, tx_queue_len, xps_cpus, xps_rxqs)
    };
    old.driver != new.driver || of(old) != of(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, "test.toml", &[0, 1]).unwrap()
    }

    fn merged(running: &Config, told: &Config, new: &str) -> Result<Merged, String> {
        merge(running, &Told::new(told, 0), &config(new), 0).map_err(|error| error.to_string())
    }

    const OLD: &str = "[[device]]\nname = \"a\"\naddresses = [\"10.0.0.1/24\"]\n[[device]]\nname = \"b\"\naddresses = [\"10.1.0.1/24\"]\n";

    fn addresses(config: &Config) -> Vec<String> {
        config.devices[0].addresses.iter().map(InterfaceAddr::to_string).collect()
    }

    #[test]
    fn what_was_added_by_hand_stays() {
        let old = config(OLD);
        let mut running = old.clone();
        running.devices[0].addresses.push("10.0.0.7/24".parse().unwrap());
        let new = OLD.replace("10.0.0.1/24", "10.0.0.2/24");
        let now = merged(&running, &old, &new).unwrap();
        assert_eq!(addresses(&now.config), ["10.0.0.7/24", "10.0.0.2/24"]);
        // And what was removed by hand does not come back by a file that says what it said.
        running.devices[0].addresses.clear();
        assert_eq!(addresses(&merged(&running, &old, OLD).unwrap().config), [""; 0]);
    }

    #[test]
    fn a_device_that_is_not_there_any_more_keeps_its_number() {
        let old = config(OLD);
        let now = merged(&old, &old, "[[device]]\nname = \"b\"\naddresses = [\"10.1.0.1/24\"]\n").unwrap();
        assert_eq!((now.absent, addresses(&now.config)), (vec![true, false], vec![]));
        let back = merge(&now.config, &now.told, &old, 0).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (back.absent, addresses(&back.config)),
            (vec![false, false], vec!["10.0.0.1/24".to_string()])
        );
    }

    #[test]
    fn what_needs_a_restart_is_named() {
        let old = config(OLD);
        for (new, keys) in [
            (format!("[stack]\nframes = 32768\nmax_sockets = 9\n{OLD}"), "stack.frames, stack.max_sockets"),
            (OLD.replace("name = \"b\"", "name = \"b\"\nsteering = \"off\""), "device \"b\".steering"),
            (OLD.replace("name = \"b\"", "name = \"b\"\ndriver = \"tap\""), "device \"b\".driver"),
            (format!("{OLD}[tcp]\ntcp_congestion_control = \"reno\"\n"), "tcp"),
        ] {
            let error = merged(&old, &old, &new).err().unwrap();
            let told =
                format!("nothing was changed: {keys} can't be changed while it runs; restart for that");
            assert_eq!(error, told, "{new}");
        }
    }

    #[test]
    fn a_new_device_gets_the_next_number() {
        let old = config(OLD);
        let c = "[[device]]\nname = \"c\"\naddresses = [\"10.2.0.1/24\"]\n";
        // Wherever it is in the file, and though another goes.
        let b = &OLD[OLD.rfind("[[device]]").unwrap()..];
        let now = merged(&old, &old, &format!("{c}{b}")).unwrap();
        let names: Vec<_> = now.config.devices.iter().map(|device| &device.name[..]).collect();
        assert_eq!((names, &now.absent[..]), (vec!["a", "b", "c"], &[true, false, false][..]));
        assert_eq!((now.told.addresses[2].len(), &now.anew[..]), (1, &[][..]));
        // Not any more, and back.
        let gone = merge(&now.config, &now.told, &config(b), 0).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((gone.absent, gone.config.devices[2].addresses.len()), (vec![true, false, true], 0));
    }

    #[test]
    fn what_opens_a_device_opens_it_anew() {
        let old = config(OLD);
        for key in [
            "ring = 128",
            "driver = \"packet\"",
            "workers = [0]",
            "rp_filter = \"strict\"",
            "tx_queue_len = 7",
        ] {
            let now =
                merged(&old, &old, &OLD.replace("name = \"b\"", &format!("name = \"b\"\n{key}"))).unwrap();
            assert_eq!(now.anew, [1], "{key}");
        }
        assert_eq!(merged(&old, &old, OLD).unwrap().anew, [0; 0]);
    }

    #[test]
    fn numbers_of_vlans_and_devices_are_not_taken_twice() {
        let vlan = |name: &str| {
            format!(
                "{OLD}[[device]]\nname = \"{name}\"\ndriver = \"vlan\"\nlink = \"a\"\nid = 5\naddresses = [\"10.2.0.1/24\"]\n"
            )
        };
        let old = config(&vlan("v"));
        let error = merged(&old, &old, &vlan("w")).err().unwrap();
        assert!(error.contains("device \"w\" (it has the VLAN of \"v\", which went)"), "{error}");
        let mut old = config(OLD);
        let more = (2..MAX_DEVICES).map(|i| DeviceConfig::new(format!("d{i}")));
        old.devices.extend(more);
        let c = format!("{OLD}[[device]]\nname = \"c\"\naddresses = [\"10.2.0.1/24\"]\n");
        let error = merged(&old, &old, &c).err().unwrap();
        assert!(error.contains("expected at most 4096 devices"), "{error}");
    }
}
