//! Which discipline, with which parameters: read and written in `tc`'s words, as in
//! `tbf rate 10mbit burst 15kb latency 50ms`.
//!
//! Names, ranges and defaults are the kernel's. A [`Spec`] is what configuration and control messages carry; what
//! needs the device to be known, such as a default limit, is settled when it is built.

use std::fmt;
use std::str::FromStr;

use super::tbf::{Tbf, TbfLimit, TbfPeak, TbfSpec};
use super::{Fifo, Netem, PfifoFast, Qdisc, Rate, Size, Time, UnitError, netem_spec};

/// What defaults and checks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevParams {
    /// Longest packet in bytes, without the link header.
    pub mtu: u32,
    /// Packets that a queue holds unless something else is said: the kernel's `tx_queue_len`, 1000 by default.
    pub tx_queue_len: u32,
}

impl DevParams {
    /// Bytes of the longest frame.
    pub(super) fn frame(&self) -> u32 {
        self.mtu.saturating_add(crate::ip::ETH_LEN as u32)
    }

    /// Packets that a `pfifo`, or a band of `pfifo_fast`, holds by default.
    pub(super) fn pfifo_limit(&self) -> u32 {
        self.tx_queue_len.max(1)
    }

    /// Bytes that a `bfifo` holds by default.
    pub(super) fn bfifo_limit(&self) -> u32 {
        self.pfifo_limit().saturating_mul(self.frame())
    }
}

/// A discipline and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// None: what the ring does not take is dropped.
    Noqueue,
    /// One discipline for each TX queue of a device: a table, which the runtime has.
    Mq,
    /// Three bands by priority.
    PfifoFast,
    /// First in, first out, limited in packets.
    Pfifo {
        /// Packets; `tx_queue_len` if it is not given.
        limit: Option<u32>,
    },
    /// First in, first out, limited in bytes.
    Bfifo {
        /// Bytes; `tx_queue_len` frames if it is not given.
        limit: Option<u32>,
    },
    /// A token bucket.
    Tbf(TbfSpec),
    /// A bad network.
    Netem(softnet_netem::Params),
}

