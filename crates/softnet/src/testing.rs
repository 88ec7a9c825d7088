//! A stack whose worker and housekeeper are the test's to run, with devices that are the near ends of wires.

use std::sync::{Arc, Mutex};

use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, CacheSizes, HEADROOM};
use softnet_dev::mem::{PairConfig, pair};
use softnet_dev::{OpenDevice, RxQueue, TxQueue};

use crate::assembly::Assembly;
use crate::config::{Config, DeviceConfig};
use crate::driver::OpenRequest;
use crate::napi::NapiInstance;

/// A worker and devices, and the far ends of their wires.
pub(crate) struct World {
    pub(crate) assembly: Assembly,
    pub(crate) tx: Vec<Box<dyn TxQueue>>,
    pub(crate) ends: Vec<Box<dyn RxQueue>>,
    pub(crate) ctx: SoftnetData,
}

impl World {
    pub(crate) fn new(devices: u8) -> World {
        let far = Arc::new(Mutex::new(Vec::new()));
        let device = |number: u8| DeviceConfig {
            addresses: vec![format!("10.0.{number}.1/24").parse().unwrap()],
            ..DeviceConfig::new(format!("d{number}"))
        };
        let devices: Vec<_> = (0..devices).map(device).collect();
        let assembly = Assembly::new(Config { devices, ..Config::default() }, vec![], {
            let far = far.clone();
            move |_| {
                Ok(move |_: &OpenRequest<'_>, ctx: &mut SoftnetData| -> Result<OpenDevice, String> {
                    let [near, end] = pair(ctx.region(), [0, 9], &PairConfig::default()).unwrap();
                    far.lock().unwrap().push(end);
                    Ok(near)
                })
            }
        });
        let mut assembly = assembly.unwrap();
        // The first polls, for nothing.
        while assembly.workers[0].round() {}
        let (tx, ends) =
            far.lock().unwrap().drain(..).map(|mut end| (end.tx.remove(0), end.rx.remove(0))).unzip();
        let ctx = SoftnetData::new(assembly.shared.region.clone(), CacheSizes::default());
        World { assembly, tx, ends, ctx }
    }

    /// A packet comes to a device.
    pub(crate) fn arrive(&mut self, device: usize, packet: &[u8]) {
        let frame = self.ctx.alloc_frame().unwrap();
        let mut batch = Batch::new();
        let len = packet.len();
        let mut skb = self.ctx.build_skb(frame, HEADROOM, len).unwrap_or_else(|_| panic!("no head"));
        skb.data_mut().copy_from_slice(packet);
        batch.push(skb).unwrap();
        assert_eq!(self.tx[device].tx_burst(&mut self.ctx, &mut batch), 1);
        self.tx[device].kick(&mut self.ctx);
    }

    pub(crate) fn instance(&self, device: usize) -> Arc<NapiInstance> {
        self.assembly.shared.napis().remove(device)
    }

    /// Packets that polls of a device received.
    pub(crate) fn received(&self, device: usize) -> u64 {
        self.instance(device).napi.stats.packets.get()
    }

    /// The worker works until it may sleep.
    pub(crate) fn work(&mut self) {
        for _ in 0..100 {
            if !self.assembly.workers[0].round() {
                return;
            }
        }
        panic!("the worker does not come to rest");
    }

    /// Gives what its devices hold back.
    pub(crate) fn close(mut self) {
        self.work();
        self.tx.into_iter().for_each(|tx| tx.close(&mut self.ctx));
        self.ends.into_iter().for_each(|rx| rx.close(&mut self.ctx));
    }
}
