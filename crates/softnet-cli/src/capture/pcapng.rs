//! Writes pcapng (draft-ietf-opsawg-pcapng): a section, an interface for each device, enhanced packet blocks.
//!
//! Invariant: every block is whole and a multiple of four bytes long, so that a file that ends
//! early can be read as far as it goes.

use std::io::{self, Write};

const LINKTYPE_ETHERNET: u32 = 1;
/// Bits of `epb_flags`, section 4.3.1.
pub(super) const INBOUND: u32 = 1;
/// See [`INBOUND`].
pub(super) const OUTBOUND: u32 = 2;

/// See the module.
pub(super) struct Writer<W> {
    to: W,
    snaplen: u32,
    /// Interfaces that it has told of.
    interfaces: u32,
}

/// A packet to write.
pub(super) struct Packet<'a> {
    /// Index of the interface.
    pub(super) interface: u32,
    /// ns since 1970.
    pub(super) time: u64,
    /// Bytes that it had.
    pub(super) len: u32,
    /// Those that are kept.
    pub(super) data: &'a [u8],
}

fn padded(bytes: &mut Vec<u8>, value: &[u8]) {
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn option(bytes: &mut Vec<u8>, code: u16, value: &[u8]) {
    // Names and comments are short.
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    bytes.extend(code.to_le_bytes());
    bytes.extend((value.len() as u16).to_le_bytes());
    padded(bytes, value);
}

impl<W: Write> Writer<W> {
    /// Starts a section with these interfaces.
    pub(super) fn new(to: W, interfaces: &[String], snaplen: u32) -> io::Result<Self> {
        let mut writer = Writer { to, snaplen, interfaces: 0 };
        let mut section = Vec::new();
        section.extend(0x1a2b_3c4du32.to_le_bytes());
        section.extend([1, 0, 0, 0]);
        section.extend((-1i64).to_le_bytes());
        // shb_userappl.
        option(&mut section, 4, concat!("softnet ", env!("CARGO_PKG_VERSION")).as_bytes());
        section.extend([0; 4]);
        writer.block(0x0a0d_0d0a, &section)?;
        interfaces.iter().try_for_each(|name| writer.interface(name))?;
        Ok(writer)
    }

    fn interface(&mut self, name: &str) -> io::Result<()> {
        let mut interface = Vec::new();
        interface.extend(LINKTYPE_ETHERNET.to_le_bytes());
        interface.extend(self.snaplen.to_le_bytes());
        // if_name; if_tsresol: 10^-9 s.
        option(&mut interface, 2, name.as_bytes());
        option(&mut interface, 9, &[9]);
        interface.extend([0; 4]);
        self.interfaces += 1;
        self.block(1, &interface)
    }

    /// Writes a packet.
    pub(super) fn packet(
        &mut self,
        packet: &Packet<'_>,
        flags: u32,
        comment: Option<&str>,
    ) -> io::Result<()> {
        // A device that was added meanwhile: readers refuse packets of interfaces that are not told of.
        while self.interfaces <= packet.interface {
            self.interface(&format!("device {}", self.interfaces))?;
        }
        let mut block = Vec::with_capacity(packet.data.len() + 64);
        for word in [
            packet.interface,
            (packet.time >> 32) as u32,
            packet.time as u32,
            packet.data.len() as u32,
            packet.len,
        ] {
            block.extend(word.to_le_bytes());
        }
        padded(&mut block, packet.data);
        if let Some(comment) = comment {
            option(&mut block, 1, comment.as_bytes());
        }
        option(&mut block, 2, &flags.to_le_bytes());
        block.extend([0; 4]);
        self.block(6, &block)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let len = (12 + body.len() as u32).to_le_bytes();
        self.to.write_all(&kind.to_le_bytes())?;
        self.to.write_all(&len)?;
        self.to.write_all(body)?;
        self.to.write_all(&len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks: kind and body. A length that differs between a block's ends, or is no multiple
    /// of four, is an error.
    fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
        let word = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().unwrap());
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let len = word(&file[4..]) as usize;
            assert_eq!((len % 4, word(&file[len - 4..]) as usize), (0, len));
            blocks.push((word(file), &file[8..len - 4]));
            file = &file[len..];
        }
        blocks
    }

    #[test]
    fn a_file_has_whole_blocks_with_comments_and_flags() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, &["eth1".into(), "wan".into()], 100).unwrap();
        let packet = Packet { interface: 1, time: (5 << 32) + 7, len: 99, data: b"abcde" };
        writer.packet(&packet, OUTBOUND, None).unwrap();
        writer.packet(&packet, 0, Some("dropped: ip_ttl")).unwrap();
        let blocks = blocks(&file);
        assert_eq!(blocks.iter().map(|block| block.0).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 1, 6, 6]);
        assert_eq!(blocks[2].1[8..16], [2, 0, 3, 0, b'w', b'a', b'n', 0]);
        let words: Vec<u8> = [1u32, 5, 7, 5, 99].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(blocks[3].1, [&words[..], b"abcde\0\0\0", &[2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0]].concat());
        let comment =
            [&[1, 0, 15, 0][..], b"dropped: ip_ttl\0", &[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(blocks[4].1[28..], comment);
    }

    #[test]
    fn a_device_that_was_added_meanwhile_is_told_of_before_its_packets() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, &["eth1".into()], 100).unwrap();
        let packet = Packet { interface: 2, time: 7, len: 5, data: b"abcde" };
        writer.packet(&packet, 0, None).unwrap();
        writer.packet(&packet, 0, None).unwrap();
        let blocks = blocks(&file);
        assert_eq!(blocks.iter().map(|block| block.0).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 1, 1, 6, 6]);
        assert_eq!(blocks[3].1[12..20], *b"device 2");
    }
}
