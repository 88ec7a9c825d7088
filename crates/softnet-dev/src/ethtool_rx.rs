//! RSS and filters of an interface of the kernel, by its ethtool requests: what the driver allows.
//!
//! Control path; any thread may call it. The kernel's structures are written byte by byte
//! (`include/uapi/linux/ethtool.h`), so nothing here is `unsafe`. What is changed is the
//! interface's, and stays when softnet is gone, as with `ethtool -X` and `-N`. Invariant: what the
//! driver refuses is told with the kernel's error and what may help.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use softnet_core::steer::{
    ContextChoice, FlowKey, FlowKind, FlowType, KEY_LEN, RssError, RssHash, Rule, RuleAction, RuleError,
    Spread, Xfrm, format_key,
};

use crate::flow_slots::FlowSlots;
use crate::rx_class::{RssChange, RssView, RuleOrder, RuleView, RxClassError};
use crate::sys_error::SysError;
use crate::xdp::control::Control;

const GRXFH: u32 = 0x29;
const SRXFH: u32 = 0x2a;
const GRXRINGS: u32 = 0x2d;
const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const SRXCLSRLDEL: u32 = 0x31;
const SRXCLSRLINS: u32 = 0x32;
const GRSSH: u32 = 0x46;
const SRSSH: u32 = 0x47;

/// Words of `struct ethtool_rxfh` before the table.
const RXFH_WORDS: usize = 6;
/// The table, or the input transformation, stays as it is; the context is to be made.
const NO_CHANGE: u32 = u32::MAX;
const XFRM_NO_CHANGE: u8 = 0xff;
const NEW_CONTEXT: u32 = u32::MAX;
const TOEPLITZ: u8 = 1;
/// Entries and bytes that no driver has more of.
const MAX_INDIR: u32 = 1 << 16;
const MAX_KEY: u32 = 1 << 10;

/// Bytes of `struct ethtool_rxnfc`, and where its fields are.
const RXNFC_LEN: usize = 192;
const FLOW_TYPE: usize = 4;
const DATA: usize = 8;
const FS_FLOW_TYPE: usize = 16;
const VALUES: usize = 20;
const VALUE_VLAN: usize = 82;
const MASKS: usize = 92;
const MASK_VLAN: usize = 154;
const COOKIE: usize = 168;
const LOCATION: usize = 176;
const COUNT_OR_CONTEXT: usize = 184;
const LOCATIONS: usize = 188;

const FLOW_EXT: u32 = 0x8000_0000;
const FLOW_RSS: u32 = 0x2000_0000;
const DISCARD: u64 = u64::MAX;
/// The driver chooses the location; it says so by the bit.
const ANY_LOCATION: u32 = u32::MAX;
const CHOOSES_LOCATION: u64 = 0x8000_0000;
const IP4: u8 = 1;
/// Rules that no driver has more of.
const MAX_RULES: u32 = 1 << 16;

/// Hash fields: addresses, ports.
const ADDRESSES: u64 = 0b11 << 4;
const PORTS: u64 = 0b11 << 6;

/// RSS and filters of one interface.
#[derive(Default)]
pub(crate) struct KernelRxClass {
    /// RSS contexts that were made here: the kernel lists none by these requests.
    contexts: Mutex<BTreeSet<u32>>,
    /// Where accelerated RFS has its filters, once it was asked for; `None`: it has no place.
    flows: OnceLock<Option<Mutex<FlowSlots>>>,
}

/// What answers ethtool requests, as [`Control::ethtool`] does.
pub(crate) trait Ethtool {
    fn ethtool(&self, words: &mut [u32]) -> io::Result<()>;
}

impl Ethtool for Control {
    fn ethtool(&self, words: &mut [u32]) -> io::Result<()> {
        Control::ethtool(self, words)
    }
}

/// `struct ethtool_rxnfc`, with room for so many locations.
struct Rxnfc(Vec<u8>);

