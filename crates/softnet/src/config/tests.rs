//! The errors as a user sees them, and what a good file means.

use super::*;
use crate::driver::XdpMode;

const GOOD: &str = r#"
[stack]
name = "edge"
control = "/run/edge.sock"
workers = [0, 2]
worker_policy = "rr"
worker_priority = 7
frames = 32_768
netdev_budget = 600
netdev_budget_usecs = 4000
dev_weight = 32
skb_cache = { size = 64, refill = 16, flush = 32 }
skb_defer_max = 128
workqueue_threads = 3
netdev_max_backlog = 2000
rps_sock_flow_entries = 32_768
flow_limit_table_len = 0
qdisc_max_burst = 500
max_sockets = 1_000
txq_reselection_ms = 0
default_qdisc = "pfifo limit 200"
gc_thresh1 = 0
gc_thresh2 = 2048
gc_thresh3 = 4_096
icmp_ratelimit = 250
icmp_ratemask = 0x1819
icmpv6_ratelimit = 0
icmp_msgs_per_sec = 5000
icmp_msgs_burst = 100
ip_options = "ignore"
follow = { tables = ["main", 100], neighbours = false, addresses = false }

[[device]]
name = "eth1"
threaded = "busy-poll"
napi_defer_hard_irqs = 2147483647
gro_flush_timeout = 20_000
irq_suspend_timeout = 18446744073709551615
gro = "list"
qdisc = "tbf rate 10mbit burst 15kb latency 50ms"
tx_queue_len = 500
steering = "off"
rps_cpus = ["0,2", ""]
rps_flow_cnt = 4096
xps_cpus = ["0-2,5", ""]
xps_rxqs = ["1"]
driver = "xdp"
mode = "native"
force = true
shared = true
ring = 4096
tso = true
addresses = ["10.0.0.1/24", "10.0.0.2/24"]
workers = [1, 0]
partial_csum = "off"
send_redirects = false
arp_notify = false
ndisc_notify = false
dad = false
rp_filter = "strict"

[[device]]
name = "eth2"
processing_cpu = 2
rps_flow_cnt = [0, 16]
addresses = ["10.0.1.1/31"]

[[route]]
to = "0.0.0.0/0"
via = "10.0.1.0"
[[route]]
to = "10.9.0.0/16"
blackhole = true
[[route]]
to = "10.8.0.0/16"
dev = "eth2"
[[route]]
to = "10.7.0.0/16"
unreachable = true
[[route]]
to = "10.7.0.0/16"
prohibit = true
metric = 20
[[route]]
to = "10.6.0.0/16"
nexthops = [{ via = "10.0.1.0", weight = 3 }, { dev = "eth1" }]

[[neighbour]]
dev = "eth1"
address = "10.0.0.9"
mac = "02:00:00:00:0a:FF"
"#;

const CPUS: [u32; 4] = [0, 1, 2, 3];

