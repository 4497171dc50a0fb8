//! What stands before a trampoline's first instruction.
//!
//! For:     another controller that finds our jump at a site it wants too, and one that finds our probes
//!          after we were killed.
//! State:   in the code region, written once, but for the note of a semaphore.
//! Context: control.
//! Keeps:   H1 the tail of a trampoline is one 5-byte instruction: a nop, or a jump to the next
//!             trampoline of the same site.
//!          H2 of a site that was not armed there is no header, once the others run again.
//! Checked: testkit `two`, controllers on one site; `crowd`.

/// First word of a [`TrampolineHeader`].
pub const TRAMPOLINE_MAGIC: u64 = u64::from_le_bytes(*b"nprobeT3");

/// [`TrampolineHeader::hook`] of a trampoline that no other can be chained to.
pub const NO_CHAIN: u16 = u16::MAX;

/// Length of a jump that leads from everywhere near a site to its trampoline.
pub const JUMP_LEN: usize = if cfg!(target_arch = "aarch64") { 4 } else { 5 };

/// Stands directly before a trampoline's entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrampolineHeader {
    /// [`TRAMPOLINE_MAGIC`].
    pub magic: u64,
    /// The probed address.
    pub site: u64,
    /// Where the 5-byte jump stands: at the site, or at an island.
    pub jump_at: u64,
    /// A note of the 16-bit count of tracers that this probe has raised by one: its address, and what is being done to
    /// it; 0 for none. The only word that changes.
    pub semaphore: u64,
    /// Offset of the tail from the entry.
    pub tail: u16,
    /// Bytes from the site to where a thread goes on that comes out of the displaced instructions.
    pub window: u8,
    /// Offset of the first probe's code from the entry: displaced instructions before it run first.
    pub body: u16,
    /// Bytes from the site to the instruction before which the probe runs; [`NO_CHAIN`] if there are several.
    pub hook: u16,
    /// What the file has at `jump_at`.
    pub jump_original: [u8; JUMP_LEN],
    /// What the file has at the site, if a 2-byte jump to an island stands there.
    pub short_original: [u8; 2],
    /// 1 if there is a 2-byte jump.
    pub has_short: u8,
}

impl TrampolineHeader {
    /// Its length, which is also its distance from the entry.
    pub const LEN: usize = size_of::<TrampolineHeader>();

    /// The header in these bytes, if they hold one.
    pub fn parse(bytes: &[u8]) -> Option<TrampolineHeader> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let header = TrampolineHeader {
            magic: word(0)?,
            site: word(8)?,
            jump_at: word(16)?,
            semaphore: word(24)?,
            tail: word(32)? as u16,
            window: (word(32)? >> 16) as u8,
            body: (word(32)? >> 32) as u16,
            hook: (word(32)? >> 48) as u16,
            jump_original: bytes.get(40..40 + JUMP_LEN)?.try_into().ok()?,
            short_original: bytes.get(45..47)?.try_into().ok()?,
            has_short: *bytes.get(47)?,
        };
        (header.magic == TRAMPOLINE_MAGIC && header.is_sound()).then_some(header)
    }

    /// True for what a controller writes: a target's memory may say anything.
    fn is_sound(&self) -> bool {
        let is_jump_in_place = match self.has_short {
            0 => self.jump_at == self.site,
            // A 2-byte jump from the site reaches it.
            1 => i8::try_from(self.jump_at.wrapping_sub(self.site.wrapping_add(2)).cast_signed()).is_ok(),
            _ => false,
        };
        is_jump_in_place && self.body <= self.tail
    }

    /// The bytes of this header.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..8].copy_from_slice(&self.magic.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.site.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.jump_at.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.semaphore.to_le_bytes());
        bytes[32..34].copy_from_slice(&self.tail.to_le_bytes());
        bytes[34] = self.window;
        bytes[36..38].copy_from_slice(&self.body.to_le_bytes());
        bytes[38..40].copy_from_slice(&self.hook.to_le_bytes());
        bytes[40..40 + JUMP_LEN].copy_from_slice(&self.jump_original);
        bytes[45..47].copy_from_slice(&self.short_original);
        bytes[47] = self.has_short;
        bytes
    }
}

const _: () = assert!(size_of::<TrampolineHeader>() == 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_written_and_read_is_the_same() {
        let header = TrampolineHeader {
            magic: TRAMPOLINE_MAGIC,
            site: 0x5555_0000_1234,
            jump_at: 0x5555_0000_1240,
            semaphore: 0x5555_0000_4056,
            tail: 57,
            window: 8,
            body: 9,
            hook: 4,
            jump_original: core::array::from_fn(|i| i as u8),
            short_original: [6, 7],
            has_short: 1,
        };
        assert_eq!(TrampolineHeader::parse(&header.bytes()), Some(header));
        for wrong in [
            TrampolineHeader { has_short: 0, ..header },
            TrampolineHeader { has_short: 2, ..header },
            TrampolineHeader { jump_at: header.site + 130, ..header },
            TrampolineHeader { tail: 8, ..header },
        ] {
            assert_eq!(TrampolineHeader::parse(&wrong.bytes()), None, "{wrong:?}");
        }
        assert_eq!(TrampolineHeader::parse(&[0; 48]), None);
        assert_eq!(TrampolineHeader::parse(&header.bytes()[..47]), None);
    }
}
