//! Own addresses that come and go: which ones a device has after a change by hand.

use super::{LiveError, device};
use crate::config::{Config, InterfaceAddr};
use crate::control::{LiveAction, SetAddr};

/// The device that `set` is about, and its addresses afterwards.
pub(crate) fn changed(config: &Config, set: &SetAddr) -> Result<(u16, Vec<InterfaceAddr>), LiveError> {
    let (dev, device) = device(config, &set.dev)?;
    let mut addresses = device.addresses.clone();
    if set.action == LiveAction::Flush {
        addresses.clear();
        return Ok((dev, addresses));
    }
    let text = set.addr.as_deref().ok_or_else(|| LiveError::Expected("an address".into()))?;
    if set.action == LiveAction::Del {
        // With or without its length, as `ip` has it.
        let is = |own: &InterfaceAddr| own.to_string() == text || own.addr().to_string() == text;
        let at = addresses.iter().position(is).ok_or_else(|| {
            let all: Vec<String> = addresses.iter().map(InterfaceAddr::to_string).collect();
            let there =
                if all.is_empty() { "it has none".into() } else { format!("it has {}", all.join(", ")) };
            LiveError::NoAddr { addr: text.into(), dev: set.dev.clone(), there }
        })?;
        addresses.remove(at);
        return Ok((dev, addresses));
    }
    let new: InterfaceAddr = text
        .parse()
        .map_err(|error: crate::config::ParseError| LiveError::Expected(strip(&error.to_string())))?;
    let holder = config.devices.iter().find(|d| d.addresses.iter().any(|own| own.addr() == new.addr()));
    match (holder, set.action) {
        (Some(holder), LiveAction::Replace) if holder.name == set.dev => {
            addresses.iter_mut().filter(|own| own.addr() == new.addr()).for_each(|own| *own = new);
        }
        (Some(holder), _) => {
            return Err(LiveError::AddrExists { addr: new.addr(), dev: holder.name.clone() });
        }
        (None, _) => addresses.push(new),
    }
    Ok((dev, addresses))
}

/// What was expected, of an error that begins with that word.
fn strip(error: &str) -> String {
    error.strip_prefix("expected ").unwrap_or(error).into()
}
