//! What a script's commands meet: a tree of settings, and small programs in place of those of the
//! system, which would change the kernel's.
//!
//! A name or a command that means nothing here is an error of the script's, told on its standard
//! error: what it wanted to set would not be set.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io};

/// Sysctls with Linux's values. The library reads those that the engine has; the others may be
/// set, and have no effect.
const SYSCTLS: &str = "\
net/core/rmem_max 212992
net/core/wmem_max 212992
net/core/rmem_default 212992
net/core/wmem_default 212992
net/core/somaxconn 4096
net/core/optmem_max 131072
net/core/netdev_max_backlog 1000
net/core/default_qdisc pfifo_fast
net/ipv4/ip_local_port_range 32768 60999
net/ipv4/ip_no_pmtu_disc 0
net/ipv4/min_adv_mss 256
net/ipv4/tcp_abort_on_overflow 0
net/ipv4/tcp_adv_win_scale 1
net/ipv4/tcp_allowed_congestion_control reno cubic dctcp
net/ipv4/tcp_app_win 31
net/ipv4/tcp_autocorking 1
net/ipv4/tcp_backlog_ack_defer 1
net/ipv4/tcp_base_mss 1024
net/ipv4/tcp_challenge_ack_limit 2147483647
net/ipv4/tcp_comp_sack_delay_ns 1000000
net/ipv4/tcp_comp_sack_nr 44
net/ipv4/tcp_comp_sack_rtt_percent 33
net/ipv4/tcp_comp_sack_slack_ns 100000
net/ipv4/tcp_congestion_control cubic
net/ipv4/tcp_dsack 1
net/ipv4/tcp_early_retrans 3
net/ipv4/tcp_ecn 2
net/ipv4/tcp_ecn_fallback 1
net/ipv4/tcp_ecn_option 2
net/ipv4/tcp_ecn_option_beacon 3
net/ipv4/tcp_fack 0
net/ipv4/tcp_fastopen 1
net/ipv4/tcp_fastopen_blackhole_timeout_sec 0
net/ipv4/tcp_fastopen_key 00000000-00000000-00000000-00000000
net/ipv4/tcp_fin_timeout 60
net/ipv4/tcp_frto 2
net/ipv4/tcp_invalid_ratelimit 500
net/ipv4/tcp_keepalive_intvl 75
net/ipv4/tcp_keepalive_probes 9
net/ipv4/tcp_keepalive_time 7200
net/ipv4/tcp_limit_output_bytes 4194304
net/ipv4/tcp_max_orphans 65536
net/ipv4/tcp_max_reordering 300
net/ipv4/tcp_max_syn_backlog 4096
net/ipv4/tcp_max_tw_buckets 131072
net/ipv4/tcp_mem 190000 250000 380000
net/ipv4/tcp_migrate_req 0
net/ipv4/tcp_min_rtt_wlen 300
net/ipv4/tcp_min_snd_mss 48
net/ipv4/tcp_min_tso_segs 2
net/ipv4/tcp_moderate_rcvbuf 1
net/ipv4/tcp_mtu_probe_floor 48
net/ipv4/tcp_mtu_probing 0
net/ipv4/tcp_no_metrics_save 0
net/ipv4/tcp_no_ssthresh_metrics_save 1
net/ipv4/tcp_notsent_lowat 4294967295
net/ipv4/tcp_orphan_retries 0
net/ipv4/tcp_pacing_ca_ratio 120
net/ipv4/tcp_pacing_ss_ratio 200
net/ipv4/tcp_pingpong_thresh 1
net/ipv4/tcp_plb_enabled 0
net/ipv4/tcp_probe_interval 600
net/ipv4/tcp_probe_threshold 8
net/ipv4/tcp_rcvbuf_low_rtt_us 1000
net/ipv4/tcp_recovery 1
net/ipv4/tcp_reflect_tos 0
net/ipv4/tcp_reordering 3
net/ipv4/tcp_retrans_collapse 1
net/ipv4/tcp_retries1 3
net/ipv4/tcp_retries2 15
net/ipv4/tcp_rfc1337 0
net/ipv4/tcp_rmem 4096 131072 33554432
net/ipv4/tcp_rto_max_ms 120000
net/ipv4/tcp_rto_min_us 200000
net/ipv4/tcp_sack 1
net/ipv4/tcp_shrink_window 0
net/ipv4/tcp_slow_start_after_idle 1
net/ipv4/tcp_stdurg 0
net/ipv4/tcp_syn_linear_timeouts 4
net/ipv4/tcp_syn_retries 6
net/ipv4/tcp_synack_retries 5
net/ipv4/tcp_syncookies 1
net/ipv4/tcp_thin_linear_timeouts 0
net/ipv4/tcp_timestamps 1
net/ipv4/tcp_tso_rtt_log 9
net/ipv4/tcp_tso_win_divisor 3
net/ipv4/tcp_tw_reuse 2
net/ipv4/tcp_tw_reuse_delay 1000
net/ipv4/tcp_window_scaling 1
net/ipv4/tcp_wmem 4096 16384 4194304
net/ipv4/tcp_workaround_signed_windows 0
net/ipv6/flowlabel_reflect 0
net/ipv6/auto_flowlabels 1
module/tcp_cubic/parameters/hystart 1
module/tcp_cubic/parameters/hystart_detect 3
module/tcp_cubic/parameters/hystart_low_window 16
module/tcp_cubic/parameters/hystart_ack_delta_us 2000
module/tcp_cubic/parameters/fast_convergence 1
module/tcp_cubic/parameters/beta 717
module/tcp_cubic/parameters/tcp_friendliness 1
";

