//! The keys that steer RX queues: of all queues of a device at once, or of each.

use super::super::check;
use super::super::value::{shown, whole};
use super::super::{CpuList, DeviceConfig, PerQueue, RssChange, SteeringMode};
use super::{Read, Table, set};
use crate::util::Limit;

impl Read {
    pub(super) fn steering(&mut self, table: Table<'_>, device: &mut DeviceConfig) {
        let modes = SteeringMode::ALL.map(|mode| (mode.name(), mode));
        set(&mut device.steering, self.choice(table, "steering", &modes));
        set(&mut device.processing_cpu, self.number_or_each(table, "processing_cpu", &check::CPU));
        set(&mut device.rps_flow_cnt, self.number_or_each(table, "rps_flow_cnt", &check::RPS_FLOW_CNT));
        if let Some(text) = self.string(table, "rss")
            && let Some(value) = table.get("rss")
        {
            device.rss = self.parsed(table.section.key("rss"), value, text.parse::<RssChange>());
        }
        let is_text = table.get("rps_cpus").is_some_and(|value| value.get_ref().as_str().is_some());
        device.rps_cpus = if is_text {
            let text = self.string(table, "rps_cpus");
            let place = table.section.key("rps_cpus");
            let list = text.zip(table.get("rps_cpus"));
            let list = list.and_then(|(text, value)| self.parsed(place, value, text.parse::<CpuList>()));
            PerQueue::All(list.unwrap_or_default())
        } else {
            PerQueue::Each(self.cpu_lists(
                table,
                "rps_cpus",
                "a list of CPUs, such as \"0-3\", or one for each RX queue",
            ))
        };
    }

    /// One number for all RX queues, or a list with one for each.
    fn number_or_each(
        &mut self,
        table: Table<'_>,
        key: &'static str,
        limit: &Limit,
    ) -> Option<PerQueue<u32>> {
        let value = table.get(key)?;
        if value.get_ref().as_array().is_some() {
            return self.integers(table, key, limit).map(PerQueue::Each);
        }
        self.spans.insert(table.section.key(key), value.span());
        match whole(value.get_ref()) {
            Some(number) => Some(PerQueue::All(number)),
            None => {
                self.wrong(
                    table,
                    key,
                    &format!("expected {limit}, or a list for each RX queue, found {}", shown(value)),
                );
                None
            }
        }
    }
}
