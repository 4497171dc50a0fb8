//! A record of a site where the kernel's breakpoint stands.
//!
//! For:     whoever finds our probes after we were killed, and other controllers at the same place.
//! State:   in the code region, written before the breakpoint.
//! Context: control.
//! Keeps:   K1 while a breakpoint of ours can stand in the text there is a record of it.
//! Checked: tests below; testkit `kernel`.

/// First word of a [`KernelSite`].
pub const KERNEL_SITE_MAGIC: u64 = u64::from_le_bytes(*b"nprobeK1");

/// Stands at the end of 64 bytes, where a trampoline's block would have its header.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSite {
    /// [`KERNEL_SITE_MAGIC`].
    pub magic: u64,
    /// The probed address.
    pub site: u64,
    /// Where that is in its file.
    pub offset: u64,
    /// Bytes of the instruction.
    pub len: u8,
    /// The instruction in the file, then zeros.
    pub original: [u8; 15],
    /// Zeros.
    pub reserved: u64,
}

impl KernelSite {
    /// Its length.
    pub const LEN: usize = size_of::<KernelSite>();

    /// The record of the instruction `original`; one that is longer than instructions are is cut.
    pub fn new(site: u64, offset: u64, original: &[u8]) -> KernelSite {
        let len = original.len().min(15);
        let mut bytes = [0; 15];
        for (to, from) in bytes.iter_mut().zip(original) {
            *to = *from;
        }
        KernelSite { magic: KERNEL_SITE_MAGIC, site, offset, len: len as u8, original: bytes, reserved: 0 }
    }

    /// The record in these bytes, if they hold one.
    pub fn parse(bytes: &[u8]) -> Option<KernelSite> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (magic, len) = (word(0)?, *bytes.get(24)?);
        let original = bytes.get(25..40)?.try_into().ok()?;
        let record =
            KernelSite { magic, site: word(8)?, offset: word(16)?, len, original, reserved: word(40)? };
        (magic == KERNEL_SITE_MAGIC && (1..=15).contains(&len)).then_some(record)
    }

    /// The bytes of this record.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..8].copy_from_slice(&self.magic.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.site.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24] = self.len;
        bytes[25..40].copy_from_slice(&self.original);
        bytes[40..48].copy_from_slice(&self.reserved.to_le_bytes());
        bytes
    }

    /// The instruction in the file.
    pub fn instruction(&self) -> &[u8] {
        self.original.get(..usize::from(self.len)).unwrap_or_default()
    }
}

const _: () = assert!(size_of::<KernelSite>() == crate::TrampolineHeader::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_written_and_read_is_the_same() {
        let record = KernelSite::new(0x5555_0000_1234, 0x1234, &[0x48, 0x89, 0xe5]);
        assert_eq!(KernelSite::parse(&record.bytes()), Some(record));
        assert_eq!(record.instruction(), [0x48, 0x89, 0xe5]);
        assert_eq!(KernelSite::parse(&[0; 48]), None);
        let long = KernelSite { len: 16, ..record };
        assert_eq!(KernelSite::parse(&long.bytes()), None);
    }
}
