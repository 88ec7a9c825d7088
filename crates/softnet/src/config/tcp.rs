//! `[tcp]`: the knobs of all connections of a stack, under the kernel's names (`net.ipv4.tcp_*`).
//!
//! Each knob is in the one list below, which reading and checking go by.

use softnet_tcp::Config as TcpConfig;
use softnet_tcp::config::CongestionControl;

use super::errors::{Found, Section};
use crate::util::{Limit, range};

/// The names of the algorithms.
pub(super) const CONGESTION: [(&str, CongestionControl); 3] =
    [named(CongestionControl::Cubic), named(CongestionControl::Reno), named(CongestionControl::Dctcp)];

const fn named(control: CongestionControl) -> (&'static str, CongestionControl) {
    (control.name(), control)
}

/// Bytes of a buffer.
pub(super) const BUFFER: Limit = range(4096, 1 << 30);

macro_rules! knobs {
    (numbers { $($number:ident: $min:literal, $max:literal;)* } switches { $($switch:ident;)* }) => {
        /// The keys of the section.
        pub(super) const KEYS: &[&str] = &[
            $(stringify!($number),)* $(stringify!($switch),)* "tcp_rmem", "tcp_wmem", "tcp_congestion_control",
        ];

        /// Adds every number that is out of its range to `found`.
        fn check_numbers(tcp: &TcpConfig, found: &mut Vec<Found>) {
            $(range($min, $max).check(Section::Tcp.key(stringify!($number)), tcp.$number, found);)*
        }

        impl super::read::Read {
            /// Reads the knobs that are a number, or true or false.
            pub(super) fn tcp_knobs(&mut self, table: super::read::Table<'_>, tcp: &mut TcpConfig) {
                use super::read::set;
                $(set(&mut tcp.$number, self.integer(table, stringify!($number), &range($min, $max)));)*
                $(set(&mut tcp.$switch, self.boolean(table, stringify!($switch)));)*
            }
        }
    };
}

knobs! {
    numbers {
        somaxconn: 1, 65_535;
        tcp_max_syn_backlog: 1, 1_048_576;
        tcp_syncookies: 0, 2;
        tcp_syn_retries: 1, 127;
        tcp_synack_retries: 0, 127;
        tcp_retries2: 0, 255;
        tcp_orphan_retries: 0, 255;
        tcp_rto_min_us: 1_000, 120_000_000;
        tcp_rto_max_ms: 1_000, 120_000;
        tcp_early_retrans: 0, 4;
        tcp_recovery: 0, 7;
        tcp_reordering: 1, 300;
        tcp_max_reordering: 1, 10_000;
        tcp_timestamps: 0, 2;
        tcp_ecn: 0, 2;
        tcp_fin_timeout: 1, 7_200;
        tcp_max_orphans: 256, 4_194_304;
        tcp_max_tw_buckets: 256, 4_194_304;
        tcp_tw_reuse: 0, 2;
        tcp_keepalive_time: 1, 32_767;
        tcp_keepalive_intvl: 1, 32_767;
        tcp_keepalive_probes: 1, 127;
        tcp_limit_output_bytes: 4_096, 4_294_967_295;
        tcp_notsent_lowat: 1, 4_294_967_295;
        tcp_rcvbuf_low_rtt_us: 0, 1_000_000;
    }
    switches {
        tcp_moderate_rcvbuf;
        tcp_frto;
        tcp_slow_start_after_idle;
        tcp_sack;
        tcp_dsack;
        tcp_window_scaling;
        tcp_abort_on_overflow;
        tcp_rfc1337;
    }
}

/// Adds everything that is wrong with `tcp` to `found`.
pub(super) fn check(tcp: &TcpConfig, found: &mut Vec<Found>) {
    check_numbers(tcp, found);
    for (key, sizes) in [("tcp_rmem", tcp.tcp_rmem), ("tcp_wmem", tcp.tcp_wmem)] {
        for (item, size) in sizes.into_iter().enumerate() {
            BUFFER.check(Section::Tcp.item(key, item), size, found);
        }
        if !sizes.is_sorted() {
            let message =
                format!("expected least, initial and greatest size in rising order, found {sizes:?}");
            found.push(Found::new(Section::Tcp.key(key), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn parse(tcp: &str) -> Result<Config, String> {
        let text = format!("[[device]]\nname = \"a\"\naddresses = [\"10.0.0.1/24\"]\n[tcp]\n{tcp}\n");
        Config::parse(&text, "test.toml", &[0]).map_err(|errors| errors.to_string())
    }

    #[test]
    fn knobs_have_the_kernels_names_and_ranges() {
        let config = parse(
            "tcp_congestion_control = \"reno\"\ntcp_fin_timeout = 5\ntcp_sack = false\ntcp_rmem = [4096, 65536, 1048576]",
        )
        .unwrap();
        let tcp = &config.tcp;
        assert_eq!((tcp.tcp_fin_timeout, tcp.tcp_sack, tcp.tcp_rmem), (5, false, [4096, 65_536, 1 << 20]));
        assert_eq!(tcp.tcp_congestion_control, softnet_tcp::config::CongestionControl::Reno);
        assert_eq!(parse("").unwrap().tcp, softnet_tcp::Config::default());
        for (wrong, told) in [
            ("tcp_syncookies = 3", "tcp.tcp_syncookies"),
            ("tcp_sack = 1", "true or false"),
            ("tcp_rmem = [1, 65536, 1048576]", "tcp.tcp_rmem"),
            ("tcp_wmem = [65536, 4096, 1048576]", "rising order"),
            ("tcp_wmem = [4096]", "three numbers"),
            ("tcp_congestion_control = \"bbr\"", "\"cubic\""),
            ("tcp_fin_time = 5", "tcp_fin_timeout"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }
}
