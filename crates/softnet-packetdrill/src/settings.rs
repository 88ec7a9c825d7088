//! The settings of a run: sysctls, routes, the device.
//!
//! Scripts set them by commands, which run as processes of their own. They are files, in the tree
//! that [`DIR`] names: `net/` as in `/proc/sys`, `module/` as in `/sys`, `route/` with a file a
//! destination in the words of `ip route`, `qdisc` and `offload` in the words of `tc` and
//! `ethtool`. The tree is read before each call of a script.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use softnet_tcp::config::CongestionControl;
use softnet_tcp::{Config, Counters};

/// The variable of the environment that names the tree.
const DIR: &str = "SOFTNET_PACKETDRILL_SETTINGS";

/// The settings of a run.
#[derive(Debug)]
pub(crate) struct Settings {
    dir: Option<PathBuf>,
    mtu: u16,
    local4: Ipv4Addr,
    local6: Ipv6Addr,
    qdisc: String,
    offload: bool,
    whole: bool,
    gso_size: Option<u16>,
}

impl Settings {
    /// The settings that `--so_flags` begin with: `mtu=`, `local4=`, `local6=`, by commas, and
    /// `gso=` for the size of the segments that packets with more payload stand for, and
    /// `whole` for super-segments as the kernel's device shows them.
    ///
    /// # Errors
    ///
    /// The flag that is none.
    pub(crate) fn new(flags: &str) -> Result<Settings, String> {
        let mut settings = Settings {
            dir: std::env::var_os(DIR).map(PathBuf::from),
            mtu: 1500,
            local4: Ipv4Addr::new(192, 168, 0, 1),
            local6: Ipv6Addr::new(0xfd3d, 0xa0b, 0x17d6, 0, 0, 0, 0, 1),
            qdisc: String::new(),
            offload: true,
            whole: false,
            gso_size: None,
        };
        for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
            let bad = || format!("--so_flags: {flag:?}: mtu=BYTES, gso=BYTES, local4=IP, local6=IP or whole");
            match flag.split_once('=') {
                Some(("mtu", mtu)) => settings.mtu = mtu.parse().map_err(|_| bad())?,
                Some(("gso", size)) => settings.gso_size = Some(size.parse().map_err(|_| bad())?),
                Some(("local4", ip)) => settings.local4 = ip.parse().map_err(|_| bad())?,
                Some(("local6", ip)) => settings.local6 = ip.parse().map_err(|_| bad())?,
                None if flag == "whole" => settings.whole = true,
                _ => return Err(bad()),
            }
        }
        Ok(settings)
    }

    /// The address of this end.
    pub(crate) fn local(&self, v6: bool) -> IpAddr {
        if v6 { self.local6.into() } else { self.local4.into() }
    }

    /// The MTU towards a destination: the route's, or the device's.
    pub(crate) fn mtu(&self, remote: IpAddr) -> u16 {
        self.metric(remote, "mtu").unwrap_or(self.mtu)
    }

    /// A number in the route of a destination (`advmss`, `mtu`, `initcwnd`, …).
    pub(crate) fn metric(&self, remote: IpAddr, name: &str) -> Option<u16> {
        let route = self.read(&format!("route/{remote}"))?;
        let mut words = route.split_whitespace().skip_while(|word| *word != name).skip(1);
        words.find(|word| *word != "lock")?.parse().ok()
    }

    /// Whether the device takes nothing: a queue of no packets.
    pub(crate) fn device_is_full(&self) -> bool {
        let mut words = self.qdisc.split_whitespace();
        words.any(|word| word == "limit") && words.next() == Some("0")
    }

    /// The size of the segments that a packet with more payload stands for, if packets do.
    pub(crate) fn gso_size(&self) -> Option<u16> {
        self.gso_size
    }

    /// Whether super-segments are shown whole.
    pub(crate) fn whole_segments(&self) -> bool {
        self.whole && self.offload
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.as_ref()?.join(path)).ok()
    }

    fn number<T: FromStr>(&self, path: &str, into: &mut T) {
        if let Some(text) = self.read(path) {
            match text.trim().parse() {
                Ok(value) => *into = value,
                Err(_) => complain(path, &text),
            }
        }
    }

    fn switch(&self, path: &str, into: &mut bool) {
        let mut number = i64::from(*into);
        self.number(path, &mut number);
        *into = number != 0;
    }

    fn numbers<const N: usize, T: FromStr>(&self, path: &str, into: &mut [T; N]) {
        let Some(text) = self.read(path) else { return };
        let mut words = text.split_whitespace();
        for slot in into {
            match words.next().map(str::parse) {
                Some(Ok(value)) => *slot = value,
                _ => return complain(path, &text),
            }
        }
    }

    /// Reads the tree into `cfg`.
    pub(crate) fn refresh(&mut self, cfg: &mut Config) {
        if self.dir.is_none() {
            return;
        }
        self.qdisc = self.read("qdisc").unwrap_or_default();
        self.offload = self.read("offload").is_none_or(|text| text.trim() != "off");
        cfg.pacing = self.qdisc.trim_start().starts_with("fq");
        self.numbers("net/ipv4/tcp_rmem", &mut cfg.tcp_rmem);
        self.numbers("net/ipv4/tcp_wmem", &mut cfg.tcp_wmem);
        self.numbers("net/ipv4/ip_local_port_range", &mut cfg.ip_local_port_range);
        self.number("net/core/rmem_max", &mut cfg.rmem_max);
        self.number("net/core/wmem_max", &mut cfg.wmem_max);
        self.number("net/core/somaxconn", &mut cfg.somaxconn);
        macro_rules! knobs {
            ($method:ident: $($name:ident)*) => {
                $(self.$method(concat!("net/ipv4/", stringify!($name)), &mut cfg.$name);)*
            };
        }
        knobs!(number: tcp_rto_min_us tcp_rto_max_ms tcp_syn_retries tcp_syn_linear_timeouts
            tcp_synack_retries tcp_retries2 tcp_orphan_retries tcp_early_retrans tcp_recovery
            tcp_min_tso_segs tcp_tso_rtt_log tcp_reordering tcp_max_reordering tcp_min_rtt_wlen tcp_pacing_ss_ratio
            tcp_pacing_ca_ratio tcp_notsent_lowat tcp_timestamps tcp_ecn tcp_syncookies
            tcp_max_syn_backlog tcp_fin_timeout tcp_max_tw_buckets tcp_tw_reuse
            tcp_tw_reuse_delay tcp_keepalive_time tcp_keepalive_intvl tcp_keepalive_probes
            tcp_invalid_ratelimit tcp_comp_sack_nr tcp_comp_sack_rtt_percent
            tcp_rcvbuf_low_rtt_us tcp_pingpong_thresh tcp_min_snd_mss);
        knobs!(switch: tcp_moderate_rcvbuf tcp_frto tcp_slow_start_after_idle
            tcp_thin_linear_timeouts tcp_sack tcp_dsack tcp_window_scaling tcp_ecn_fallback
            tcp_abort_on_overflow tcp_rfc1337 tcp_shrink_window);
        let mut nanoseconds = u64::from(cfg.tcp_comp_sack_delay_us) * 1000;
        self.number("net/ipv4/tcp_comp_sack_delay_ns", &mut nanoseconds);
        cfg.tcp_comp_sack_delay_us = (nanoseconds / 1000) as u32;
        if let Some(name) = self.read("net/ipv4/tcp_congestion_control") {
            match congestion(name.trim()) {
                Some(control) => cfg.tcp_congestion_control = control,
                None => complain("net/ipv4/tcp_congestion_control", &name),
            }
        }
    }

    /// Writes counters where `nstat` reads them, if the run asks for them: the file is there.
    pub(crate) fn tell(&self, counters: &Counters) {
        let Some(path) = self.dir.as_ref().map(|dir| dir.join("nstat")).filter(|path| path.exists()) else {
            return;
        };
        let lines: String = counters.each().map(|(name, value)| format!("{name} {value}\n")).collect();
        if std::fs::write(&path, lines).is_err() {
            complain("nstat", "");
        }
    }

    /// Bits of `tcp_cubic`'s `hystart_detect`: 1 by the train of ACKs, 2 by delay.
    pub(crate) fn hystart_detect(&self) -> u8 {
        let mut bits = 3;
        self.number("module/tcp_cubic/parameters/hystart_detect", &mut bits);
        bits
    }
}