impl Rxnfc {
    fn new(command: u32, locations: usize) -> Self {
        let mut bytes = vec![0; (RXNFC_LEN + locations * 4).next_multiple_of(4)];
        bytes[..4].copy_from_slice(&command.to_ne_bytes());
        Rxnfc(bytes)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn u32(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    fn ask(&mut self, control: &impl Ethtool) -> io::Result<()> {
        let mut words: Vec<u32> =
            self.0.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        control.ethtool(&mut words)?;
        self.0 = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(())
    }
}

/// What the kernel said of a request, and what may help.
fn refused(what: &str, error: io::Error) -> RxClassError {
    let detail = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "the interface's driver can't do that (`ethtool -i` says which it is)",
        Some(libc::EINVAL) => "the driver does not take these values",
        Some(libc::EBUSY) => "it is in use: delete the filters that lead to it first",
        Some(libc::ENOSPC | libc::EXFULL) => "the driver has no room for more: delete some first",
        Some(libc::ENOENT) => "there is none of that number",
        _ => "",
    };
    SysError::new(what, error).detail(detail).needs("CAP_NET_ADMIN").into()
}

fn kinds(kind: FlowKind) -> u32 {
    match kind {
        FlowKind::Tcp4 => 1,
        FlowKind::Udp4 => 2,
        FlowKind::Tcp6 => 5,
        FlowKind::Udp6 => 6,
    }
}

/// What `GRSSH` tells of a context.
#[cfg_attr(test, derive(Clone))]
struct Rxfh {
    table: Vec<u32>,
    key: Vec<u8>,
    hfunc: u8,
    xfrm: u8,
}

/// The main one's, which is there if the driver tells at all.
fn main_rxfh(control: &impl Ethtool) -> Result<Rxfh, RxClassError> {
    rxfh(control, 0).map_err(|error| refused("read how the interface spreads flows (ETHTOOL_GRSSH)", error))
}

fn rxfh(control: &impl Ethtool, context: u32) -> io::Result<Rxfh> {
    let mut sizes = [GRSSH, context, 0, 0, 0, 0];
    control.ethtool(&mut sizes)?;
    let (entries, key_len) = (sizes[2].min(MAX_INDIR), sizes[3].min(MAX_KEY));
    let mut words = vec![0; RXFH_WORDS + entries as usize + (key_len as usize).div_ceil(4)];
    words[..4].copy_from_slice(&[GRSSH, context, entries, key_len]);
    control.ethtool(&mut words)?;
    let [hfunc, xfrm, ..] = words[4].to_ne_bytes();
    let (table, key) = words[RXFH_WORDS..].split_at(entries as usize);
    let key = key.iter().flat_map(|word| word.to_ne_bytes()).take(key_len as usize).collect();
    Ok(Rxfh { table: table.to_vec(), key, hfunc, xfrm })
}

/// RX queues that a table may name.
fn rings(control: &impl Ethtool) -> Result<u16, RxClassError> {
    let mut request = Rxnfc::new(GRXRINGS, 0);
    request
        .ask(control)
        .map_err(|error| refused("ask for an interface's RX queues (ETHTOOL_GRXRINGS)", error))?;
    Ok(request.u64(DATA).min(u16::MAX.into()) as u16)
}

/// What is hashed of a kind of flow.
fn fields(control: &impl Ethtool, kind: FlowKind) -> io::Result<u64> {
    let mut request = Rxnfc::new(GRXFH, 0);
    request.put(FLOW_TYPE, &kinds(kind).to_ne_bytes());
    request.ask(control)?;
    Ok(request.u64(DATA))
}

fn set_fields(control: &impl Ethtool, kind: FlowKind, fields: u64) -> io::Result<()> {
    let mut request = Rxnfc::new(SRXFH, 0);
    request.put(FLOW_TYPE, &kinds(kind).to_ne_bytes());
    request.put(DATA, &fields.to_ne_bytes());
    request.ask(control)
}

impl KernelRxClass {
    fn contexts(&self) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the interface spreads flows. Of contexts those that were made here.
    pub(crate) fn rss(&self, control: &impl Ethtool) -> Result<RssView, RxClassError> {
        let main = main_rxfh(control)?;
        let mut contexts = vec![(0, main.table)];
        let mut made = self.contexts();
        made.retain(|context| match rxfh(control, *context) {
            Ok(rxfh) => {
                contexts.push((*context, rxfh.table));
                true
            }
            // Others may have deleted it meanwhile. (Drivers did not agree on how to say so.) If
            // the driver only can't tell now, it is there all the same.
            Err(error) => !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)),
        });
        let fields = FlowKind::ALL.into_iter().filter_map(|kind| {
            let fields = fields(control, kind).ok()?;
            let letters = [(4, 's'), (5, 'd'), (6, 'f'), (7, 'n'), (1, 'm'), (2, 'v'), (3, 't')];
            let set = letters.into_iter().filter(|(bit, _)| fields & 1 << bit != 0);
            Some((kind, set.map(|(_, letter)| letter).collect()))
        });
        Ok(RssView {
            queues: rings(control).map_or(0, u32::from),
            contexts,
            key: format_key(&main.key),
            hfunc: match main.hfunc {
                1 => "toeplitz".into(),
                2 => "xor".into(),
                4 => "crc32".into(),
                other => format!("{other:#x}"),
            },
            xfrm: Xfrm::ALL.get(usize::from(main.xfrm)).map_or("-", |xfrm| xfrm.name()).into(),
            fields: fields.collect(),
        })
    }

    /// Changes that, as far as the driver does, or nothing. All that can be found wrong is, before
    /// the driver is asked for any of it; if it then refuses a part, what it did before is undone.
    /// Returns the context that was made.
    pub(crate) fn set_rss(
        &self,
        control: &impl Ethtool,
        change: &RssChange,
    ) -> Result<Option<u32>, RxClassError> {
        let is_main = change.context == ContextChoice::Is(0);
        if !is_main && !change.ports.is_empty() {
            return Err(RssError::OfDevice("rx-flow-hash").into());
        }
        if change.delete && matches!(change.context, ContextChoice::New | ContextChoice::Is(0)) {
            return Err(RssError::Main.into());
        }
        let nothing = change.spread.is_none() && change.key.is_none() && change.xfrm.is_none();
        let words = match nothing && !change.toeplitz && !change.delete && is_main {
            true => None,
            false => Some(srssh(change, &main_rxfh(control)?, || rings(control))?),
        };
        let mut before = Vec::new();
        let changed = self.change(control, change, words, &mut before);
        if changed.is_err() {
            // The last first, if a kind was given twice. What the driver does not take back stays.
            before.into_iter().rev().for_each(|(kind, fields)| _ = set_fields(control, kind, fields));
        }
        changed
    }

    /// Changes what is hashed first, then the rest in one request. `before`: what was hashed.
    fn change(
        &self,
        control: &impl Ethtool,
        change: &RssChange,
        words: Option<Vec<u32>>,
        before: &mut Vec<(FlowKind, u64)>,
    ) -> Result<Option<u32>, RxClassError> {
        for (kind, ports) in &change.ports {
            let old = fields(control, *kind);
            let what = format!("set what is hashed of {} (ETHTOOL_SRXFH)", kind.name());
            set_fields(control, *kind, ADDRESSES | if *ports { PORTS } else { 0 })
                .map_err(|error| refused(&what, error))?;
            before.extend(old.ok().map(|old| (*kind, old)));
        }
        words.map_or(Ok(None), |words| self.send(control, change, words))
    }

    fn send(
        &self,
        control: &impl Ethtool,
        change: &RssChange,
        mut words: Vec<u32>,
    ) -> Result<Option<u32>, RxClassError> {
        let what = "change how the interface spreads flows (ETHTOOL_SRSSH)";
        control.ethtool(&mut words).map_err(|error| refused(what, error))?;
        match change.context {
            ContextChoice::New => {
                self.contexts().insert(words[1]);
                Ok(Some(words[1]))
            }
            ContextChoice::Is(context) => {
                match context {
                    0 => {}
                    _ if change.delete => _ = self.contexts().remove(&context),
                    _ => _ = self.contexts().insert(context),
                }
                Ok(None)
            }
        }
    }

    /// The filters.
    pub(crate) fn rules(&self, control: &impl Ethtool) -> Result<Vec<RuleView>, RxClassError> {
        let (locations, _) = locations(control)?;
        let rule = |location: u32| {
            let mut request = Rxnfc::new(GRXCLSRULE, 0);
            request.put(LOCATION, &location.to_ne_bytes());
            // One that was deleted meanwhile is none.
            request.ask(control).ok()?;
            let rule = decode(&request).map_or_else(
                || format!("flow-type {:#x}, which softnet can't say", request.u32(FS_FLOW_TYPE)),
                |rule| rule.to_string(),
            );
            Some(RuleView { location, rule, packets: None, rfs: self.is_of_flow(location) })
        };
        Ok(locations.into_iter().filter_map(rule).collect())
    }

    /// Adds or deletes a filter. Returns its location.
    pub(crate) fn set_rule(&self, control: &impl Ethtool, order: &RuleOrder) -> Result<u32, RxClassError> {
        let (rule, location) = match order {
            RuleOrder::Delete(location) if self.is_of_flow(*location) => {
                return Err(RuleError::OfRfs(*location).into());
            }
            RuleOrder::Delete(location) => return delete(control, *location).map(|()| *location),
            RuleOrder::Insert { rule, location } => (rule, *location),
        };
        let location = match location {
            Some(location) => location,
            None => last_free(control, self.first_of_flows())?,
        };
        insert(control, rule, location)
    }

    /// How many filters of single flows there may be: a quarter of what the driver has room for.
    pub(crate) fn flow_filters(&self, control: &impl Ethtool) -> u32 {
        let slots = self.flows.get_or_init(|| {
            let data = places_of(control).ok()?;
            let places = (data & !CHOOSES_LOCATION).min(MAX_RULES.into()) as u32;
            FlowSlots::new(places, data & CHOOSES_LOCATION != 0).map(Mutex::new)
        });
        slots.as_ref().map_or(0, |slots| lock(slots).len())
    }

    /// Has one of them send a flow to a queue, or deletes it.
    pub(crate) fn set_flow_filter(
        &self,
        control: &impl Ethtool,
        at: u32,
        to: Option<(&FlowKey, u16)>,
    ) -> Result<(), RxClassError> {
        let Some(Some(slots)) = self.flows.get() else { return Err(RxClassError::unsupported()) };
        let mut slots = lock(slots);
        let delete = |location| delete(control, location);
        let set = match to {
            Some((key, queue)) => slots.set(at, delete, |location| {
                insert(control, &key.rule(queue), location.unwrap_or(ANY_LOCATION))
            }),
            None => slots.delete(at, delete),
        };
        slots.changed();
        set
    }

    /// Whether the interface has long gone by what was set last.
    pub(crate) fn filters_settled(&self) -> bool {
        self.slots().is_none_or(|slots| lock(slots).is_settled())
    }

    fn slots(&self) -> Option<&Mutex<FlowSlots>> {
        self.flows.get()?.as_ref()
    }

    fn is_of_flow(&self, location: u32) -> bool {
        self.slots().is_some_and(|slots| lock(slots).has(location))
    }

    /// The location from which on filters are not for users.
    fn first_of_flows(&self) -> Option<u32> {
        lock(self.slots()?).first()
    }
}

