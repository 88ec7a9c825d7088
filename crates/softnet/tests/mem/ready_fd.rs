//! Descriptors of sockets in the event loops of others: an echo server by `mio`, and one by `tokio`, which waste no event and
//! miss none.

use std::io::{ErrorKind, Result};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use softnet::net::{ReadyFd, UdpSocket};
use tokio::io::unix::AsyncFd;

use super::frames::{Rng, host, own};
use super::sender::{Gate, start};
use super::udp::{datagram, sent};
use super::world::{Lane, until};

/// Packets that may be pending for the owner of the TX queue.
const BURST: usize = 16;
/// The client's port, and those of the sockets.
const PORT: u16 = 999;
const PORTS: std::ops::Range<u16> = 7..10;

/// Receives and sends until the socket would block or fails. What could not be sent yet is in `unsent`.
fn echo(socket: &UdpSocket, unsent: &mut Option<(Vec<u8>, SocketAddr)>) -> ErrorKind {
    let mut buffer = [0; 64];
    loop {
        if let Some((payload, to)) = unsent {
            if let Err(error) = socket.send_to(payload, *to) {
                return error.kind();
            }
            *unsent = None;
        }
        match socket.recv_from(&mut buffer) {
            Ok((n, from)) => *unsent = Some((buffer[..n].to_vec(), from)),
            Err(error) => return error.kind(),
        }
    }
}

/// Echoes what all of `sockets` receive, until one fails.
fn by_mio(sockets: Vec<UdpSocket>) -> ErrorKind {
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(4));
    let mut served = Vec::new();
    for (token, socket) in sockets.into_iter().enumerate() {
        let fd = ReadyFd::new(socket).unwrap();
        poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), Token(token), Interest::READABLE).unwrap();
        served.push((fd, None));
    }
    loop {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            assert!(event.is_readable());
            let (fd, unsent) = &mut served[event.token().0];
            match echo(fd.socket(), unsent) {
                ErrorKind::WouldBlock => {}
                error => return error,
            }
        }
    }
}

async fn until_done<R>(fd: &AsyncFd<ReadyFd>, mut call: impl FnMut(&UdpSocket) -> Result<R>) -> Result<R> {
    loop {
        match call(fd.get_ref().socket()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => fd.readable().await?.clear_ready(),
            done => return done,
        }
    }
}

// The successor of `new` is unsafe. A descriptor of ours lives as long as what has it.
#[allow(deprecated)]
async fn serve(socket: UdpSocket) -> Result<()> {
    let fd = AsyncFd::new(ReadyFd::new(socket)?)?;
    let mut buffer = [0; 64];
    loop {
        let (n, from) = until_done(&fd, |socket| socket.recv_from(&mut buffer)).await?;
        until_done(&fd, |socket| socket.send_to(&buffer[..n], from)).await?;
    }
}

/// The same by a task for each socket.
fn by_tokio(sockets: Vec<UdpSocket>) -> ErrorKind {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = sockets.into_iter().map(|socket| tokio::spawn(serve(socket))).collect();
        let mut last = None;
        for task in tasks {
            last = Some(task.await.unwrap().unwrap_err().kind());
        }
        last.unwrap()
    })
}

/// Echoes by asynchronous sockets: of each one task receives and another sends.
#[cfg(feature = "tokio")]
fn by_async_sockets(sockets: Vec<UdpSocket>) -> ErrorKind {
    use std::collections::VecDeque;
    use std::rc::Rc;
    use std::sync::Mutex;
    use std::task::Waker;

    use softnet::net::tokio::UdpSocket as AsyncSocket;

    /// From the task that receives to the one that sends.
    #[derive(Default)]
    struct Pipe {
        datagrams: VecDeque<(Vec<u8>, SocketAddr)>,
        sender: Option<Waker>,
        over: bool,
    }

    async fn receive(socket: Rc<AsyncSocket>, pipe: Rc<Mutex<Pipe>>) -> ErrorKind {
        let mut buffer = [0; 64];
        loop {
            let received = socket.recv_from(&mut buffer).await;
            let mut pipe = pipe.lock().unwrap();
            let error = match received {
                Ok((n, from)) => {
                    pipe.datagrams.push_back((buffer[..n].to_vec(), from));
                    None
                }
                Err(error) => Some(error.kind()),
            };
            pipe.over |= error.is_some();
            pipe.sender.take().into_iter().for_each(Waker::wake);
            if let Some(error) = error {
                return error;
            }
        }
    }

    async fn send(socket: Rc<AsyncSocket>, pipe: Rc<Mutex<Pipe>>) {
        loop {
            let next = std::future::poll_fn(|cx| {
                let mut pipe = pipe.lock().unwrap();
                pipe.sender = Some(cx.waker().clone());
                match pipe.datagrams.pop_front() {
                    None if !pipe.over => std::task::Poll::Pending,
                    next => std::task::Poll::Ready(next),
                }
            });
            let Some((payload, to)) = next.await else { return };
            if socket.send_to(&payload, to).await.is_err() {
                return;
            }
        }
    }

    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let spawn = |socket| {
            let socket = Rc::new(AsyncSocket::new(socket).unwrap());
            let pipe = Rc::<Mutex<Pipe>>::default();
            tokio::task::spawn_local(send(socket.clone(), pipe.clone()));
            tokio::task::spawn_local(receive(socket, pipe))
        };
        let receivers: Vec<_> = sockets.into_iter().map(spawn).collect();
        let mut last = None;
        for receiver in receivers {
            last = Some(receiver.await.unwrap());
        }
        last.unwrap()
    })
}

