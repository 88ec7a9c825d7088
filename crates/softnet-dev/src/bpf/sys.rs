//! The bpf(2) calls: maps, programs, attachments, and running a program on one packet.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::asm::{Assembler, Insn, Reg};
use crate::sys_error::{SysError, SysResult};

const MAP_CREATE: u32 = 0;
const MAP_LOOKUP_ELEM: u32 = 1;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const PROG_LOAD: u32 = 5;
const OBJ_GET_INFO_BY_FD: u32 = 15;
pub(super) const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;

const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_PERCPU_ARRAY: u32 = 6;
const MAP_TYPE_LRU_HASH: u32 = 9;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_SCHED_CLS: u32 = 3;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
const LINK_TYPE_XDP: u32 = 6;

/// Map flag: memory for an entry is taken when it is made, and not for all of them beforehand.
const F_NO_PREALLOC: u32 = 1;

/// Program flag: the program can take packets of several fragments (needed for MTUs beyond one page).
pub const F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// Program flag: it runs in the driver of one interface only, and may ask it for what belongs to a
/// packet (`BPF_F_XDP_DEV_BOUND_ONLY`).
const F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;

/// What an XDP program says about a packet (`enum xdp_action`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum XdpAction {
    Aborted = 0,
    Drop = 1,
    Pass = 2,
    Tx = 3,
    Redirect = 4,
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel makes an skb (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// After the kernel made an skb: works on every interface, slower (`XDP_FLAGS_SKB_MODE`).
    Skb,
}

/// One bpf(2) call. The attribute is copied in (and, for a few commands, out) by the kernel.
pub(super) fn bpf<A>(command: u32, attr: &mut A) -> io::Result<i32> {
    // SAFETY: `attr` is a live, initialised `repr(C)` prefix of `union bpf_attr` of the stated size; the kernel takes
    // missing bytes as zero. The pointers inside it are to live buffers of the lengths beside them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// As [`bpf`], for commands that return a descriptor (close-on-exec, as the kernel makes them).
pub(super) fn bpf_fd<A>(command: u32, attr: &mut A) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn object_name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes[..15].iter_mut().zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() || from == b'_' { from } else { b'_' };
    }
    bytes
}

/// How many CPUs this machine can ever have: the number of values a per-CPU map keeps for a key.
pub fn possible_cpus() -> io::Result<usize> {
    let path = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(path)?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|cpu| cpu.parse::<usize>().ok());
    last.map(|cpu| cpu + 1)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path}: {text:?} is no CPU list")))
}

/// A map with 32-bit keys.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    /// Bytes of a value as the system call sees it (per-CPU maps: of all CPUs together).
    value_len: usize,
}

#[repr(C)]
struct MapCreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

#[repr(C)]
struct MapElemAttr {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Makes a map of this type, whose keys and values have these sizes.
fn create(
    (map_type, map_flags): (u32, u32),
    name: &str,
    (key_size, value_size): (u32, u32),
    max_entries: u32,
) -> SysResult<OwnedFd> {
    let mut attr = MapCreateAttr {
        map_type,
        key_size,
        value_size,
        max_entries,
        map_flags,
        inner_map_fd: 0,
        numa_node: 0,
        map_name: object_name(name),
    };
    bpf_fd(MAP_CREATE, &mut attr).map_err(|error| {
        SysError::new(format!("create BPF map {name}"), error).needs("CAP_BPF,CAP_NET_ADMIN")
    })
}

impl Map {
    fn create(map_type: u32, name: &str, value_size: u32, max_entries: u32) -> SysResult<OwnedFd> {
        create((map_type, 0), name, (4, value_size), max_entries)
    }

    /// An array of `entries` values of `value_size` bytes, zeroed, shared by all CPUs.
    pub fn array(name: &str, value_size: u32, entries: u32) -> SysResult<Self> {
        let fd = Self::create(MAP_TYPE_ARRAY, name, value_size, entries)?;
        Ok(Map { fd, value_len: value_size as usize })
    }

    /// An array of `entries` 64-bit counters per CPU, zeroed; [`sum`](Self::sum) reads one.
    pub fn percpu_counters(name: &str, entries: u32) -> SysResult<Self> {
        let cpus =
            possible_cpus().map_err(|error| SysError::new(format!("size per-CPU BPF map {name}"), error))?;
        let fd = Self::create(MAP_TYPE_PERCPU_ARRAY, name, 8, entries)?;
        Ok(Map { fd, value_len: 8 * cpus })
    }

