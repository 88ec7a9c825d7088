//! Why a running stack refused a change or a question.

use std::io;
use std::time::Duration;

use softnet_core::napi;
use softnet_core::qdisc::{Spec, SpecError};
use softnet_core::steer::WordError;
use softnet_dev::rx_class::RxClassError;

use crate::config::{Context, KnobError};
use crate::live::LiveError;

/// Why a change was not made, or a question has no answer. Nothing was changed then, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The stack has no such device.
    #[error("no device {name:?}; {}", there_are(.exist))]
    NoDevice {
        /// The name asked for.
        name: String,
        /// Those that it has.
        exist: Vec<String>,
    },
    /// No NAPI instance has that id now.
    #[error("no NAPI instance {id}; {}", there_are(.exist))]
    NoNapi {
        /// The id asked for.
        id: u32,
        /// Those that exist, with their names.
        exist: Vec<String>,
    },
    /// A device has no TX queues at the moment.
    #[error("{0} is not open: its interface is gone")]
    NotOpen(String),
    /// A VLAN is asked for what only its link has.
    #[error("{dev} is a VLAN and has no queues of its own: expected its link, {link}")]
    NoQueues {
        /// The VLAN.
        dev: String,
        /// Its link.
        link: String,
    },
    /// What is to be steered can't be.
    #[error(transparent)]
    Steering(#[from] KnobError),
    /// A device has not as many TX queues.
    #[error(
        "parent: no TX queue {queue} (:{:x}); there are {queues}, expected :1 to :{queues:x}", u32::from(*.queue) + 1
    )]
    NoTxQueue {
        /// The number asked for.
        queue: u16,
        /// How many there are.
        queues: usize,
    },
    /// The root discipline has no children.
    #[error(
        "parent: the root is not mq, so TX queues have no discipline of their own; `softnet qdisc replace dev DEV \
         root mq` makes it so"
    )]
    NotMq,
    /// A discipline is to be added where one is set.
    #[error("{place} already has {qdisc}: `replace` it, or `del` it first")]
    QdiscExists {
        /// Where.
        place: String,
        /// The discipline there.
        qdisc: Spec,
    },
    /// A discipline is to be deleted where none is set.
    #[error("{0} has its default discipline, which can't be deleted")]
    DefaultQdisc(String),
    /// A discipline is not one, or not for that place.
    #[error(transparent)]
    Qdisc(#[from] SpecError),
    /// A filter is to be added where one is set.
    #[error("{0} has a filter already: `replace` it, or `del` it first")]
    FilterExists(String),
    /// A filter is to be deleted where none is set.
    #[error("{0} has no filter, so none to delete")]
    NoFilter(String),
    /// RSS or filters of a device can't be told, or changed like that.
    #[error("{dev}: {source}")]
    RxClass {
        /// The device.
        dev: String,
        /// Why.
        source: RxClassError,
    },
    /// A change of RSS or filters is none.
    #[error(transparent)]
    Words(#[from] WordError),
    /// A change of routes, neighbours or addresses is refused.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The request lacks a part.
    #[error("expected {0}")]
    Missing(&'static str),
    /// A knob is out of range.
    #[error(transparent)]
    Knob(#[from] napi::OutOfRange),
    /// A thread for another context can't be made.
    #[error("nothing was changed: a thread for {context} can't be made: {source}")]
    Thread {
        /// The context.
        context: Context,
        /// Why.
        source: io::Error,
    },
    /// Another process can't take over, or did not.
    #[error("{0}")]
    HandOver(String),
    /// The stack is stopping.
    #[error("the instance is stopping")]
    Stopping,
    /// The housekeeper did not answer in time.
    #[error("not done after {} s; it will be, unless the instance hangs", .0.as_secs())]
    TimedOut(Duration),
}

/// Names what exists instead of what was asked for.
fn there_are(exist: &[String]) -> String {
    match exist {
        [] => "there is none".into(),
        _ => format!("there are: {}", exist.join(", ")),
    }
}
