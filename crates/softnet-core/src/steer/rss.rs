//! RSS of a device: how flows are spread over its RX queues, and changes of that in the words of
//! `ethtool -X`.
//!
//! An [`Rss`] is what a control thread looks at and changes; what hashes packets by it is an
//! [`RxClass`](super::RxClass). A change is checked whole before any of it is made. Invariant:
//! every entry of a table is an RX queue that there is, and the key is not singular for it.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::key::{KeyError, RssHash, Xfrm};
use super::toeplitz::flow_hkey;
use super::words::{WordError, Words, wrong};

/// Entries of a table at the least.
const ENTRIES: usize = 128;

/// Contexts that a device may have beside the main one.
const MAX_CONTEXTS: u32 = 64;

/// A kind of flow, of which a device is told whether it hashes ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv4.
    Udp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv6.
    Udp6,
}

impl FlowKind {
    /// All of them.
    pub const ALL: [FlowKind; 4] = [FlowKind::Tcp4, FlowKind::Udp4, FlowKind::Tcp6, FlowKind::Udp6];

    /// Its name.
    pub const fn name(self) -> &'static str {
        ["tcp4", "udp4", "tcp6", "udp6"][self as usize]
    }
}

/// How a table is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Over all queues: entry `i` is `i` modulo their number.
    Default,
    /// Over `n` queues from `start` on.
    Equal {
        /// How many.
        n: u32,
        /// The first of them.
        start: u32,
    },
    /// Over as many queues as there are weights, from `start` on, by these.
    Weight {
        /// One for each queue.
        weights: Vec<u32>,
        /// The first queue.
        start: u32,
    },
}

/// Which table a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextChoice {
    /// One that is made.
    New,
    /// One that there is; 0 is the main one.
    Is(u32),
}

/// A change of a device's RSS, as `ethtool -X` has it: `equal 4`, `weight 6 2`, `hkey 6d:5a:…`,
/// `context new equal 2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssChange {
    /// Which table.
    pub context: ContextChoice,
    /// What is in it.
    pub spread: Option<Spread>,
    /// The context is to go.
    pub delete: bool,
    /// The key, of all contexts.
    pub key: Option<Vec<u8>>,
    /// `hfunc toeplitz`, the one function that there is.
    pub toeplitz: bool,
    /// What is done to the fields before they are hashed.
    pub xfrm: Option<Xfrm>,
    /// Whether the ports of a kind of flow are hashed (`rx-flow-hash`, which is `ethtool -N`'s).
    pub ports: Vec<(FlowKind, bool)>,
}

/// Why RSS was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RssError {
    /// It is not an order.
    #[error(transparent)]
    Words(#[from] WordError),
    /// The key can't be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There is no such queue.
    #[error("{word}: queue {queue} is not there: the device has {queues}, numbered from 0")]
    Queue {
        /// Where it is from.
        word: &'static str,
        /// The queue.
        queue: u64,
        /// How many there are.
        queues: u16,
    },
    /// All weights are 0, or they are more than there are entries.
    #[error(
        "weight: expected weights that add up to 1 at least and to {entries} (entries of the table) at most, found {sum}"
    )]
    Weights {
        /// Their sum.
        sum: u64,
        /// Entries of the table.
        entries: usize,
    },
    /// There is no such context.
    #[error("no context {0}; `context new` makes one")]
    NoContext(u32),
    /// There are as many as there may be.
    #[error("there are {MAX_CONTEXTS} contexts already: `context N delete` makes room")]
    Contexts,
    /// The main context stays.
    #[error("delete: expected `context N` before it; the main context stays")]
    Main,
    /// The key is the device's.
    #[error("{0}: is the device's, not a context's: set it without `context`")]
    OfDevice(&'static str),
    /// A filter leads to a context that is to be deleted.
    #[error("context {context} is in use by the filter at location {location}: delete that first")]
    InUse {
        /// The context.
        context: u32,
        /// Where the filter is.
        location: u32,
    },
}

const EXPECTED: &str = "equal, start, weight, default, hkey, hfunc, xfrm, context, delete or rx-flow-hash";

impl RssChange {
    /// Whether it is about the device and its main table, and not about another context.
    pub fn is_of_device(&self) -> bool {
        self.context == ContextChoice::Is(0) && !self.delete
    }

