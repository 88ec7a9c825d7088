//! What was published of the cache of buffer heads (Alexander Lobakin, "skbuff: introduce
//! skbuff_heads bulking and reusing", netdev, January 2021, and what followed), beside what this
//! run found.

use crate::bench::report::{Published, Report};

const SOURCE: &str = "Alexander Lobakin, \"skbuff: introduce skbuff_heads bulking and reusing\" (netdev, 2021), a \
    router board with a 1.2 GHz MIPS core and 1 Gbit/s: VLAN and NAT, without a cache and with it. The last column is \
    this run's ratio of Mpps, unified-64 (separate in the fourth line) to none";

/// What was measured, Mbit/s before and after, and the row here that is like it: protocol and
/// `gro`.
type Line = (&'static str, f64, f64, (&'static str, &'static str));

const LINES: [Line; 3] = [
    ("UDP, GRO with frame lists", 910.0, 935.0, ("udp", "list")),
    ("TCP, GRO, NAT, TSO", 865.0, 899.0, ("tcp", "frags")),
    ("UDP, GRO, NAT, software GSO", 866.0, 893.0, ("udp", "frags")),
];

/// `ratio` is that of two cases, by protocol and `gro`.
pub(super) fn table(report: &Report, ratio: impl Fn(&Report, &str, &str, &str, &str) -> f64) -> Published {
    let ours = |case: &str, by: &str, (proto, gro)| format!("{:.3}", ratio(report, case, by, proto, gro));
    let mut rows: Vec<Vec<String>> = LINES
        .into_iter()
        .map(|(what, none, cached, row)| {
            let gain = format!("{:.3}", cached / none);
            vec![what.into(), format!("{none}"), format!("{cached}"), gain, ours("unified-64", "none", row)]
        })
        .collect();
    let equal = ours("unified-64", "separate", ("udp", "list"));
    let dash = || String::from("–");
    rows.push(vec!["separate arrays or one".into(), dash(), dash(), "equal".into(), equal]);
    rows.push(vec![
        "as merged, any of these".into(),
        dash(),
        "+35 to +70".into(),
        "1.04 to 1.08".into(),
        ours("unified-64", "none", ("tcp", "frags")),
    ]);
    Published { source: SOURCE, columns: &["traffic", "Mbit/s without", "with", "÷", "here ÷"], rows }
}
