//! `netem` in `tc`'s words: `netem delay 20ms 2ms loss 1% reorder 25% 50% rate 10mbit seed 7`.

use std::fmt;

use softnet_netem::{Chance, Loss, Params, Random};

use super::units::{chance, number};
use super::{Rate, SpecError, Time};

const KIND: &str = "netem";
const EXPECTED: &str = "limit, delay, loss, reorder, gap, corrupt, rate or seed";

/// The values behind a parameter: each begins with a digit, no parameter does.
struct Values<'a> {
    parameter: &'static str,
    given: Vec<&'a str>,
}

impl<'a> Values<'a> {
    /// The `i`th value, read by `read`.
    fn get<T>(
        &self,
        i: usize,
        read: impl Fn(&str) -> Result<T, super::UnitError>,
    ) -> Result<Option<T>, SpecError> {
        let value = self.given.get(i).map(|text| read(text)).transpose();
        value.map_err(|error| SpecError::Value { kind: KIND, parameter: self.parameter, error })
    }

    fn first<T>(&self, read: impl Fn(&str) -> Result<T, super::UnitError>) -> Result<T, SpecError> {
        let none = SpecError::OneValue { kind: KIND, parameter: self.parameter, got: "none" };
        self.get(0, read)?.ok_or(none)
    }

    fn random(&self) -> Result<Random, SpecError> {
        let correlation = self.get(1, chance)?.unwrap_or_default();
        Ok(Random { chance: self.first(chance)?, correlation })
    }

    /// At most `most` of them.
    fn at_most(self, most: usize) -> Result<Self, SpecError> {
        match self.given.get(most) {
            Some(text) => {
                Err(SpecError::Parameter { kind: KIND, expected: EXPECTED, got: (*text).to_owned() })
            }
            None => Ok(self),
        }
    }
}

/// The parameters in `words`.
pub(super) fn read(words: &mut dyn Iterator<Item = &str>) -> Result<Params, SpecError> {
    let mut words = words.peekable();
    let (mut params, mut seen) = (Params::default(), Vec::new());
    while let Some(word) = words.next() {
        let Some(parameter) = ["limit", "delay", "loss", "reorder", "gap", "corrupt", "rate", "seed"]
            .into_iter()
            .find(|p| *p == word)
        else {
            return Err(match word {
                "duplicate" => SpecError::Netem("duplicate: a TX queue has no memory to copy into"),
                _ => SpecError::Parameter { kind: KIND, expected: EXPECTED, got: word.into() },
            });
        };
        if seen.contains(&parameter) {
            return Err(SpecError::OneValue { kind: KIND, parameter, got: "two" });
        }
        seen.push(parameter);
        let model = words.next_if(|word| parameter == "loss" && matches!(*word, "random" | "gemodel"));
        let mut given = Vec::new();
        while let Some(value) =
            words.next_if(|word| word.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
        {
            given.push(value);
        }
        let values = Values { parameter, given };
        match parameter {
            "limit" => params.limit = values.at_most(1)?.first(number)?,
            "delay" => {
                let values = values.at_most(3)?;
                params.delay = values.first(|text| text.parse::<Time>())?.0;
                params.jitter = values.get(1, |text| text.parse())?.map_or(0, |Time(ns)| ns);
                params.jitter_correlation = values.get(2, chance)?.unwrap_or_default();
            }
            "loss" if model == Some("gemodel") => {
                let values = values.at_most(4)?;
                let p = values.first(chance)?;
                // As tc has it: r is 1 - p, all is lost while bad, and nothing while good.
                params.loss = Loss::Gemodel {
                    p,
                    r: values.get(1, chance)?.unwrap_or(Chance(Chance::ALWAYS.0 - p.0)),
                    lost_bad: values.get(2, chance)?.unwrap_or(Chance::ALWAYS),
                    lost_good: values.get(3, chance)?.unwrap_or(Chance::NEVER),
                };
            }
            "loss" => params.loss = Loss::Random(values.at_most(2)?.random()?),
            "reorder" => params.reorder = values.at_most(2)?.random()?,
            "gap" => params.gap = values.at_most(1)?.first(number)?,
            "corrupt" => params.corrupt = values.at_most(2)?.random()?,
            "rate" => params.rate = values.at_most(1)?.first(|text| text.parse::<Rate>())?.0,
            _ => params.seed = values.at_most(1)?.first(number)?,
        }
    }
    if params.reorder.chance != Chance::NEVER && params.delay == 0 {
        return Err(SpecError::Netem(
            "reorder: expected a delay too, which those that are ahead do not have",
        ));
    }
    Ok(params)
}

/// The parameters behind the kind, each with a space before it.
pub(super) fn write(f: &mut fmt::Formatter<'_>, params: &Params) -> fmt::Result {
    let random = |f: &mut fmt::Formatter<'_>, name: &str, random: Random| {
        if random.chance == Chance::NEVER {
            return Ok(());
        }
        write!(f, " {name} {}", random.chance)?;
        if random.correlation == Chance::NEVER { Ok(()) } else { write!(f, " {}", random.correlation) }
    };
    write!(f, " limit {}", params.limit)?;
    if params.delay > 0 || params.jitter > 0 {
        write!(f, " delay {}", Time(params.delay))?;
    }
    if params.jitter > 0 {
        write!(f, " {}", Time(params.jitter))?;
        if params.jitter_correlation != Chance::NEVER {
            write!(f, " {}", params.jitter_correlation)?;
        }
    }
    match params.loss {
        Loss::Random(loss) => random(f, "loss", loss)?,
        Loss::Gemodel { p, r, lost_bad, lost_good } => {
            write!(f, " loss gemodel {p} {r} {lost_bad} {lost_good}")?;
        }
    }
    random(f, "reorder", params.reorder)?;
    if params.gap > 0 {
        write!(f, " gap {}", params.gap)?;
    }
    random(f, "corrupt", params.corrupt)?;
    if params.rate > 0 {
        write!(f, " rate {}", Rate(params.rate))?;
    }
    if params.seed > 0 { write!(f, " seed {}", params.seed) } else { Ok(()) }
}