    /// Adds what `later` changes, made after this: what both come to, for a device that was opened
    /// anew. Other contexts are no part of it.
    pub fn then(&mut self, later: &RssChange) {
        if !later.is_of_device() {
            return;
        }
        let RssChange { spread, key, toeplitz, xfrm, ports, .. } = later.clone();
        self.spread = spread.or(self.spread.take());
        self.key = key.or(self.key.take());
        self.toeplitz |= toeplitz;
        self.xfrm = xfrm.or(self.xfrm);
        self.ports.retain(|(old, _)| ports.iter().all(|(new, _)| old != new));
        self.ports.extend(ports);
    }
}

impl FromStr for RssChange {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let mut words = Words::new(text);
        let mut change = RssChange {
            context: ContextChoice::Is(0),
            spread: None,
            delete: false,
            key: None,
            toeplitz: false,
            xfrm: None,
            ports: Vec::new(),
        };
        let (mut start, mut any) = (None, false);
        while let Some(word) = words.next() {
            any = true;
            match word {
                "equal" => {
                    let n = words.number(word, u16::MAX.into())?;
                    if n == 0 {
                        return Err(wrong(word, "a number of queues, at least 1", Some("0")));
                    }
                    change.spread = Some(Spread::Equal { n, start: 0 });
                }
                "start" => start = Some(words.number(word, u16::MAX.into())?),
                "weight" => {
                    let weights = words.numbers();
                    if weights.is_empty() {
                        return Err(wrong(word, "a weight for each queue", words.next()));
                    }
                    change.spread = Some(Spread::Weight { weights, start: 0 });
                }
                "default" => change.spread = Some(Spread::Default),
                "hkey" => change.key = Some(words.value(word, "bytes as aa:bb:…", key)?),
                "hfunc" => {
                    words.value(word, "toeplitz", |name| (name == "toeplitz").then_some(()))?;
                    change.toeplitz = true;
                }
                "xfrm" => {
                    let named = |name: &str| Xfrm::ALL.into_iter().find(|xfrm| xfrm.name() == name);
                    let expected = "symmetric-xor, symmetric-or-xor or none";
                    change.xfrm = Some(words.value(word, expected, named)?);
                }
                "context" => {
                    change.context = match words.takes("new") {
                        true => ContextChoice::New,
                        false => ContextChoice::Is(words.parsed(word, "new or a number")?),
                    };
                }
                "delete" => change.delete = true,
                "rx-flow-hash" => {
                    let named = |name: &str| FlowKind::ALL.into_iter().find(|kind| kind.name() == name);
                    let kind = words.value(word, "tcp4, udp4, tcp6 or udp6", named)?;
                    let fields = |fields: &str| match fields {
                        "sd" => Some(false),
                        "sdfn" => Some(true),
                        _ => None,
                    };
                    let expected = "sd (addresses) or sdfn (and ports)";
                    change.ports.push((kind, words.value(word, expected, fields)?));
                }
                _ => return Err(wrong("", EXPECTED, Some(word))),
            }
        }
        if !any {
            return Err(wrong("", EXPECTED, None));
        }
        if let Some(from) = start {
            match &mut change.spread {
                Some(Spread::Equal { start, .. } | Spread::Weight { start, .. }) => *start = from,
                _ => return Err(wrong("start", "equal or weight beside it", None)),
            }
        }
        Ok(change)
    }
}

/// The bytes of a key: `6d:5a:…`.
fn key(text: &str) -> Option<Vec<u8>> {
    let byte = |text: &str| {
        let is_hex = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u8::from_str_radix(text, 16).ok()).flatten()
    };
    text.split(':').map(byte).collect()
}

