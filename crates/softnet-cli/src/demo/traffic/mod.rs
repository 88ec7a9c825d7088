//! The endpoints: ordinary kernel sockets in the client's and the server's namespaces, run by threads that entered
//! them. Every payload is checked at both ends; of requests to the router itself, every answer.

mod ask;
mod kv;
mod ping;
mod tcp;
mod udp;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use softnet_dev::netns::NetNs;

use super::flow::{Flow, Flows, Ip};
use super::own::Listen;
use super::topology::Topology;
use tcp::End;

/// TCP streams of each family: one connection, with a stream both ways.
pub(super) const TCP_STREAMS: u64 = 2;

/// How long one payload may take, with all its retries, and how long a stream may stand still.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often threads look whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// The threads of the endpoints.
pub(crate) struct Traffic {
    flows: Arc<Flows>,
    threads: Vec<JoinHandle<()>>,
    udp_servers: Vec<udp::Server>,
}

impl Traffic {
    /// Starts all traffic. `own` are the router's listeners, of IPv4 and of IPv6.
    pub(super) fn start(
        topology: &Topology,
        flows: &Arc<Flows>,
        own: [Box<dyn Listen>; 2],
    ) -> io::Result<Traffic> {
        // Servers are bound before a client asks.
        let mut traffic = Traffic { flows: flows.clone(), threads: Vec::new(), udp_servers: Vec::new() };
        for (ip, mut own) in Ip::BOTH.into_iter().zip(own) {
            let bind = || io::Result::Ok((udp::bind_server(ip)?, tcp::listen(ip)?));
            let (socket, mut listener) = topology.server.run(bind)??;
            traffic.udp_servers.push(udp::Server::start(socket, flows.clone(), ip)?);
            let (client, server) = (&topology.client, &topology.server);
            traffic.spawn("demo-ping", client, move |f| &f.ping[ip], move |f| ping::client(f, ip))?;
            traffic.spawn("demo-udp", client, move |f| &f.udp[ip], move |f| udp::client(f, ip))?;
            traffic.spawn("demo-kv", client, move |f| &f.kv[ip], move |f| kv::client(f, ip))?;
            let serve = move |f: &Flows| tcp::server(f, &mut listener, End::Server, ip);
            traffic.spawn("demo-tcp-serve", server, move |f| &f.tcp[ip], serve)?;
            let serve = move |f: &Flows| tcp::server(f, &mut *own, End::Router, ip);
            traffic.spawn("demo-own-serve", &topology.router, move |f| &f.own[ip], serve)?;
            for at in [End::Server, End::Router] {
                let ask = move |f: &Flows| tcp::client(f, at, ip);
                traffic.spawn("demo-tcp", client, move |f| &at.of(f)[ip], ask)?;
            }
        }
        Ok(traffic)
    }

    /// A thread inside `ns` whose error is its flow's.
    fn spawn(
        &mut self,
        name: &str,
        ns: &NetNs,
        flow: impl Fn(&Flows) -> &Flow + Send + 'static,
        work: impl FnOnce(&Flows) -> Result<(), String> + Send + 'static,
    ) -> io::Result<()> {
        let (ns, flows) = (ns.try_clone()?, self.flows.clone());
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let entered = ns.enter().map_err(|error| error.to_string());
            if let Err(error) = entered.and_then(|()| work(&flows)) {
                flow(&flows).failed(error);
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Sends nothing new, waits for what is on the way, and ends the threads.
    pub(crate) fn finish(self) {
        self.flows.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for thread in self.threads {
            if thread.join().is_err() {
                self.flows.tcp[Ip::V4].failed("a thread of the endpoints panicked".into());
            }
        }
        // Only now: its clients may still have been waiting for an answer.
        self.udp_servers.into_iter().for_each(udp::Server::stop);
    }
}

/// Whether an error of a socket with a time-out means that the time is over.
fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
