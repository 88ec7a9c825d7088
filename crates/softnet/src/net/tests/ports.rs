//! What devices that share addresses with the kernel are told of ports: before a socket may receive by one, until it may not
//! any more, and with regard to what the kernel has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use softnet_core::sock::EPHEMERAL;
use softnet_core::sock::key::{ANY, Addr};
use softnet_dev::SysResult;
use softnet_dev::sys_error::SysError;
use softnet_dev::xdp::{LocalEnd, Ports};

use super::*;
use crate::net::UdpSocket;

/// What is open, and what the kernel has. It refuses all while it is `full`.
#[derive(Default)]
struct Told {
    open: Mutex<BTreeMap<(Addr, u16), usize>>,
    kernel: Mutex<Vec<std::ops::RangeInclusive<u16>>>,
    full: AtomicBool,
    /// The socket that is looked at as a port is opened: it may not be found by it yet.
    shared: Mutex<Option<Arc<StackInner>>>,
}

impl Ports for Told {
    fn opened(&self, end: &LocalEnd) -> SysResult<()> {
        let refused = |errno| SysError::new("open", std::io::Error::from_raw_os_error(errno));
        if self.full.load(Ordering::Relaxed) {
            return Err(refused(7));
        }
        if self.kernel.lock().unwrap().iter().any(|ports| ports.contains(&end.port)) {
            return Err(refused(98));
        }
        if let Some(shared) = &*self.shared.lock().unwrap() {
            let found = shared.sockets.sockets.slots().filter_map(|(_, slot)| slot.key());
            let has = |local| local == end.addr;
            assert!(!found.into_iter().any(|(key, _)| key.flow.lport == end.port && has(key.flow.local)));
        }
        *self.open.lock().unwrap().entry((end.addr, end.port)).or_default() += 1;
        Ok(())
    }

    fn closed(&self, end: &LocalEnd) {
        let mut open = self.open.lock().unwrap();
        let sockets = open.get_mut(&(end.addr, end.port)).expect("it was opened");
        *sockets -= 1;
        if *sockets == 0 {
            open.remove(&(end.addr, end.port));
        }
    }
}

impl Told {
    fn open(&self) -> Vec<(Addr, u16)> {
        self.open.lock().unwrap().keys().copied().collect()
    }
}

fn start() -> (Assembly, Remains, Arc<Told>) {
    let told = Arc::new(Told::default());
    let (assembly, remains) = assemble_with(|device| device, Some(told.clone()));
    (assembly, remains, told)
}

#[test]
fn what_cannot_be_undone_leaves_the_socket_connected() {
    let (assembly, remains, told) = start();
    let own = addr_of(OWN.into());
    let socket = UdpSocket::bind(&remains.handle, "0.0.0.0:7").unwrap();
    assert_eq!(told.open(), [(ANY, 7)]);
    *told.shared.lock().unwrap() = Some(remains.shared.clone());
    socket.connect((HOST, 9)).unwrap();
    assert_eq!(told.open(), [(own, 7)]);
    let is_connected = |socket: &UdpSocket| {
        let (peer, local) = (socket.peer_addr().ok(), socket.local_addr().unwrap());
        assert_eq!((peer, local), (Some((HOST, 9).into()), (OWN, 7).into()));
        let mut keys = remains.shared.sockets.sockets.slots().filter_map(|(_, slot)| slot.key());
        assert!(keys.any(|(key, _)| key.flow.lport == 7 && key.is_connected()));
        assert_eq!(told.open(), [(own, 7)]);
    };
    // There is no room for the port, or the kernel has it by now.
    told.full.store(true, Ordering::Relaxed);
    assert_eq!(socket.disconnect().unwrap_err().raw_os_error(), Some(105), "ENOBUFS");
    is_connected(&socket);
    told.full.store(false, Ordering::Relaxed);
    told.kernel.lock().unwrap().push(7..=7);
    assert_eq!(socket.disconnect().unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    is_connected(&socket);
    told.kernel.lock().unwrap().clear();
    // Another socket has what it was bound to.
    *told.shared.lock().unwrap() = None;
    let other = UdpSocket::bind(&remains.handle, "239.0.0.1:7").unwrap();
    assert_eq!(socket.disconnect().unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(other);
    is_connected(&socket);
    // It is open before the socket is found by it.
    *told.shared.lock().unwrap() = Some(remains.shared.clone());
    socket.disconnect().unwrap();
    assert_eq!((told.open(), socket.peer_addr().is_err()), (vec![(ANY, 7)], true));
    *told.shared.lock().unwrap() = None;
    drop((assembly, socket));
    assert_eq!(told.open(), []);
    remains.check(1);
}

#[test]
fn ports_that_the_kernel_has_are_not_chosen() {
    let (assembly, remains, told) = start();
    // All but three.
    *told.kernel.lock().unwrap() = vec![1..=39_999, 40_002..=50_000, 50_002..=u16::MAX];
    assert!(EPHEMERAL.contains(&50_001));
    let bind = || UdpSocket::bind(&remains.handle, "0.0.0.0:0");
    let sockets: Vec<_> = (0..3).map(|_| bind().unwrap()).collect();
    let mut ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [40_000, 40_001, 50_001]);
    let error = bind().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    let error = UdpSocket::bind(&remains.handle, "0.0.0.0:53").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(remains.shared.sockets.len(), 3);
    drop((assembly, sockets));
    assert_eq!(told.open(), []);
    remains.check(1);
}
