//! Functions of the kernel's that programs may call, by name: their numbers are in its type
//! information (BTF, as Documentation/bpf/btf.rst has it), in which they are those of the kernel
//! that runs.
//!
//! Control path; any thread may call it. Invariant: bytes that are no type information give no
//! number, and no panic.

use std::fs::File;
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PATH: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const TYPE_LEN: usize = 12;
const KIND_FUNC: u32 = 12;

/// A function of the running kernel's, for
/// [`Assembler::call_kernel`](super::Assembler::call_kernel).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFn(i32);

impl KernelFn {
    /// `int bpf_xdp_metadata_rx_vlan_tag(ctx, &protocol, &tci)`: 0 if the driver has a VLAN tag
    /// beside the frame. `None` on a kernel without it (before 6.8), or that does not say what it
    /// has.
    pub fn xdp_vlan_tag() -> Option<Self> {
        static FOUND: OnceLock<Option<KernelFn>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            with_types(|types| function(types, b"bpf_xdp_metadata_rx_vlan_tag"))?.map(KernelFn)
        })
    }

    pub(super) fn id(self) -> i32 {
        self.0
    }
}

/// Gives `f` the kernel's type information. It can be mapped from Linux 6.16 on; read, its 5 MB come a page at
/// a time, which takes 6 ms of the start.
fn with_types<T>(f: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let file = File::open(PATH).ok()?;
    let len = file.metadata().ok()?.len() as usize;
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let Ok(at) = (unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) })
    else {
        return Some(f(&std::fs::read(PATH).ok()?));
    };
    // SAFETY: so many bytes are mapped until the end of this function, and what the kernel says of its types
    // does not change while it runs.
    let done = f(unsafe { std::slice::from_raw_parts(at.cast(), len) });
    // SAFETY: the mapping made above, which nothing refers to any more. If it stays, it costs address space only.
    let _ = unsafe { munmap(at, len) };
    Some(done)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*four))
}

/// The number of the function called `name` in `types`.
fn function(types: &[u8], name: &[u8]) -> Option<i32> {
    if u16::from_ne_bytes(*types.first_chunk()?) != MAGIC {
        return None;
    }
    // Magic and version, length of the header; types and names by offset behind it and length.
    let part = |at: usize| {
        let begin = number(types, 4)?.checked_add(number(types, at)?)? as usize;
        types.get(begin..)?.get(..number(types, at + 4)? as usize)
    };
    let (mut rest, names) = (part(8)?, part(16)?);
    let is_name = |at: u32| {
        let tail = names.get(at as usize..).and_then(|names| names.strip_prefix(name));
        tail.is_some_and(|tail| tail.first() == Some(&0))
    };
    // Number 0 is void, which is not listed.
    for id in 1.. {
        let info = number(rest, 4)?;
        let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        if kind == KIND_FUNC && is_name(number(rest, 0)?) {
            return Some(id);
        }
        rest = rest.get(TYPE_LEN + tail_len(kind, members)?..)?;
    }
    None
}

/// Bytes behind a type of this kind; `None` if there is no such kind.
fn tail_len(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // Integers, variables, and what is said of a declaration.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections, enumerations of 64 bits.
        4 | 5 | 15 | 19 => 12 * members,
        // Enumerations, prototypes.
        6 | 13 => 8 * members,
        // Pointers, names for types, qualifiers, functions, floating point, what is said of a type.
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An integer, a structure of one member, and the functions `a` and `ab`.
    fn sample() -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        let func = |name| [name, KIND_FUNC << 24, 1];
        let types = [
            words(&[0, 1 << 24, 4, 32]),
            words(&[0, 4 << 24 | 1, 4, 0, 1, 0]),
            words(&func(1)),
            words(&func(3)),
        ]
        .concat();
        let names = b"\0a\0ab\0";
        let header = [24, 0, types.len() as u32, types.len() as u32, names.len() as u32];
        let magic = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        [magic, words(&header), types, names.to_vec()].concat()
    }

    /// Mapped or read, it is the same.
    #[test]
    fn the_kernel_has_types() {
        let Ok(types) = std::fs::read(PATH) else { return };
        assert_eq!(with_types(<[u8]>::to_vec), Some(types));
    }

    #[test]
    fn functions_are_found_by_their_whole_name() {
        let sample = sample();
        assert_eq!(function(&sample, b"a"), Some(3));
        assert_eq!(function(&sample, b"ab"), Some(4));
        assert_eq!(function(&sample, b"b"), None);
        assert_eq!(function(&sample, b"abc"), None);
        (0..sample.len()).for_each(|len| assert_eq!(function(&sample[..len], b"ab"), None, "{len}"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(changes in prop::collection::vec((0usize..100, any::<u8>()), 0..6)) {
            let mut bytes = sample();
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            let _ = function(&bytes, b"ab");
        }
    }
}
