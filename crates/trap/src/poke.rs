//! Writing jumps beside running threads.
//!
//! For:     the space.
//! State:   /proc/self/mem.
//! Context: target, one thread at a time.
//! Keeps:   K1 whoever comes to the site, or stands under the jump, at any moment, finds an instruction of the original,
//!          int3, or the whole jump.
//!          K2 bytes are compared before the first is written.
//! Checked: `tests/jumps.rs`.
//! Source:  the kernel's `text_poke_bp_batch`: int3, all processors, the rest, all processors, the first byte. Departs:
//!          every instruction under the jump begins with int3 from the first step on and for as long as the jump stands,
//!          so that no thread has to be waited for.

use crate::jump::Jump;
use std::io::{Error, Result};
use sys::membarrier_cmd as cmd;
use text::OwnText;

pub(crate) const INT3: u8 = 0xcc;

/// A deliberate defect of the protocol, for the torture test alone.
#[cfg(feature = "broken")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenPoke {
    /// All bytes of the jump are written from the front, with no int3 in between.
    NoBreakpoint,
}

/// Every processor that runs a thread of this process fetches anew.
///
/// # Errors
/// The kernel cannot.
pub(crate) fn synchronise() -> Result<()> {
    let tried = sys::membarrier(cmd::PRIVATE_EXPEDITED_SYNC_CORE);
    let done = tried.or_else(|_| {
        sys::membarrier(cmd::REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)?;
        sys::membarrier(cmd::PRIVATE_EXPEDITED_SYNC_CORE)
    });
    done.map(drop).map_err(|errno| Error::from_raw_os_error(errno.0))
}

/// Puts the jump over what the file has there.
///
/// # Errors
/// Something else stands there, or it cannot be written. The text is as it was, or int3s of ours stand there, which lead
/// to the copies of their instructions.
pub(crate) fn arm(text: &OwnText, jump: &Jump) -> Result<()> {
    let mut found = vec![0; jump.original.len()];
    text.read(jump.at, &mut found)?;
    if found != jump.original {
        return Err(Error::other("the bytes are not what they should be"));
    }
    #[cfg(feature = "broken")]
    if crate::jump::broken() == Some(BrokenPoke::NoBreakpoint) {
        return (0..jump.new.len()).try_for_each(|i| text.write(jump.at + i as u64, &jump.new[i..=i]));
    }
    begins(jump).try_for_each(|i| text.write(jump.at + i as u64, &[INT3]))?;
    synchronise()?;
    others(jump).try_for_each(|i| text.write(jump.at + i as u64, &jump.new[i..=i]))?;
    synchronise()?;
    text.write(jump.at, &jump.new[..1])?;
    synchronise()
}

/// Takes the jump away; `first` is what the site's first byte becomes: the file's, or a breakpoint.
///
/// # Errors
/// It cannot be written. Every byte is the jump's, the file's, or int3 of ours.
pub(crate) fn disarm(text: &OwnText, jump: &Jump, first: u8) -> Result<()> {
    #[cfg(feature = "broken")]
    if crate::jump::broken() == Some(BrokenPoke::NoBreakpoint) {
        let bytes = [&[first], &jump.original[1..]].concat();
        return (0..bytes.len()).try_for_each(|i| text.write(jump.at + i as u64, &bytes[i..=i]));
    }
    text.write(jump.at, &[INT3])?;
    synchronise()?;
    others(jump).try_for_each(|i| text.write(jump.at + i as u64, &jump.original[i..=i]))?;
    synchronise()?;
    let inside = begins(jump).filter(|i| *i != 0);
    inside.into_iter().try_for_each(|i| text.write(jump.at + i as u64, &jump.original[i..=i]))?;
    text.write(jump.at, &[first])?;
    synchronise()
}

/// Offsets of bytes that change at which an instruction of the original begins.
fn begins(jump: &Jump) -> impl Iterator<Item = usize> + '_ {
    (0..jump.new.len()).filter(|i| is_begin(jump, *i) && (*i == 0 || jump.new[*i] != jump.original[*i]))
}

/// The others that change.
fn others(jump: &Jump) -> impl Iterator<Item = usize> + '_ {
    (0..jump.new.len()).filter(|i| !is_begin(jump, *i) && jump.new[*i] != jump.original[*i])
}

fn is_begin(jump: &Jump, offset: usize) -> bool {
    jump.is_begin(offset)
}
