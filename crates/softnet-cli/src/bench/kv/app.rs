//! The applications: `udp-kv` at many ports, and once more, with a thread of its own, at one.

use std::net::SocketAddr;
use std::sync::Arc;

use softnet::net::EpollParams;
use softnet_testkit::datagrams::{BusyPoll, DatagramSet, Stop};
use udp_kv::proto::{Request, parse};
use udp_kv::store::Store;
use udp_kv::{Server, SoftnetSockets, Waiting};

use super::packet::{FIRST_PORT, ITEMS, PORTS, SECOND_PORT, VALUE, item};
use super::xdp::kernel_sockets;
use super::{Host, Side, text};
use crate::bench::echo::xdp::SERVER;
use crate::bench::pin;

/// What both applications did, from start to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Datagrams that they received.
    pub(crate) received: u64,
    /// Datagrams that they sent.
    pub(crate) sent: u64,
    /// Responses that a socket did not take.
    pub(crate) not_sent: u64,
}

/// Both applications, running on a bed. Dropping it stops them.
pub(crate) struct App {
    servers: [Server; 2],
    stop: Arc<Stop>,
}

/// A store with all items.
fn store() -> Result<Arc<Store>, String> {
    let store = Store::new(1 << 20, 8);
    for i in 0..ITEMS {
        let (key, value) = item(i);
        let set = [format!("set {key} 0 0 {VALUE}\r\n").as_bytes(), &value, b"\r\n"].concat();
        match parse(&set).map(|parsed| parsed.request) {
            Some(Ok(Request::Store(storage))) => _ = store.store(&storage, 0),
            _ => return Err("an item cannot be stored".into()),
        }
    }
    Ok(Arc::new(store))
}

impl App {
    /// Serves on a bed, on CPU `cpu`. The first application waits as `waiting` says, the second is woken.
    pub(crate) fn start(side: &Side, waiting: Waiting, cpu: usize) -> Result<App, String> {
        let stop = Arc::new(Stop::new().map_err(text)?);
        let ports: Vec<u16> = (0..PORTS as u16).map(|i| FIRST_PORT + i).collect();
        let start = |ports: &[u16], waiting: Waiting| -> Result<Server, String> {
            let addresses: Vec<SocketAddr> = ports.iter().map(|port| (SERVER, *port).into()).collect();
            match (&side.host, &side.veth) {
                (Host::Softnet(stack, _), _) => {
                    let set = SoftnetSockets::bound(&stack.handle(), &addresses, waiting, &stop);
                    serve(set.map_err(text)?, &stop, cpu)
                }
                (Host::Kernel, Some(veth)) => {
                    let mut set = kernel_sockets(veth, &addresses, waiting.batch, &stop)?;
                    set.set_max_events(waiting.max_events);
                    set.set_longest_wait(waiting.longest);
                    set.set_busy_poll(busy_poll(&waiting.params)).map_err(text)?;
                    serve(set, &stop, cpu)
                }
                (Host::Kernel, None) => Err("the kernel needs a wire".into()),
            }
        };
        let servers = [start(&ports, waiting)?, start(&[SECOND_PORT], Waiting::default())?];
        Ok(App { servers, stop })
    }

    /// Ids of their threads.
    pub(crate) fn threads(&self) -> Vec<i32> {
        self.servers.iter().flat_map(Server::threads).map(u32::cast_signed).collect()
    }

    /// Ends them.
    pub(crate) fn stop(self) -> Result<Served, String> {
        self.stop.stop();
        let mut served = Served::default();
        for mut server in self.servers {
            server.join().map_err(text)?;
            for counters in server.counters() {
                served.received += counters.received.get();
                served.sent += counters.sent.get();
                served.not_sent += counters.not_sent.get();
            }
        }
        Ok(served)
    }
}

/// The same for the kernel's sockets.
fn busy_poll(params: &EpollParams) -> BusyPoll {
    BusyPoll {
        usecs: params.busy_poll_usecs,
        budget: params.busy_poll_budget,
        prefer: params.prefer_busy_poll.into(),
        pad: 0,
    }
}

/// A server on `cpu`.
fn serve<S>(set: S, stop: &Arc<Stop>, cpu: usize) -> Result<Server, String>
where
    S: DatagramSet + Send + 'static,
{
    let store = store()?;
    // Its thread runs where the one that makes it does.
    let start = || {
        pin(cpu)?;
        Server::start(vec![set], &store, stop).map_err(text)
    };
    std::thread::scope(|scope| scope.spawn(start).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
