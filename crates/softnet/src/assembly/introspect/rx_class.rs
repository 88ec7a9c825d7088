//! Rows of `show rss` and `show ntuple`, and what changes them: the device does, or says why not.

use std::sync::Arc;

use softnet_dev::Device;
use softnet_dev::rx_class::{RssView, RxClassError};

use crate::control::show::{NtupleRow, RssRow};
use crate::control::{ControlError, NtupleAnswer, RssAnswer, SetNtuple, SetRss, Target};
use crate::device::StackDevice;
use crate::stack::StackInner;

/// How a device spreads flows: a row for each context, or one that says why it does not.
pub(super) fn rss(dev: &StackDevice) -> Vec<RssRow> {
    let view = open(dev).and_then(|device| told(dev, device.rss()));
    match view {
        Ok(view) => rows(dev, &view),
        Err(error) => {
            let why = match error {
                ControlError::RxClass { source, .. } => source.to_string(),
                error => error.to_string(),
            };
            let warning = dev.rss_refused();
            vec![RssRow { dev: dev.name.clone(), why: Some(why), warning, ..RssRow::default() }]
        }
    }
}

fn rows(dev: &StackDevice, view: &RssView) -> Vec<RssRow> {
    let warning = dev.rss_refused();
    let row = |(context, table): &(u32, Vec<u32>)| RssRow {
        dev: dev.name.clone(),
        context: *context,
        queues: view.queues,
        table: table.clone(),
        hfunc: view.hfunc.clone(),
        xfrm: view.xfrm.clone(),
        fields: view.fields.iter().map(|(kind, fields)| (kind.name().into(), fields.clone())).collect(),
        hkey: view.key.clone(),
        why: None,
        warning: warning.clone().filter(|_| *context == 0),
    };
    view.contexts.iter().map(row).collect()
}

/// The filters of a device.
pub(super) fn ntuples(dev: &StackDevice) -> Result<Vec<NtupleRow>, ControlError> {
    let rules = told(dev, open(dev)?.rules())?;
    let row = |rule: softnet_dev::rx_class::RuleView| NtupleRow {
        dev: dev.name.clone(),
        location: rule.location,
        rule: rule.rule,
        packets: rule.packets,
        rfs: rule.rfs,
    };
    Ok(rules.into_iter().map(row).collect())
}

/// Changes how a device spreads flows.
pub(super) fn set_rss(shared: &StackInner, set: &SetRss) -> Result<RssAnswer, ControlError> {
    let change = set.change.parse()?;
    let (dev, _) = shared.find(&Target::Dev(set.dev.clone()))?;
    let failed = |source| ControlError::RxClass { dev: dev.name.clone(), source };
    let context = dev.set_rss(|| open(dev), &change, failed)?;
    Ok(RssAnswer { context, rss: rss(dev) })
}

/// Adds or deletes a filter.
pub(super) fn set_ntuple(shared: &StackInner, set: &SetNtuple) -> Result<NtupleAnswer, ControlError> {
    let order = set.change.parse()?;
    let (dev, _) = shared.find(&Target::Dev(set.dev.clone()))?;
    let location = told(dev, open(dev)?.set_rule(&order))?;
    Ok(NtupleAnswer { location, filters: ntuples(dev)? })
}

/// A device's shared part, if it is open.
fn open(dev: &StackDevice) -> Result<Arc<dyn Device>, ControlError> {
    let live = dev.live.load_full();
    live.map(|live| live.device.clone()).ok_or_else(|| ControlError::NotOpen(dev.name.clone()))
}

fn told<T>(dev: &StackDevice, answer: Result<T, RxClassError>) -> Result<T, ControlError> {
    answer.map_err(|source| ControlError::RxClass { dev: dev.name.clone(), source })
}