#[test]
fn a_full_file_means_what_it_says() {
    let addr = |s: &str| s.parse::<InterfaceAddr>().unwrap();
    let route = |to: &str, target| RouteConfig::new(to.parse().unwrap(), target);
    let expected = Config {
        tcp: Default::default(),
        stack: StackConfig {
            name: "edge".into(),
            control: Some("/run/edge.sock".into()),
            workers: vec![0, 2],
            worker_policy: Some(Policy::Rr(7)),
            frames: 32768,
            netdev_budget: 600,
            netdev_budget_usecs: 4000,
            dev_weight: 32,
            skb_cache: CacheSizes::unified(64, 16, 32),
            frame_cache: None,
            skb_defer_max: 128,
            workqueue_threads: 3,
            netdev_max_backlog: 2000,
            rps_sock_flow_entries: 32768,
            flow_limit_table_len: 0,
            qdisc_max_burst: 500,
            max_sockets: 1000,
            txq_reselection_ms: 0,
            default_qdisc: Spec::Pfifo { limit: Some(200) },
            gc_thresh: [0, 2048, 4096],
            icmp: IcmpParams {
                icmp_ratelimit: 250_000_000,
                icmp_ratemask: 0x1819,
                icmpv6_ratelimit: 0,
                icmp_msgs_per_sec: 5000,
                icmp_msgs_burst: 100,
            },
            ip_options: OptionPolicy::Ignore,
            follow: Some(FollowConfig {
                tables: vec![254, 100],
                neighbours: false,
                addresses: false,
                fpm: None,
            }),
        },
        devices: vec![
            DeviceConfig {
                name: "eth1".into(),
                driver: Xdp { mode: XdpMode::Native, shared: true, ring: 4096, tso: true }.into(),
                force: true,
                addresses: vec![addr("10.0.0.1/24"), addr("10.0.0.2/24")],
                workers: vec![1, 0],
                partial_csum: PartialCsum::Off,
                send_redirects: false,
                arp_notify: false,
                ndisc_notify: false,
                dad: false,
                rp_filter: RpFilter::Strict,
                threaded: Context::BusyPoll,
                napi_defer_hard_irqs: 2147483647,
                gro_flush_timeout: 20_000,
                irq_suspend_timeout: u64::MAX,
                gro: GroMode::List,
                qdisc: Some("tbf rate 10mbit burst 15kb latency 50ms".parse().unwrap()),
                tx_queue_len: 500,
                steering: SteeringMode::Off,
                processing_cpu: PerQueue::default(),
                rps_cpus: PerQueue::Each(vec![CpuList(vec![0, 2]), CpuList(vec![])]),
                rps_flow_cnt: PerQueue::All(4096),
                rss: None,
                xps_cpus: vec![CpuList(vec![0, 1, 2, 5]), CpuList(vec![])],
                xps_rxqs: vec![CpuList(vec![1])],
            },
            DeviceConfig {
                addresses: vec![addr("10.0.1.1/31")],
                processing_cpu: PerQueue::All(2),
                rps_flow_cnt: PerQueue::Each(vec![0, 16]),
                ..DeviceConfig::new("eth2")
            },
        ],
        routes: vec![
            route("0.0.0.0/0", RouteTarget::Via(Ipv4Addr::new(10, 0, 1, 0).into())),
            route("10.9.0.0/16", RouteTarget::Blackhole),
            route("10.8.0.0/16", RouteTarget::Dev("eth2".into())),
            route("10.7.0.0/16", RouteTarget::Unreachable),
            route("10.7.0.0/16", RouteTarget::Prohibit).metric(20),
            route(
                "10.6.0.0/16",
                RouteTarget::NextHops(vec![
                    NextHopConfig::new(RouteTarget::Via(Ipv4Addr::new(10, 0, 1, 0).into()), 3),
                    NextHopConfig::new(RouteTarget::Dev("eth1".into()), 1),
                ]),
            ),
        ],
        neighbours: vec![NeighbourConfig {
            dev: "eth1".into(),
            address: Ipv4Addr::new(10, 0, 0, 9).into(),
            mac: [2, 0, 0, 0, 10, 255],
        }],
        nat: None,
        filter: FilterConfig::default(),
        control: ControlConfig::default(),
        metrics: None,
    };
    let config = Config::parse(GOOD, "good.toml", &CPUS).unwrap();
    assert_eq!(config, expected);
    assert_eq!(config.stack.socket_path(), Path::new("/run/edge.sock"));
    assert_eq!(config.check(&CPUS), Ok(()));
    assert_eq!([0, 1, 2].map(|queue| config.devices[0].worker_of(queue, 2)), [1, 0, 1]);
    assert_eq!([0, 1, 2].map(|queue| config.devices[1].worker_of(queue, 2)), [0, 1, 0]);
}

#[test]
fn a_device_alone_is_a_stack_with_defaults() {
    let config = Config::parse(DEVICE, "small.toml", &CPUS).unwrap();
    assert_eq!(Config { devices: vec![], ..config.clone() }, Config::default());
    assert_eq!(config.stack.socket_path(), Path::new("/run/softnet/softnet.sock"));
}

/// What a user sees of `text`, which must be wrong.
fn errors(text: &str) -> String {
    Config::parse(text, "r.toml", &CPUS).expect_err(text).to_string()
}

