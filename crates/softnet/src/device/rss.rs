//! What is set of a device's RSS: as configured, and changed since. It outlives the interface.
//!
//! Control threads change it, the housekeeper has it set when it opens the device. Invariant: what
//! is remembered is what the device took, so it says how the next life of it is to be; contexts and
//! filters are not.

use std::sync::Arc;

use softnet_core::steer::RssChange;
use softnet_dev::Device;
use softnet_dev::rx_class::RxClassError;

use super::StackDevice;
use crate::util::{lock, warn};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct RssSettings {
    /// All changes in one.
    set: Option<RssChange>,
    /// Why the device that is open now does not have it.
    refused: Option<String>,
}

impl RssSettings {
    /// As configured.
    pub(crate) fn new(set: Option<RssChange>) -> Self {
        RssSettings { set, refused: None }
    }
}

impl StackDevice {
    /// `device` was opened for it, and brings nothing yet.
    pub(crate) fn apply_rss(&self, device: &dyn Device) {
        let mut rss = lock(&self.rss);
        let done = rss.set.as_ref().map_or(Ok(None), |set| device.set_rss(set));
        rss.refused = done.err().map(|error| format!("what is set for it was refused: {error}"));
        if let Some(why) = &rss.refused {
            warn(format_args!("{}: rss: {why}", self.name));
        }
    }

    /// Changes it, if `device` says that it is open. Returns the context that was made, if one was.
    ///
    /// # Errors
    /// What `device` says, or what the device refuses; then nothing is remembered.
    pub(crate) fn set_rss<E>(
        &self,
        device: impl FnOnce() -> Result<Arc<dyn Device>, E>,
        change: &RssChange,
        failed: impl FnOnce(RxClassError) -> E,
    ) -> Result<Option<u32>, E> {
        // Locked all the time, so that no change gets lost between two lives.
        let mut rss = lock(&self.rss);
        let context = device()?.set_rss(change).map_err(failed)?;
        match &mut rss.set {
            Some(set) => set.then(change),
            None => rss.set = change.is_of_device().then(|| change.clone()),
        }
        Ok(context)
    }

    /// Why the device that is open does not have what is set.
    pub(crate) fn rss_refused(&self) -> Option<String> {
        lock(&self.rss).refused.clone()
    }
}

#[cfg(test)]
mod tests {
    use softnet_core::SoftnetData;
    use softnet_dev::OpenDevice;
    use softnet_dev::mem::{PairConfig, pair};

    use crate::assembly::Assembly;
    use crate::config::{Config, DeviceConfig};
    use crate::control::SetRss;
    use crate::driver::OpenRequest;
    use crate::stack::StackInner;

    /// A device that has RSS, and one that has not.
    fn assembly(rss: &str) -> Assembly {
        let device = |(number, name): (usize, &str)| DeviceConfig {
            addresses: vec![format!("10.0.{number}.1/24").parse().unwrap()],
            rss: Some(rss.parse().unwrap()),
            ..DeviceConfig::new(name)
        };
        let devices = ["d", "e"].into_iter().enumerate().map(device).collect();
        let config = Config { devices, ..Config::default() };
        let opener = |asked: &OpenRequest<'_>, ctx: &mut SoftnetData| -> Result<OpenDevice, String> {
            let config = PairConfig { queues: 4, ring: 16, rss: asked.dev == 0, ..PairConfig::default() };
            let [near, far] =
                pair(ctx.region(), [asked.dev, 9], &config).map_err(|error| error.to_string())?;
            far.rx.into_iter().for_each(|rx| rx.close(ctx));
            far.tx.into_iter().for_each(|tx| tx.close(ctx));
            Ok(near)
        };
        Assembly::new(config, vec![], |_| Ok(opener)).unwrap()
    }

    #[test]
    fn what_is_set_outlives_the_interface() {
        let mut assembly = assembly("weight 3 0 1 xfrm symmetric-xor");
        let workers = std::mem::take(&mut assembly.workers);
        let shared = assembly.shared.clone();
        std::thread::scope(|scope| {
            // They give up the instances of a device that is closed.
            workers.into_iter().for_each(|worker| _ = scope.spawn(|| worker.run()));
            let _stop = Stop(&shared);
            goes_and_comes_back(&mut assembly);
        });
    }

    /// Stops the workers, also if a test fails: its scope waits for them.
    struct Stop<'a>(&'a StackInner);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.workers.iter().for_each(|worker| worker.stop());
        }
    }

    fn goes_and_comes_back(assembly: &mut Assembly) {
        let view = assembly.view.clone();
        let rows = || view.rss();
        let shares = |context: usize| {
            [0, 1, 2, 3].map(|q| rows()[context].table.iter().filter(|to| **to == q).count())
        };
        assert_eq!((shares(0), &rows()[0].xfrm[..]), ([96, 0, 32, 0], "symmetric-xor"));
        assert_eq!(rows()[0].warning, None);
        let set = |change: &str| view.set_rss(&SetRss { dev: "d".into(), change: change.into() });
        set("context new equal 1").unwrap();
        set("equal 2 rx-flow-hash udp4 sd").unwrap();
        assert!(set("equal 9").is_err() && set("hkey 00:00").is_err());
        let before = rows();
        let keeper = assembly.housekeeper().unwrap();
        keeper.close(0);
        assert!(set("equal 1").is_err(), "not while it is away");
        keeper.open(0).unwrap();
        let after = rows();
        assert_eq!(after[0], before[0]);
        assert_eq!(
            (shares(0), &after[0].xfrm[..], &after[0].fields["udp4"][..]),
            ([64, 64, 0, 0], "symmetric-xor", "sd")
        );
        // Contexts are the interface's, and gone with it.
        assert_eq!(after.iter().filter(|row| row.dev == "d").count(), 1);
    }

    #[test]
    fn what_a_device_refuses_is_told() {
        let assembly = assembly("equal 9");
        let rows = assembly.view.rss();
        let refused = "what is set for it was refused: ";
        let why = format!("{refused}equal: queue 8 is not there: the device has 4, numbered from 0");
        assert_eq!((&rows[0].dev[..], rows[0].warning.as_deref()), ("d", Some(&why[..])));
        let why = rows[1].warning.as_deref().unwrap();
        assert!(why.starts_with(refused) && rows[1].why.is_some(), "{why}");
    }
}