fn lock(slots: &Mutex<FlowSlots>) -> std::sync::MutexGuard<'_, FlowSlots> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}

fn delete(control: &impl Ethtool, location: u32) -> Result<(), RxClassError> {
    let mut request = Rxnfc::new(SRXCLSRLDEL, 0);
    request.put(LOCATION, &location.to_ne_bytes());
    let what = format!("delete the filter at location {location} (ETHTOOL_SRXCLSRLDEL)");
    request.ask(control).map_err(|error| refused(&what, error))
}

/// Adds a filter, in place of what is at its location. Returns the location.
fn insert(control: &impl Ethtool, rule: &Rule, location: u32) -> Result<u32, RxClassError> {
    let mut request = encode(rule, location);
    request.ask(control).map_err(|error| {
        refused("add a filter (ETHTOOL_SRXCLSRLINS; `ethtool -K DEV ntuple on` may be needed)", error)
    })?;
    Ok(request.u32(LOCATION))
}

/// The request that makes `change` of what is `main`; `rings` is asked for the number of RX queues.
fn srssh(
    change: &RssChange,
    main: &Rxfh,
    rings: impl Fn() -> Result<u16, RxClassError>,
) -> Result<Vec<u32>, RxClassError> {
    let is_main = change.context == ContextChoice::Is(0);
    // A context is made with a table of its own, whatever the main one is.
    let spread = change.spread.clone().or((change.context == ContextChoice::New).then_some(Spread::Default));
    let table = match &spread {
        _ if change.delete => Some(Vec::new()),
        // The kernel's own default; of a context the same words would delete it.
        Some(Spread::Default) if is_main => Some(Vec::new()),
        Some(spread) => {
            let table = spread.table(rings()?.max(1), main.table.len())?;
            Some(table.iter().map(|queue| u32::from(*queue)).collect())
        }
        None => None,
    };
    if let Some(key) = &change.key
        && key.len() != main.key.len()
    {
        let expected = format!("expected a key of {} bytes, found {}", main.key.len(), key.len());
        let invalid = io::Error::from_raw_os_error(libc::EINVAL);
        return Err(SysError::new("set the key", invalid).detail(expected).into());
    }
    // The key that there is may be singular with another transformation.
    if change.key.is_some() || change.xfrm.is_some_and(|xfrm| xfrm != Xfrm::None) {
        let xfrm = change.xfrm.or(Xfrm::ALL.get(usize::from(main.xfrm)).copied()).unwrap_or_default();
        if let Some(begin) = change.key.as_ref().unwrap_or(&main.key).get(..KEY_LEN) {
            RssHash::new(begin, xfrm, main.table.len().checked_ilog2().unwrap_or(0))
                .map_err(RssError::from)?;
        }
    }
    let context = match change.context {
        ContextChoice::New => NEW_CONTEXT,
        ContextChoice::Is(context) => context,
    };
    let key = change.key.as_deref().unwrap_or_default();
    let entries = table.as_ref().map_or(NO_CHANGE, |table| table.len() as u32);
    let xfrm = change.xfrm.map_or(XFRM_NO_CHANGE, |xfrm| xfrm as u8);
    let hfunc = if change.toeplitz { TOEPLITZ } else { 0 };
    let mut words =
        vec![SRSSH, context, entries, key.len() as u32, u32::from_ne_bytes([hfunc, xfrm, 0, 0]), 0];
    words.extend(table.unwrap_or_default());
    words.extend(
        key.chunks(4)
            .map(|bytes| u32::from_ne_bytes(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0)))),
    );
    Ok(words)
}