#[test]
fn devices_are_bounded() {
    let device = |n: usize| {
        format!("[[device]]\nname = \"d{n}\"\naddresses = [\"10.{}.{}.1/24\"]\n", n / 256, n % 256)
    };
    let told = errors(&(0..4097).map(device).collect::<String>());
    assert!(told.contains("r.toml:12289:1: device: expected at most 4096 devices, found 4097"), "{told}");
}

/// One device, for what follows to refer to.
const DEVICE: &str = "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\n";

#[test]
fn one_error_each() {
    let table: &[(&str, &str)] = &[
        ("[stack", "r.toml:1:7: unclosed table, expected `]`"),
        (
            "[stack]\nframes = 1000",
            "r.toml:2:10: stack.frames: expected a power of two from 1024 to 524288, found 1000",
        ),
        (
            "[stack]\nframes = -1",
            "r.toml:2:10: stack.frames: expected a power of two from 1024 to 524288, found -1",
        ),
        (
            "[stack]\nframes = 1.5",
            "r.toml:2:10: stack.frames: expected a power of two from 1024 to 524288, found 1.5",
        ),
        (
            "[stack]\nworker_policy = \"deadline\"\nworker_priority = 3",
            "r.toml:2:17: stack.worker_policy: expected \"other\" or \"batch\" or \"idle\" or \"fifo\" or \"rr\", \
             found \"deadline\"",
        ),
        (
            "[stack]\nworker_policy = \"batch\"\nworker_priority = 3",
            "r.toml:3:19: stack.worker_priority: expected worker_policy = \"fifo\" or \"rr\" beside it: no other has \
             priorities",
        ),
        (
            "[stack]\nworker_priority = 3",
            "r.toml:2:19: stack.worker_priority: expected worker_policy = \"fifo\" or \"rr\" beside it: no other has \
             priorities",
        ),
        (
            "[stack]\nworker_priority = 100\nworker_policy = \"fifo\"",
            "r.toml:2:19: stack.worker_priority: expected a number from 1 to 99, found 100",
        ),
        (
            "[stack]\nworker_priority = -1\nworker_policy = \"fifo\"",
            "r.toml:2:19: stack.worker_priority: expected a number from 1 to 99, found -1",
        ),
        (
            "[stack]\nnetdev_budget = 0",
            "r.toml:2:17: stack.netdev_budget: expected a number from 1 to 100000, found 0",
        ),
        (
            "[stack]\nnetdev_budget_usecs = \"2ms\"",
            "r.toml:2:23: stack.netdev_budget_usecs: expected a number from 1 to 1000000, found \"2ms\"",
        ),
        (
            "[stack]\ndev_weight = 65",
            "r.toml:2:14: stack.dev_weight: expected a number from 1 to 64, found 65",
        ),
        (
            "[stack]\nskb_cache = { size = 32, refill = 64 }",
            "r.toml:2:35: stack.skb_cache.refill: expected at most the cache's size of 32, found 64",
        ),
        (
            "[stack]\nskb_cache = { size = 16, flush = 16 }",
            "r.toml:2:13: stack.skb_cache.refill: expected at most the cache's size of 16, found 32",
        ),
        ("[stack]\nskb_cache = 3", "r.toml:2:13: stack.skb_cache: expected a table, found 3"),
        (
            "[stack]\nname = \"../x\"",
            "r.toml:2:8: stack.name: expected 1 to 64 letters, digits, '-', '_' or '.', not starting with '.', found \"../x\"",
        ),
        (
            "[stack]\ncontrol = \"x.sock\"",
            "r.toml:2:11: stack.control: expected an absolute path of at most 107 bytes, found \"x.sock\"",
        ),
        ("[stack]\nworkers = []", "r.toml:2:11: stack.workers: expected at least one CPU, found none"),
        (
            "[stack]\nworkers = 2",
            "r.toml:2:11: stack.workers: expected a list of numbers, such as [0], found 2",
        ),
        (
            "[stack]\nworkers = [0, 7]",
            "r.toml:2:15: stack.workers: expected a CPU this process may run on (0-3), found 7",
        ),
        (
            "[stack]\nworkers = [0, \"1\"]",
            "r.toml:2:15: stack.workers: expected a number from 0 to 8191, found \"1\"",
        ),
        (
            "[stack]\nworkers = [1, 1]",
            "r.toml:2:15: stack.workers: CPU 1 is listed twice; expected one worker for each CPU",
        ),
        (
            "[stack]\nworkqueue_threads = 257",
            "r.toml:2:21: stack.workqueue_threads: expected a number from 0 to 256, found 257",
        ),
        (
            "[stack]\nqdisc_max_burst = 0",
            "r.toml:2:19: stack.qdisc_max_burst: expected a number from 1 to 1048576, found 0",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nxps_cpus = [\"0-x\"]",
            "r.toml:4:13: device.xps_cpus: expected numbers below 8192 and ranges of them, such as \"0-3,8\", found \"0-x\"",
        ),
        (
            "[stack]\nicmp_ratelimit = 3600001",
            "r.toml:2:18: stack.icmp_ratelimit: expected a number from 0 to 3600000, found 3600001",
        ),
        (
            "[stack]\nip_options = \"yes\"",
            "r.toml:2:14: stack.ip_options: expected \"process\" or \"ignore\" or \"drop\", found \"yes\"",
        ),
        (
            "[stack]\ndefault_qdisc = \"mq\"",
            "r.toml:2:17: stack.default_qdisc: mq is for devices, not for one of their TX queues",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nqdisc = \"codel\"",
            "r.toml:4:9: device.qdisc: expected noqueue, mq, pfifo_fast, pfifo, bfifo, tbf or netem, got `codel`",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nthreaded = \"busypoll\"",
            "r.toml:4:12: device.threaded: expected softirq (0), threaded (1), workqueue or busy-poll, found \"busypoll\"",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nnapi_defer_hard_irqs = 2147483648",
            "r.toml:4:24: device.napi_defer_hard_irqs: expected a number from 0 to 2147483647, found 2147483648",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\ngro_flush_timeout = \"20us\"",
            "r.toml:4:21: device.gro_flush_timeout: expected a number from 0 to 18446744073709551615, found \"20us\"",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nirq_suspend_timeout = -1",
            "r.toml:4:23: device.irq_suspend_timeout: expected a number from 0 to 18446744073709551615, found -1",
        ),
        (
            "[stack]\ngc_thresh3 = 0",
            "r.toml:2:14: stack.gc_thresh3: expected a number from 1 to 1048576, found 0",
        ),
        (
            "[stack]\ngc_thresh2 = 2000",
            "r.toml:2:14: stack.gc_thresh2: expected at most gc_thresh3 of 1024, found 2000",
        ),
        ("[stack]\nworker = [1]", "r.toml:2:1: stack: unknown key \"worker\"; did you mean \"workers\"?"),
        (
            "[stack]\ncolour = 1",
            "r.toml:2:1: stack: unknown key \"colour\"; expected one of name, control, workers, worker_policy, worker_priority, frames, netdev_budget, netdev_budget_usecs, dev_weight, skb_cache, skb_defer_max, workqueue_threads, netdev_max_backlog, rps_sock_flow_entries, flow_limit_table_len, qdisc_max_burst, txq_reselection_ms, max_sockets, default_qdisc, gc_thresh1, gc_thresh2, gc_thresh3, icmp_ratelimit, icmp_ratemask, icmpv6_ratelimit, icmp_msgs_per_sec, icmp_msgs_burst, ip_options, follow",
        ),
        ("[[neighbor]]", "r.toml:1:3: unknown key \"neighbor\"; did you mean \"neighbour\"?"),
        ("[device]\nname = \"eth1\"", "r.toml:1:1: device: expected a list of tables: write [[device]]"),
        ("[[device]]\nname = \"a\"\nname = \"b\"", "r.toml:3:1: duplicate key"),
        (
            "[[device]]\naddresses = [\"10.0.0.1/24\"]",
            "r.toml:1:1: device.name: expected the key \"name\", which is missing",
        ),
        (
            "[[device]]\nname = \"\"\naddresses = [\"10.0.0.1/24\"]",
            "r.toml:2:8: device.name: expected an interface name (1 to 15 bytes, no space, '/' or ':'), found \"\"",
        ),
        (
            "[[device]]\nname = \"eth 1\"\naddresses = [\"10.0.0.1/24\"]",
            "r.toml:2:8: device.name: expected an interface name (1 to 15 bytes, no space, '/' or ':'), found \"eth 1\"",
        ),
        (
            "[[device]]\nname = \"eth1\"",
            "r.toml:1:1: device.addresses: expected at least one address, such as [\"10.0.0.1/24\"]: without one, nothing on the link can find softnet",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1\"]",
            "r.toml:3:14: device.addresses: expected an address with its prefix length, such as \"10.0.0.1/24\" or \"2001:db8::1/64\", found \"10.0.0.1\"",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.0/24\"]",
            "r.toml:3:14: device.addresses: expected the address of a host, but 10.0.0.0/24 is the network itself",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.255/24\"]",
            "r.toml:3:14: device.addresses: expected the address of a host, but 10.0.0.255/24 is the broadcast address of its network",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"224.0.0.1/24\"]",
            "r.toml:3:14: device.addresses: expected the address of a host, but 224.0.0.1/24 is a multicast address",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"127.0.0.1/8\"]",
            "r.toml:3:14: device.addresses: expected the address of a host, but 127.0.0.1/8 is a loopback address",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\", \"10.0.0.1/25\"]",
            "r.toml:3:29: device.addresses: 10.0.0.1 is configured twice",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nworkers = [1]",
            "r.toml:4:12: device.workers: expected an index into stack.workers (0 to 0), found 1",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nring = 1000",
            "r.toml:4:8: device.ring: expected a power of two from 128 to 32768, found 1000",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nring = 16384",
            "r.toml:1:1: stack.frames: expected at least 32768 (each queue keeps up to `ring` frames posted for receiving and as many in sending), found 16384",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nmode = \"fast\"",
            "r.toml:4:8: device.mode: expected \"auto\" or \"native\" or \"skb\", found \"fast\"",
        ),
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\nforce = 1",
            "r.toml:4:9: device.force: expected true or false, found 1",
        ),
    ];
    for (text, expected) in table {
        // A section that is no device's is followed by one, so that there is one.
        let text = if text.starts_with("[stack]") { &format!("{text}\n{DEVICE}ring = 128") } else { *text };
        let shown = errors(text);
        assert_eq!(shown.lines().next(), Some(*expected), "{text}");
        assert_eq!(shown.lines().count(), 3, "one problem, its line and its caret:\n{shown}");
    }
}

