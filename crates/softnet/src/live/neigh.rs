//! Neighbours whose MAC address is fixed by hand, and such that are forgotten.

use softnet_core::SoftnetData;
use softnet_core::ip::neigh::{NeighEntry, NeighState};

use super::route::is_host;
use super::{LiveError, device, networks};
use crate::config::{Config, is_link_local, parse_mac};
use crate::control::{LiveAction, SetNeigh};
use crate::stack::StackInner;

/// Makes the change. Returns how many neighbours were fixed or forgotten.
pub(crate) fn change(
    shared: &StackInner,
    ctx: &mut SoftnetData,
    config: &Config,
    set: &SetNeigh,
) -> Result<u64, LiveError> {
    let (dev, device) = device(config, &set.dev)?;
    if shared.devices[usize::from(dev)].live.load().is_none() {
        return Err(LiveError::NotOpen(set.dev.clone()));
    }
    let entries: Vec<NeighEntry> = {
        let control = shared.control();
        control.slow.neighbours().entries().filter(|entry| entry.dev == dev).collect()
    };
    if set.action == LiveAction::Flush {
        // As `ip neigh flush`: what was fixed stays.
        let learned: Vec<_> = entries.iter().filter(|entry| entry.state != NeighState::Permanent).collect();
        for entry in &learned {
            shared.slow_path(ctx, |slow, ctx, view, out| slow.forget(ctx, view, (dev, entry.ip), out));
        }
        return Ok(learned.len() as u64);
    }
    let addr = set.to.ok_or_else(|| LiveError::Expected("the neighbour's address".into()))?;
    let there = entries.iter().find(|entry| entry.ip == addr);
    if set.action == LiveAction::Del {
        if there.is_none() {
            return Err(LiveError::NoNeigh { addr, dev: set.dev.clone() });
        }
        shared.slow_path(ctx, |slow, ctx, view, out| slow.forget(ctx, view, (dev, addr), out));
        return Ok(1);
    }
    is_host(config, "to", addr)?;
    let on_link =
        device.addresses.iter().any(|own| own.has_host(addr)) || is_link_local(addr) && device.speaks_ipv6();
    if !on_link {
        let networks = networks(std::iter::once(device), addr.is_ipv4());
        return Err(LiveError::Unreachable { via: addr, networks });
    }
    let text = set.lladdr.as_deref().ok_or_else(|| LiveError::Expected("lladdr and a MAC address".into()))?;
    let mac = parse_mac(text).ok().filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0);
    let mac = mac.ok_or_else(|| {
        LiveError::Expected(format!("the MAC address of one host, such as 02:00:00:00:00:01, found {text:?}"))
    })?;
    let permanent = there.is_some_and(|entry| entry.state == NeighState::Permanent);
    if set.action == LiveAction::Add && permanent {
        return Err(LiveError::NeighExists(addr));
    }
    shared.slow_path(ctx, |slow, ctx, view, out| slow.set_permanent(ctx, view, (dev, addr, mac), out));
    Ok(1)
}
