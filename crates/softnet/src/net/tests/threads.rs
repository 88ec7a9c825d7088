//! The same by several threads at once, over the stack's own.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::app::EpollParams;
use crate::net::{Epoll, EpollCtl, Interest, RecvBatch, UdpSocket};

const USERS: u64 = 3;
const ROUNDS: usize = 400;

/// splitmix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z ^ z >> 27) % n as u64) as usize
    }
}

/// What all threads use and replace.
#[derive(Default)]
struct Table {
    sockets: [Mutex<Option<UdpSocket>>; 4],
    ctls: [Mutex<Option<EpollCtl>>; USERS as usize],
}

impl Table {
    fn socket(&self, rng: &mut Rng) -> Option<UdpSocket> {
        self.sockets[rng.below(4)].lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One thread's work: whatever it meets.
fn user(me: usize, seed: u64, handle: &Handle, table: &Table, stopped: &AtomicBool) {
    let mut rng = Rng(seed);
    let new_set = |prefer_busy_poll| {
        let mut epoll = Epoll::new(handle).unwrap();
        let params = EpollParams { prefer_busy_poll, busy_poll_usecs: 20, ..EpollParams::default() };
        epoll.set_params(params).unwrap();
        *table.ctls[me].lock().unwrap() = Some(epoll.ctl().clone());
        epoll
    };
    let mut epoll = new_set(me == 0);
    let (mut batch, mut events) = (RecvBatch::new(), Vec::new());
    for _ in 0..ROUNDS {
        match rng.below(12) {
            0 | 1 => {
                let at = rng.below(4);
                let builder = UdpSocket::builder(handle).reuse_port(true).recv_buffer_size(40 * 2176);
                let socket = fine(builder.bind((OWN, FIRST + at as u16)));
                if let Some(socket) = &socket {
                    socket.set_read_timeout(Some(Duration::from_micros(200))).unwrap();
                }
                // The one before is closed, perhaps while others wait for it.
                let before = std::mem::replace(&mut *table.sockets[at].lock().unwrap(), socket);
                drop(before);
            }
            2 => {
                let at = rng.below(4);
                let before = table.sockets[at].lock().unwrap().take();
                drop(before);
            }
            3 | 4 => {
                let Some(socket) = table.socket(&mut rng) else { continue };
                let interest =
                    [Interest::IN, Interest::IN | Interest::EDGE, Interest::IN | Interest::EXCLUSIVE];
                let ctl = table.ctls[rng.below(USERS as usize)].lock().unwrap().clone();
                let added = ctl.map(|ctl| ctl.add(&socket, interest[rng.below(3)], 1));
                // Of a set that is gone by now.
                if let Some(Err(error)) = added
                    && error.raw_os_error() != Some(9)
                {
                    fine::<()>(Err(error));
                }
            }
            5 | 6 => _ = fine(epoll.wait(&mut events, 4, Some(Duration::from_micros(300)))),
            7 => epoll = new_set(rng.below(2) == 0),
            8 => {
                if let Some(socket) = table.socket(&mut rng) {
                    fine(socket.recv_batch(&mut batch, 1 + rng.below(40)));
                }
            }
            9 => {
                if let Some(socket) = table.socket(&mut rng) {
                    fine(socket.recv_from(&mut [0; 64]));
                    fine(socket.send_to(b"answer", (HOST, 9)));
                    fine(socket.send_to(b"neighbour", (OWN, FIRST)));
                }
            }
            10 => {
                // A thread that ends with a socket, and what another received.
                let (socket, batch) = (table.socket(&mut rng), std::mem::take(&mut batch));
                let ends = move || {
                    socket.iter().for_each(|socket| _ = fine(socket.send_to(b"bye", (HOST, 9))));
                    drop(batch);
                };
                std::thread::spawn(ends).join().unwrap();
            }
            _ => {
                if let Some(socket) = table.socket(&mut rng) {
                    fine(socket.connect((HOST, FIRST + rng.below(4) as u16)));
                    if rng.below(2) == 0 {
                        fine(socket.disconnect());
                    }
                }
            }
        }
    }
    if stopped.load(Ordering::Acquire) {
        return;
    }
    // Some sleep until the end.
    table.ctls[me].lock().unwrap().take();
    let mut last = Epoll::new(handle).unwrap();
    if me > 0 {
        let error = last.wait(&mut events, 1, None).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NetworkDown);
    }
}

fn run(seed: u64, stop_early: bool) {
    let (assembly, mut remains) = assemble();
    let stack = Stack::run(assembly).unwrap();
    let (table, stopped) = (Table::default(), AtomicBool::new(false));
    let (handle, far) = (remains.handle.clone(), &mut remains.far);
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..USERS)
            .map(|me| {
                let (handle, table, stopped) = (&handle, &table, &stopped);
                scope.spawn(move || user(me as usize, seed * USERS + me, handle, table, stopped))
            })
            .collect();
        let mut rng = Rng(!seed);
        let bursts = if stop_early { 200 } else { usize::MAX };
        for _ in 0..bursts {
            far.take();
            far.send(FIRST + rng.below(5) as u16, FIRST + rng.below(4) as u16, 1 + rng.below(40));
            std::thread::yield_now();
            if users[0].is_finished() {
                break;
            }
        }
        stopped.store(true, Ordering::Release);
        drop(stack);
        // A scope's end waits for what threads do, but not for what they leave to their end: their contexts.
        users.into_iter().for_each(|user| user.join().unwrap());
    });
    drop(table);
    // The threads have ended; this one closed the last sockets.
    remains.check(1);
}

#[test]
fn nothing_is_left_when_threads_end_before_their_stack() {
    (0..8).for_each(|seed| run(seed, false));
}

#[test]
fn nothing_is_left_when_the_stack_stops_first() {
    (100..108).for_each(|seed| run(seed, true));
}