/// What is wrong is told of each of these, beside a device.
pub(super) fn each_is_told(table: &[(&str, &str)]) {
    for (text, expected) in table {
        let shown = errors(&format!("{DEVICE}{text}"));
        assert_eq!(shown.lines().next(), Some(*expected), "{text}");
        assert_eq!(shown.lines().count(), 3, "one problem, its line and its caret:\n{shown}");
    }
}

#[test]
fn one_error_each_beside_a_device() {
    let table: &[(&str, &str)] = &[
        (
            "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.1.1/24\"]",
            "r.toml:5:8: device.name: the device \"eth1\" is configured twice",
        ),
        (
            "[[device]]\nname = \"eth2\"\naddresses = [\"10.0.0.129/25\"]",
            "r.toml:6:14: device.addresses: 10.0.0.129/25 overlaps 10.0.0.1/24 of \"eth1\"; expected every network on one device only",
        ),
        (
            "[[neighbour]]\ndev = \"eth9\"\naddress = \"10.0.0.2\"\nmac = \"02:00:00:00:00:01\"",
            "r.toml:5:7: neighbour.dev: expected the name of a [[device]] (eth1), found \"eth9\"",
        ),
        (
            "[[neighbour]]\ndev = \"eth1\"\naddress = \"10.0.1.2\"\nmac = \"02:00:00:00:00:01\"",
            "r.toml:6:11: neighbour.address: expected a host on eth1 (10.0.0.0/24), found 10.0.1.2",
        ),
        (
            "[[neighbour]]\ndev = \"eth1\"\naddress = \"10.0.0.2\"\nmac = \"02:00:00:00:01\"",
            "r.toml:7:7: neighbour.mac: expected a MAC address, such as \"02:00:00:00:00:01\", found \"02:00:00:00:01\"",
        ),
        (
            "[[neighbour]]\ndev = \"eth1\"\naddress = \"10.0.0.2\"\nmac = \"ff:ff:ff:ff:ff:ff\"",
            "r.toml:7:7: neighbour.mac: expected the MAC address of one host, found ff:ff:ff:ff:ff:ff",
        ),
        (
            "[[neighbour]]\ndev = \"eth1\"\naddress = \"10.0.0.2\"",
            "r.toml:4:1: neighbour.mac: expected the key \"mac\", which is missing",
        ),
    ];
    each_is_told(table);
}

