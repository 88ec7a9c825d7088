//! Single values: as TOML has them, as errors show them, and which key was meant by one that is unknown.

use toml::Spanned;
use toml::de::DeValue;

/// A value, and where it is.
pub(super) type Value<'a> = Spanned<DeValue<'a>>;

/// A whole number that a `T` can hold.
pub(super) fn whole<T: TryFrom<u64>>(value: &DeValue<'_>) -> Option<T> {
    let integer = value.as_integer()?;
    T::try_from(u64::from_str_radix(integer.as_str(), integer.radix()).ok()?).ok()
}

/// A value as an error shows it.
pub(super) fn shown(value: &Value<'_>) -> String {
    match value.get_ref() {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(yes) => yes.to_string(),
        DeValue::Datetime(_) => "a date".into(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

pub(crate) fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    let complete = mac.iter_mut().all(|byte| {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()));
        part.and_then(|part| u8::from_str_radix(part, 16).ok()).map(|value| *byte = value).is_some()
    });
    match complete && parts.next().is_none() {
        true => Ok(mac),
        false => Err(format!("expected a MAC address, such as \"02:00:00:00:00:01\", found {text:?}")),
    }
}

/// The name among `known` that `name` was probably meant to be: at most a third of it wrong.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|&candidate| (distance(name, candidate), candidate));
    scored.filter(|&(d, _)| d <= 1.max(name.len() / 3)).min().map(|(_, candidate)| candidate)
}

/// How many letters must be inserted, removed or replaced (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
