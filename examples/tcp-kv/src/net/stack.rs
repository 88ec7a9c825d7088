//! softnet's sockets, by its epoll: the thread polls the NAPI instance that its connections' packets
//! come by, if it is to.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use softnet::net::{Epoll, EpollParams, Event, Handle, Interest, TcpBuilder, TcpListener, TcpStream};
use softnet_testkit::datagrams::Stop;

use super::{Net, Ready};

/// Stands for the [`Stop`].
const STOP: u64 = u64::MAX;

/// See the module.
pub struct SoftnetNet {
    epoll: Epoll,
    events: Vec<Event>,
    max_events: usize,
    listeners: Vec<TcpListener>,
}

impl SoftnetNet {
    /// Listens on `addresses`, which other threads may do as well (`SO_REUSEPORT`). `params` say
    /// whether and how the thread polls, `max_events` of how many sockets one wait tells at most;
    /// `stop` ends a wait.
    ///
    /// # Errors
    /// An address in use, or none of the stack; parameters out of range.
    pub fn bound(
        on: &Handle,
        addresses: &[SocketAddr],
        params: EpollParams,
        max_events: usize,
        stop: &Stop,
    ) -> io::Result<Self> {
        let mut epoll = Epoll::new(on)?;
        epoll.set_params(params).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        epoll.ctl().add_fd(stop, Interest::IN, STOP)?;
        let builder = TcpBuilder::new(on).reuse_port(true).nodelay(true);
        let mut listeners = Vec::new();
        for (token, address) in addresses.iter().enumerate() {
            let listener = builder.listen(address)?;
            listener.set_nonblocking(true)?;
            epoll.ctl().add(&listener, Interest::IN, token as u64)?;
            listeners.push(listener);
        }
        Ok(SoftnetNet { epoll, events: Vec::new(), max_events, listeners })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// None that is known.
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Of the threads that listen there, this one gets the connections that come by NAPI instance `napi_id`.
    pub fn lead_napi(&self, napi_id: u32) {
        self.listeners.iter().for_each(|listener| listener.set_reuse_port_napi(Some(napi_id)));
    }
}

impl Net for SoftnetNet {
    type Stream = TcpStream;

    fn wait(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        self.epoll.wait(&mut self.events, self.max_events, None)?;
        let tokens = self.events.iter().map(|event| event.token);
        ready.extend(tokens.filter(|token| *token != STOP).map(|token| Ready { token }));
        Ok(())
    }

    fn listeners(&self) -> usize {
        self.listeners.len()
    }

    fn accept(&mut self, listener: usize) -> io::Result<TcpStream> {
        let (stream, _) = self.listeners[listener].accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn add(&mut self, stream: &TcpStream, token: u64) -> io::Result<()> {
        self.epoll.ctl().add(stream, Interest::IN, token)
    }

    fn watch(&mut self, stream: &TcpStream, token: u64, write: bool) -> io::Result<()> {
        let interest = if write { Interest::OUT } else { Interest::IN };
        self.epoll.ctl().modify(stream, interest, token)
    }

    fn remove(&mut self, stream: &TcpStream) {
        // It is closed next.
        let _ = self.epoll.ctl().delete(stream);
    }
}
