//! The program of the README: a UDP echo server on the stack's sockets.
//!
//! ```text
//! cargo run --release -p softnet --example udp_echo -- CONFIG
//! ```
//!
//! `tests/docs.rs` compares it with the README, and runs its server over an in-process device.

use softnet::{Stack, config::Config, net::Handle, net::UdpSocket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: udp_echo CONFIG")?;
    let stack = Stack::start(Config::load(path.as_ref())?)?;
    Ok(echo(&stack.handle())?)
}

/// Sends each datagram to port 7 back, from the address that it was sent to.
pub fn echo(stack: &Handle) -> std::io::Result<()> {
    let socket = UdpSocket::bind(stack, "0.0.0.0:7")?;
    let mut buffer = [0; 2048];
    loop {
        let (n, from, asked) = socket.recv_msg(&mut buffer)?;
        // An answer that cannot be sent, such as one to port 0, is the asker's loss.
        let _ = socket.send_msg(&buffer[..n], (from, asked));
    }
}