#[test]
fn all_errors_at_once_in_the_order_of_the_file() {
    let text = r#"
[stack]
workres = [0]
frames = 5000
[[device]]
name = "eth1"
addresses = ["10.0.0.0/24"]
[[device]]
name = "eth1"
addresses = ["10.0.1.1/24"]
ring = "big"
[[route]]
to = "10.2.0.1/16"
via = "10.0.0.9"
[[route]]
to = "10.2.0.0/16"
via = "10.0.0.9"
"#;
    let expected = r#"
r.toml:3:1: stack: unknown key "workres"; did you mean "workers"?
 3 | workres = [0]
   | ^^^^^^^
r.toml:4:10: stack.frames: expected a power of two from 1024 to 524288, found 5000
 4 | frames = 5000
   |          ^^^^
r.toml:4:10: stack.frames: expected at least 8192 (each queue keeps up to `ring` frames posted for receiving and as many in sending), found 5000
 4 | frames = 5000
   |          ^^^^
r.toml:7:14: device.addresses: expected the address of a host, but 10.0.0.0/24 is the network itself
 7 | addresses = ["10.0.0.0/24"]
   |              ^^^^^^^^^^^^^
r.toml:9:8: device.name: the device "eth1" is configured twice
 9 | name = "eth1"
   |        ^^^^^^
r.toml:11:8: device.ring: expected a power of two from 128 to 32768, found "big"
 11 | ring = "big"
    |        ^^^^^
r.toml:13:6: route.to: 10.2.0.1/16 has host bits set: expected 10.2.0.0/16
 13 | to = "10.2.0.1/16"
    |      ^^^^^^^^^^^^^"#;
    assert_eq!(errors(text), expected.trim_start());
}

