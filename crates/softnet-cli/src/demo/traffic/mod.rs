//! The endpoints: ordinary kernel sockets in the client's and the server's namespaces, run by threads that entered
//! them. Every payload is checked at both ends.

mod ping;
mod tcp;
mod udp;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use softnet_dev::netns::NetNs;

use super::flow::{Flow, Flows};
use super::topology::Topology;

/// TCP connections, each with a stream both ways.
const TCP_CONNECTIONS: usize = 2;

/// Streams of all of them.
pub(super) const TCP_STREAMS: u64 = 2 * TCP_CONNECTIONS as u64;

/// How long one payload may take, with all its retries, and how long a stream may stand still.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often threads look whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// The threads of the endpoints.
pub(crate) struct Traffic {
    flows: Arc<Flows>,
    threads: Vec<JoinHandle<()>>,
    udp_server: udp::Server,
}

impl Traffic {
    /// Starts all traffic.
    pub(crate) fn start(topology: &Topology, flows: &Arc<Flows>) -> io::Result<Traffic> {
        // Servers are bound before a client asks.
        let (udp_socket, listeners) = topology.server.run(|| {
            let listeners: io::Result<Vec<TcpListener>> = (0..TCP_CONNECTIONS).map(tcp::listen).collect();
            io::Result::Ok((udp::bind_server()?, listeners?))
        })??;
        let udp_server = udp::Server::start(udp_socket, flows.clone())?;
        let mut traffic = Traffic { flows: flows.clone(), threads: Vec::new(), udp_server };
        traffic.spawn("demo-ping", &topology.client, |flows| &flows.ping, ping::client)?;
        traffic.spawn("demo-udp", &topology.client, |flows| &flows.udp, udp::client)?;
        for (connection, listener) in listeners.into_iter().enumerate() {
            let serve = move |flows: &Flows| tcp::server(flows, &listener, connection);
            traffic.spawn("demo-tcp-serve", &topology.server, |flows| &flows.tcp, serve)?;
            let client = move |flows: &Flows| tcp::client(flows, connection);
            traffic.spawn("demo-tcp", &topology.client, |flows| &flows.tcp, client)?;
        }
        Ok(traffic)
    }

    /// A thread inside `ns` whose error is its flow's.
    fn spawn(
        &mut self,
        name: &str,
        ns: &NetNs,
        flow: fn(&Flows) -> &Flow,
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
                self.flows.tcp.failed("a thread of the endpoints panicked".into());
            }
        }
        // Only now: its clients may still have been waiting for an answer.
        self.udp_server.stop();
    }
}

/// Whether an error of a socket with a time-out means that the time is over.
fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