/// The algorithm of a name, if there is one.
pub(crate) fn congestion(name: &str) -> Option<CongestionControl> {
    CongestionControl::from_name(name)
}

/// A setting that means nothing here fails the script: it would test something else.
fn complain(path: &str, text: &str) {
    eprintln!("softnet-packetdrill: {path}: {:?} is not understood", text.trim());
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_others_refused() {
        let settings = Settings::new("mtu=1060,local4=10.0.0.1,whole").unwrap();
        assert_eq!(settings.mtu([192, 0, 2, 1].into()), 1060);
        assert_eq!(settings.local(false), IpAddr::from([10, 0, 0, 1]));
        assert!(settings.whole_segments());
        assert!(Settings::new("mtu=x").unwrap_err().contains("mtu=x"));
        assert!(Settings::new("mut=1").is_err());
    }

    #[test]
    fn the_tree_is_read() {
        let dir = std::env::temp_dir().join(format!("softnet-packetdrill-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("net/ipv4")).unwrap();
        std::fs::create_dir_all(dir.join("route")).unwrap();
        let write = |path: &str, text: &str| std::fs::write(dir.join(path), text).unwrap();
        write("net/ipv4/tcp_rmem", "4096 540000 15728640\n");
        write("net/ipv4/tcp_sack", "0\n");
        write("net/ipv4/tcp_congestion_control", "reno\n");
        write("route/192.0.2.1", "advmss 600 mtu lock 640 initcwnd 11\n");
        write("qdisc", "pfifo limit 0\n");
        let mut settings = Settings::new("").unwrap();
        settings.dir = Some(dir.clone());
        let mut cfg = Config::default();
        settings.refresh(&mut cfg);
        assert_eq!(cfg.tcp_rmem, [4096, 540_000, 15_728_640]);
        assert!(!cfg.tcp_sack);
        assert_eq!(cfg.tcp_congestion_control, CongestionControl::Reno);
        let remote = [192, 0, 2, 1].into();
        assert_eq!(settings.mtu(remote), 640);
        assert_eq!(settings.metric(remote, "initcwnd"), Some(11));
        assert_eq!(settings.metric([192, 0, 2, 2].into(), "initcwnd"), None);
        assert!(settings.device_is_full());
        let counters = Counters { out_rsts: 7, ..Counters::default() };
        settings.tell(&counters);
        assert!(!dir.join("nstat").exists(), "it was not asked for");
        write("nstat", "");
        settings.tell(&counters);
        let told = std::fs::read_to_string(dir.join("nstat")).unwrap();
        assert!(told.lines().any(|line| line == "TcpOutRsts 7"), "{told}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
