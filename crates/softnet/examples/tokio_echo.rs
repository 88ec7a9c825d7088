//! A UDP echo server on `tokio`.
//!
//! ```text
//! cargo run --release -p softnet --features tokio --example tokio_echo -- CONFIG
//! ```

use std::error::Error;

use softnet::net::tokio::UdpSocket;
use softnet::prelude::{Config, Handle, Stack};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: tokio_echo CONFIG")?;
    let stack = Stack::start(Config::load(path.as_ref())?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    Ok(runtime.block_on(echo(&stack.handle()))?)
}

/// Sends each datagram to port 7 back, from the address that it was sent to.
pub async fn echo(stack: &Handle) -> std::io::Result<()> {
    let socket = UdpSocket::bind(stack, "0.0.0.0:7")?;
    let mut buffer = [0; 2048];
    loop {
        let (n, from, asked) = socket.recv_msg(&mut buffer).await?;
        // An answer that cannot be sent, such as one to port 0, is the asker's loss.
        let _ = socket.send_msg(&buffer[..n], (from, asked)).await;
    }
}
