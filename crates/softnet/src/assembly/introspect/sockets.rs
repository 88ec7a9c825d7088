//! Rows of `show socket`. Slots are read as they are while others change them: a row may mix two instants.

use std::net::SocketAddr;

use softnet_core::ip::v4::header::protocol;
use softnet_core::sock::key::{Addr, socket_addr};
use softnet_core::sock::scope::device;
use softnet_core::sock::{Key, Slot};

use crate::control::show::SocketRow;
use crate::stack::StackInner;

/// Every socket that is open.
pub(super) fn rows(shared: &StackInner) -> Vec<SocketRow> {
    let name = napi_names(shared);
    let row = |(slot, (key, v4)): (&Slot, (Key, bool))| {
        let flow = key.flow;
        let napi_id = slot.napi_id();
        let tid = slot.tid();
        SocketRow {
            protocol: name_of(flow.protocol),
            local: end(shared, flow.local, flow.lport, v4),
            peer: key.is_connected().then(|| end(shared, flow.remote, flow.rport, v4)),
            queued: slot.queued().into(),
            limit: slot.limit().into(),
            drops: slot.drops(),
            napi_id,
            napi: name(napi_id),
            tid: tid as i32,
            thread: (tid != 0).then(|| thread_name(tid)).flatten(),
        }
    };
    shared.sockets.sockets.slots().filter_map(|(_, slot)| Some((slot, slot.key()?))).map(row).collect()
}

/// How NAPI instances are called, by id.
pub(super) fn napi_names(shared: &StackInner) -> impl Fn(u32) -> Option<String> + use<> {
    let napis = shared.napis();
    move |id| napis.iter().find(|i| i.napi.id == id).map(|i| i.napi.name.clone())
}

/// The name of a protocol; its number, if softnet has no sockets of it.
fn name_of(number: u8) -> String {
    match number {
        protocol::UDP => "udp".into(),
        protocol::TCP => "tcp".into(),
        other => other.to_string(),
    }
}

/// An end of a socket; of a link-local address with the name of the device.
pub(super) fn end(shared: &StackInner, addr: Addr, port: u16, v4: bool) -> String {
    let dev = device(addr).and_then(|dev| shared.netdevs.get(usize::from(dev)));
    match (socket_addr(addr, port, v4), dev) {
        (SocketAddr::V6(addr), Some(dev)) => format!("[{}%{}]:{port}", addr.ip(), dev.name),
        (addr, _) => addr.to_string(),
    }
}

/// Name of a thread of this process that runs.
fn thread_name(tid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(name.trim_end().into())
}
