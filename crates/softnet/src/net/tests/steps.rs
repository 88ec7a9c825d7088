//! Any order of steps, one after the other. The stack's worker is run by the test, so each case is what its steps say, and no
//! time passes that anything depends on.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::app::EpollParams;
use crate::net::{Epoll, Interest, ReadyFd, RecvBatch, UdpSocket};

/// How many there are of each: sockets, sets, descriptors, batches.
const EACH: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Opens a socket in place of the one that was there.
    Bind {
        socket: usize,
        port: u16,
        shared: bool,
        room: usize,
    },
    Connect {
        socket: usize,
        port: u16,
    },
    Disconnect {
        socket: usize,
    },
    Close {
        socket: usize,
    },
    /// Datagrams come for a port.
    Arrive {
        port: u16,
        from: u16,
        n: usize,
    },
    Receive {
        socket: usize,
        n: usize,
    },
    Peek {
        socket: usize,
    },
    ReceiveBatch {
        socket: usize,
        batch: usize,
        n: usize,
    },
    /// A batch is given back, perhaps by a thread that never used the stack.
    DropBatch {
        batch: usize,
        elsewhere: bool,
    },
    Send {
        socket: usize,
        n: usize,
    },
    /// To a port here.
    SendHere {
        socket: usize,
        port: u16,
        n: usize,
    },
    NewSet {
        set: usize,
        prefer_busy_poll: bool,
    },
    Add {
        set: usize,
        socket: usize,
        interest: usize,
    },
    Delete {
        set: usize,
        socket: usize,
    },
    Wait {
        set: usize,
        max: usize,
    },
    DropSet {
        set: usize,
    },
    Watch {
        fd: usize,
        socket: usize,
    },
    DropFd {
        fd: usize,
    },
    /// A thread uses a socket and ends.
    Thread {
        socket: usize,
    },
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    let (i, port, n) = (|| 0..EACH, || FIRST..FIRST + PORTS, || 1..40usize);
    prop_oneof![
        4 => (i(), port(), any::<bool>(), 1..50usize)
            .prop_map(|(socket, port, shared, room)| Step::Bind { socket, port, shared, room }),
        2 => (i(), port()).prop_map(|(socket, port)| Step::Connect { socket, port }),
        1 => i().prop_map(|socket| Step::Disconnect { socket }),
        1 => i().prop_map(|socket| Step::Close { socket }),
        6 => (port(), port(), n()).prop_map(|(port, from, n)| Step::Arrive { port, from, n }),
        2 => (i(), n()).prop_map(|(socket, n)| Step::Receive { socket, n }),
        1 => i().prop_map(|socket| Step::Peek { socket }),
        2 => (i(), i(), n()).prop_map(|(socket, batch, n)| Step::ReceiveBatch { socket, batch, n }),
        1 => (i(), any::<bool>()).prop_map(|(batch, elsewhere)| Step::DropBatch { batch, elsewhere }),
        2 => (i(), n()).prop_map(|(socket, n)| Step::Send { socket, n }),
        2 => (i(), port(), n()).prop_map(|(socket, port, n)| Step::SendHere { socket, port, n }),
        2 => (i(), any::<bool>()).prop_map(|(set, prefer_busy_poll)| Step::NewSet { set, prefer_busy_poll }),
        4 => (i(), i(), i()).prop_map(|(set, socket, interest)| Step::Add { set, socket, interest }),
        1 => (i(), i()).prop_map(|(set, socket)| Step::Delete { set, socket }),
        4 => (i(), 1..4usize).prop_map(|(set, max)| Step::Wait { set, max }),
        1 => i().prop_map(|set| Step::DropSet { set }),
        1 => (i(), i()).prop_map(|(fd, socket)| Step::Watch { fd, socket }),
        1 => i().prop_map(|fd| Step::DropFd { fd }),
        1 => i().prop_map(|socket| Step::Thread { socket }),
        // About every other case.
        1 => (0..20usize, i()).prop_map(|(n, batch)| match n {
            0 => Step::Stop,
            _ => Step::DropBatch { batch, elsewhere: false },
        }),
    ]
}

fn interest(which: usize) -> Interest {
    match which {
        0 => Interest::IN,
        1 => Interest::IN | Interest::EDGE,
        2 => Interest::IN | Interest::OUT | Interest::ONE_SHOT,
        _ => Interest::IN | Interest::EXCLUSIVE,
    }
}

/// What there is at the moment.
#[derive(Default)]
struct Play {
    assembly: Option<Assembly>,
    sockets: [Option<UdpSocket>; EACH],
    sets: [Option<Epoll>; EACH],
    fds: [Option<ReadyFd>; EACH],
    batches: [Option<RecvBatch>; EACH],
}

