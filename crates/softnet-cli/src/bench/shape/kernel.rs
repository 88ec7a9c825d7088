//! The control: the kernel's own `tbf`, set and read by `tc`. Any thread may call; `tc` runs in the namespace that
//! is given.

use std::process::Command;

use serde_json::Value;
use softnet_dev::netns::NetNs;

use super::rig::Books;
use crate::bench::text;

/// Has `tbf`, in `tc`'s words, before interface `dev`.
pub(super) fn set(ns: &NetNs, dev: &str, tbf: &str) -> Result<(), String> {
    let words = ["qdisc", "replace", "dev", dev, "root"].into_iter().chain(tbf.split(' '));
    tc(ns, words).map(drop)
}

/// Counters of the root discipline of `dev`.
pub(super) fn books(ns: &NetNs, dev: &str) -> Result<Books, String> {
    parse(&tc(ns, ["-s", "-j", "qdisc", "show", "dev", dev, "root"].into_iter())?)
}

fn tc<'a>(ns: &NetNs, words: impl Iterator<Item = &'a str> + Send) -> Result<String, String> {
    let output = ns.run(|| Command::new("tc").args(words).output()).map_err(text)?;
    let output = output.map_err(|error| format!("tc: {error}"))?;
    if !output.status.success() {
        return Err(format!("tc: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn parse(json: &str) -> Result<Books, String> {
    let shown: Value = serde_json::from_str(json).map_err(|error| format!("tc -j: {error}"))?;
    let counter = |name: &str| {
        shown.pointer(&format!("/0/{name}")).and_then(Value::as_u64).ok_or(format!("tc -j: no {name}"))
    };
    Ok(Books {
        drops: counter("drops")?,
        overlimits: counter("overlimits")?,
        requeues: counter("requeues")?,
        qlen: counter("qlen")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_tc_writes() {
        let json = r#"[{"kind":"tbf","handle":"8001:","root":true,"options":{"rate":1250000},"bytes":1,"packets":2,
            "drops":3,"overlimits":4,"requeues":5,"backlog":6,"qlen":7}]"#;
        assert_eq!(parse(json), Ok(Books { drops: 3, overlimits: 4, requeues: 5, qlen: 7 }));
        assert!(parse("[]").is_err() && parse("nonsense").is_err());
    }
}