    /// A map from RX queue index to AF_XDP socket, for `entries` queues.
    pub fn xsk(entries: u32) -> SysResult<Self> {
        let fd = Self::create(MAP_TYPE_XSKMAP, "softnet_xsks", 4, entries)?;
        Ok(Map { fd, value_len: 4 })
    }

    fn element(&self, command: u32, key: u32, value: *mut u8) -> io::Result<()> {
        let mut attr = MapElemAttr {
            map_fd: self.as_raw_fd() as u32,
            _pad: 0,
            key: std::ptr::from_ref(&key) as u64,
            value: value as u64,
            flags: 0,
        };
        bpf(command, &mut attr).map(drop)
    }

    /// The value at `key` (of a per-CPU map: the values of all CPUs, one after the other).
    pub fn lookup(&self, key: u32) -> SysResult<Vec<u8>> {
        let mut value = vec![0; self.value_len];
        self.element(MAP_LOOKUP_ELEM, key, value.as_mut_ptr())
            .map_err(|error| SysError::new(format!("read BPF map entry {key}"), error))?;
        Ok(value)
    }

    /// Sum over all CPUs of the counter at `key`.
    pub fn sum(&self, key: u32) -> SysResult<u64> {
        let value = self.lookup(key)?;
        Ok(value.as_chunks::<8>().0.iter().map(|cpu| u64::from_ne_bytes(*cpu)).sum())
    }

