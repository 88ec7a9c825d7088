//! Keys that steer RX queues.

use super::*;

/// What a user sees of a device with these keys, in a stack with workers on CPUs 0 and 2.
fn errors(keys: &str) -> String {
    let text = format!(
        "[stack]\nworkers = [0, 2]\n[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\n{keys}"
    );
    Config::parse(&text, "r.toml", &[0, 1, 2]).map_or_else(|errors| errors.to_string(), |_| String::new())
}

#[test]
fn one_error_each() {
    for (keys, expected) in [
        (
            "rps_cpus = \"0-1\"",
            "r.toml:6:12: device.rps_cpus: expected CPUs that have a worker (0, 2), found 1",
        ),
        (
            "rps_cpus = [\"0\", \"0-x\"]",
            "r.toml:6:18: device.rps_cpus: expected numbers below 8192 and ranges of them, such as \"0-3,8\", found \"0-x\"",
        ),
        (
            "rps_cpus = 3",
            "r.toml:6:12: device.rps_cpus: expected a list of CPUs, such as \"0-3\", or one for each RX queue, found 3",
        ),
        (
            "processing_cpu = 1",
            "r.toml:6:18: device.processing_cpu: expected CPUs that have a worker (0, 2), found 1",
        ),
        (
            "processing_cpu = \"0\"",
            "r.toml:6:18: device.processing_cpu: expected a number from 0 to 8191, or a list for each RX queue, found \"0\"",
        ),
        (
            "processing_cpu = [0, 2]\nrps_cpus = [\"\", \"2\"]",
            "r.toml:6:18: device.processing_cpu: expected one of processing_cpu and rps_cpus, found both: packets go to one worker or to several",
        ),
        (
            "rss = \"equal 2 hash\"",
            "r.toml:6:7: device.rss: expected equal, start, weight, default, hkey, hfunc, xfrm, context, delete or rx-flow-hash, found \"hash\"",
        ),
        (
            "rss = \"context new equal 2\"",
            "r.toml:6:7: device.rss: expected how the device spreads flows, without `context`: `softnet set rss` makes and deletes contexts, for the filters that lead to them",
        ),
        (
            "rps_flow_cnt = [16, 1048577]",
            "r.toml:6:21: device.rps_flow_cnt: expected a number from 0 to 1048576, found 1048577",
        ),
    ] {
        let shown = errors(keys);
        assert_eq!(shown.lines().next(), Some(expected), "{keys}");
        assert_eq!(shown.lines().count(), 3, "one problem, its line and its caret:\n{shown}");
    }
}

#[test]
fn rss_has_the_words_of_ethtool() {
    let words = "weight 3 1 xfrm symmetric-xor rx-flow-hash udp4 sd";
    let text = format!("[[device]]\nname = \"d\"\naddresses = [\"10.0.0.1/24\"]\nrss = \"{words}\"");
    let config = Config::parse(&text, "r.toml", &[0]).unwrap();
    assert_eq!(config.devices[0].rss, Some(words.parse().unwrap()));
}

#[test]
fn each_queue_or_all() {
    assert_eq!(errors("processing_cpu = [0, 2]\nrps_cpus = [\"\", \"\", \"0,2\"]\nrps_flow_cnt = 0"), "");
    let each = PerQueue::Each(vec![3, 4]);
    assert_eq!([0, 1, 2].map(|queue| each.get(queue)), [Some(&3), Some(&4), None]);
    assert_eq!(PerQueue::All(5).get(9), Some(&5));
    assert_eq!(PerQueue::<u32>::default().get(0), None);
}

#[test]
fn lists_that_are_built_in_code_are_checked() {
    for (cpus, rxqs, told) in [(vec![0, 8192], vec![], "cpus[1]"), (vec![], vec![65_536], "rxqs[0]")] {
        let device = DeviceConfig {
            addresses: vec!["10.0.0.1/24".parse().unwrap()],
            xps_cpus: vec![CpuList(vec![1]), CpuList(cpus.clone())],
            xps_rxqs: vec![CpuList(rxqs.clone())],
            ..DeviceConfig::new("eth1")
        };
        let config = Config { devices: vec![device], ..Config::default() };
        let error = config.check(&[0]).unwrap_err().to_string();
        let found = cpus.last().or(rxqs.last()).unwrap();
        let expected = format!("device[0].xps_{told}: expected a number from 0 to 8191, found {found}");
        assert!(error.contains(&expected), "{error}");
    }
}
