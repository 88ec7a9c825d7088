//! The program's side of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;

use super::show::Table;
use super::{
    CaptureStream, Request, Response, SetCapture, instances,
    listener::{Probe, probe},
    name, sockets,
};
use crate::config::{CONTROL_DIRECTORY, socket_path};

/// How long an instance may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why an instance was not reached, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No such instance.
    #[error("no instance {name:?} is running; {}", running(.others))]
    NotRunning {
        /// The name (or path) asked for.
        name: String,
        /// Those that are.
        others: Vec<String>,
    },
    /// No name was given, and there is not exactly one instance.
    #[error("{}", match .0[..] {
        [] => running(.0),
        _ => format!("several instances are running ({}): choose one with --name", .0.join(", ")),
    })]
    WhichOne(Vec<String>),
    /// The socket is there, but not for this user.
    #[error(
        "{0}: permission denied: the control socket is for the user that started the instance, and for members of its control.group; use sudo"
    )]
    Denied(String),
    /// No instance is known to run, but there is a socket of another user.
    #[error(
        "no instance is running here; {0} is another user's and may be that of one in another network namespace: use \
         sudo to ask it"
    )]
    Hidden(String),
    /// The connection failed.
    #[error("{path}: {source}")]
    Io {
        /// The socket.
        path: String,
        /// What was said.
        source: io::Error,
    },
    /// The instance answered with an error, or with something else than was asked for.
    #[error("the instance answered: {0}")]
    Answer(String),
}

fn running(names: &[String]) -> String {
    match names {
        [] => "no instance is running: start one with `softnet run CONFIG`".into(),
        names => format!("running: {}", names.join(", ")),
    }
}

/// Which instance to ask; connects afresh for every request.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    name: String,
}

impl Client {
    /// The instance called `name` (a name with a `/` is the path of its control socket), or, without a name, the
    /// only one that is running.
    pub fn new(name: Option<&str>) -> Result<Client, ClientError> {
        match name {
            Some(name) if name.contains('/') => Ok(Client { path: name.into(), name: name.into() }),
            Some(name) => Ok(Client { path: socket_path(name), name: name.into() }),
            None => Self::only_one(Path::new(CONTROL_DIRECTORY)),
        }
    }

    pub(super) fn only_one(directory: &Path) -> Result<Client, ClientError> {
        let (live, others): (Vec<_>, Vec<_>) = sockets(directory).partition(|(_, is_live)| *is_live);
        let denied = |path: &PathBuf| matches!(probe(path), Ok(Probe::Denied));
        match &live[..] {
            [(only, _)] => Ok(Client { path: only.clone(), name: name(only) }),
            [] => Err(match others.iter().map(|(path, _)| path).find(|path| denied(path)) {
                Some(hidden) => ClientError::Hidden(hidden.display().to_string()),
                None => ClientError::WhichOne(Vec::new()),
            }),
            _ => Err(ClientError::WhichOne(instances(directory))),
        }
    }

    /// Asks, and reads the answer as a `T`.
    pub fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning {
                name: self.name.clone(),
                others: instances(Path::new(CONTROL_DIRECTORY)),
            },
            io::ErrorKind::PermissionDenied => ClientError::Denied(self.path.display().to_string()),
            io::ErrorKind::WouldBlock => ClientError::Io {
                path: self.path.display().to_string(),
                source: io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no answer within {} s", PATIENCE.as_secs()),
                ),
            },
            _ => ClientError::Io { path: self.path.display().to_string(), source },
        };
        let mut stream = self.connect().map_err(failed)?;
        let line = Self::exchange(&mut stream, request).map_err(failed)?;
        let response =
            serde_json::from_str(&line).map_err(|error| ClientError::Answer(format!("{error}: {line}")))?;
        match response {
            Response::Ok(value) => serde_json::from_value(value)
                .map_err(|error| ClientError::Answer(format!("{error} (is it of another version?)"))),
            Response::Error(message) => Err(ClientError::Answer(message)),
        }
    }

    /// Starts a capture.
    pub fn capture(&self, set: &SetCapture) -> Result<CaptureStream, ClientError> {
        let failed = |source| ClientError::Io { path: self.path.display().to_string(), source };
        // So that what is wrong with the name of the instance is told as ever.
        let _: serde_json::Value = self.ask(&Request::Show(Table::Filter))?;
        let mut stream = self.connect().map_err(failed)?;
        let mut line = serde_json::to_vec(&Request::Capture(set.clone())).map_err(|e| failed(e.into()))?;
        line.push(b'\n');
        stream.write_all(&line).map_err(failed)?;
        // Not a byte more than the line.
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while answer.last() != Some(&b'\n') {
            stream.read_exact(&mut byte).map_err(failed)?;
            answer.push(byte[0]);
        }
        let unread = |error: serde_json::Error| ClientError::Answer(error.to_string());
        match serde_json::from_slice(&answer).map_err(unread)? {
            Response::Ok(value) => {
                let info = serde_json::from_value(value).map_err(unread)?;
                set_socket_timeout(&stream, Timeout::Recv, None).map_err(|error| failed(error.into()))?;
                Ok(CaptureStream { info, stream: Arc::new(stream) })
            }
            Response::Error(message) => Err(ClientError::Answer(message)),
        }
    }

    /// Connects; an instance that hangs, with others waiting already, does not make us hang.
    fn connect(&self) -> io::Result<UnixStream> {
        let (family, kind, flags) = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, kind, flags, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        Ok(socket.into())
    }

    fn exchange(stream: &mut UnixStream, request: &Request) -> io::Result<String> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let sent = stream.write_all(&line);
        let mut answer = String::new();
        // One that is refused may find the connection closed before it has asked, and an answer that says why.
        let read = BufReader::new(stream).read_line(&mut answer);
        if answer.is_empty() {
            sent?;
        }
        match read? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the instance closed the connection")),
            _ => Ok(answer),
        }
    }
}