/// Where filters are, and how many places there are.
fn locations(control: &impl Ethtool) -> Result<(Vec<u32>, u64), RxClassError> {
    let what = "list the filters of the interface (ETHTOOL_GRXCLSRLALL)";
    let mut count = Rxnfc::new(GRXCLSRLCNT, 0);
    count.ask(control).map_err(|error| refused(what, error))?;
    let rules = count.u32(COUNT_OR_CONTEXT).min(MAX_RULES);
    let mut all = Rxnfc::new(GRXCLSRLALL, rules as usize);
    all.put(COUNT_OR_CONTEXT, &rules.to_ne_bytes());
    all.ask(control).map_err(|error| refused(what, error))?;
    let found = all.u32(COUNT_OR_CONTEXT).min(rules) as usize;
    let mut locations: Vec<u32> = (0..found).map(|i| all.u32(LOCATIONS + i * 4)).collect();
    locations.sort_unstable();
    Ok((locations, all.u64(DATA)))
}

const ASK_PLACES: &str = "ask for places for filters (ETHTOOL_GRXCLSRLCNT)";

/// What the driver says of places for filters: whether it chooses them, and maybe how many.
fn places_of(control: &impl Ethtool) -> Result<u64, RxClassError> {
    let mut count = Rxnfc::new(GRXCLSRLCNT, 0);
    count.ask(control).map_err(|error| refused(ASK_PLACES, error))?;
    Ok(count.u64(DATA))
}

