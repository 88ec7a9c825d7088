//! What TCP's host takes of memory, for each connection and for each object that a stranger can make.

use softnet_tcp::conn::Conn;

use super::super::Slot;
use super::queue::{RecvQueue, SendQueue};
use super::shard::{Asked, Payload, Sock, Waiting};

#[test]
fn objects_are_small() {
    let sizes = [
        ("slot", size_of::<Slot>(), 128),
        ("connection of the engine", size_of::<Conn<Payload>>(), 504),
        ("connection and what its host keeps", size_of::<Sock>(), 688),
        ("send queue", size_of::<SendQueue>(), 48),
        ("receive queue", size_of::<RecvQueue>(), 40),
        ("request and what its host keeps", size_of::<Asked>(), 128),
        ("TIME-WAIT and what its host keeps", size_of::<Waiting>(), 112),
    ];
    for (what, size, most) in sizes {
        assert!(size <= most, "{what}: {size} bytes, {most} at the most");
    }
}