/// What is wrong with a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No such discipline.
    #[error("expected noqueue, mq, pfifo_fast, pfifo, bfifo, tbf or netem, got {}", quoted(.0))]
    Kind(String),
    /// No such parameter.
    #[error("{kind}: expected {expected}, got `{got}`")]
    Parameter {
        /// The discipline.
        kind: &'static str,
        /// Its parameters.
        expected: &'static str,
        /// What there was.
        got: String,
    },
    /// A parameter is given twice, or without a value.
    #[error("{kind}: {parameter}: expected one value, got {got}")]
    OneValue {
        /// The discipline.
        kind: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// `none` or `two`.
        got: &'static str,
    },
    /// A value is not of its unit.
    #[error("{kind}: {parameter}: {error}")]
    Value {
        /// The discipline.
        kind: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// What was expected.
        error: UnitError,
    },
    /// A number of packets is none.
    #[error("{kind}: limit: expected a number of packets, got `{got}`")]
    Packets {
        /// The discipline.
        kind: &'static str,
        /// What there was.
        got: String,
    },
    /// The parameters do not go together.
    #[error("tbf: {0}")]
    Tbf(&'static str),
    /// The same of a `netem`.
    #[error("netem: {0}")]
    Netem(&'static str),
    /// A discipline cannot become another by a change.
    #[error("a {is} cannot be changed to {asked}: replace it")]
    OtherKind {
        /// What it is.
        is: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A TX queue cannot have it.
    #[error("mq is for devices, not for one of their TX queues")]
    NotForQueue,
}

/// A word of the user's, or that there was none.
fn quoted(word: &str) -> String {
    if word.is_empty() { "nothing".into() } else { format!("`{word}`") }
}

impl Spec {
    /// Its name.
    pub fn kind(&self) -> &'static str {
        match self {
            Spec::Noqueue => "noqueue",
            Spec::Mq => "mq",
            Spec::PfifoFast => "pfifo_fast",
            Spec::Pfifo { .. } => "pfifo",
            Spec::Bfifo { .. } => "bfifo",
            Spec::Tbf(_) => "tbf",
            Spec::Netem(_) => "netem",
        }
    }

    /// Builds it for one TX queue of `dev`. `None`: packets go straight to the ring.
    pub fn build(&self, dev: &DevParams) -> Result<Option<Box<dyn Qdisc>>, SpecError> {
        Ok(Some(match self {
            Spec::Noqueue => return Ok(None),
            Spec::Mq => return Err(SpecError::NotForQueue),
            Spec::PfifoFast => Box::new(PfifoFast::new(dev.pfifo_limit())),
            Spec::Pfifo { limit } => Box::new(Fifo::packets(limit.unwrap_or(dev.pfifo_limit()), dev)),
            Spec::Bfifo { limit } => Box::new(Fifo::bytes(limit.unwrap_or(dev.bfifo_limit()), dev)),
            Spec::Tbf(spec) => Box::new(Tbf::new(spec)?),
            Spec::Netem(params) => Box::new(Netem::new(params)),
        }))
    }

    /// What it does that is hardly meant, if so: drop the longest frames of `dev`, whatever else there is.
    pub fn warning(&self, dev: &DevParams) -> Option<String> {
        let (kind, what, size) = match self {
            Spec::Tbf(spec) => {
                let (what, size) = spec.longest();
                ("tbf", what, size)
            }
            Spec::Bfifo { limit: Some(limit) } => ("bfifo", "limit", *limit),
            _ => return None,
        };
        let (frame, mtu) = (dev.frame(), dev.mtu);
        (size < frame).then(|| {
            format!(
                "{kind}: {what} {size}b is less than the longest frame, {frame} bytes with an MTU of {mtu}: longer frames \
                 than that are dropped"
            )
        })
    }

    /// The same, with the limit that it gets before `dev` if none is given: what `tc` shows.
    pub fn resolved(&self, dev: &DevParams) -> Spec {
        match self {
            Spec::Pfifo { limit: None } => Spec::Pfifo { limit: Some(dev.pfifo_limit()) },
            Spec::Bfifo { limit: None } => Spec::Bfifo { limit: Some(dev.bfifo_limit()) },
            spec => spec.clone(),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Spec::Noqueue | Spec::Mq | Spec::PfifoFast => Ok(()),
            Spec::Pfifo { limit } => limit.map_or(Ok(()), |limit| write!(f, " limit {limit}p")),
            Spec::Bfifo { limit } => limit.map_or(Ok(()), |limit| write!(f, " limit {}", Size(limit))),
            Spec::Tbf(TbfSpec { rate, burst, limit, peak }) => {
                write!(f, " rate {rate} burst {burst}")?;
                if let Some(TbfPeak { peakrate, mtu }) = peak {
                    write!(f, " peakrate {peakrate} mtu {mtu}")?;
                }
                match limit {
                    TbfLimit::Limit(limit) => write!(f, " limit {limit}"),
                    TbfLimit::Latency(latency) => write!(f, " lat {latency}"),
                }
            }
            Spec::Netem(params) => netem_spec::write(f, params),
        }
    }
}

/// The words behind a kind: names and values in turn.
struct Parameters<'a> {
    kind: &'static str,
    given: Vec<(&'static str, &'a str)>,
}