    /// Sets the value at `key`.
    ///
    /// # Errors
    /// A value of another length than the map's is refused (`InvalidInput`).
    pub fn update(&self, key: u32, value: &[u8]) -> SysResult<()> {
        let mut value = value.to_vec();
        let result = if value.len() == self.value_len {
            self.element(MAP_UPDATE_ELEM, key, value.as_mut_ptr())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "value of the wrong length"))
        };
        result.map_err(|error| SysError::new(format!("write BPF map entry {key}"), error))
    }

    /// Puts a descriptor at `key` (an AF_XDP socket, for [`Map::xsk`]). The map keeps it until it is closed.
    pub fn update_fd(&self, key: u32, fd: BorrowedFd<'_>) -> SysResult<()> {
        self.update(key, &fd.as_raw_fd().to_ne_bytes())
    }

    /// Removes the entry at `key`.
    pub fn delete(&self, key: u32) -> SysResult<()> {
        self.element(MAP_DELETE_ELEM, key, std::ptr::null_mut())
            .map_err(|error| SysError::new(format!("delete BPF map entry {key}"), error))
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A set of keys of `N` bytes. A program looks a key up by [`helper::MAP_LOOKUP_ELEM`](super::helper::MAP_LOOKUP_ELEM),
/// which says null if it is not in.
#[derive(Debug)]
pub struct Set<const N: usize = 16> {
    fd: OwnedFd,
}

impl<const N: usize> Set<N> {
    /// An empty set for up to `entries` keys.
    pub fn new(name: &str, entries: u32) -> SysResult<Self> {
        // A value has to have a size.
        Ok(Set { fd: create((MAP_TYPE_HASH, F_NO_PREALLOC), name, (N as u32, 1), entries)? })
    }

    /// Puts `key` in; nothing changes if it is.
    ///
    /// # Errors
    /// E2BIG if the set is full.
    pub fn insert(&self, key: &[u8; N]) -> SysResult<()> {
        element(&self.fd, MAP_UPDATE_ELEM, key, &1).map_err(|error| SysError::new("add to a BPF set", error))
    }

    /// Takes `key` out.
    ///
    /// # Errors
    /// ENOENT if it was not in.
    pub fn remove(&self, key: &[u8; N]) -> SysResult<()> {
        element(&self.fd, MAP_DELETE_ELEM, key, std::ptr::null())
            .map_err(|error| SysError::new("take from a BPF set", error))
    }
}

impl<const N: usize> AsFd for Set<N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A command about the entry `key` of a map whose keys have `N` bytes.
fn element<const N: usize>(fd: &OwnedFd, command: u32, key: &[u8; N], value: *const u8) -> io::Result<()> {
    let mut attr = MapElemAttr {
        map_fd: fd.as_raw_fd() as u32,
        _pad: 0,
        key: std::ptr::from_ref(key) as u64,
        value: value as u64,
        flags: 0,
    };
    bpf(command, &mut attr).map(drop)
}

/// A map from keys of `N` bytes to 64-bit values, which programs keep by themselves: a new entry
/// takes the place of one that was used longest ago.
#[derive(Debug)]
pub struct LruMap<const N: usize> {
    fd: OwnedFd,
}

impl<const N: usize> LruMap<N> {
    /// An empty map for about `entries` entries.
    pub fn new(name: &str, entries: u32) -> SysResult<Self> {
        Ok(LruMap { fd: create((MAP_TYPE_LRU_HASH, 0), name, (N as u32, 8), entries)? })
    }

    /// Sets the value at `key`, as a program does.
    #[cfg(test)]
    pub(crate) fn put(&self, key: &[u8; N], value: u64) -> io::Result<()> {
        element(&self.fd, MAP_UPDATE_ELEM, key, value.to_ne_bytes().as_ptr())
    }
}

impl<const N: usize> AsFd for LruMap<N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A loaded program, alive as long as this or an attachment of it is.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

#[repr(C)]
struct ProgLoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct ObjInfoAttr {
    fd: u32,
    info_len: u32,
    info: u64,
}

/// What `struct bpf_prog_info` begins with.
#[repr(C)]
#[derive(Default)]
struct ProgInfo {
    prog_type: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    jited: u64,
    xlated: u64,
}

/// Whether the kernel takes constants out of programs, for which it copies them. Its switch for it
/// can be read in its first network namespace only, so a program is loaded that shows it.
fn blinds_constants() -> SysResult<bool> {
    let mut asm = Assembler::new();
    asm.mov(Reg::R0, XdpAction::Pass as i32);
    asm.exit();
    let bare = asm.finish()?;
    Ok(Program::load_xdp(&bare, "softnet_probe", 0)?.len()? != bare.len())
}

impl Program {
    /// Loads `insns` as an XDP program; see [`Assembler::load_xdp`](super::Assembler::load_xdp).
    pub fn load_xdp(insns: &[Insn], name: &str, flags: u32) -> SysResult<Self> {
        Self::load((PROG_TYPE_XDP, ATTACH_TYPE_XDP), insns, name, flags, 0)
    }

    /// Loads `insns` for the tc hooks; see [`Assembler::load_tc`](super::Assembler::load_tc).
    pub fn load_tc(insns: &[Insn], name: &str) -> SysResult<Self> {
        Self::load((PROG_TYPE_SCHED_CLS, 0), insns, name, 0, 0)
    }

    /// The same for the driver of one interface; see
    /// [`Assembler::load_xdp_for`](super::Assembler::load_xdp_for).
    pub(super) fn load_xdp_for(insns: &[Insn], name: &str, ifindex: u32, flags: u32) -> SysResult<Self> {
        let refuse = |why: &str| {
            let error = io::Error::new(io::ErrorKind::Unsupported, why);
            Err(SysError::new(format!("load BPF program {name} for one interface"), error))
        };
        if blinds_constants()? {
            return refuse("the kernel blinds constants (net.core.bpf_jit_harden)");
        }
        let of_xdp = (PROG_TYPE_XDP, ATTACH_TYPE_XDP);
        let program = Self::load(of_xdp, insns, name, F_XDP_DEV_BOUND_ONLY | flags, ifindex)?;
        match program.len()? > insns.len() {
            // Nothing refers to it, so the kernel frees what is there.
            true => refuse("the kernel made it longer than there is room for"),
            false => Ok(program),
        }
    }

    /// Instructions that it has in the kernel, which replaces some by others.
    pub(crate) fn len(&self) -> SysResult<usize> {
        let mut info = ProgInfo::default();
        let mut attr = ObjInfoAttr {
            fd: self.fd.as_raw_fd() as u32,
            info_len: size_of::<ProgInfo>() as u32,
            info: std::ptr::from_mut(&mut info) as u64,
        };
        bpf(OBJ_GET_INFO_BY_FD, &mut attr)
            .map_err(|error| SysError::new("read what became of a BPF program", error))?;
        Ok(info.xlated_len as usize / size_of::<Insn>())
    }

    fn load(
        (prog_type, expected_attach_type): (u32, u32),
        insns: &[Insn],
        name: &str,
        flags: u32,
        ifindex: u32,
    ) -> SysResult<Self> {
        let mut attr = ProgLoadAttr {
            prog_type,
            insn_cnt: insns.len() as u32,
            insns: insns.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: flags,
            prog_name: object_name(name),
            prog_ifindex: ifindex,
            expected_attach_type,
        };
        let first = match bpf_fd(PROG_LOAD, &mut attr) {
            Ok(fd) => return Ok(Program { fd }),
            Err(error) => error,
        };
        let error = SysError::new(format!("load BPF program {name}"), first);
        if error.is_permission() && error.errno() == Some(libc::EPERM) {
            return Err(error.needs("CAP_BPF,CAP_NET_ADMIN"));
        }
        // Once more with a log, which costs the verifier time and is of use only now.
        let mut log = vec![0u8; 64 * 1024];
        attr.log_level = 1;
        attr.log_size = log.len() as u32;
        attr.log_buf = log.as_mut_ptr() as u64;
        match bpf_fd(PROG_LOAD, &mut attr) {
            Ok(fd) => Ok(Program { fd }),
            Err(_) => {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                Err(error
                    .detail(format!("verifier says:\n{}", String::from_utf8_lossy(&log[..end]).trim_end())))
            }
        }
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An XDP program attached to an interface. Dropping it, or the end of the process, detaches it; deletion of the
/// interface leaves it without effect.
#[derive(Debug)]
pub struct XdpLink {
    fd: OwnedFd,
}

#[repr(C)]
pub(super) struct LinkCreateAttr {
    pub(super) prog_fd: u32,
    pub(super) target_ifindex: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
}

#[repr(C)]
struct LinkUpdateAttr {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// What `struct bpf_link_info` begins with, of an XDP program's.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    link_type: u32,
    id: u32,
    prog_id: u32,
    _pad: u32,
    ifindex: u32,
    _rest: [u32; 19],
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl XdpLink {
    /// Attaches `program` to the interface `ifindex` of the calling thread's network namespace.
    ///
    /// # Errors
    /// EOPNOTSUPP or EINVAL where the driver can't do [`XdpMode::Native`] (or not with this MTU); EBUSY where another
    /// program is attached; ENODEV (or EINVAL) where there is no such interface.
    pub fn attach(program: &Program, ifindex: u32, mode: XdpMode) -> SysResult<Self> {
        let mut attr = LinkCreateAttr {
            prog_fd: program.fd.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: ATTACH_TYPE_XDP,
            flags: match mode {
                XdpMode::Skb => 1 << 1,
                XdpMode::Native => 1 << 2,
            },
        };
        let fd = bpf_fd(LINK_CREATE, &mut attr).map_err(|error| {
            let what = format!("attach an XDP program to interface {ifindex} ({mode:?} mode)");
            SysError::new(what, error).needs("CAP_BPF,CAP_NET_ADMIN")
        })?;
        Ok(XdpLink { fd })
    }

    /// The attachment that `fd` is, made by another process, if it is one of an XDP program to the
    /// interface `ifindex`.
    ///
    /// # Errors
    /// InvalidData if it is something else.
    pub fn handed_over(fd: OwnedFd, ifindex: u32) -> SysResult<Self> {
        let mut info = LinkInfo::default();
        let mut attr = ObjInfoAttr {
            fd: fd.as_raw_fd() as u32,
            info_len: size_of::<LinkInfo>() as u32,
            info: std::ptr::from_mut(&mut info) as u64,
        };
        let what = || format!("take over the XDP program of interface {ifindex}");
        bpf(OBJ_GET_INFO_BY_FD, &mut attr).map_err(|error| SysError::new(what(), error))?;
        if (info.link_type, info.ifindex) != (LINK_TYPE_XDP, ifindex) {
            let other = io::Error::new(io::ErrorKind::InvalidData, "not an attachment to that interface");
            return Err(SysError::new(what(), other));
        }
        Ok(XdpLink { fd })
    }

    /// Puts `program` in the place of the one that is attached: every packet meets the one or the other.
    ///
    /// # Errors
    /// ENOLINK where the interface is gone.
    pub fn update(&self, program: &Program) -> SysResult<()> {
        let mut attr = LinkUpdateAttr {
            link_fd: self.fd.as_raw_fd() as u32,
            new_prog_fd: program.fd.as_raw_fd() as u32,
            flags: 0,
            old_prog_fd: 0,
        };
        bpf(LINK_UPDATE, &mut attr)
            .map(drop)
            .map_err(|error| SysError::new("exchange an XDP program", error).needs("CAP_BPF,CAP_NET_ADMIN"))
    }
}

#[cfg(test)]
mod tests;
