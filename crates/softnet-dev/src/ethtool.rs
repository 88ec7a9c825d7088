//! Features of an interface, by the kernel's ethtool requests: which there are, and switching some of them.
//!
//! Control path; any thread may call it, in whichever network namespace it is. Names are the kernel's
//! (`net/ethtool/common.c`), as `ethtool -k` has them behind its own.

use std::io;

use crate::sys_error::{SysError, SysResult};
use crate::xdp::control::Control;

const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
/// The set of features' names (`ETH_SS_FEATURES`), and bytes of a name.
const FEATURES_SET: u32 = 4;
const NAME_LEN: usize = 32;
/// `struct ethtool_drvinfo`: its length in words, and where the driver's name is in bytes.
const DRVINFO_WORDS: usize = 49;
const DRIVER_AT: usize = 4;

/// An interface's features.
pub struct Ethtool {
    control: Control,
    names: Vec<String>,
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Ethtool {
    /// Of the interface with index `ifindex` of the calling thread's network namespace.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(ifindex: u32) -> SysResult<Self> {
        let control = Control::new(ifindex)?;
        let names =
            names(&control).map_err(|error| SysError::new("list the features of interfaces", error))?;
        Ok(Ethtool { control, names })
    }

    /// Whether the feature `name` is on; `None` if the kernel knows none of that name.
    pub fn is_on(&self, name: &str) -> SysResult<Option<bool>> {
        let Some(at) = self.names.iter().position(|known| known == name) else { return Ok(None) };
        let blocks = self.names.len().div_ceil(32);
        // Available, requested, active and never changed, for each block of 32.
        let mut request = vec![0; 2 + 4 * blocks];
        request[..2].copy_from_slice(&[GFEATURES, blocks as u32]);
        self.control
            .ethtool(&mut request)
            .map_err(|error| SysError::new("read the features of an interface", error))?;
        Ok(Some(request[2 + at / 32 * 4 + 2] & 1 << (at % 32) != 0))
    }

    /// Switches features on or off, those that the kernel knows. What depends on another, or can't be switched, stays as it is.
    ///
    /// # Errors
    /// Needs CAP_NET_ADMIN.
    pub fn set(&self, names: &[&str], on: bool) -> SysResult<()> {
        let blocks = self.names.len().div_ceil(32);
        // Valid and requested, for each block of 32.
        let mut request = vec![0; 2 + 2 * blocks];
        request[..2].copy_from_slice(&[SFEATURES, blocks as u32]);
        for (at, _) in self.names.iter().enumerate().filter(|(_, name)| names.contains(&name.as_str())) {
            request[2 + at / 32 * 2] |= 1 << (at % 32);
            request[2 + at / 32 * 2 + 1] |= u32::from(on) << (at % 32);
        }
        self.control.ethtool(&mut request).map_err(|error| {
            SysError::new(format!("switch {}", names.join(", ")), error).needs("CAP_NET_ADMIN")
        })
    }

    /// Name of the interface's driver.
    pub fn driver(&self) -> SysResult<String> {
        let mut request = [0; DRVINFO_WORDS];
        request[0] = GDRVINFO;
        let asked = self.control.ethtool(&mut request);
        asked.map_err(|error| SysError::new("ask for an interface's driver", error))?;
        Ok(text(&bytes(&request)[DRIVER_AT..DRIVER_AT + NAME_LEN]))
    }
}

fn names(control: &Control) -> io::Result<Vec<String>> {
    // Command, reserved, which sets as 64 bits, the length of that one.
    let mut info = [GSSET_INFO, 0, 0, 0, 0];
    let mask = (1u64 << FEATURES_SET).to_ne_bytes();
    info[2] = u32::from_ne_bytes([mask[0], mask[1], mask[2], mask[3]]);
    info[3] = u32::from_ne_bytes([mask[4], mask[5], mask[6], mask[7]]);
    control.ethtool(&mut info)?;
    let count = info[4] as usize;
    if count > 4096 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many features"));
    }
    let mut strings = vec![0; 3 + count * NAME_LEN / 4];
    strings[..3].copy_from_slice(&[GSTRINGS, FEATURES_SET, count as u32]);
    control.ethtool(&mut strings)?;
    Ok(bytes(&strings[3..]).chunks_exact(NAME_LEN).map(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Netlink;
    use crate::netns::NetNs;
    use softnet_testkit::net_allowed;

    #[test]
    fn features_are_switched() {
        if !net_allowed() {
            return;
        }
        let ns = NetNs::new().unwrap();
        let index = ns.run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_veth("a", "b", (1, 1), None).unwrap();
            netlink.existing_link("a").unwrap().index
        });
        let index = index.unwrap();
        let ethtool = ns.run(|| Ethtool::new(index).unwrap()).unwrap();
        assert_eq!(ethtool.driver().unwrap(), "veth");
        assert_eq!(ethtool.is_on("tx-tcp-segmentation").unwrap(), Some(true));
        assert_eq!(ethtool.is_on("no such feature").unwrap(), None);
        for on in [true, false] {
            ethtool.set(&["rx-gro", "tx-tcp-segmentation", "no such feature"], on).unwrap();
            assert_eq!(ethtool.is_on("rx-gro").unwrap(), Some(on));
            assert_eq!(ethtool.is_on("tx-tcp-segmentation").unwrap(), Some(on));
        }
        ns.run(|| Netlink::new().unwrap().delete_link("a").unwrap()).unwrap();
        assert!(ethtool.is_on("rx-gro").is_err());
    }
}