/// The last location below `end` that is free, or what stands for it where the driver chooses.
fn last_free(control: &impl Ethtool, end: Option<u32>) -> Result<u32, RxClassError> {
    if places_of(control)? & CHOOSES_LOCATION != 0 {
        return Ok(ANY_LOCATION);
    }
    let (taken, places) = locations(control)?;
    let end = end.unwrap_or(MAX_RULES).min(places.min(MAX_RULES.into()) as u32);
    let free = (0..end).rev().find(|at| taken.binary_search(at).is_err());
    free.ok_or_else(|| refused(ASK_PLACES, io::Error::from_raw_os_error(libc::ENOSPC)))
}

/// Where the parts of a filter are in the kernel's union: source, destination, ports, TOS,
/// protocol; and their lengths.
fn places(flow_type: FlowType) -> [(usize, usize); 5] {
    let protocol = |at| if flow_type.protocol().is_some() { (0, 0) } else { (at, 1) };
    match flow_type.is_v6() {
        false => [(0, 4), (4, 4), (8, 4), (12, 1), protocol(14)],
        true => [(0, 16), (16, 16), (32, 4), (36, 1), protocol(37)],
    }
}

const KERNEL_TYPES: [(FlowType, u32); 6] = [
    (FlowType::Tcp4, 0x01),
    (FlowType::Udp4, 0x02),
    (FlowType::Tcp6, 0x05),
    (FlowType::Udp6, 0x06),
    (FlowType::Ip4, 0x0d),
    (FlowType::Ip6, 0x0e),
];

