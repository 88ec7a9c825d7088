//! What the commands in `ip`'s words have in common: `route`, `neigh`, `addr` and `link` ask a running instance or
//! change it, and say nothing of what went well unless JSON is asked for.

use serde::de::DeserializeOwned;
use softnet::control::{Client, ClientError, LiveAnswer, Request};

use crate::Failure;
use crate::text::print_json;

/// A running instance, and how answers are printed.
pub(crate) struct Live {
    client: Client,
    /// As JSON.
    pub(crate) json: bool,
}

impl Live {
    /// The instance called `name`, or the only one running.
    pub(crate) fn new(name: Option<&str>, json: bool) -> Result<Self, Failure> {
        Ok(Live { client: Client::new(name).map_err(failed)?, json })
    }

    pub(crate) fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Failure> {
        self.client.ask(request).map_err(failed)
    }

    /// Has the instance changed. Like ip, it says nothing of what went well.
    pub(crate) fn change(&self, request: &Request) -> Result<(), Failure> {
        let answer: LiveAnswer = self.ask(request)?;
        if self.json { print_json(&answer) } else { Ok(()) }
    }
}

fn failed(error: ClientError) -> Failure {
    Failure::Run(error.to_string())
}

/// `error` is what is wrong with the words of `softnet` `command`.
pub(crate) fn misread(command: &str, error: &str) -> Failure {
    Failure::Usage(format!("{error}; `softnet {command} --help` has all of it"))
}

/// What a command says of a device that the instance does not have.
pub(crate) fn no_device(dev: &str) -> Failure {
    Failure::Run(format!("no device {dev:?}; `softnet show dev` has all of them"))
}
