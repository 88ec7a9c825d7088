//! The successor's side of a take-over: the connection to the process whose place it takes.
//!
//! Used by the thread that starts a stack. Invariant: nothing of the other process is touched
//! before [`take`](Predecessor::take) has succeeded.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use softnet_dev::hand_over::DeviceHandOver;

use super::channel::{Channel, Kind};
use super::giver::TakeOver;
use super::message::{Connections, Offer, OfferedNeighbour, Stopped};
use crate::config::{Config, DeviceConfig};
use crate::control::listener::{Probe, probe};
use crate::control::{Request, Response};
use crate::driver::{Vlan, Xdp};

/// How long the running instance may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a process could not take another's place. That one goes on, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// There is no other.
    #[error(
        "no instance with control socket {0} is running that could be taken over: run without --take-over"
    )]
    NotRunning(String),
    /// The other is another user's.
    #[error("{0}: permission denied: an instance is taken over by the user that started it, or by root")]
    Denied(String),
    /// It does not hand over, for this reason.
    #[error("the running instance refused to be taken over: {0}")]
    Refused(String),
    /// It is not as the configuration would have it, in something that can't be changed like that.
    #[error("{0}; the running instance goes on: stop it and start this one, or have them agree")]
    Differs(String),
    /// It does not offer it any more.
    #[error("the running instance closed a device, or ended, while it was to be taken over: try again")]
    Withdrawn,
    /// It would forward by other routes than the running instance.
    #[error("the kernel's routes (stack.follow) {0}; the running instance goes on")]
    Routes(&'static str),
    /// zebra tells its routes to one process.
    #[error(
        "stack.follow is \"fpm\": zebra is connected to the running instance, and its routes can't be taken over; the running instance goes on: stop it and start this one"
    )]
    Fpm,
    /// The connection to it failed.
    #[error("the running instance, while it was to be taken over: {0}")]
    Io(#[from] io::Error),
    /// It said something that makes no sense.
    #[error("the running instance said what makes no sense: {0}")]
    Nonsense(&'static str),
}

/// The process whose place is taken.
#[derive(Debug)]
pub(crate) struct Predecessor {
    channel: Channel,
    pub(crate) pid: u32,
    /// ns from when it was told to stop until all went on here.
    pub(crate) paused: u64,
    frames: u32,
    /// Its memory.
    pub(crate) memory: Option<OwnedFd>,
    /// Its control socket.
    pub(crate) listener: Option<OwnedFd>,
    /// Its devices, in its own order.
    pub(crate) names: Vec<String>,
    pub(crate) devices: BTreeMap<String, DeviceHandOver>,
    pub(crate) neighbours: Vec<OfferedNeighbour>,
    /// Connections that are not made here yet.
    pub(crate) connections: Connections,
}

impl Predecessor {
    /// Asks the instance with the control socket `path` for what it has.
    pub(crate) fn connect(path: &Path) -> Result<Self, TakeOverError> {
        let shown = || path.display().to_string();
        let stream = match probe(path)? {
            Probe::Listens(Some(stream)) => stream,
            Probe::Listens(None) => return Err(io::Error::from(io::ErrorKind::WouldBlock).into()),
            Probe::Gone => return Err(TakeOverError::NotRunning(shown())),
            Probe::Denied => return Err(TakeOverError::Denied(shown())),
        };
        let mut line = serde_json::to_vec(&Request::TakeOver(TakeOver::new())).map_err(io::Error::from)?;
        line.push(b'\n');
        stream.set_nonblocking(false)?;
        (&stream).write_all(&line)?;
        let mut channel = Channel::new(stream, PATIENCE)?;
        let answer = channel.receive_line(PATIENCE)?;
        let offer: Offer = match serde_json::from_slice(&answer).map_err(io::Error::from)? {
            Response::Ok(value) => serde_json::from_value(value).map_err(io::Error::from)?,
            // What an instance says that knows no such request.
            Response::Error(why) if why.starts_with("not a request") => {
                let why = "it is of a version that can't be taken over: stop it, and start this one";
                return Err(TakeOverError::Refused(why.into()));
            }
            Response::Error(why) => return Err(TakeOverError::Refused(why)),
        };
        let Offer { pid, frames, devices, neighbours } = offer;
        // Far more than there can be.
        let count = devices.iter().try_fold(2usize, |sum, device| sum.checked_add(device.descriptors));
        let count = count.filter(|count| *count < 1 << 16);
        let count = count.ok_or(TakeOverError::Nonsense("a number of descriptors"))?;
        let mut fds = channel.receive_fds(count, PATIENCE)?.into_iter();
        let (memory, listener) = (fds.next(), fds.next());
        let names = devices.iter().map(|device| device.name.clone()).collect();
        let with_fds = devices.into_iter().map(|device| {
            let fds = fds.by_ref().take(device.descriptors).collect();
            (device.name, DeviceHandOver { facts: device.facts, fds })
        });
        let devices = with_fds.collect();
        let mut connections = Connections::new();
        loop {
            match channel.receive(PATIENCE)? {
                (Kind::Connections, some) if some.is_empty() => break,
                (Kind::Connections, some) => connections.push(some),
                _ => return Err(TakeOverError::Nonsense("a message that does not come next")),
            }
        }
        let paused = 0;
        Ok(Predecessor {
            channel,
            pid,
            paused,
            frames,
            memory,
            listener,
            names,
            devices,
            neighbours,
            connections,
        })
    }

    /// Whether a stack of `config` can go on with what there is.
    pub(crate) fn check(&self, config: &Config) -> Result<(), TakeOverError> {
        let differs = |why: String| Err(TakeOverError::Differs(why));
        if config.stack.frames != self.frames {
            let (own, theirs) = (config.stack.frames, self.frames);
            return differs(format!("stack.frames is {own} here, and {theirs} in the running instance"));
        }
        let is_vlan = |device: &&DeviceConfig| device.driver.get::<Vlan>().is_some();
        for device in config.devices.iter().filter(|device| !is_vlan(device)) {
            let (name, driver) = (&device.name, device.driver.name());
            if device.driver.get::<Xdp>().is_none() {
                return differs(format!("{name}: a device of driver {driver:?} can't be taken over"));
            }
            if !self.devices.contains_key(name) {
                return differs(format!(
                    "{name} is in this configuration, and the running instance does not have it open"
                ));
            }
        }
        let missing = |name: &&String| !config.devices.iter().any(|device| device.name == **name);
        match self.names.iter().find(missing) {
            Some(name) => differs(format!("the running instance has {name}, which this configuration lacks")),
            None => Ok(()),
        }
    }

    /// Has it stop. Returns which frames its rings hold then; from here on nothing is forwarded.
    pub(crate) fn stop(&mut self) -> Result<Stopped, TakeOverError> {
        let withdrawn = |error: io::Error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
                TakeOverError::Withdrawn
            }
            _ => error.into(),
        };
        self.channel.send(Kind::Stop, &[]).map_err(withdrawn)?;
        loop {
            return match self.channel.receive(PATIENCE).map_err(withdrawn)? {
                (Kind::Connections, some) => {
                    self.connections.push(some);
                    continue;
                }
                (Kind::Stopped, bytes) => {
                    let stopped = Stopped::decode(&bytes).filter(|stopped| stopped.is_sound(self.frames));
                    stopped.ok_or(TakeOverError::Nonsense("which frames it holds"))
                }
                (Kind::Refused, why) => {
                    Err(TakeOverError::Refused(String::from_utf8_lossy(&why).into_owned()))
                }
                _ => Err(TakeOverError::Nonsense("a message that does not come next")),
            };
        }
    }

    /// Takes its place: from here on it does not go on any more.
    pub(crate) fn take(&mut self) -> Result<(), TakeOverError> {
        self.channel.send(Kind::Take, &[])?;
        let answer = match self.channel.receive(PATIENCE) {
            // It may be about to say so: either it has by now, or it can't any more.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.channel.hear_no_more()?;
                self.channel.receive(PATIENCE)
            }
            answer => answer,
        };
        match answer? {
            (Kind::Yours, _) => Ok(()),
            (Kind::Refused, why) => Err(TakeOverError::Refused(String::from_utf8_lossy(&why).into_owned())),
            _ => Err(TakeOverError::Nonsense("a message that does not come next")),
        }
    }

    /// Its place is not taken: it goes on at once.
    pub(crate) fn give_up(&self) {
        self.channel.shut_down();
    }

    /// Tells it that all runs, and waits until it has ended.
    pub(crate) fn done(mut self) -> io::Result<()> {
        self.channel.send(Kind::Done, &[])?;
        self.channel.wait_closed(PATIENCE)
    }
}