/// A key as [`RssChange`] reads it.
pub fn format_key(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// RSS of a device with software behind it.
#[derive(Clone, Debug)]
pub struct Rss {
    queues: u16,
    pub(super) hash: RssHash,
    /// Whether ports are hashed, by [`FlowKind`].
    pub(super) ports: [bool; 4],
    /// The tables, by context; 0 is the main one.
    pub(super) contexts: BTreeMap<u32, Box<[u16]>>,
}

impl Rss {
    /// Of a device with so many queues (at least one): the [key of the
    /// process](flow_hkey), ports hashed, all queues alike.
    ///
    /// # Errors
    /// None for any number of queues: that key is not singular.
    pub fn new(queues: u16) -> Result<Self, RssError> {
        let queues = queues.max(1);
        let entries = entries(queues);
        let hash = RssHash::new(flow_hkey(), Xfrm::None, entries.ilog2())?;
        let table = Spread::Default.table(queues, entries)?;
        Ok(Rss { queues, hash, ports: [true; 4], contexts: BTreeMap::from([(0, table)]) })
    }

    /// How many RX queues there are.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// The hash.
    pub fn hash(&self) -> &RssHash {
        &self.hash
    }

    /// Whether the ports of such flows are hashed.
    pub fn hashes_ports(&self, kind: FlowKind) -> bool {
        self.ports[kind as usize]
    }

    /// The tables, by context; 0 is the main one.
    pub fn contexts(&self) -> impl Iterator<Item = (u32, &[u16])> {
        self.contexts.iter().map(|(id, table)| (*id, &**table))
    }

    /// Changes it, or nothing. Returns the context that was made, if one was. A context that is to
    /// go must not be in use, which the caller sees to.
    ///
    /// # Errors
    /// What is wrong with the change; then nothing was changed.
    pub fn apply(&mut self, change: &RssChange) -> Result<Option<u32>, RssError> {
        let entries = entries(self.queues);
        if change.context != ContextChoice::Is(0) {
            let of_device = [
                ("hkey", change.key.is_some()),
                ("xfrm", change.xfrm.is_some()),
                ("rx-flow-hash", !change.ports.is_empty()),
            ];
            if let Some((word, _)) = of_device.into_iter().find(|(_, given)| *given) {
                return Err(RssError::OfDevice(word));
            }
        }
        if let ContextChoice::Is(context) = change.context
            && !self.contexts.contains_key(&context)
        {
            return Err(RssError::NoContext(context));
        }
        if change.delete {
            return match change.context {
                ContextChoice::New | ContextChoice::Is(0) => Err(RssError::Main),
                ContextChoice::Is(context) => {
                    self.contexts.remove(&context);
                    Ok(None)
                }
            };
        }
        let hash = match (&change.key, change.xfrm) {
            (None, None) => None,
            (key, xfrm) => {
                let key = key.as_deref().unwrap_or(self.hash.key());
                Some(RssHash::new(key, xfrm.unwrap_or(self.hash.xfrm()), entries.ilog2())?)
            }
        };
        let table = match (&change.spread, change.context) {
            (Some(spread), _) => Some(spread.table(self.queues, entries)?),
            (None, ContextChoice::New) => Some(Spread::Default.table(self.queues, entries)?),
            (None, ContextChoice::Is(_)) => None,
        };
        let (context, made) = match change.context {
            ContextChoice::Is(context) => (context, None),
            ContextChoice::New => {
                let free = (1..=MAX_CONTEXTS).find(|context| !self.contexts.contains_key(context));
                let free = free.ok_or(RssError::Contexts)?;
                (free, Some(free))
            }
        };
        if let Some(table) = table {
            self.contexts.insert(context, table);
        }
        if let Some(hash) = hash {
            self.hash = hash;
        }
        for (kind, ports) in &change.ports {
            self.ports[*kind as usize] = *ports;
        }
        Ok(made)
    }
}

/// Entries of a device's tables: at least 128, and 4 for each queue.
fn entries(queues: u16) -> usize {
    ENTRIES.max(usize::from(queues) * 4).next_power_of_two()
}

impl Spread {
    /// A table of `entries` entries for a device with `queues` queues.
    ///
    /// # Errors
    /// It names a queue that is not there, or has weights that can't be.
    pub fn table(&self, queues: u16, entries: usize) -> Result<Box<[u16]>, RssError> {
        let last = |word, start: u32, n: u64| {
            let end = u64::from(start) + n;
            match end > u64::from(queues) {
                true => Err(RssError::Queue { word, queue: end - 1, queues }),
                false => Ok(()),
            }
        };
        Ok(match self {
            Spread::Default => (0..entries).map(|i| (i % usize::from(queues)) as u16).collect(),
            Spread::Equal { n, start } => {
                last("equal", *start, u64::from(*n))?;
                (0..entries).map(|i| (start + i as u32 % n) as u16).collect()
            }
            Spread::Weight { weights, start } => {
                last("weight", *start, weights.len() as u64)?;
                let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
                if sum == 0 || sum > entries as u64 {
                    return Err(RssError::Weights { sum, entries });
                }
                // Each queue's share ends where its weights so far do, rounded down.
                let mut table = Vec::with_capacity(entries);
                let mut so_far = 0;
                for (queue, weight) in weights.iter().enumerate() {
                    so_far += u64::from(*weight);
                    let end = entries as u64 * so_far / sum;
                    table.resize(end as usize, (*start as usize + queue) as u16);
                }
                table.into()
            }
        })
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn change(rss: &mut Rss, text: &str) -> Result<Option<u32>, String> {
        let change: RssChange = text.parse().map_err(|error: WordError| error.to_string())?;
        rss.apply(&change).map_err(|error| error.to_string())
    }

    fn shares(rss: &Rss, context: u32) -> Vec<usize> {
        let mut shares = vec![0; usize::from(rss.queues())];
        rss.contexts[&context].iter().for_each(|queue| shares[usize::from(*queue)] += 1);
        shares
    }

    #[test]
    fn tables_are_filled_as_told() {
        let mut rss = Rss::new(8).unwrap();
        assert_eq!(rss.contexts[&0][..10], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]);
        assert_eq!(rss.contexts[&0].len(), 128);
        // The worked example: hash 0x51ccc178, entry 120.
        assert_eq!(rss.contexts[&0][0x51cc_c178 & 127], 0);
        for (text, expected) in [
            ("equal 4", [32, 32, 32, 32, 0, 0, 0, 0]),
            ("equal 2 start 3", [0, 0, 0, 64, 64, 0, 0, 0]),
            ("weight 6 2", [96, 32, 0, 0, 0, 0, 0, 0]),
            ("weight 1 0 1 start 1", [0, 64, 0, 64, 0, 0, 0, 0]),
            ("weight 1 1 1", [42, 43, 43, 0, 0, 0, 0, 0]),
            ("default", [16; 8]),
        ] {
            assert_eq!(change(&mut rss, text), Ok(None), "{text}");
            assert_eq!(shares(&rss, 0), expected, "{text}");
        }
        assert_eq!(Rss::new(64).unwrap().contexts[&0].len(), 256);
        assert_eq!(Rss::new(0).unwrap().contexts[&0][..], [0; 128]);
    }

    /// In any order, what is remembered gives a device that is opened anew what the old one had.
    #[test]
    fn changes_come_to_one() {
        let orders = [
            "equal 2",
            "weight 1 2 3 start 1",
            "default",
            "hkey 6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:\
             42:b7:3b:be:ac:01:fb",
            "xfrm symmetric-xor rx-flow-hash udp4 sd",
            "rx-flow-hash udp4 sdfn rx-flow-hash tcp6 sd hfunc toeplitz",
            "xfrm none equal 3 start 1",
        ];
        let state = |rss: &Rss| {
            let hash = (*rss.hash.key(), rss.hash.xfrm());
            (hash, rss.ports, rss.contexts[&0].clone())
        };
        let mut seed = 7u32;
        for _ in 0..200 {
            let mut rss = Rss::new(4).unwrap();
            let mut all: RssChange = "hfunc toeplitz".parse().unwrap();
            for _ in 0..5 {
                seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
                let order: RssChange = orders[(seed >> 16) as usize % orders.len()].parse().unwrap();
                rss.apply(&order).unwrap();
                all.then(&order);
            }
            // What was done to another table says nothing of this one.
            all.then(&"context new equal 1".parse().unwrap());
            all.then(&"context 1 delete".parse().unwrap());
            let mut anew = Rss::new(4).unwrap();
            assert_eq!(anew.apply(&all), Ok(None));
            assert_eq!(state(&anew), state(&rss));
        }
    }

    #[test]
    fn contexts_are_made_and_deleted() {
        let mut rss = Rss::new(4).unwrap();
        assert_eq!(change(&mut rss, "context new equal 2"), Ok(Some(1)));
        assert_eq!(change(&mut rss, "context new"), Ok(Some(2)));
        assert_eq!((shares(&rss, 1), shares(&rss, 2)), (vec![64, 64, 0, 0], vec![32; 4]));
        assert_eq!(change(&mut rss, "context 1 weight 0 1"), Ok(None));
        assert_eq!((shares(&rss, 1), shares(&rss, 0)), (vec![0, 128, 0, 0], vec![32; 4]));
        assert_eq!(change(&mut rss, "context 1 delete"), Ok(None));
        assert_eq!(change(&mut rss, "context new"), Ok(Some(1)), "the number is free again");
        for _ in 3..=MAX_CONTEXTS {
            change(&mut rss, "context new").unwrap();
        }
        assert!(change(&mut rss, "context new").unwrap_err().contains("there are 64 contexts already"));
    }

    #[test]
    fn keys_and_fields_are_set() {
        let mut rss = Rss::new(4).unwrap();
        assert!(rss.hash().is_flow_hash());
        let periodic = format_key(&[0x6d, 0x5a].repeat(20));
        assert_eq!(change(&mut rss, &format!("hkey {periodic} hfunc toeplitz")), Ok(None));
        assert_eq!(rss.hash().key()[..4], [0x6d, 0x5a, 0x6d, 0x5a]);
        // What fits alone does not fit together, and nothing is changed, not even what is right.
        let error = change(&mut rss, "equal 1 xfrm symmetric-xor").unwrap_err();
        assert!(error.starts_with("hkey: singular with xfrm symmetric-xor: bit 0 of IPv4"), "{error}");
        assert_eq!((shares(&rss, 0), rss.hash().xfrm()), (vec![32; 4], Xfrm::None));
        let usual = format_key(flow_hkey());
        assert_eq!(change(&mut rss, &format!("xfrm symmetric-or-xor hkey {usual}")), Ok(None));
        assert_eq!(change(&mut rss, "rx-flow-hash udp4 sd rx-flow-hash udp6 sd"), Ok(None));
        assert_eq!(FlowKind::ALL.map(|kind| rss.hashes_ports(kind)), [true, false, true, false]);
    }

    #[test]
    fn what_is_wrong_is_told_and_changes_nothing() {
        let mut rss = Rss::new(4).unwrap();
        for (text, expected) in [
            (
                "",
                "expected equal, start, weight, default, hkey, hfunc, xfrm, context, delete or rx-flow-hash, found nothing",
            ),
            (
                "equals 4",
                "expected equal, start, weight, default, hkey, hfunc, xfrm, context, delete or rx-flow-hash, found \"equals\"",
            ),
            ("equal", "equal: expected a number from 0 to 65535, found nothing"),
            ("equal 0", "equal: expected a number of queues, at least 1, found \"0\""),
            ("equal 5", "equal: queue 4 is not there: the device has 4, numbered from 0"),
            ("equal 2 start 3", "equal: queue 4 is not there: the device has 4, numbered from 0"),
            ("start 1", "start: expected equal or weight beside it, found nothing"),
            ("weight", "weight: expected a weight for each queue, found nothing"),
            ("weight 1 1 1 1 1", "weight: queue 4 is not there: the device has 4, numbered from 0"),
            (
                "weight 0 0",
                "weight: expected weights that add up to 1 at least and to 128 (entries of the table) at most, found 0",
            ),
            (
                "weight 129",
                "weight: expected weights that add up to 1 at least and to 128 (entries of the table) at most, found 129",
            ),
            ("hkey 6d:5", "hkey: expected bytes as aa:bb:…, found \"6d:5\""),
            ("hkey 6d:5a", "hkey: expected 40 bytes, found 2"),
            ("hkey +1:-1", "hkey: expected bytes as aa:bb:…, found \"+1:-1\""),
            ("hfunc xor", "hfunc: expected toeplitz, found \"xor\""),
            ("xfrm xor", "xfrm: expected symmetric-xor, symmetric-or-xor or none, found \"xor\""),
            ("context", "context: expected new or a number, found nothing"),
            ("context 7", "no context 7; `context new` makes one"),
            ("delete", "delete: expected `context N` before it; the main context stays"),
            ("context new xfrm none", "xfrm: is the device's, not a context's: set it without `context`"),
            ("rx-flow-hash sctp4 sd", "rx-flow-hash: expected tcp4, udp4, tcp6 or udp6, found \"sctp4\""),
            ("rx-flow-hash udp4 v", "rx-flow-hash: expected sd (addresses) or sdfn (and ports), found \"v\""),
        ] {
            assert_eq!(change(&mut rss, text), Err(expected.into()), "{text}");
        }
        assert_eq!((shares(&rss, 0), rss.contexts().count()), (vec![32; 4], 1));
    }

    proptest! {
        #[test]
        fn every_entry_is_a_queue(queues in 1u16..200, text in "(equal|start|weight|default|context|new|delete|[0-9]{1,3}| ){0,12}") {
            let mut rss = Rss::new(queues).unwrap();
            let _ = change(&mut rss, &text);
            for (_, table) in rss.contexts() {
                prop_assert!(table.len().is_power_of_two() && table.len() >= 128);
                prop_assert!(table.iter().all(|queue| *queue < queues));
            }
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<RssChange>();
        }
    }
}