impl Play {
    /// Runs the worker for as long as it finds anything to do.
    fn work(&mut self) {
        let workers = self.assembly.iter_mut().flat_map(|assembly| &mut assembly.workers);
        workers.for_each(|worker| while worker.round() {});
    }

    fn go(&mut self, step: Step, remains: &mut Remains) {
        let Play { sockets, sets, fds, batches, .. } = self;
        let far = &mut remains.far;
        match step {
            Step::Bind { socket, port, shared, room } => {
                sockets[socket] = None;
                let builder =
                    UdpSocket::builder(&remains.handle).reuse_port(shared).recv_buffer_size(room * 2176);
                sockets[socket] = fine(builder.bind((OWN, port)));
                sockets[socket].iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
            }
            Step::Connect { socket, port } => {
                sockets[socket].iter().for_each(|socket| _ = fine(socket.connect((HOST, port))));
            }
            Step::Disconnect { socket } => {
                sockets[socket].iter().for_each(|socket| _ = fine(socket.disconnect()));
            }
            Step::Close { socket } => sockets[socket] = None,
            Step::Arrive { port, from, n } => {
                far.take();
                far.send(port, from, n);
            }
            Step::Receive { socket, n } => {
                let Some(socket) = &sockets[socket] else { return };
                (0..n).for_each(|_| _ = fine(socket.recv_from(&mut [0; 64])));
            }
            Step::Peek { socket } => {
                sockets[socket].iter().for_each(|socket| _ = fine(socket.peek(&mut [0; 64])));
            }
            Step::ReceiveBatch { socket, batch, n } => {
                let Some(socket) = &sockets[socket] else { return };
                fine(socket.recv_batch(batches[batch].get_or_insert_default(), n));
            }
            Step::DropBatch { batch, elsewhere } => {
                let batch = batches[batch].take();
                match elsewhere {
                    true => std::thread::spawn(move || drop(batch)).join().unwrap(),
                    false => drop(batch),
                }
            }
            Step::Send { socket, n } => {
                let Some(socket) = &sockets[socket] else { return };
                let messages = vec![(&b"away"[..], Some((HOST, 9).into())); n];
                fine(socket.send_batch(&messages));
            }
            Step::SendHere { socket, port, n } => {
                let Some(socket) = &sockets[socket] else { return };
                (0..n).for_each(|_| _ = fine(socket.send_to(b"here", (OWN, port))));
            }
            Step::NewSet { set, prefer_busy_poll } => {
                let mut epoll = Epoll::new(&remains.handle).unwrap();
                epoll.set_params(EpollParams { prefer_busy_poll, ..EpollParams::default() }).unwrap();
                sets[set] = Some(epoll);
            }
            Step::Add { set, socket, interest: which } => {
                let (Some(set), Some(socket)) = (&sets[set], &sockets[socket]) else { return };
                fine(set.ctl().add(socket, interest(which), 1));
            }
            Step::Delete { set, socket } => {
                let (Some(set), Some(socket)) = (&sets[set], &sockets[socket]) else { return };
                fine(set.ctl().delete(socket));
            }
            Step::Wait { set, max } => {
                let Some(set) = &mut sets[set] else { return };
                fine(set.wait(&mut Vec::new(), max, Some(Duration::from_nanos(1))));
            }
            Step::DropSet { set } => sets[set] = None,
            Step::Watch { fd, socket } => {
                fds[fd] = sockets[socket].clone().map(|socket| ReadyFd::new(socket).unwrap());
            }
            Step::DropFd { fd } => fds[fd] = None,
            Step::Thread { socket } => {
                let Some(socket) = sockets[socket].clone() else { return };
                let uses = move || {
                    fine(socket.recv_from(&mut [0; 64]));
                    fine(socket.send_to(b"bye", (HOST, 9)));
                };
                std::thread::spawn(uses).join().unwrap();
            }
            Step::Stop => self.assembly = None,
        }
        self.work();
    }

    /// Drops everything, in one of several orders.
    fn end(self, order: usize, remains: &mut Remains) {
        let Play { assembly, sockets, sets, fds, batches } = self;
        if order & 1 != 0 {
            drop(assembly);
            match order & 2 {
                0 => drop((sockets, fds, sets, batches)),
                _ => drop((batches, sets, fds, sockets)),
            }
        } else {
            match order & 2 {
                0 => drop((sets, sockets, batches, fds)),
                _ => drop((sockets, batches, fds, sets)),
            }
            remains.check_nothing_is_open();
            drop(assembly);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn nothing_is_left_whatever_is_done_in_whatever_order(
        steps in prop::collection::vec(step(), 1..80),
        order in 0..4usize,
    ) {
        let (assembly, mut remains) = assemble();
        let mut play = Play { assembly: Some(assembly), ..Play::default() };
        play.work();
        for step in steps {
            play.go(step, &mut remains);
        }
        play.end(order, &mut remains);
        // This thread is one that used it.
        remains.check(1);
    }
}
