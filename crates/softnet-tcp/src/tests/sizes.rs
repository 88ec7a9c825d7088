//! What the parts of the engine take of memory.

use crate::conn::Conn;
use crate::listen::Request;
use crate::timewait::TimeWait;

#[test]
fn objects_are_small() {
    assert!(size_of::<Conn<u64>>() <= 512, "connection: {}", size_of::<Conn<u64>>());
    assert!(size_of::<Request>() <= 96, "request: {}", size_of::<Request>());
    assert!(size_of::<TimeWait>() <= 64, "TIME-WAIT: {}", size_of::<TimeWait>());
}
