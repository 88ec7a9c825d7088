//! `[tcp]`.

use softnet_tcp::Config as TcpConfig;

use super::super::tcp::{BUFFER, CONGESTION, KEYS};
use super::{Read, Table, set};

impl Read {
    pub(super) fn tcp(&mut self, table: Table<'_>) -> TcpConfig {
        self.known_keys(table, KEYS);
        let mut tcp = TcpConfig::default();
        self.tcp_knobs(table, &mut tcp);
        set(&mut tcp.tcp_congestion_control, self.choice(table, "tcp_congestion_control", &CONGESTION));
        set(&mut tcp.tcp_rmem, self.sizes(table, "tcp_rmem"));
        set(&mut tcp.tcp_wmem, self.sizes(table, "tcp_wmem"));
        tcp
    }

    /// Three sizes of buffers.
    fn sizes(&mut self, table: Table<'_>, key: &'static str) -> Option<[u32; 3]> {
        let sizes = self.integers(table, key, &BUFFER)?;
        let three = sizes.try_into().ok();
        if three.is_none() {
            self.wrong(table, key, "expected three numbers, such as [4096, 131072, 33554432]");
        }
        three
    }
}