/// The same as [`by_mio`], with descriptors that are registered as sources.
#[cfg(feature = "mio")]
fn by_mio_sources(sockets: Vec<UdpSocket>) -> ErrorKind {
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(4));
    let source = |(token, socket)| {
        let mut fd = ReadyFd::new(socket).unwrap();
        poll.registry().register(&mut fd, Token(token), Interest::READABLE).unwrap();
        poll.registry().reregister(&mut fd, Token(token), Interest::WRITABLE).unwrap();
        (fd, None)
    };
    let mut served: Vec<_> = sockets.into_iter().enumerate().map(source).collect();
    loop {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            assert!(event.is_readable() && !event.is_writable());
            let (fd, unsent) = &mut served[event.token().0];
            match echo(fd.socket(), unsent) {
                ErrorKind::WouldBlock => {}
                error => {
                    poll.registry().deregister(fd).unwrap();
                    return error;
                }
            }
        }
    }
}

/// The host's side: what it asked each socket, and what of that was answered.
struct Client {
    lane: Lane,
    asked: [u32; 3],
    answered: [u32; 3],
}

impl Client {
    fn ask(&mut self, rng: &mut Rng) {
        let i = rng.below(PORTS.len());
        let question = datagram(0, own(0), (PORT, PORTS.start + i as u16), &self.asked[i].to_be_bytes());
        assert_eq!(self.lane.send(&[question]), 1);
        self.asked[i] += 1;
    }

    /// Takes the answers that are there, which come in order.
    fn hear(&mut self) {
        let answered = &mut self.answered;
        self.lane.receive(|frame| {
            // What else is sent is the leader's.
            let Some((from, to, payload)) =
                (frame[36..38] == PORT.to_be_bytes()).then(|| sent(frame)).flatten()
            else {
                return;
            };
            assert_eq!(to, SocketAddrV4::new(host(0), PORT));
            let i = usize::from(from.port() - PORTS.start);
            assert_eq!(payload, answered[i].to_be_bytes());
            answered[i] += 1;
        });
    }

    fn hear_all(&mut self) {
        until("all is answered", || {
            self.hear();
            self.answered == self.asked
        });
    }
}

fn echoes(server: fn(Vec<UdpSocket>) -> ErrorKind) {
    let gate = Gate::default();
    let (world, stack, lane) = start("pfifo limit 1000", BURST as u32, &gate);
    let sockets: Vec<_> =
        PORTS.map(|port| UdpSocket::bind(&stack.handle(), (own(0), port)).unwrap()).collect();
    let clones: Vec<_> = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
    let mut client = Client { lane, asked: [0; 3], answered: [0; 3] };
    let mut rng = Rng(7);
    std::thread::scope(|scope| {
        let server = scope.spawn(move || server(sockets));
        for round in 0..2000 {
            (0..1 + rng.below(8)).for_each(|_| client.ask(&mut rng));
            // Meet the server anywhere on its way to sleep.
            match rng.below(3) {
                0 => client.hear_all(),
                1 => (0..rng.below(3000)).for_each(|_| std::hint::spin_loop()),
                _ => client.hear(),
            }
            if round % 20 == 0 {
                client.hear_all();
            }
        }
        client.hear_all();
        // Held back, it waits by the same descriptors for when it may send.
        for _ in 0..20 {
            std::thread::scope(|scope| {
                let shut = gate.shut(scope, stack.sender("mem0").unwrap());
                (0..5 * BURST).for_each(|_| client.ask(&mut rng));
                until("all are held back", || clones.iter().all(|socket| !socket.readiness().writable));
                drop(shut);
            });
            client.hear_all();
        }
        drop((stack, clones));
        assert_eq!(server.join().unwrap(), ErrorKind::NetworkDown);
    });
    world.end(vec![client.lane]);
}

#[test]
fn a_server_by_mio_echoes_all_and_learns_of_the_end() {
    echoes(by_mio);
}

#[test]
fn a_server_by_tokio_echoes_all_and_learns_of_the_end() {
    echoes(by_tokio);
}

#[cfg(feature = "mio")]
#[test]
fn a_server_by_mio_sources_echoes_all_and_learns_of_the_end() {
    echoes(by_mio_sources);
}

#[cfg(feature = "tokio")]
#[test]
fn a_server_by_async_sockets_echoes_all_and_learns_of_the_end() {
    echoes(by_async_sockets);
}

/// A task that sends without end lets others of its thread run.
#[cfg(feature = "tokio")]
#[test]
fn a_task_that_sends_lets_others_run() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let (world, stack, lane) = start("noqueue", 1000, &Gate::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let socket = softnet::net::tokio::UdpSocket::bind(&stack.handle(), (own(0), 7)).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let sender = tokio::spawn(async move {
            for _ in 0..1000 {
                socket.send_to(b"x", (own(0), 9).into()).await.unwrap();
            }
            told.store(true, Ordering::Relaxed);
        });
        let other = tokio::spawn(async move { over.load(Ordering::Relaxed) });
        assert!(!other.await.unwrap(), "the sender is done before the other task runs");
        sender.await.unwrap();
    });
    drop(stack);
    world.end(vec![lane]);
}