fn encode(rule: &Rule, location: u32) -> Rxnfc {
    let flow_type = rule.flow_type();
    let mut request = Rxnfc::new(SRXCLSRLINS, 0);
    let mut kind = KERNEL_TYPES.iter().find(|(known, _)| *known == flow_type).map_or(0, |(_, kind)| *kind);
    let parts = [rule.src(), rule.dst(), rule.ports(), rule.tos(), rule.protocol()];
    for (part, (at, len)) in parts.into_iter().zip(places(flow_type)) {
        if len > 0 {
            request.put(VALUES + at, part.value);
            request.put(MASKS + at, part.mask);
        }
    }
    if flow_type == FlowType::Ip4 {
        request.put(VALUES + 13, &[IP4]);
    }
    if rule.vlan().is_given() {
        kind |= FLOW_EXT;
        request.put(VALUE_VLAN, rule.vlan().value);
        request.put(MASK_VLAN, rule.vlan().mask);
    }
    let cookie = match rule.action {
        RuleAction::Queue(queue) => queue.into(),
        RuleAction::Drop => DISCARD,
        RuleAction::Context(context) => {
            kind |= FLOW_RSS;
            request.put(COUNT_OR_CONTEXT, &context.to_ne_bytes());
            0
        }
    };
    request.put(FS_FLOW_TYPE, &kind.to_ne_bytes());
    request.put(COOKIE, &cookie.to_ne_bytes());
    request.put(LOCATION, &location.to_ne_bytes());
    request
}

fn decode(request: &Rxnfc) -> Option<Rule> {
    let kind = request.u32(FS_FLOW_TYPE);
    let known = KERNEL_TYPES.iter().find(|(_, known)| *known == kind & !(FLOW_EXT | FLOW_RSS))?;
    let cookie = request.u64(COOKIE);
    let action = match () {
        () if cookie == DISCARD => RuleAction::Drop,
        () if kind & FLOW_RSS != 0 => RuleAction::Context(request.u32(COUNT_OR_CONTEXT)),
        () => RuleAction::Queue(cookie.try_into().ok()?),
    };
    let both = |at: usize, mask: usize, len: usize| (&request.0[at..at + len], &request.0[mask..mask + len]);
    let part = |(at, len): (usize, usize)| both(VALUES + at, MASKS + at, len);
    let [src, dst, ports, tos, protocol] = places(known.0).map(part);
    let vlan = if kind & FLOW_EXT != 0 { both(VALUE_VLAN, MASK_VLAN, 2) } else { (&[][..], &[][..]) };
    Some(Rule::new(known.0, action).with_parts([src, dst, ports, tos, protocol, vlan]))
}

#[cfg(test)]
mod tests;
