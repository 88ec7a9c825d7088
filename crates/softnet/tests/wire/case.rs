//! A case: a name, and the frames that are sent, step by step, by the hosts that the run plays.

use std::time::Duration;

use super::net::Net;
use super::packet::Frame;

/// Frames of one step after the other.
pub(crate) struct Steps(pub(crate) Vec<Vec<Frame>>);

impl From<Frame> for Steps {
    fn from(frame: Frame) -> Steps {
        Steps(vec![vec![frame]])
    }
}

impl From<Vec<Frame>> for Steps {
    fn from(frames: Vec<Frame>) -> Steps {
        Steps(vec![frames])
    }
}

impl<const N: usize> From<[Frame; N]> for Steps {
    fn from(frames: [Frame; N]) -> Steps {
        Steps(vec![frames.into()])
    }
}

impl From<Vec<Vec<Frame>>> for Steps {
    fn from(steps: Vec<Vec<Frame>>) -> Steps {
        Steps(steps)
    }
}

/// What is sent to both routers, and how.
pub(crate) struct Case {
    /// `area/name`.
    pub(crate) name: String,
    frames: Box<dyn Fn(Net) -> Steps>,
    /// Its hosts answer neither ARP nor neighbour solicitations.
    pub(crate) silent: bool,
    /// It runs by itself: nothing in what comes out may tell whose it is.
    pub(crate) alone: bool,
    /// Its answers are for all on the link, as announcements are that a router makes by itself.
    pub(crate) told_all: bool,
    /// For so long something may still come.
    pub(crate) wait: Duration,
}

impl Case {
    pub(crate) fn steps(&self, net: Net) -> Vec<Vec<Frame>> {
        (self.frames)(net).0
    }
}

/// The cases of one area, as they are written.
pub(crate) struct Cases {
    area: &'static str,
    pub(crate) all: Vec<Case>,
}

impl Cases {
    pub(crate) fn new(area: &'static str) -> Cases {
        Cases { area, all: Vec::new() }
    }

    /// One more; the frames are made when it runs.
    pub(crate) fn add<S: Into<Steps>>(
        &mut self,
        name: impl AsRef<str>,
        frames: impl Fn(Net) -> S + 'static,
    ) -> &mut Case {
        self.all.push(Case {
            name: format!("{}/{}", self.area, name.as_ref()),
            frames: Box::new(move |net| frames(net).into()),
            silent: false,
            alone: false,
            told_all: false,
            wait: Duration::ZERO,
        });
        self.all.last_mut().expect("was pushed")
    }
}

impl Case {
    pub(crate) fn silent(&mut self) -> &mut Case {
        self.silent = true;
        self
    }
    pub(crate) fn alone(&mut self) -> &mut Case {
        self.alone = true;
        self
    }
    pub(crate) fn told_all(&mut self) -> &mut Case {
        (self.alone, self.told_all) = (true, true);
        self
    }
    pub(crate) fn wait(&mut self, seconds: u64) -> &mut Case {
        self.wait = Duration::from_secs(seconds);
        self
    }
}
