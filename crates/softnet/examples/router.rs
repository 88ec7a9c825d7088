//! A router inside a program, without a configuration file: interfaces and their addresses come from the command line.
//!
//! ```text
//! cargo run --release -p softnet --example router -- eth1=10.0.0.1/24 eth2=10.0.1.1/24,2001:db8::1/64
//! ```

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use softnet::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let mut router = Stack::builder().control_socket();
    for arg in std::env::args().skip(1) {
        router = router.device(device(&arg)?);
    }
    let stack = router.start()?;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        print!("{}", report(&stack));
    }
}

/// An interface from its name and addresses.
pub fn device(arg: &str) -> Result<DeviceConfig, Box<dyn Error>> {
    let (name, addresses) = arg.split_once('=').ok_or("usage: router NAME=ADDRESS/LENGTH[,…]…")?;
    let mut device = DeviceConfig::new(name);
    for address in addresses.split(',') {
        device = device.address(address.parse()?);
    }
    Ok(device)
}

/// What passed each device, and what was dropped, and why.
pub fn report(stack: &Stack) -> String {
    let mut text = String::new();
    for dev in stack.view().devs() {
        let _ = writeln!(text, "{}: {} packets in, {} out", dev.name, dev.rx_packets, dev.tx_packets);
    }
    for drop in stack.view().drops() {
        let _ = writeln!(text, "{}: {} dropped: {}", drop.dev, drop.packets, drop.reason);
    }
    text
}