/// The programs: name and text.
const PROGRAMS: [(&str, &str); 5] = [
    ("sysctl", include_str!("shims/sysctl.sh")),
    ("ip", include_str!("shims/ip.sh")),
    ("tc", include_str!("shims/tc.sh")),
    ("ethtool", include_str!("shims/ethtool.sh")),
    ("nstat", include_str!("shims/nstat.sh")),
];

/// Puts the programs into `dir/bin`.
pub(crate) fn install(dir: &Path) -> io::Result<()> {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    for (name, text) in PROGRAMS {
        let path = bin.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Makes a tree of settings, all as Linux has them.
pub(crate) fn make_tree(dir: &Path) -> io::Result<()> {
    for line in SYSCTLS.lines() {
        let (path, value) = line.split_once(' ').unwrap_or((line, ""));
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        fs::write(path, format!("{value}\n"))?;
    }
    fs::create_dir_all(dir.join("route"))?;
    fs::write(dir.join("qdisc"), "pfifo\n")?;
    fs::write(dir.join("offload"), "on\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let dir = std::env::temp_dir().join(format!("softnet-shims-{name}-{}", std::process::id()));
            install(&dir).unwrap();
            make_tree(&dir).unwrap();
            Tree(dir)
        }

        /// Runs a shell line: whether it succeeded, and what it printed.
        fn sh(&self, line: &str) -> (bool, String) {
            let path = format!("{}:{}", self.0.join("bin").display(), std::env::var("PATH").unwrap());
            let mut command = Command::new("sh");
            command.args(["-c", line]).env("PATH", path).env("SOFTNET_PACKETDRILL_SETTINGS", &self.0);
            let out = command.output().unwrap();
            let text = [out.stdout, out.stderr].concat();
            (out.status.success(), String::from_utf8(text).unwrap())
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.0.join(path)).unwrap().trim().to_owned()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn sysctls_are_set_and_unknown_ones_refused() {
        let tree = Tree::new("sysctl");
        assert!(tree.sh("sysctl -q net.ipv4.tcp_rmem=\"4096 540000 $((15*1024*1024))\"").0);
        assert_eq!(tree.read("net/ipv4/tcp_rmem"), "4096 540000 15728640");
        assert!(tree.sh("sysctl -q net/ipv4/tcp_sack=0 net.ipv4.tcp_dsack=0").0);
        assert_eq!(
            (tree.read("net/ipv4/tcp_sack"), tree.read("net/ipv4/tcp_dsack")),
            ("0".into(), "0".into())
        );
        assert_eq!(tree.sh("sysctl -n net.ipv4.tcp_ecn"), (true, "2\n".into()));
        let (good, text) = tree.sh("sysctl -q net.ipv4.tcp_nonsense=1");
        assert!(!good && text.contains("tcp_nonsense"), "{text}");
        assert!(tree.sh("sysctl -e -q net.ipv4.tcp_nonsense=1").0, "-e forgives");
    }

    #[test]
    fn routes_queues_and_offload_are_written_down() {
        let tree = Tree::new("ip");
        assert!(tree.sh("ip route change 192.0.2.1 via 192.168.0.2 dev tun0 advmss 600 mtu lock 640").0);
        assert_eq!(tree.read("route/192.0.2.1"), "via 192.168.0.2 dev tun0 advmss 600 mtu lock 640");
        assert!(tree.sh("ip -6 route change 2001:DB8::1 dev tun0 mtu 1280; ip tcp_metrics flush all").0);
        assert_eq!(tree.read("route/2001:db8::1"), "dev tun0 mtu 1280");
        assert!(!tree.sh("ip link set dev tun0 up").0, "not understood");
        assert!(tree.sh("tc qdisc replace dev tun0 root pfifo limit 0").0);
        assert_eq!(tree.read("qdisc"), "pfifo limit 0");
        assert!(tree.sh("tc qdisc delete dev tun0 root").0);
        assert_eq!(tree.read("qdisc"), "pfifo");
        assert!(!tree.sh("tc filter show").0);
        assert!(tree.sh("ethtool -K tun0 gso off tso off").0);
        assert_eq!(tree.read("offload"), "off");
        assert!(!tree.sh("ethtool -i tun0").0);
    }

    #[test]
    fn counters_are_told_as_differences() {
        let tree = Tree::new("nstat");
        fs::write(tree.0.join("nstat"), "TcpInSegs 5\nTcpOutSegs 0\n").unwrap();
        assert_eq!(tree.sh("nstat -n"), (true, String::new()));
        fs::write(tree.0.join("nstat"), "TcpInSegs 8\nTcpOutSegs 0\n").unwrap();
        let (_, text) = tree.sh("nstat -s");
        let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words[..2], ["TcpInSegs", "3"]);
        assert!(!text.contains("TcpOutSegs"), "zeros are left out");
        assert!(tree.sh("nstat -az").1.contains("TcpOutSegs"));
    }
}
