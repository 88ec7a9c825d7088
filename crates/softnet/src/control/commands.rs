//! How a change of a running stack reaches the housekeeper, the only thread that makes changes, and how the answer comes back.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{ControlError, Set, SetAddr, SetLink, SetNeigh, SetQdisc, SetRoute, SetSteering};
use crate::config::Config;
use crate::control::hand_over::{Channel, Offered};
use crate::util::Waker;

/// How long to wait for an answer. A switch takes as long as the polls that run now.
const PATIENCE: Duration = Duration::from_secs(5);

/// What can be changed.
#[derive(Debug)]
pub(crate) enum Change {
    /// The context that instances are polled in.
    Threaded(Set),
    /// Disciplines of TX queues.
    Qdisc(SetQdisc),
    /// Which workers go on with what RX queues bring.
    Steering(SetSteering),
    /// Routes.
    Route(SetRoute),
    /// Neighbours.
    Neigh(SetNeigh),
    /// Addresses.
    Addr(SetAddr),
    /// The link of a device.
    Link(SetLink),
    /// All that another configuration says otherwise; what was changed goes into the list.
    Reload(Box<Config>, Arc<Mutex<Vec<String>>>),
    /// Nothing: tells what another process needs to take over.
    Offer(Arc<Mutex<Option<Offered>>>),
    /// All of it: the process at the other end of the channel is to take over.
    HandOver(Arc<Mutex<Channel>>),
}

/// A change, and where to say what became of it.
#[derive(Debug)]
pub(crate) struct Command {
    /// The change.
    pub change: Change,
    /// Takes the ids of the NAPI instances it was about, or why it was not made.
    pub answer: SyncSender<Result<Vec<u32>, ControlError>>,
}

/// Sends changes to the housekeeper. Any thread may call it.
#[derive(Clone)]
pub(crate) struct Commander {
    housekeeper: Arc<Waker>,
    commands: Sender<Command>,
}

/// Both ends of the channel to the housekeeper, which `housekeeper` wakes.
pub(crate) fn commands(housekeeper: &Arc<Waker>) -> (Commander, Receiver<Command>) {
    let (commands, receiver) = channel();
    (Commander { housekeeper: housekeeper.clone(), commands }, receiver)
}

impl Commander {
    /// Has `change` made. Returns the ids of the NAPI instances it was about, or the reason why nothing changed.
    pub(crate) fn make(&self, change: Change) -> Result<Vec<u32>, ControlError> {
        let (answer, receiver) = sync_channel(1);
        self.commands.send(Command { change, answer }).map_err(|_| ControlError::Stopping)?;
        self.housekeeper.wake();
        receiver.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Disconnected => ControlError::Stopping,
            RecvTimeoutError::Timeout => ControlError::TimedOut(PATIENCE),
        })?
    }
}