#[test]
fn problems_of_a_config_in_code_name_the_element() {
    let mut config = Config::parse(GOOD, "good.toml", &CPUS).unwrap();
    config.devices[1].driver.get_mut::<Xdp>().unwrap().ring = 100;
    config.stack.worker_policy = Some(Policy::Fifo(0));
    config.routes[2].target = RouteTarget::Dev("eth7".into());
    let shown = config.check(&[0]).unwrap_err().to_string();
    let expected = "configuration: stack.workers[1]: expected a CPU this process may run on (0), found 2\n\
                    configuration: stack.worker_priority: expected a number from 1 to 99, found 0\n\
                    configuration: device[1].ring: expected a power of two from 128 to 32768, found 100\n\
                    configuration: route[2].dev: expected the name of a [[device]] (eth1, eth2), found \"eth7\"";
    assert_eq!(shown, expected);
}

#[test]
fn a_missing_file_is_named() {
    let shown = Config::load(Path::new("/nowhere/r.toml")).unwrap_err().to_string();
    assert_eq!(shown, "/nowhere/r.toml: no such file");
}

proptest::proptest! {
    /// Damage anywhere in a good file is answered, never with a panic, and every problem has its line.
    #[test]
    fn damaged_files_are_answered(at in 0..GOOD.len(), with in "[\\[\\]=\"#,.{}a0\n\u{e9}\t-]{0,3}", cut in 0..4usize) {
        let mut text = GOOD.to_owned();
        let end = (at + cut).min(text.len());
        text.replace_range(at..end, &with);
        if let Err(errors) = Config::parse(&text, "r.toml", &CPUS) {
            let lines = text.lines().count().max(1);
            let told = |p: &Problem| p.at.as_ref().is_some_and(|at| (1..=lines + 1).contains(&at.line));
            proptest::prop_assert!(errors.problems.iter().all(told), "{errors}");
        }
    }
}
