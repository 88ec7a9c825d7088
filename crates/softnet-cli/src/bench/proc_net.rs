//! Counters of a namespace's kernel, from `/proc/net`.

use softnet_dev::netns::NetNs;

use super::text;

/// The sum of the counters `names` of a namespace's kernel, from `/proc/net/` `file`.
pub(in crate::bench) fn counters(ns: &NetNs, file: &str, group: &str, names: &[&str]) -> Result<u64, String> {
    let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let all = ns.run(read).map_err(text)?.map_err(text)?;
    sum(&all, group, names).ok_or_else(|| format!("/proc/net/{file}: no {group} {names:?}"))
}

/// The sum of the counters `names` of `group`, in a file whose lines come in pairs: names, and
/// values. `None` if one is not there.
pub(super) fn sum(all: &str, group: &str, names: &[&str]) -> Option<u64> {
    let mut lines = all.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let (keys, values) = (lines.next()?.split_whitespace(), lines.next()?.split_whitespace());
    let pairs: Vec<_> = keys.zip(values).collect();
    let value = |name: &&str| pairs.iter().find(|(key, _)| key == name)?.1.parse::<u64>().ok();
    names.iter().map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let all = "TcpExt: A B C\nTcpExt: 1 2 30\nIpExt: A\nIpExt: 9\n";
        assert_eq!(sum(all, "TcpExt", &["A", "C"]), Some(31));
        assert_eq!(sum(all, "IpExt", &["A"]), Some(9));
        assert_eq!(
            (sum(all, "TcpExt", &["D"]), sum(all, "Udp", &["A"]), sum("", "A", &[])),
            (None, None, None)
        );
    }
}
