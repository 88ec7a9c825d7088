//! Rows of `show socket`. Slots are read as they are while others change them: a row may mix two instants.

use softnet_core::sock::key::socket_addr;
use softnet_core::sock::{Flow, Slot};

use crate::shared::Shared;
use crate::show::SocketRow;

/// Every socket that is open.
pub(super) fn rows(shared: &Shared) -> Vec<SocketRow> {
    let napis = shared.napis();
    let name = |id: u32| napis.iter().find(|i| i.napi.id == id).map(|i| i.napi.name.clone());
    let row = |(slot, (key, v4)): (&Slot, (Flow, bool))| {
        let napi_id = slot.napi_id();
        let tid = slot.tid();
        SocketRow {
            protocol: "udp".into(),
            local: socket_addr(key.local, key.lport, v4).to_string(),
            peer: key.is_connected().then(|| socket_addr(key.remote, key.rport, v4).to_string()),
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

/// Name of a thread of this process that runs.
fn thread_name(tid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(name.trim_end().into())
}