impl<'a> Parameters<'a> {
    /// Reads `words` for a discipline whose parameters are `names`, which `expected` lists in words.
    fn read(
        kind: &'static str,
        names: &[&'static str],
        expected: &'static str,
        words: &mut dyn Iterator<Item = &'a str>,
    ) -> Result<Self, SpecError> {
        let mut given = Vec::new();
        while let Some(word) = words.next() {
            // `tc` writes it short, and reads both.
            let name = if word == "lat" { "latency" } else { word };
            let Some(&parameter) = names.iter().find(|other| **other == name) else {
                return Err(SpecError::Parameter { kind, expected, got: word.into() });
            };
            let one_value = |got| SpecError::OneValue { kind, parameter, got };
            if given.iter().any(|(other, _)| *other == parameter) {
                return Err(one_value("two"));
            }
            given.push((parameter, words.next().ok_or(one_value("none"))?));
        }
        Ok(Parameters { kind, given })
    }

    fn text(&self, parameter: &str) -> Option<&'a str> {
        self.given.iter().find(|(name, _)| *name == parameter).map(|(_, value)| *value)
    }

    fn value<T: FromStr<Err = UnitError>>(&self, parameter: &'static str) -> Result<Option<T>, SpecError> {
        let read = self.text(parameter).map(str::parse).transpose();
        read.map_err(|error| SpecError::Value { kind: self.kind, parameter, error })
    }

    fn packets(&self) -> Result<Option<u32>, SpecError> {
        let Some(text) = self.text("limit") else { return Ok(None) };
        // `tc` writes "1000p", and reads numbers.
        let number = text.strip_suffix('p').unwrap_or(text).parse();
        number.map(Some).map_err(|_| SpecError::Packets { kind: self.kind, got: text.into() })
    }

    fn tbf(&self) -> Result<TbfSpec, SpecError> {
        let wrong = SpecError::Tbf;
        let rate: Rate = self.value("rate")?.ok_or(wrong("expected a rate, such as `rate 10mbit`"))?;
        let burst: Size = self.value("burst")?.ok_or(wrong("expected a burst, such as `burst 15kb`"))?;
        let limit = match (self.value("limit")?, self.value::<Time>("latency")?) {
            (Some(limit), None) => TbfLimit::Limit(limit),
            (None, Some(latency)) => TbfLimit::Latency(latency),
            (None, None) => return Err(wrong("expected a limit or a latency, such as `latency 50ms`")),
            _ => return Err(wrong("expected either limit or latency, got both")),
        };
        let peak = match (self.value("peakrate")?, self.value("mtu")?) {
            (Some(peakrate), Some(mtu)) => Some(TbfPeak { peakrate, mtu }),
            (None, None) => None,
            (Some(_), None) => return Err(wrong("expected an mtu with peakrate, such as `mtu 1600`")),
            (None, Some(_)) => return Err(wrong("expected a peakrate with mtu, such as `peakrate 20mbit`")),
        };
        let spec = TbfSpec { rate, burst, limit, peak };
        spec.check()?;
        Ok(spec)
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut words = text.split_ascii_whitespace();
        let words: &mut dyn Iterator<Item = &str> = &mut words;
        let kind = words.next().unwrap_or("");
        const TBF: &[&str] = &["rate", "burst", "limit", "latency", "peakrate", "mtu"];
        Ok(match kind {
            "noqueue" => Parameters::read("noqueue", &[], "no parameters", words).map(|_| Spec::Noqueue)?,
            "mq" => Parameters::read("mq", &[], "no parameters", words).map(|_| Spec::Mq)?,
            "pfifo_fast" => {
                Parameters::read("pfifo_fast", &[], "no parameters", words).map(|_| Spec::PfifoFast)?
            }
            "pfifo" => {
                Spec::Pfifo { limit: Parameters::read("pfifo", &["limit"], "limit", words)?.packets()? }
            }
            "bfifo" => {
                let limit = Parameters::read("bfifo", &["limit"], "limit", words)?.value::<Size>("limit")?;
                Spec::Bfifo { limit: limit.map(|Size(bytes)| bytes) }
            }
            "tbf" => {
                let expected = "rate, burst, limit, latency, peakrate or mtu";
                Spec::Tbf(Parameters::read("tbf", TBF, expected, words)?.tbf()?)
            }
            "netem" => Spec::Netem(netem_spec::read(words)?),
            _ => return Err(SpecError::Kind(kind.into())),
        })
    }
}
