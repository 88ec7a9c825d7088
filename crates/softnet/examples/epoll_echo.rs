//! A UDP echo server with an epoll set, which polls its NAPI instance itself while packets keep coming, and suspends the
//! queue's doorbell meanwhile.
//!
//! ```text
//! cargo run --release -p softnet --example epoll_echo -- CONFIG
//! ```
//!
//! Suspension takes three knobs of the device as well:
//! `softnet set dev eth1 napi-defer-hard-irqs=100 gro-flush-timeout=20000 irq-suspend-timeout=20000000`.

use std::error::Error;
use std::io::{self, ErrorKind};

use softnet::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: epoll_echo CONFIG")?;
    let stack = Stack::builder().config(Config::load(path.as_ref())?).control_socket().start()?;
    Ok(echo(&stack.handle(), &[7, 1007])?)
}

/// Sends each datagram to one of `ports` back, from the address that it was sent to.
pub fn echo(stack: &Handle, ports: &[u16]) -> io::Result<()> {
    let mut epoll = Epoll::new(stack)?;
    let params = EpollParams { prefer_busy_poll: true, busy_poll_budget: 64, ..EpollParams::default() };
    epoll.set_params(params).map_err(io::Error::other)?;
    let mut sockets = Vec::new();
    for (token, port) in ports.iter().enumerate() {
        let socket = UdpSocket::bind(stack, ("0.0.0.0", *port))?;
        socket.set_nonblocking(true)?;
        epoll.ctl().add(&socket, Interest::IN, token as u64)?;
        sockets.push(socket);
    }
    let (mut events, mut buffer) = (Vec::new(), [0; 2048]);
    loop {
        epoll.wait(&mut events, 64, None)?;
        for event in &events {
            let socket = &sockets[event.token as usize];
            match socket.recv_msg(&mut buffer) {
                // An answer that cannot be sent, such as one to port 0, is the asker's loss.
                Ok((n, from, asked)) => _ = socket.send_msg(&buffer[..n], (from, asked)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}
